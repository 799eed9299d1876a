"""Decoding over HTTP with a real engine: log-probabilities, echo, best_of, bias, bans, and requests at random."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ops.reference.sample import log_softmax
from rtcore.bundle import Bundle
from rtcore.config import EngineConfig
from rtcore.executor.registry import load_executor
from rtcore.text.tokenizer import Tokenizer
from rtcore.verify import TeacherForced
from tests.server import checked_engine
from tests.server.conftest import Running, start_server

pytestmark = pytest.mark.export
in_module_loop = pytest.mark.asyncio(loop_scope="module")

PROMPT = "The rain in Spain stays — mainly."
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
CHECKED = f"{Path(checked_engine.__file__).resolve()}:load"
# Sums of a few hundred float32 exponentials, and a logit that both sides round once: far below a thousandth.
TOLERANCE = 1e-4


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def real(tiny_bundle: Path) -> AsyncIterator[Running]:
    """A server over the tiny model; an engine that breaks an invariant dies, and its requests fail."""
    async with start_server(tiny_bundle, CHECKED, threads=1, max_sequences=8) as server:
        yield server


@pytest.fixture(scope="module")
def forced(tiny_bundle: Path) -> TeacherForced:
    """The logits of the same model, one token after the other."""
    return TeacherForced(load_executor(Bundle.open(tiny_bundle), EngineConfig(cache_bytes=1 << 24, threads=1)), 256)


def tokenizer_of(real: Running) -> Tokenizer:
    return real.service.text.tokenizer


def specials(real: Running) -> list[int]:
    """Ids that stand for no text; most tests rule them out, so that text and tokens are the same."""
    return sorted(tokenizer_of(real).special_ids)


async def complete(real: Running, prompt: Any = PROMPT, **fields: Any) -> dict[str, Any]:
    given = {"max_tokens": 12, "seed": 3, "banned_token_ids": specials(real), "ignore_eos": True, **fields}
    status, body = await real.complete(prompt, **given)
    assert status == 200, body
    return dict(body)


@in_module_loop
async def test_chat_log_probabilities_have_exact_bytes(real: Running) -> None:
    answer = await real.client().chat.completions.create(
        model=real.service.model,
        messages=[{"role": "user", "content": PROMPT}],
        max_tokens=24,
        seed=5,
        logprobs=True,
        top_logprobs=3,
        extra_body={"banned_token_ids": specials(real), "ignore_eos": True},
    )
    choice = answer.choices[0]
    assert choice.logprobs is not None and choice.logprobs.content is not None
    content = choice.logprobs.content
    assert len(content) == 24
    data = b"".join(bytes(one.bytes or []) for one in content)
    assert data.decode(errors="replace") == choice.message.content
    for one in content:
        raw = bytes(one.bytes or [])
        whole = raw.decode(errors="replace").encode() == raw
        assert one.token == raw.decode() if whole else one.token.startswith("bytes:\\x")
        assert len(one.top_logprobs) == 3
        falling = [top.logprob for top in one.top_logprobs]
        assert falling == sorted(falling, reverse=True)
        assert one.logprob <= falling[0] <= 0


@in_module_loop
@pytest.mark.parametrize("chat", [True, False])
async def test_a_stream_tells_what_the_whole_answer_tells(real: Running, chat: bool) -> None:
    shared: dict[str, Any] = {"model": real.service.model, "max_tokens": 16, "seed": 8, "n": 2}
    extra = {"extra_body": {"ignore_eos": True, "stop": ["zzzz"]}}
    client = real.client()
    if chat:
        fields = {**shared, "messages": [{"role": "user", "content": PROMPT}], "logprobs": True, "top_logprobs": 2}
        whole = await client.chat.completions.create(**fields, **extra)
        stream = [c async for c in await client.chat.completions.create(**fields, **extra, stream=True)]
    else:
        fields = {**shared, "prompt": PROMPT, "logprobs": 2, "echo": True}
        whole = await client.completions.create(**fields, **extra)
        stream = [c async for c in await client.completions.create(**fields, **extra, stream=True)]
    for choice in whole.choices:
        parts = [c.choices[0].logprobs for c in stream if c.choices and c.choices[0].index == choice.index]
        told = [part for part in parts if part is not None]
        if chat:
            assert [one for part in told for one in part.content] == choice.logprobs.content
            continue
        for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
            assert [one for part in told for one in getattr(part, name)] == getattr(choice.logprobs, name)
        text = "".join(c.choices[0].text for c in stream if c.choices and c.choices[0].index == choice.index)
        assert text == choice.text and text.startswith(PROMPT)


@in_module_loop
async def test_echo_tells_of_the_prompt_what_the_model_says(real: Running, forced: TeacherForced) -> None:
    body = await complete(real, echo=True, logprobs=4, temperature=0)
    (choice,) = body["choices"]
    told = choice["logprobs"]
    prompt = real.service.text.encode(PROMPT)
    assert len(told["tokens"]) == len(prompt) + 12
    assert told["token_logprobs"][0] is None and told["top_logprobs"][0] is None
    answer = await complete(real, temperature=0, logprobs=0)
    assert choice["text"] == PROMPT + answer["choices"][0]["text"]
    logits = forced.run(prompt, list(range(len(prompt) - 1)))
    for place in range(1, len(prompt)):
        logs = log_softmax(logits[place - 1])
        assert told["token_logprobs"][place] == pytest.approx(logs[prompt[place]], abs=TOLERANCE)
        best = sorted(told["top_logprobs"][place].values(), reverse=True)[:4]
        assert best == pytest.approx(np.sort(logs)[::-1][:4], abs=TOLERANCE)
    tokenizer = tokenizer_of(real)
    for offset, token_id in zip(told["text_offset"], prompt, strict=False):
        text = tokenizer.token_bytes(token_id).decode(errors="ignore")
        assert token_id in tokenizer.special_ids or choice["text"][offset:].startswith(text)


@in_module_loop
async def test_echo_without_an_answer(real: Running) -> None:
    body = await complete(real, echo=True, logprobs=1, max_tokens=0)
    (choice,) = body["choices"]
    assert (choice["text"], choice["finish_reason"]) == (PROMPT, "length")
    assert len(choice["logprobs"]["tokens"]) == body["usage"]["prompt_tokens"]
    assert body["usage"]["completion_tokens"] == 0
    stream = [
        chunk
        async for chunk in await real.client().completions.create(
            model=real.service.model, prompt=PROMPT, echo=True, max_tokens=0, stream=True
        )
    ]
    assert "".join(chunk.choices[0].text for chunk in stream) == PROMPT


@in_module_loop
async def test_a_prompt_that_fills_the_context_is_scored(real: Running) -> None:
    room = real.service.context_length
    prompt = [100 + place % 7 for place in range(room)]
    body = await complete(real, prompt=prompt, echo=True, logprobs=0, max_tokens=0)
    (choice,) = body["choices"]
    assert choice["finish_reason"] == "length"
    assert len(choice["logprobs"]["token_logprobs"]) == body["usage"]["prompt_tokens"] == room
    assert body["usage"]["completion_tokens"] == 0
    status, body = await real.complete([*prompt, 100], echo=True, max_tokens=0)
    assert (status, body["error"]["code"]) == (400, "context_length_exceeded")


@in_module_loop
async def test_prompt_log_probabilities(real: Running) -> None:
    text = await complete(real, prompt_logprobs=2, n=2, max_tokens=1)
    prompt = real.service.text.encode(PROMPT)
    for choice in text["choices"]:
        told = choice["prompt_logprobs"]
        assert told[0] is None and len(told) == len(prompt)
        for token, entry in zip(prompt[1:], told[1:], strict=True):
            assert 2 <= len(entry) <= 3 and entry[str(token)]["rank"] >= 1
            assert sorted(one["rank"] for one in entry.values())[:2] == [1, 2]
    status, body = await real.chat(PROMPT, prompt_logprobs=0, max_tokens=1)
    assert status == 200 and body["prompt_logprobs"][0] is None


@in_module_loop
async def test_bias_and_bans(real: Running) -> None:
    token = real.service.text.encode("x")[-1]
    body = await complete(real, logit_bias={str(token): 100}, temperature=0, max_tokens=4)
    assert body["choices"][0]["text"] == "xxxx"
    body = await complete(real, allowed_token_ids=[token], max_tokens=3, temperature=1.5)
    assert body["choices"][0]["text"] == "xxx"
    body = await complete(real, logit_bias={str(token): 100}, banned_token_ids=[*specials(real), token])
    assert "x" not in body["choices"][0]["text"]
    body = await complete(real, logit_bias={str(token): 100}, bad_words=["xx"], temperature=0)
    assert "x" in body["choices"][0]["text"] and "xx" not in body["choices"][0]["text"]
    status, body = await real.complete(PROMPT, allowed_token_ids=[token], banned_token_ids=[token])
    assert status == 400 and "forbids every token" in body["error"]["message"]


@in_module_loop
async def test_best_of_gives_the_likeliest(real: Running) -> None:
    every = await complete(real, n=6, logprobs=0)
    best = await complete(real, n=2, best_of=6)
    sums = [sum(choice["logprobs"]["token_logprobs"]) for choice in every["choices"]]
    order = np.argsort(-np.array(sums), kind="stable")[:2]
    assert [choice["text"] for choice in best["choices"]] == [every["choices"][place]["text"] for place in order]
    assert [choice["index"] for choice in best["choices"]] == [0, 1]
    assert all(choice["logprobs"] is None for choice in best["choices"])
    assert best["usage"]["completion_tokens"] == 6 * 12


@in_module_loop
async def test_min_tokens_and_penalties(real: Running) -> None:
    token = real.service.text.encode("x")[-1]
    body = await complete(real, logit_bias={str(token): 100}, stop=["x"], min_tokens=5, temperature=0)
    assert body["choices"][0]["text"] == "xxxxx" and body["usage"]["completion_tokens"] == 6
    body = await complete(
        real, logit_bias={str(token): 50}, frequency_penalty=2, presence_penalty=2, repetition_penalty=100
    )
    assert body["choices"][0]["text"].count("x") < 12


def fuzzed(vocabulary: int) -> st.SearchStrategy[dict[str, Any]]:
    """Fields of a request, most of them right."""
    ids = st.integers(0, vocabulary - 1)
    fields: dict[str, st.SearchStrategy[Any]] = {
        "temperature": st.floats(0, 2),
        "top_p": st.floats(0.01, 1),
        "top_k": st.integers(-1, 60),
        "min_p": st.floats(0, 1),
        "presence_penalty": st.floats(-2, 2),
        "frequency_penalty": st.floats(-2, 2),
        "repetition_penalty": st.floats(0.1, 3),
        "logit_bias": st.dictionaries(ids.map(str), st.floats(-100, 100), max_size=4),
        "allowed_token_ids": st.lists(ids, min_size=1, max_size=9),
        "banned_token_ids": st.lists(ids, max_size=9),
        "bad_words": st.lists(st.text("abx é", min_size=1, max_size=3), max_size=2),
        "min_tokens": st.integers(0, 9),
        "stop": st.lists(st.text("abx ", min_size=1, max_size=2), max_size=2),
        "stop_token_ids": st.lists(ids, max_size=3),
        "ignore_eos": st.booleans(),
        "n": st.integers(1, 3),
        "best_of": st.integers(1, 4),
        "echo": st.booleans(),
        "logprobs": st.integers(0, 20),
        "prompt_logprobs": st.integers(0, 20),
        "include_stop_str_in_output": st.booleans(),
        "skip_special_tokens": st.booleans(),
        "stream": st.booleans(),
    }
    return st.fixed_dictionaries(
        {
            "prompt": st.text(min_size=1, max_size=30),
            "seed": st.integers(0, 2**63),
            "max_tokens": st.integers(1, 9),
        },
        optional=fields,
    )


async def answered(real: Running, fields: dict[str, Any]) -> tuple[int, Any]:
    """The status, and the choices or the field that is wrong."""
    async with real.http.post(TEXT, json=fields) as response:
        if response.status != 200:
            return response.status, (await response.json())["error"]["param"]
        if not fields.get("stream"):
            return 200, (await response.json())["choices"]
        lines = [line async for line in response.content]
    events = [line.removeprefix(b"data: ").strip() for line in lines if line.startswith(b"data: ")]
    assert events[-1] == b"[DONE]" or b'"error"' in events[-1]
    return 200, events


@in_module_loop
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
async def test_requests_at_random(real: Running, data: st.DataObject) -> None:
    """Each is answered in its shape or refused by a field's name, and its seed gives the same answer alone."""
    asked = data.draw(st.lists(fuzzed(real.service.manifest.dimensions.vocab_size), min_size=1, max_size=5))
    together = await asyncio.gather(*(answered(real, fields) for fields in asked))
    for fields, (status, body) in zip(asked, together, strict=True):
        assert status in (200, 400), body
        if status == 400:
            continue
        again = await answered(real, fields)
        if fields.get("stream"):
            assert len(again[1]) > 1
            continue
        assert again == (200, body)
        assert len(body) == fields.get("n", 1)
        for choice in body:
            assert choice["finish_reason"] in ("stop", "length")
            told = choice["logprobs"]
            assert (told is None) == ("logprobs" not in fields)
            if told is not None:
                assert len({len(value) for value in told.values()}) == 1
    assert real.engine.restarts == 0
