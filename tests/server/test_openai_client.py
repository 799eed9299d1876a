"""The `openai` client against the server: what users of it rely on."""

from __future__ import annotations

import asyncio

import openai
import pytest

from tests.rtcore.process import fakes
from tests.server.conftest import Serve
from tests.server.fake_bundle import NAME, VERSION

MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "the rain in Spain"}]


async def test_chat(serve: Serve) -> None:
    async with serve() as running:
        answer = await running.client().chat.completions.create(model=NAME, messages=MESSAGES, max_tokens=5)
        assert answer.id.startswith("chatcmpl-")
        assert (answer.object, answer.model, answer.system_fingerprint) == ("chat.completion", NAME, VERSION)
        assert answer.choices[0].message.role == "assistant"
        assert answer.choices[0].message.content == "syste"
        assert answer.choices[0].finish_reason == "length"
        prompt = running.service.text.render_chat(MESSAGES)
        assert answer.usage.prompt_tokens == len(prompt)
        assert answer.usage.completion_tokens == 5
        assert answer.usage.total_tokens == len(prompt) + 5


async def test_a_stream_has_the_role_first_and_the_same_text(serve: Serve) -> None:
    async with serve() as running:
        client = running.client()
        fields = {"model": NAME, "messages": MESSAGES, "max_completion_tokens": 5, "n": 2}
        whole = await client.chat.completions.create(**fields)
        chunks = [
            chunk
            async for chunk in await client.chat.completions.create(
                **fields, stream=True, stream_options={"include_usage": True}
            )
        ]
        assert [chunk.choices[0].delta.role for chunk in chunks[:2]] == ["assistant"] * 2
        for index in range(2):
            mine = [chunk.choices[0] for chunk in chunks if chunk.choices and chunk.choices[0].index == index]
            assert "".join(choice.delta.content or "" for choice in mine) == whole.choices[index].message.content
            assert [choice.finish_reason for choice in mine if choice.finish_reason] == ["length"]
            assert mine[-1].finish_reason == "length"
        assert chunks[-1].choices == []
        assert chunks[-1].usage == whole.usage
        assert all(chunk.usage is None for chunk in chunks[:-1])
        assert len({chunk.id for chunk in chunks}) == 1


async def test_min_tokens_needs_no_max_tokens(serve: Serve) -> None:
    async with serve() as running:
        status, answer = await running.chat("the rain", min_tokens=40)
        assert status == 200, answer


async def test_lists_for_many_answers_are_bounded_together(serve: Serve) -> None:
    async with serve() as running:
        words = [chr(0x4E00 + number) * 300 for number in range(64)]
        status, answer = await running.complete(["a"] * 8, n=64, bad_words=words, max_tokens=1)
        assert (status, "token ids for each of 512 answers" in answer["error"]["message"]) == (400, True)


async def test_completions_of_many_prompts(serve: Serve) -> None:
    async with serve() as running:
        text = running.service.text
        prompts = ["the rain", "in Spain stays"]
        answer = await running.client().completions.create(model=NAME, prompt=prompts, n=2, max_tokens=9)
        assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
        for choice in answer.choices:
            ids = text.encode(prompts[choice.index // 2])
            expected = (ids * 9)[:9]
            assert choice.text == text.tokenizer.decode(ids + expected)[len(prompts[choice.index // 2]) :]
        assert answer.usage.prompt_tokens == sum(len(text.encode(prompt)) for prompt in prompts)
        assert answer.usage.completion_tokens == 4 * 9


async def test_token_ids_and_text_are_the_same_prompt(serve: Serve) -> None:
    async with serve() as running:
        client = running.client()
        ids = running.service.text.encode("the rain in Spain")
        answers = [
            await client.completions.create(
                model=NAME, prompt=prompt, max_tokens=6, extra_body={"ignore_eos": True}
            )
            for prompt in ("the rain in Spain", ids, [ids], ["the rain in Spain"])
        ]
        assert len({answer.choices[0].text for answer in answers}) == 1
        assert {answer.usage.prompt_tokens for answer in answers} == {len(ids)}


async def test_a_stop_string_cuts_text_and_count_and_ends_the_engines_request(serve: Serve) -> None:
    async with serve("slow") as running:
        client = running.client()
        for stream in (False, True):
            fields = {"model": NAME, "prompt": "the rain in Spain", "max_tokens": 4000, "stop": ["n Sp"]}
            if stream:
                chunks = [
                    chunk
                    async for chunk in await client.completions.create(
                        **fields, stream=True, stream_options={"include_usage": True}
                    )
                ]
                texts = "".join(chunk.choices[0].text for chunk in chunks if chunk.choices)
                last, usage = chunks[-2].choices[0], chunks[-1].usage
            else:
                answer = await client.completions.create(**fields)
                texts, last, usage = answer.choices[0].text, answer.choices[0], answer.usage
            assert texts == "the rain i"
            assert (last.finish_reason, last.stop_reason) == ("stop", "n Sp")
            assert usage.completion_tokens < 20
            assert running.engine.in_flight == 0


async def test_models(serve: Serve) -> None:
    async with serve(model_name="org/name") as running:
        client = running.client()
        assert [model.id async for model in client.models.list()] == ["org/name"]
        card = await client.models.retrieve("org/name")
        assert (card.object, card.max_model_len, card.root) == ("model", fakes.CONTEXT_LENGTH, NAME)
        with pytest.raises(openai.NotFoundError):
            await client.models.retrieve("other")
        with pytest.raises(openai.NotFoundError) as raised:
            await client.completions.create(model="other", prompt="x")
        assert (raised.value.code, raised.value.param) == ("model_not_found", "model")


async def test_wrong_requests_are_bad_requests(serve: Serve) -> None:
    async with serve() as running:
        client = running.client()
        with pytest.raises(openai.BadRequestError) as raised:
            await client.completions.create(model=NAME, prompt="x", max_tokens=10**6)
        assert (raised.value.code, raised.value.param) == ("context_length_exceeded", "max_tokens")
        with pytest.raises(openai.BadRequestError) as raised:
            await client.chat.completions.create(model=NAME, messages=MESSAGES, max_completion_tokens=10**6)
        assert (raised.value.code, raised.value.param) == ("context_length_exceeded", "max_completion_tokens")
        with pytest.raises(openai.BadRequestError) as raised:
            await client.chat.completions.create(
                model=NAME, messages=[{"role": "user", "content": "the rain in Spain " * 5000}]
            )
        assert (raised.value.code, raised.value.param) == ("context_length_exceeded", "messages")


async def test_64_streams_at_once(serve: Serve) -> None:
    async with serve("slow") as running:
        client = running.client()

        async def one(number: int) -> str:
            chunks = await client.completions.create(
                model=NAME, prompt=[300 + number], max_tokens=40, stream=True, extra_body={"ignore_eos": True}
            )
            return "".join([chunk.choices[0].text async for chunk in chunks])

        texts = await asyncio.gather(*(one(number) for number in range(64)))
        tokenizer = running.service.text.tokenizer
        assert texts == [tokenizer.decode([300 + number]) * 40 for number in range(64)]
        stats = await running.engine.stats()
        assert (stats.running, stats.waiting) == (0, 0)
