"""How an EngineProcess starts, fails to start, drains and closes, and that it leaves no process and no folder."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import time
from pathlib import Path

import psutil
import pytest
import zmq

from ops.errors import BundleDamaged, EngineDied, EngineError, EngineUnavailable
from rtcore.process.child import EngineChild
from rtcore.process.client import EngineProcess
from tests.rtcore.process import fakes
from tests.rtcore.process.running import CONFIG, child_of, collect, request, running, supervision, until


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


def test_a_socket_path_that_is_too_long_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = tmp_path / ("d" * 120)
    deep.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(deep))
    with pytest.raises(EngineError, match="too deep"):
        EngineChild.launch(Path("/nowhere"), CONFIG)
    assert list(deep.iterdir()) == []
