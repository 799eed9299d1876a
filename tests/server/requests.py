"""The smallest right requests, and what the answer to a wrong one looks like."""

from __future__ import annotations

from typing import Any

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
BASE: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 1},
    TEXT: {"prompt": "hello", "max_tokens": 1},
}


def assert_error(status: int, body: Any, expected: int, param: str | None, code: str | None = None) -> None:
    """The answer is OpenAI's error body with this status and param (or a place within it)."""
    assert status == expected, body
    assert set(body) == {"error"}
    error = body["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    assert error["message"]
    assert "Traceback" not in error["message"]
    if param is not None:
        assert error["param"] is not None
        assert error["param"] == param or error["param"].startswith((f"{param}[", f"{param}."))
    if code is not None:
        assert error["code"] == code
