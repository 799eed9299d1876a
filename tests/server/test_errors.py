"""The mapping of typed errors to HTTP."""

from __future__ import annotations

import json

import pytest

from ops import errors
from ops.errors import OrtolanError
from server.errors import answer_to, error_response, http_error_response

EXPECTED = {
    "InvalidRequest": (400, "invalid_value"),
    "UnsupportedParameter": (400, "unsupported_parameter"),
    "ContextLengthExceeded": (400, "context_length_exceeded"),
    "UnknownModel": (404, "model_not_found"),
    "CacheTooSmall": (400, "cache_too_small"),
    "DeadlineUnreachable": (503, "deadline_unreachable"),
    "DeadlineExceeded": (504, "deadline_exceeded"),
    "Overloaded": (503, "overloaded"),
    "EngineUnavailable": (503, "engine_unavailable"),
    "EngineDied": (503, "engine_died"),
}
KINDS = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, OrtolanError)]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_error_has_its_answer(kind: type[OrtolanError]) -> None:
    error = kind("What.", why="Why.", remedy="Remedy.")
    status, code = EXPECTED.get(kind.__name__, (500, "engine_error"))
    answer = answer_to(error)
    assert (answer.status, answer.code) == (status, code)
    response = error_response(error)
    assert response.status == status
    assert response.content_type == "application/json"
    body = json.loads(response.body)["error"]  # type: ignore[arg-type]
    assert body["message"] == "What. Why. Remedy."
    assert body["type"] == ("invalid_request_error" if status < 500 else "server_error")
    assert ("Retry-After" in response.headers) == (status == 503)


def test_retry_after_is_whole_seconds_and_at_least_one() -> None:
    for seconds, header in ((0.0, "1"), (1.2, "2"), (7, "7")):
        response = error_response(errors.Overloaded("Full.", retry_after=seconds))
        assert response.headers["Retry-After"] == header


def test_http_errors_have_the_same_shape() -> None:
    response = http_error_response(405, "No.", {"Allow": "GET"})
    assert json.loads(response.body)["error"] == {  # type: ignore[arg-type]
        "message": "No.",
        "type": "invalid_request_error",
        "param": None,
        "code": "method_not_allowed",
    }
    assert response.headers["Allow"] == "GET"
