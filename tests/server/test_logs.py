"""Log lines: one line a record, in both forms, whatever a client sends."""

from __future__ import annotations

import json
import logging

import pytest

from server.logs import JsonLines, TextLines


def record(message: str, **extra: object) -> logging.LogRecord:
    made = logging.makeLogRecord(
        {"name": "ortolan.test", "levelno": 20, "levelname": "INFO", "msg": message, **extra}
    )
    made.created = 0.0
    return made


@pytest.mark.parametrize("hostile", ["a\nb", "a\r\n2026 error fake", "\x1b[31m", "\u2028", 'quote " and = sign'])
def test_a_record_is_one_line(hostile: str) -> None:
    text = TextLines().format(record(f"GET {hostile}", error=hostile))
    assert len(text.splitlines()) == 1
    assert text.isprintable()
    line = JsonLines().format(record(f"GET {hostile}", error=hostile))
    assert "\n" not in line
    assert json.loads(line)["error"] == hostile


def test_the_form() -> None:
    made = record("answered", status=200, request_id="x", error=None)
    assert (
        TextLines().format(made)
        == "1970-01-01T00:00:00.000+00:00 info ortolan.test answered status=200 request_id=x"
    )
    assert json.loads(JsonLines().format(made)) == {
        "time": "1970-01-01T00:00:00.000+00:00",
        "level": "info",
        "logger": "ortolan.test",
        "message": "answered",
        "status": 200,
        "request_id": "x",
    }


def test_values_that_json_does_not_know_are_written_as_text() -> None:
    assert json.loads(JsonLines().format(record("x", error=ValueError("bad"))))["error"] == "bad"


def test_exceptions_are_kept() -> None:
    try:
        raise ValueError("bad")
    except ValueError as error:
        made = record("x", exc_info=(type(error), error, error.__traceback__))
    assert "ValueError: bad" in json.loads(JsonLines().format(made))["exception"]
    assert TextLines().format(made).endswith("ValueError: bad")
