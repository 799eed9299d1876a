"""Specifications that somebody might send to harm a server, and whether they may be served all the same."""

from __future__ import annotations

import json
from typing import Any


def _chain(rules: int, name: str) -> str:
    lines = [f"{name}{number}: {name}{number + 1}" for number in range(rules)]
    return "\n".join([f"start: {name}0", *lines, f'{name}{rules}: "a"'])


REFUSED: dict[str, dict[str, Any]] = {
    "parentheses in a grammar": {"grammar": "start: " + "(" * 20000 + '"a"' + ")" * 20000},
    "rules that follow on one another": {"grammar": _chain(3000, "r")},
    "terminals that follow on one another": {"grammar": _chain(2000, "T")},
    "terminals that double": {"grammar": "start: T0\n" + "\n".join(f"T{n}: T{n + 1} T{n + 1}" for n in range(64))},
    "rules that double": {
        "grammar": "start: r0\n" + "\n".join(f"r{n}: r{n + 1} r{n + 1}" for n in range(64)) + '\nr64: "a"'
    },
    "a rule of itself": {"grammar": "start: start"},
    "a file": {"grammar": '%import /etc/passwd\nstart: "a"'},
    "garbage in a grammar": {"grammar": "\x00\x7f{{{{"},
    "parentheses in a regex": {"regex": "(" * 5000 + "a" + ")" * 5000},
    "stars of stars": {"regex": "(" * 200 + "a" + ")*" * 200},
    "a long repetition": {"regex": "(a{1000}){1000}"},
    "a longer repetition": {"regex": "a{1000000000}"},
    "many words": {"regex": "|".join(f"word{number}" for number in range(100_000))},
    "a deep schema": {"json": '{"type":"array","items":' * 5000 + "{}" + "}" * 5000},
    "a large enum": {"json": {"enum": [f"v{number}" for number in range(200_000)]}},
    "a schema of itself": {"json": {"$ref": "#"}},
    "two schemas of each other": {
        "json": {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}
    },
    "a remote schema": {"json": {"$ref": "http://127.0.0.1:9/schema.json"}},
    "a schema of a file": {"json": {"$ref": "file:///etc/passwd"}},
    "ten megabytes": {"json": {"properties": {f"p{number}": {"type": "string"} for number in range(300_000)}}},
    "many optional properties": {
        "json": {"properties": {f"p{number}": {"type": "string"} for number in range(10_000)}}
    },
    "products of alternatives": {
        "json": {
            "allOf": [
                {"anyOf": [{"properties": {f"p{n}_{m}": {"type": "integer"}}} for m in range(6)]} for n in range(10)
            ]
        }
    },
    "a large multiple": {"json": {"type": "integer", "multipleOf": 1_000_003}},
    "a huge number": {"json": {"type": "integer", "minimum": -(10**300), "maximum": 10**300}},
    "garbage for a schema": {"json": "{nope"},
    "no schema": {"json": "[1]"},
    "nothing at all": {"json": "false"},
}

SERVED: dict[str, dict[str, Any]] = {
    "a catastrophic regex": {"regex": "(a+)+$"},
    "an exponential automaton": {"regex": "(.*a.{20}|.*b.{20}|.*c.{20})*"},
    "an ambiguous grammar": {"grammar": 'start: s\ns: s s | "a" | '},
    "repetitions of repetitions": {"regex": "((a{1,1000}){1,1000}){1,1000}"},
    "a hundred levels": {"json": '{"type":"array","items":' * 100 + "{}" + "}" * 100},
    "a tree": {
        "json": {
            "$defs": {
                "n": {"type": "object", "properties": {"l": {"$ref": "#/$defs/n"}, "r": {"$ref": "#/$defs/n"}}}
            },
            "$ref": "#/$defs/n",
        }
    },
    "a pattern of a schema": {"json": {"type": "string", "pattern": "(a+)+b(.*a){20}.{40}"}},
    "a long string": {"json": {"type": "string", "minLength": 100_000}},
    "zero": {"json": {"const": json.loads('"\\u0000"')}},
}
