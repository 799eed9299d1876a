"""Structured logs on standard error: one line a record, as text or as JSON, with what was given as `extra`."""

from __future__ import annotations

import datetime
import logging
import re
import sys
from typing import Any

import msgspec

_WORD = re.compile(r"[^\s\"=]+")
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def set_up(level: str, *, json_lines: bool) -> None:
    """Send the logs of this process to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if json_lines else TextLines())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("ortolan").setLevel(level.upper())


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    return {name: value for name, value in vars(record).items() if name not in _STANDARD and value is not None}


def _time(record: logging.LogRecord) -> str:
    return datetime.datetime.fromtimestamp(record.created, datetime.UTC).isoformat(timespec="milliseconds")


def _value(value: Any) -> str:
    """A value of a text line, quoted where it would not read as one word."""
    text = str(value)
    return text if _WORD.fullmatch(text) else msgspec.json.encode(text).decode()


class TextLines(logging.Formatter):
    """`time level logger message key=value ...`; control characters are escaped, so a record is one line."""

    def format(self, record: logging.LogRecord) -> str:
        fields = "".join(f" {name}={_value(value)}" for name, value in _fields(record).items())
        line = f"{_time(record)} {record.levelname.lower()} {record.name} {record.getMessage()}{fields}"
        line = "".join(character if character.isprintable() else repr(character)[1:-1] for character in line)
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class JsonLines(logging.Formatter):
    """One JSON object a record: time, level, logger, message, and the extra fields."""

    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_fields(record),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return msgspec.json.encode(entry, enc_hook=str).decode()
