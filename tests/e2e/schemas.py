"""Twenty JSON schemas such as people ask for; whatever can be long is bounded, so that every answer ends."""

from __future__ import annotations

from typing import Any


def text(length: int = 24, **more: Any) -> dict[str, Any]:
    return {"type": "string", "maxLength": length, **more}


def thing(required: dict[str, Any], optional: dict[str, Any] | None = None) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {**required, **(optional or {})},
        "required": list(required),
        "additionalProperties": False,
    }


def some(items: dict[str, Any], most: int = 3, least: int = 0) -> dict[str, Any]:
    return {"type": "array", "items": items, "minItems": least, "maxItems": most}


INTEGER = {"type": "integer", "minimum": 0, "maximum": 10_000}
FLAG = {"type": "boolean"}

SCHEMAS: dict[str, dict[str, Any]] = {
    "person": thing({"name": text(), "age": {"type": "integer", "minimum": 0, "maximum": 130}}),
    "address": thing({"street": text(), "city": text(), "zip": {"type": "string", "pattern": "^[0-9]{5}$"}}),
    "sentiment": thing({"sentiment": {"enum": ["positive", "negative", "neutral"]}, "sure": FLAG}),
    "numbers": some(INTEGER, 6, 2),
    "words": some(text(10), 4, 1),
    "point": thing({"x": {"type": "number", "minimum": -90, "maximum": 90, "multipleOf": 0.25}, "y": INTEGER}),
    "nested": thing({"owner": thing({"name": text(), "pet": thing({"kind": {"enum": ["cat", "dog"]}})})}),
    "optional": thing({"id": INTEGER}, {"note": text(), "done": FLAG}),
    "nullable": thing({"value": {"anyOf": [{"type": "null"}, INTEGER]}}),
    "union": {
        "anyOf": [thing({"kind": {"const": "a"}, "n": INTEGER}), thing({"kind": {"const": "b"}, "s": text()})]
    },
    "date": thing(
        {
            "day": {"type": "string", "format": "date"},
            "time": {"type": "string", "pattern": "^[0-2][0-9]:[0-5][0-9]$"},
        }
    ),
    "email": thing({"mail": {"type": "string", "pattern": "^[a-z]{1,12}@[a-z]{1,12}\\.(com|org)$"}}),
    "table": some(thing({"row": INTEGER, "cells": some(INTEGER, 3, 3)}), 2, 1),
    "enum of many": {"enum": [f"item {number}" for number in range(200)]},
    "constants": thing({"version": {"const": 2}, "type": {"const": "event"}, "name": text()}),
    "tuple": {
        "type": "array",
        "prefixItems": [text(8), INTEGER, FLAG],
        "minItems": 3,
        "maxItems": 3,
        "items": False,
    },
    "definitions": {
        "$defs": {"money": thing({"amount": INTEGER, "currency": {"enum": ["EUR", "USD"]}})},
        **thing({"price": {"$ref": "#/$defs/money"}, "tax": {"$ref": "#/$defs/money"}}),
    },
    "ranges": thing(
        {
            "a": {"type": "integer", "minimum": 17, "maximum": 19},
            "b": {"type": "integer", "multipleOf": 5, "minimum": 0, "maximum": 100},
        }
    ),
    "map": {
        "type": "object",
        "properties": {"a": FLAG},
        "required": ["a"],
        "additionalProperties": INTEGER,
        "maxProperties": 3,
    },
    "call": thing({"tool": {"enum": ["search", "open"]}, "arguments": thing({"query": text(), "limit": INTEGER})}),
}
