"""The life of the server: start, announce, serve, drain on a signal, end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import shlex
import signal
import socket
from collections.abc import Callable

from aiohttp import web

from ops.errors import EngineUnavailable
from rtcore.bundle import Bundle
from rtcore.process.child import EngineChild
from rtcore.process.client import EngineProcess
from rtcore.process.supervisor import Supervision
from rtcore.text.frontend import TextFrontend
from server import logs
from server.app import build_runner
from server.config import ServerConfig
from server.listener import url_of
from server.service import Service

logger = logging.getLogger("ortolan.server")


class StopSignals:
    """SIGTERM and SIGINT: the first asks to drain, the second to hurry."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.hurried = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal)

    def _on_signal(self) -> None:
        (self.hurried if self.asked.is_set() else self.asked).set()


def run_server(config: ServerConfig, listener: socket.socket, child: EngineChild) -> int:
    """Serve until a signal; returns the exit code 0 after draining.

    Takes over the listener and the engine process. Raises what is wrong with the bundle, the configuration or
    this machine at the first start of the engine.
    """
    logs.set_up(config.log_level, json_lines=config.json_logs)
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(_serve(config, listener, child))


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop's loop where it is installed."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


async def _serve(config: ServerConfig, listener: socket.socket, child: EngineChild) -> int:
    signals = StopSignals()
    try:
        bundle = Bundle.open(config.bundle, check="sizes")  # hashes are the engine's to check
        frontend = TextFrontend(bundle)
    except BaseException:
        child.dispose()
        raise
    supervision = Supervision(load_timeout=config.load_timeout, hang_timeout=config.hang_timeout)
    engine = EngineProcess(bundle.path, config.engine(), supervision)
    service = Service(config, bundle.manifest, engine, frontend)
    runner = build_runner(service)
    starting = asyncio.create_task(engine.start(child))
    try:
        await runner.setup()
        await web.SockSite(runner, listener).start()
        await _first_of(starting, signals.asked)
        if starting.done():
            _announce(service, listener, starting)
        await signals.asked.wait()
        await _drain(service, signals)
    finally:
        await engine.close()
        await runner.cleanup()
        service.close()
        bundle.close()
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
    return 0


def _announce(service: Service, listener: socket.socket, starting: asyncio.Task[None]) -> None:
    """Say where to find the server; raises the error of a first start that cannot succeed."""
    try:
        starting.result()
    except EngineUnavailable as error:
        logger.error("the engine does not come up and is tried again: %s", error)
        return
    url = url_of(listener)
    precision = service.config.precision or service.manifest.default_precision
    body: dict[str, object] = {"model": service.model, "max_tokens": 64, "temperature": 0}
    question = "What is the capital of France?"
    if service.manifest.text.chat_template is not None:
        path = "/v1/chat/completions"
        body["messages"] = [{"role": "user", "content": question}]
    else:
        path = "/v1/completions"
        body["prompt"] = question
    data = shlex.quote(json.dumps(body))
    with contextlib.suppress(OSError):  # nobody reads it, or its disk is full: no reason not to serve
        print(f"Ortolan serves {service.model} ({precision}) at {url}. Try:")
        print(f"curl {url}{path} -H 'Content-Type: application/json' -d {data}", flush=True)
    logger.info("ready", extra={"model": service.model, "precision": precision, "url": url})


async def _drain(service: Service, signals: StopSignals) -> None:
    """Take nothing new and let requests in flight finish, until the timeout or a second signal."""
    timeout = service.config.drain_timeout
    logger.info("draining", extra={"in_flight": service.engine.in_flight, "timeout": timeout})
    draining = asyncio.create_task(service.engine.drain(timeout))
    await _first_of(draining, signals.hurried)
    if not (draining.done() and draining.result()):
        logger.warning("ending with requests in flight", extra={"in_flight": service.engine.in_flight})
    draining.cancel()
    await asyncio.gather(draining, return_exceptions=True)


async def _first_of(task: asyncio.Task[object] | asyncio.Task[None], event: asyncio.Event) -> None:
    """Wait until the task is done, whatever its result, or the event is set."""
    waiting = asyncio.create_task(event.wait())
    try:
        await asyncio.wait({task, waiting}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await waiting
