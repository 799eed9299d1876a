"""Structured output over HTTP: OpenAI's and vLLM's fields, and what is refused before an answer begins."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Literal

import jsonschema
import openai
import psutil
import pydantic
import pytest
import pytest_asyncio

from tests.rtcore.decoding.grammar.hostile import REFUSED
from tests.server.conftest import Running, start_server
from tests.server.fake_bundle import NAME

in_module_loop = pytest.mark.asyncio(loop_scope="module")

SCHEMA = {
    "type": "object",
    "properties": {"size": {"enum": ["S", "M", "L"]}, "count": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["size", "count"],
    "additionalProperties": False,
}
WORD = "[a-z]{3,9}[0-9]"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def drawing(fake_bundle: Path) -> AsyncIterator[Running]:
    """A server whose model draws at random, so that whatever holds of an answer is the grammar's doing."""
    async with start_server(fake_bundle, "drawing") as server:
        yield server


def wrapped(schema: Any, **more: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, **more}}


@in_module_loop
@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": wrapped(SCHEMA)},
        {"response_format": wrapped(SCHEMA, strict=True, description="what to send")},
        {"structured_outputs": {"json": SCHEMA}},
        {"structured_outputs": {"json": json.dumps(SCHEMA), "regex": None}},
        {"guided_json": SCHEMA},
        {"guided_json": json.dumps(SCHEMA)},
    ],
    ids=str,
)
async def test_schemas(drawing: Running, fields: dict[str, Any]) -> None:
    status, body = await drawing.chat("go", max_tokens=200, seed=1, n=3, **fields)
    assert status == 200, body
    assert len({choice["message"]["content"] for choice in body["choices"]}) > 1
    for choice in body["choices"]:
        assert choice["finish_reason"] == "stop"
        jsonschema.validate(json.loads(choice["message"]["content"]), SCHEMA)


@in_module_loop
@pytest.mark.parametrize(
    ("fields", "pattern"),
    [
        ({"structured_outputs": {"regex": WORD}}, WORD),
        ({"guided_regex": WORD}, WORD),
        ({"structured_outputs": {"choice": ["red", "green"]}}, "red|green"),
        ({"guided_choice": ["red", "green"]}, "red|green"),
        ({"structured_outputs": {"grammar": 'start: "<" /[ab]{2,4}/ ">"'}}, "<[ab]{2,4}>"),
        ({"guided_grammar": 'start: "<" /[ab]{2,4}/ ">"'}, "<[ab]{2,4}>"),
    ],
    ids=str,
)
async def test_other_forms(drawing: Running, fields: dict[str, Any], pattern: str) -> None:
    status, body = await drawing.complete("go", max_tokens=50, seed=2, **fields)
    assert status == 200, body
    assert re.fullmatch(pattern, body["choices"][0]["text"])
    assert body["choices"][0]["finish_reason"] == "stop"


@in_module_loop
async def test_any_object_and_plain_text(drawing: Running) -> None:
    status, body = await drawing.chat("go", max_tokens=20, seed=3, response_format={"type": "json_object"})
    assert status == 200
    assert body["choices"][0]["message"]["content"].startswith("{")
    status, body = await drawing.complete("go", max_tokens=20, seed=3, structured_outputs={"json_object": True})
    assert body["choices"][0]["text"].startswith("{")
    status, body = await drawing.chat("go", max_tokens=5, response_format={"type": "text"})
    assert status == 200


class Order(pydantic.BaseModel):
    size: Literal["S", "M", "L"]
    gift: bool


@in_module_loop
async def test_the_openai_client_parses_what_it_asked_for(drawing: Running) -> None:
    answer = await drawing.client().chat.completions.parse(
        model=NAME, messages=[{"role": "user", "content": "go"}], response_format=Order, max_tokens=100, seed=4
    )
    assert isinstance(answer.choices[0].message.parsed, Order)


@in_module_loop
async def test_streams_are_the_same_text(drawing: Running) -> None:
    client = drawing.client()
    fields: dict[str, Any] = {
        "model": NAME,
        "prompt": "go",
        "max_tokens": 100,
        "seed": 5,
        "extra_body": {"structured_outputs": {"json": SCHEMA}},
    }
    whole = await client.completions.create(**fields)
    parts = [chunk.choices[0].text async for chunk in await client.completions.create(**fields, stream=True)]
    assert "".join(parts) == whole.choices[0].text
    jsonschema.validate(json.loads(whole.choices[0].text), SCHEMA)


@in_module_loop
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"guided_regex": "(("}, "guided_regex"),
        ({"structured_outputs": {"regex": "(("}}, "structured_outputs.regex"),
        ({"structured_outputs": {"grammar": "start: missing"}}, "structured_outputs.grammar"),
        ({"structured_outputs": {"choice": []}}, "structured_outputs.choice"),
        ({"structured_outputs": {}}, "structured_outputs"),
        ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs"),
        ({"structured_outputs": {"regex": 3}}, "structured_outputs.regex"),
        ({"structured_outputs": {"rgx": "a"}}, "structured_outputs.rgx"),
        ({"guided_json": {"type": "string", "not": {}}}, "guided_json"),
        ({"guided_json": [1]}, "guided_json"),
        ({"guided_regex": "a", "guided_choice": ["a"]}, "guided_choice"),
        ({"response_format": {"type": "json_object"}, "guided_regex": "a"}, "guided_regex"),
        ({"response_format": {"type": "yaml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {}}}},
            "response_format.json_schema.name",
        ),
        ({"response_format": wrapped({"$ref": "http://127.0.0.1:9/x"})}, "response_format.json_schema.schema"),
    ],
    ids=str,
)
async def test_refusals_come_before_an_answer_begins(
    drawing: Running, fields: dict[str, Any], param: str, stream: bool
) -> None:
    for status, body in (
        await drawing.chat("go", stream=stream, **fields),
        await drawing.complete("go", stream=stream, **fields),
    ):
        assert status == 400, body
        assert body["error"]["param"] == param
        assert body["error"]["type"] == "invalid_request_error"


@in_module_loop
async def test_others_are_served_while_hostile_grammars_are_tried(drawing: Running) -> None:
    """Hostile requests and plain ones at once: each gets its own answer."""
    names = (
        "a large multiple",
        "a long repetition",
        "rules that follow on one another",
        "products of alternatives",
    )
    hostile = [drawing.complete("go", max_tokens=2, structured_outputs=REFUSED[name]) for name in names]
    plain = [drawing.complete("go", max_tokens=3, ignore_eos=True) for _ in range(20)]
    answers = await asyncio.gather(*hostile, *plain)
    assert [status for status, _ in answers] == [400] * len(names) + [200] * len(plain)
    assert all(body["usage"]["completion_tokens"] == 3 for _, body in answers[len(names) :])


@in_module_loop
async def test_speculation_is_a_switch(drawing: Running) -> None:
    fields: dict[str, Any] = {"max_tokens": 5, "seed": 1}
    answers = [await drawing.complete("go", speculation=value, **fields) for value in (True, False, None)]
    assert len({body["choices"][0]["text"] for _, body in answers}) == 1
    status, body = await drawing.complete("go", speculation="no")
    assert (status, body["error"]["param"]) == (400, "speculation")


@in_module_loop
async def test_a_client_that_leaves_while_its_grammar_is_compiled(drawing: Running) -> None:
    client = drawing.client(timeout=0.05)
    with pytest.raises(openai.APITimeoutError):
        await client.completions.create(
            model=NAME,
            prompt="go",
            extra_body={"structured_outputs": {"json": {"type": "integer", "multipleOf": 999_983}}},
        )
    status, body = await drawing.complete("go", max_tokens=50, seed=1, guided_regex=WORD)
    assert status == 200
    assert re.fullmatch(WORD, body["choices"][0]["text"])


@pytest.mark.parametrize("stopped", [False, True])
async def test_no_process_outlives_an_engine_that_was_killed(fake_bundle: Path, stopped: bool) -> None:
    if stopped and sys.platform != "linux":
        pytest.skip("other systems tell no process that its parent died")
    async with start_server(fake_bundle, "drawing") as server:
        status, _ = await server.complete("go", max_tokens=50, guided_regex=WORD)
        assert status == 200
        connection = server.engine._supervisor.connection
        assert connection is not None
        engine = psutil.Process(connection.child.process.pid)
        (checker,) = engine.children()
        if stopped:
            checker.suspend()
        engine.kill()
        psutil.wait_procs([checker], timeout=30)
        assert not checker.is_running() or checker.status() == psutil.STATUS_ZOMBIE
