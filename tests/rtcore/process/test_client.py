"""EngineProcess against a real child process with a fake engine: streams, refusals, deaths, hangs, garbage."""

from __future__ import annotations

import asyncio
import logging
import os
import signal

import pytest

from ops.errors import EngineDied, EngineUnavailable, InvalidRequest, OrtolanError, Overloaded
from tests.rtcore.process import fakes
from tests.rtcore.process.running import child_of, collect, request, running, until


async def test_tokens_come_in_order_with_the_reason_last() -> None:
    async with running() as engine:
        stream = engine.stream(request("a", [5, 6, 7]))
        await stream.accepted()
        deltas = [delta async for delta in stream]
        assert [token for delta in deltas for token in delta.token_ids] == [5, 6, 7, 5, 6, 7, 5, 6]
        assert deltas[-1].finish_reason == "length"
        assert engine.in_flight == 0
        assert engine.engine is not None
        assert (engine.engine.context_length, engine.engine.vocab_size) == (fakes.CONTEXT_LENGTH, fakes.VOCAB_SIZE)


async def test_many_requests_at_once_do_not_mix() -> None:
    async with running() as engine:
        prompts = [[3 + k, 4 + k] for k in range(100)]
        streams = [engine.stream(request(f"r{k}", prompt, 20)) for k, prompt in enumerate(prompts)]
        assert await asyncio.gather(*map(collect, streams)) == [prompt * 10 for prompt in prompts]


async def test_one_stream_carries_several_requests() -> None:
    async with running() as engine:
        stream = engine.stream_all([request("a", [5]), request("b", [6], 3)])
        tokens: dict[str, list[int]] = {"a": [], "b": []}
        async for delta in stream:
            tokens[delta.id] += delta.token_ids
        assert tokens == {"a": [5] * 8, "b": [6] * 3}


@pytest.mark.parametrize(
    ("first", "error", "retry_after"), [(fakes.REFUSED, InvalidRequest, None), (fakes.OVERLOADED, Overloaded, 7)]
)
async def test_a_refusal_reaches_the_caller_typed(
    first: int, error: type[OrtolanError], retry_after: float | None
) -> None:
    async with running() as engine:
        stream = engine.stream_all([request("good", [5]), request("bad", [first])])
        with pytest.raises(error) as raised:
            await stream.accepted()
        assert getattr(raised.value, "retry_after", None) == retry_after
        await stream.aclose()
        await until(lambda: engine.in_flight == 0)
        assert await collect(engine.stream(request("next", [9], 2))) == [9, 9]


async def test_leaving_a_stream_cancels_in_the_engine() -> None:
    async with running("slow") as engine:
        stream = engine.stream(request("a", [5], 4000))
        await anext(aiter(stream))
        assert (await engine.stats()).running == 1
        await stream.aclose()
        await stream.aclose()
        stats = await engine.stats()
        for _ in range(100):
            if stats.running == stats.waiting == 0:
                break
            stats = await engine.stats()
        assert (stats.running, stats.waiting) == (0, 0)
        assert engine.in_flight == 0


async def test_a_reader_that_never_reads_holds_no_more_than_its_tokens() -> None:
    async with running() as engine:
        stream = engine.stream(request("a", [5, 6], 4000))
        await until(lambda: engine.in_flight == 0)
        assert len(stream._pending) == 1
        delta = await anext(aiter(stream))
        assert (len(delta.token_ids), delta.finish_reason) == (4000, "length")
        with pytest.raises(StopAsyncIteration):
            await anext(aiter(stream))


@pytest.mark.parametrize("first", [fakes.CRASH, fakes.FATAL, fakes.BUG])
async def test_a_death_ends_requests_in_flight_and_is_recovered(first: int) -> None:
    async with running() as engine:
        waiting = engine.stream(request("waiting", [fakes.DEFERRED]))
        await waiting.accepted()
        with pytest.raises(EngineDied):
            await collect(engine.stream(request("poison", [first])))
        with pytest.raises(EngineDied):
            await collect(waiting)
        with pytest.raises(EngineUnavailable) as raised:
            engine.stream(request("early", [5]))
        assert raised.value.retry_after >= 1
        assert engine.state == "restarting"
        await until(lambda: engine.state == "ready")
        assert engine.restarts == 1
        assert await collect(engine.stream(request("next", [5], 2))) == [5, 5]


async def test_killed_by_a_signal_says_so() -> None:
    async with running("slow") as engine:
        stream = engine.stream(request("a", [5], 4000))
        await anext(aiter(stream))
        os.kill(child_of(engine).process.pid, signal.SIGKILL)
        with pytest.raises(EngineDied):
            await collect(stream)
        assert engine.reason is not None
        assert "SIGKILL" in engine.reason.why
        await until(lambda: engine.state == "ready")


async def test_signals_for_the_whole_group_do_not_end_the_engine() -> None:
    async with running() as engine:
        pid = child_of(engine).process.pid
        os.kill(pid, signal.SIGINT)
        os.kill(pid, signal.SIGTERM)
        assert await collect(engine.stream(request("a", [5], 2))) == [5, 5]
        assert child_of(engine).process.pid == pid


async def test_a_stuck_step_is_found_and_ended() -> None:
    async with running(hang_timeout=0.6) as engine:
        stream = engine.stream(request("a", [fakes.HANG]))
        with pytest.raises(EngineDied) as raised:
            await collect(stream)
        assert engine.reason is not None
        assert "did not answer" in engine.reason.what
        assert "did not answer" in raised.value.why
        await until(lambda: engine.state == "ready")


async def test_an_idle_engine_is_not_taken_for_a_stuck_one() -> None:
    async with running(hang_timeout=0.6) as engine:
        await asyncio.sleep(1.5)
        assert (engine.state, engine.restarts) == ("ready", 0)


async def test_a_prompt_larger_than_a_message_is_refused() -> None:
    async with running() as engine:
        with pytest.raises(InvalidRequest, match="bytes"):
            engine.stream(request("a", [1 << 60] * 4_000_000))
        assert engine.in_flight == 0
        assert await collect(engine.stream(request("b", [5], 2))) == [5, 5]


async def test_a_garbled_message_of_the_engine_restarts_it() -> None:
    async with running() as engine:
        connection = engine._supervisor.connection
        assert connection is not None
        connection._take(b"\xc1 not msgpack")
        await until(lambda: engine.restarts == 1)
        assert engine.reason is not None
        assert "cannot be read" in engine.reason.what


async def test_a_garbled_message_to_the_engine_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    async with running() as engine:
        connection = engine._supervisor.connection
        assert connection is not None
        connection._socket.send(b"\xc1 not msgpack")
        with caplog.at_level(logging.ERROR, "ortolan.engine"):
            await until(lambda: engine.restarts == 1)
        assert engine.reason is not None
        assert "cannot read" in engine.reason.what
        assert "Traceback" not in caplog.text
