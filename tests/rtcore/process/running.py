"""Engines in child processes over the fakes, and what tests of them do again and again."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

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
