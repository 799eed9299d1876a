"""What StructuredOutputs accepts, and what it names when it does not."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from ops.errors import InvalidRequest
from rtcore.decoding.grammar.spec import MAX_BYTES, MAX_CHOICES, StructuredOutputs
from rtcore.decoding.params import SamplingParams


@pytest.mark.parametrize(
    ("spec", "kind", "source"),
    [
        ({"json": {"type": "object"}}, "json", '{"type":"object"}'),
        ({"json": '{"type": "object"}'}, "json", '{"type": "object"}'),
        ({"json": True}, "json", "true"),
        ({"regex": "a+"}, "regex", "a+"),
        ({"choice": ["a", "b", "a"]}, "choice", '["a", "b"]'),
        ({"grammar": 'start: "a"'}, "grammar", 'start: "a"'),
        ({"json_object": True}, "json_object", ""),
        ({"json_object": False, "regex": "a"}, "regex", "a"),
    ],
)
def test_kind_and_source(spec: dict[str, Any], kind: str, source: str) -> None:
    made = StructuredOutputs(**spec)
    assert (made.kind, made.source) == (kind, source)
    assert made.key == StructuredOutputs(**spec, field="guided").key, "errors' fields make no other grammar"


def test_an_object_and_its_text_keep_the_order_of_properties() -> None:
    first = StructuredOutputs(json={"properties": {"b": {}, "a": {}}})
    second = StructuredOutputs(json={"properties": {"a": {}, "b": {}}})
    assert first.source == '{"properties":{"b":{},"a":{}}}'
    assert first.key != second.key


def test_it_crosses_to_the_engine_process_as_it_is() -> None:
    params = SamplingParams(structured_outputs=StructuredOutputs(choice=["x", "y"], field="guided_choice"))
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(params), type=SamplingParams) == params


@pytest.mark.parametrize(
    ("spec", "param"),
    [
        ({}, "structured_outputs"),
        ({"json_object": False}, "structured_outputs"),
        ({"regex": "a", "grammar": 'start: "a"'}, "structured_outputs"),
        ({"json": {}, "json_object": True}, "structured_outputs"),
        ({"regex": ""}, "structured_outputs.regex"),
        ({"grammar": ""}, "structured_outputs.grammar"),
        ({"choice": []}, "structured_outputs.choice"),
        ({"choice": ["a", ""]}, "structured_outputs.choice"),
        ({"choice": "ab"}, "structured_outputs.choice"),
        ({"choice": [str(number) for number in range(MAX_CHOICES + 1)]}, "structured_outputs.choice"),
        ({"choice": ["\ud800"], "field": "guided_choice"}, "guided_choice"),
        ({"json": {"a": object()}}, "structured_outputs.json"),
        ({"json": {"description": "x" * MAX_BYTES["json"]}}, "structured_outputs.json"),
        ({"regex": "\ud800"}, "structured_outputs.regex"),
        ({"regex": "a" * (MAX_BYTES["regex"] + 1), "field": "guided_regex"}, "guided_regex"),
    ],
)
def test_refusals_name_the_field(spec: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        StructuredOutputs(**spec)
    assert caught.value.param == param


def test_a_schema_that_contains_itself_is_refused() -> None:
    schema: dict[str, Any] = {"type": "array"}
    schema["items"] = schema
    with pytest.raises(InvalidRequest, match="no JSON"):
        StructuredOutputs(json=schema)
