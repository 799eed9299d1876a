"""Servers over fake engines: the whole of it but the model, with the engine in its own process."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest
import pytest_asyncio
from aiohttp import web

from rtcore.bundle import Bundle
from rtcore.process.client import EngineProcess
from rtcore.process.supervisor import Supervision
from rtcore.text.frontend import TextFrontend
from server.app import build_runner
from server.config import ServerConfig
from server.listener import listen, url_of
from server.service import Service
from tests.rtcore.process import fakes
from tests.server.fake_bundle import NAME, write_fake_bundle


@dataclass
class Running:
    """A server that runs in this process's event loop."""

    url: str
    service: Service
    http: aiohttp.ClientSession

    @property
    def engine(self) -> EngineProcess:
        return self.service.engine

    def client(self, **options: Any) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, **options)

    async def post(self, path: str, body: Any, **options: Any) -> tuple[int, Any]:
        """The status and the decoded JSON of a POST."""
        async with self.http.post(path, json=body, **options) as response:
            return response.status, await response.json()

    async def complete(self, prompt: Any, **fields: Any) -> tuple[int, Any]:
        return await self.post("/v1/completions", {"prompt": prompt, **fields})

    async def chat(self, text: str, **fields: Any) -> tuple[int, Any]:
        messages = [{"role": "user", "content": text}]
        return await self.post("/v1/chat/completions", {"messages": messages, **fields})


Serve = Callable[..., AbstractAsyncContextManager[Running]]


@pytest.fixture(scope="session")
def fake_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_fake_bundle(tmp_path_factory.mktemp("bundles") / NAME)


@contextlib.asynccontextmanager
async def start_server(
    bundle: Path,
    factory: str = "quick",
    *,
    supervision: dict[str, Any] | None = None,
    wait: bool = True,
    send_buffer: int | None = None,
    **config: Any,
) -> AsyncIterator[Running]:
    """A server over a fake engine, or over that of a factory `module:function`.

    `wait=False` does not wait for the engine; `send_buffer` in bytes.
    """
    settings = ServerConfig(bundle=str(bundle), port=0, **config)
    watched = Supervision(
        factory=factory if ":" in factory else fakes.factory(factory),
        **{"heartbeat": 0.1, "first_delay": 0.05, "longest_delay": 0.4, **(supervision or {})},
    )
    opened = Bundle.open(bundle)
    engine = EngineProcess(bundle, settings.engine(), watched)
    service = Service(settings, opened.manifest, engine, TextFrontend(opened))
    runner = build_runner(service)
    listener: socket.socket = listen(settings.host, settings.port)
    if send_buffer is not None:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
    await runner.setup()
    await web.SockSite(runner, listener).start()
    url = url_of(listener)
    try:
        async with aiohttp.ClientSession(url) as http:
            if wait:
                await engine.start()
            yield Running(url, service, http)
    finally:
        await engine.close()
        await runner.cleanup()
        service.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(fake_bundle: Path) -> AsyncIterator[Running]:
    """One server with default settings for all tests of a module that run in the module's loop."""
    async with start_server(fake_bundle) as server:
        yield server


@pytest.fixture
def serve(fake_bundle: Path) -> Serve:
    """`async with serve(factory, **config) as running`."""

    def start(factory: str = "quick", **options: Any) -> AbstractAsyncContextManager[Running]:
        return start_server(options.pop("bundle", fake_bundle), factory, **options)

    return start
