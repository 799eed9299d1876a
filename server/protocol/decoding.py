"""From the bytes of a body to a struct; whatever is wrong becomes an InvalidRequest that names the field."""

from __future__ import annotations

import re
from typing import TypeVar

import msgspec

from ops.errors import InvalidRequest
from server.nearest import nearest

Body = TypeVar("Body", bound=msgspec.Struct)

_AT = re.compile(r" - at (?:`key` in )?`\$\.?(.*)`$", re.DOTALL)
_BYTE = re.compile(r"\(byte (\d+)\)$")
_NAMED_FIELD = re.compile(r"(unknown|required) field `(.*?)`", re.DOTALL)
_TYPES = re.compile(r"`([a-z]+(?: \| [a-z]+)*)`")
_WORDS = {
    "int": "an integer",
    "float": "a number",
    "str": "a string",
    "bool": "true or false",
    "array": "an array",
    "object": "an object",
}
MAX_SHOWN = 200


class UnknownField(InvalidRequest):
    """A field that no OpenAI-compatible request has here."""


def decode_body(body: bytes, decoder: msgspec.json.Decoder[Body], kind: type[Body]) -> Body:
    """Decode a JSON body of a kind. Raises InvalidRequest with `param`, or with the position of malformed JSON."""
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise _explain(str(error), kind) from error
    except msgspec.DecodeError as error:
        raise _malformed(str(error), body) from error
    except RecursionError as error:
        raise InvalidRequest("The JSON body is nested too deeply.", remedy="Send a flatter body.") from error


def _malformed(message: str, body: bytes) -> InvalidRequest:
    """Name line and column; a body that ends too early is at fault at its end."""
    found = _BYTE.search(message)
    offset = int(found[1]) if found else len(body)
    before = body[:offset]
    line = before.count(b"\n") + 1
    column = offset - (before.rfind(b"\n") + 1) + 1
    what = _BYTE.sub("", message).removeprefix("JSON is malformed: ").strip()
    return InvalidRequest(f"The body is not valid JSON at line {line}, column {column} (byte {offset}): {what}.")


def _explain(message: str, kind: type[msgspec.Struct]) -> InvalidRequest:
    """Turn a message of msgspec into one that names the field."""
    found = _AT.search(message)
    place = found[1] if found else ""
    what = _AT.sub("", message)
    field = _NAMED_FIELD.search(what)
    if field is None:
        return InvalidRequest(f"{place or 'The body'}: {_plain(what)}.", param=place or None)
    name = field[2][:MAX_SHOWN]
    path = f"{place}.{name}" if place else name
    if field[1] == "required":
        return InvalidRequest(f"{path} is missing.", param=path)
    known = [] if place else [entry.encode_name for entry in msgspec.structs.fields(kind)]
    close = nearest(name, known)
    remedy = "" if close is None else f"Did you mean {close!r}?"
    return UnknownField(f"Unknown parameter: {path!r}.", remedy=remedy, param=path)


def _plain(what: str) -> str:
    """msgspec's words with JSON's names for types."""
    return _TYPES.sub(lambda found: " or ".join(_WORDS.get(name, name) for name in found[1].split(" | ")), what)[
        :MAX_SHOWN
    ]
