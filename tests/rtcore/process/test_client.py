"""EngineProcess against a real child process with a fake engine: streams, refusals, deaths, hangs, back-off."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest
import zmq

from ops.errors import (
    BundleDamaged,
    EngineDied,
    EngineError,
    EngineUnavailable,
    InvalidRequest,
    OrtolanError,
    Overloaded,
)
from rtcore.config import EngineConfig
from rtcore.decoding.params import SamplingParams
from rtcore.process.child import EngineChild
from rtcore.process.client import EngineProcess
from rtcore.process.stream import TokenStream
from rtcore.process.supervisor import Supervision
from rtcore.request import EngineRequest
from tests.rtcore.process import fakes

CONFIG = EngineConfig(max_queue=256, max_sequences=64)


def request(name: str, prompt: list[int], max_tokens: int = 8) -> EngineRequest:
    return EngineRequest(name, prompt, SamplingParams(max_tokens=max_tokens, temperature=0))


def supervision(function: str, **changes: float) -> Supervision:
    quick = {"heartbeat": 0.1, "first_delay": 0.05, "longest_delay": 0.4, **changes}
    return Supervision(factory=fakes.factory(function), **quick)  # type: ignore[arg-type]


@contextlib.asynccontextmanager
async def running(function: str = "quick", **changes: float) -> AsyncIterator[EngineProcess]:
    engine = EngineProcess(Path("/nowhere"), CONFIG, supervision(function, **changes))
    try:
        await engine.start()
        yield engine
    finally:
        await engine.close()


async def collect(stream: TokenStream) -> list[int]:
    tokens: list[int] = []
    async with contextlib.aclosing(stream):
        async for delta in stream:
            tokens += delta.token_ids
    return tokens


async def until(condition: object, seconds: float = 10) -> None:
    async with asyncio.timeout(seconds):
        while not condition():  # type: ignore[operator]
            await asyncio.sleep(0.01)


def child_of(engine: EngineProcess) -> EngineChild:
    connection = engine._supervisor.connection
    assert connection is not None
    return connection.child


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


async def test_a_load_that_never_ends_is_ended() -> None:
    engine = EngineProcess(Path("/nowhere"), CONFIG, supervision("never_loads", load_timeout=0.4, failed_after=1))
    with pytest.raises(EngineUnavailable, match="did not load"):
        await engine.start()
    assert engine.state == "failed"
    await engine.close()
    assert engine.state == "stopped"


async def test_what_the_first_start_reports_is_raised_and_not_tried_again() -> None:
    engine = EngineProcess(Path("/nowhere"), CONFIG, supervision("damaged"))
    with pytest.raises(BundleDamaged) as raised:
        await engine.start()
    assert (raised.value.why, raised.value.remedy) == ("It was cut.", "Copy it again.")
    assert engine.state == "failed"
    await asyncio.sleep(0.3)
    assert engine._supervisor.connection is None
    await engine.close()


@pytest.mark.parametrize(("function", "reason"), [("dies", "out of luck"), ("breaks", "an unforeseen thing")])
async def test_dying_at_every_start_is_bounded_and_explained(function: str, reason: str) -> None:
    engine = EngineProcess(Path("/nowhere"), CONFIG, supervision(function, failed_after=3))
    began = time.monotonic()
    with pytest.raises(EngineUnavailable, match=reason):
        await engine.start()
    assert time.monotonic() - began >= 0.05 + 0.1
    assert engine.state == "failed"
    with pytest.raises(EngineUnavailable) as raised:
        engine.stream(request("a", [5]))
    assert reason in raised.value.why
    await until(lambda: engine._supervisor.starts_failed > 3)
    assert engine.state == "failed"
    await engine.close()


async def test_dying_at_every_later_start_leaves_a_client_that_answers(tmp_path: Path) -> None:
    engine = EngineProcess(tmp_path / "marker", CONFIG, supervision("once", failed_after=2))
    await engine.start()
    os.kill(child_of(engine).process.pid, signal.SIGKILL)
    await until(lambda: engine.state == "failed")
    with pytest.raises(EngineUnavailable):
        engine.stream(request("a", [5]))
    (tmp_path / "marker").unlink()
    await until(lambda: engine.state == "ready")
    assert await collect(engine.stream(request("b", [5], 2))) == [5, 5]
    await engine.close()


async def test_draining_finishes_what_runs_and_takes_nothing_new() -> None:
    async with running("slow") as engine:
        running_one = asyncio.create_task(collect(engine.stream(request("a", [5], 20))))
        await asyncio.sleep(0)
        drained = asyncio.create_task(engine.drain(10))
        await asyncio.sleep(0)
        assert engine.state == "draining"
        with pytest.raises(EngineUnavailable, match="shutting down"):
            engine.stream(request("b", [5]))
        assert await drained
        assert await running_one == [5] * 20


async def test_draining_gives_up_in_time_and_closing_ends_the_rest() -> None:
    async with running("slow") as engine:
        stream = engine.stream(request("a", [5], 4000))
        await stream.accepted()
        assert not await engine.drain(0.1)
        await engine.close()
        with pytest.raises(EngineDied, match="stopped"):
            await collect(stream)


async def test_closing_leaves_no_process_and_no_folder() -> None:
    async with running() as engine:
        child = child_of(engine)
        assert child.folder.stat().st_mode & 0o777 == 0o700
    assert not child.folder.exists()
    assert not psutil.pid_exists(child.process.pid)


async def test_closing_while_loading_ends_at_once() -> None:
    engine = EngineProcess(Path("/nowhere"), CONFIG, supervision("never_loads"))
    start = asyncio.create_task(engine.start())
    await until(lambda: engine._supervisor.connection is not None)
    child = child_of(engine)
    began = time.monotonic()
    await engine.close()
    assert time.monotonic() - began < 3
    assert not child.folder.exists()
    with pytest.raises(EngineUnavailable):
        await start


async def test_an_early_child_is_adopted() -> None:
    child = EngineChild.launch(Path("/nowhere"), CONFIG, factory=fakes.factory("quick"))
    engine = EngineProcess(Path("/nowhere"), CONFIG, supervision("quick"))
    await engine.start(child)
    assert child_of(engine) is child
    assert await collect(engine.stream(request("a", [5], 2))) == [5, 5]
    await engine.close()


@pytest.mark.parametrize("begun", [True, False])
async def test_an_early_child_is_not_left_behind_when_nothing_starts(begun: bool) -> None:
    child = EngineChild.launch(Path("/nowhere"), CONFIG, factory=fakes.factory("quick"))
    engine = EngineProcess(Path("/nowhere"), CONFIG, supervision("quick"))
    start = asyncio.create_task(engine.start(child))
    if begun:
        await asyncio.sleep(0)
    await engine.close()
    with pytest.raises(EngineUnavailable):
        await start
    assert not child.alive and not child.folder.exists()


async def test_a_socket_that_cannot_be_had_is_a_failed_start_and_leaves_no_child(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    launched: list[EngineChild] = []
    launch = EngineChild.launch

    def remember(*arguments: object, **named: object) -> EngineChild:
        launched.append(launch(*arguments, **named))  # type: ignore[arg-type]
        return launched[-1]

    def no_socket(*arguments: object) -> zmq.Socket[bytes]:
        raise zmq.ZMQError(errno.EMFILE)

    async with running() as engine:
        monkeypatch.setattr(EngineChild, "launch", remember)
        with monkeypatch.context() as exhausted:
            exhausted.setattr(zmq.Context, "socket", no_socket)
            child_of(engine).kill()
            await until(lambda: engine._supervisor.starts_failed > 1)
            assert engine.reason is not None and "cannot be started" in engine.reason.what
            assert not any(child.alive or child.folder.exists() for child in launched)
        await until(lambda: engine.state == "ready")
        assert await collect(engine.stream(request("a", [5], 2))) == [5, 5]


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


def test_a_socket_path_that_is_too_long_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = tmp_path / ("d" * 120)
    deep.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(deep))
    with pytest.raises(EngineError, match="too deep"):
        EngineChild.launch(Path("/nowhere"), CONFIG)
    assert list(deep.iterdir()) == []
