"""From the bytes of a body to a struct; whatever is wrong becomes an InvalidRequest that names the field."""

from __future__ import annotations

import re
from typing import TypeVar

import msgspec
from msgspec import inspect

from ops.errors import InvalidRequest
from server.nearest import nearest

Body = TypeVar("Body", bound=msgspec.Struct)

_AT = re.compile(r" - at (`key` in )?`\$\.?(.*)`$", re.DOTALL)
_STEP = re.compile(r"([^.\[\]]+)|\[[^\]]*\]")
_ESCAPE = re.compile(rb"\\(?:u([0-9a-fA-F]{4})|.)", re.DOTALL)
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
    what = _BYTE.sub("", message).removeprefix("JSON is malformed: ").strip()
    # The decoder takes half a pair at the end of a string for the end of the body.
    lone = _lone_surrogate(body) if "surrogate" in what or "truncated" in what else None
    offset = lone if lone is not None else int(found[1]) if found else len(body)
    if lone is not None:
        what = f"{body[lone : lone + 6].decode()} is half of a surrogate pair and stands for no character"
    before = body[:offset]
    line = before.count(b"\n") + 1
    column = offset - (before.rfind(b"\n") + 1) + 1
    return InvalidRequest(f"The body is not valid JSON at line {line}, column {column} (byte {offset}): {what}.")


def _lone_surrogate(body: bytes) -> int | None:
    """Where an escape is half of a UTF-16 pair without the other (RFC 8259, section 8.2)."""
    high = -1  # where the pair begins whose second half must come next
    for escape in _ESCAPE.finditer(body):
        code = int(escape[1], 16) if escape[1] else 0
        follows = high >= 0 and escape.start() == high + 6
        if high >= 0 and not (follows and 0xDC00 <= code < 0xE000):
            return high
        if not follows and 0xDC00 <= code < 0xE000:
            return escape.start()
        high = escape.start() if 0xD800 <= code < 0xDC00 else -1
    return high if high >= 0 else None


def _explain(message: str, kind: type[msgspec.Struct]) -> InvalidRequest:
    """Turn a message of msgspec into one that names the field."""
    found = _AT.search(message)
    place = found[2] if found else ""
    what = _AT.sub("", message)
    field = _NAMED_FIELD.search(what)
    if field is None:
        where = f"A key of {place}" if found and found[1] else place or "The body"
        values = _values_at(kind, place) if what.startswith("Invalid enum value") else []
        remedy = f"Send one of {', '.join(map(repr, values))}." if values else ""
        return InvalidRequest(f"{where}: {_plain(what)}.", remedy=remedy, param=place or None)
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


def _values_at(kind: type[msgspec.Struct], place: str) -> list[object]:
    """The values that a field takes, where its type lists them; of the place's alternatives all that do."""
    types: list[inspect.Type] = [inspect.type_info(kind)]
    for step in _STEP.finditer(place):
        types = [inner for outer in _flat(types) for inner in _within(outer, step[1])]
    return [value for found in _flat(types) if isinstance(found, inspect.LiteralType) for value in found.values]


def _flat(types: list[inspect.Type]) -> list[inspect.Type]:
    return [one for found in types for one in (found.types if isinstance(found, inspect.UnionType) else (found,))]


def _within(outer: inspect.Type, name: str | None) -> list[inspect.Type]:
    """The types of a struct's field, or of an array's or an object's values."""
    if isinstance(outer, inspect.StructType) and name is not None:
        return [field.type for field in outer.fields if field.encode_name == name]
    if isinstance(outer, inspect.ListType | inspect.VarTupleType) and name is None:
        return [outer.item_type]
    return [outer.value_type] if isinstance(outer, inspect.DictType) and name is None else []
