"""Each kind of specification becomes a grammar of exactly its texts."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rtcore.decoding.grammar.source import MAX_ERROR, GrammarError, new_matcher, shorten
from rtcore.decoding.grammar.spec import StructuredOutputs
from tests.rtcore.decoding.grammar.words import encode, tokenizer

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name"],
    "additionalProperties": False,
}
TREE = {
    "$defs": {"node": {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}, "required": []}},
    "$ref": "#/$defs/node",
}


def matches(text: str, **spec: Any) -> bool:
    asked = StructuredOutputs(**spec)
    matcher = new_matcher(tokenizer(), asked.kind, asked.source)
    ids = encode(text)
    return matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()


@pytest.mark.parametrize(
    ("spec", "texts", "others"),
    [
        (
            {"json": PERSON},
            ['{"name": "x", "age": 1}', '{"name":"x"}'],
            ["{}", '{"name": 1}', '{"name": "x", "b": 1}'],
        ),
        ({"json": json.dumps(PERSON)}, ['{"name": "x"}'], ['{"name": "x"', "[]"]),
        ({"json": TREE}, ["{}", '{"next": {"next": {}}}'], ['{"next": 1}']),
        ({"json": True}, ["1", "[]", '{"a": null}'], ["x", ""]),
        ({"json": {"enum": ["a", 1, None]}}, ['"a"', "1", "null"], ['"b"', "2"]),
        ({"json_object": True}, ["{}", '{"a": [1, {"b": 2}]}'], ["[]", "1"]),
        ({"regex": "[0-9]{3}-(a|b)/c"}, ["123-a/c", "000-b/c"], ["12-a/c", "123-a/cc"]),
        ({"choice": ["yes", 'n"o', "may\\be", "$x"]}, ["yes", 'n"o', "may\\be", "$x"], ["ye", "no", "yesn"]),
        ({"grammar": 'start: expr\nexpr: NUM | expr "+" expr\nNUM: /[0-9]+/'}, ["1", "1+22+3"], ["+", "1+"]),
    ],
)
def test_what_matches(spec: dict[str, Any], texts: list[str], others: list[str]) -> None:
    assert [text for text in texts if not matches(text, **spec)] == []
    assert [text for text in others if matches(text, **spec)] == []


def test_whitespace_of_json_is_bounded() -> None:
    assert matches('{"name": "x", "age": 1}', json=PERSON)
    assert not matches('{  "name": "x"}', json=PERSON)


@pytest.mark.parametrize(
    ("kind", "source"),
    [
        ("json", "{"),
        ("json", "false"),
        ("json", "[1]"),
        ("json", '{"type":"string","not":{"const":"a"}}'),
        ("json", '{"$ref":"http://127.0.0.1:9/schema.json"}'),
        ("json", '{"$ref":"#/$defs/none"}'),
        ("json", '{"type":"object","uniqueItems":true,"x-guidance":{"lenient":true}}'),
        ("regex", "("),
        ("regex", r"(a)\1"),
        ("regex", "(?=a)b"),
        ("grammar", "start: missing"),
        ("grammar", "\x00{"),
    ],
)
def test_what_is_no_grammar(kind: str, source: str) -> None:
    with pytest.raises(GrammarError) as caught:
        new_matcher(tokenizer(), kind, source)
    assert str(caught.value)


def test_errors_are_one_line_of_bounded_length() -> None:
    assert shorten("\n first \n second") == "first"
    assert shorten("<non-verbose/>\n") == "It is not accepted"
    assert len(shorten("x" * 1000)) == MAX_ERROR + 3


def test_a_schema_whose_branches_overlap_is_told_what_would_do() -> None:
    with pytest.raises(GrammarError, match="anyOf takes them"):
        new_matcher(tokenizer(), "json", '{"oneOf": [{"type": "integer"}, {"type": "number"}]}')
