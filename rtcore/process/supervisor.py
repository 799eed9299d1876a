"""Supervisor: keeps one engine process running, with exponential back-off between its starts."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import zmq

from ops.errors import EngineUnavailable, OrtolanError
from rtcore.config import EngineConfig
from rtcore.failure import error_of, failure_of
from rtcore.process.child import HEARTBEAT_SECONDS, EngineChild
from rtcore.process.connection import Connection
from rtcore.process.messages import LOAD_ENGINE, FromEngine, Ready
from rtcore.request import EngineFailure

logger = logging.getLogger("ortolan.engine")

State = Literal["starting", "ready", "restarting", "draining", "failed", "stopped"]


@dataclass(frozen=True)
class Supervision:
    """How an engine process is watched; times in seconds.

    load_timeout, hang_timeout: silence after which a loading or a running engine is ended. first_delay,
    longest_delay: the back-off between starts, doubled each time. failed_after: starts in a row that ended
    badly before the state is `failed`, in which one start each longest_delay goes on. stable_after: an engine
    that lived this long counts as well started. factory: makes the engine, for tests.
    """

    heartbeat: float = HEARTBEAT_SECONDS
    load_timeout: float = 1800.0
    hang_timeout: float = 300.0
    first_delay: float = 0.5
    longest_delay: float = 30.0
    failed_after: int = 5
    stable_after: float = 30.0
    factory: str = LOAD_ENGINE


class Supervisor:
    """Runs the engine process again and again until it is closed.

    `reason` is why it last ended, `starts_failed` how many starts in a row ended badly. `on_end` is called
    with the reason whenever a process is gone.
    """

    def __init__(
        self,
        bundle: Path,
        config: EngineConfig,
        supervision: Supervision,
        on_message: Callable[[FromEngine], None],
        on_end: Callable[[EngineFailure], None],
    ) -> None:
        self.state: State = "starting"
        self.connection: Connection | None = None
        self.reason: EngineFailure | None = None
        self.starts_failed = 0
        self.restarts = 0
        self._bundle = bundle
        self._config = config
        self._supervision = supervision
        self._on_message = on_message
        self._on_end = on_end
        self._task: asyncio.Task[None] | None = None
        self._settled: asyncio.Future[None] | None = None
        self._early: EngineChild | None = None
        self._load_seconds = 1.0
        self._next_start = time.monotonic()
        self._closing = False

    async def start(self, child: EngineChild | None) -> None:
        """Start the process, or adopt one that was launched early, and wait until it is ready.

        Raises the error that the first process reported, such as BundleDamaged or ConfigError: trying again
        would not help, so nothing is. Raises EngineUnavailable when the process died without a word
        `failed_after` times; starts then go on at a low rate.
        """
        self._settled = asyncio.get_running_loop().create_future()
        self._early = child
        self._task = asyncio.create_task(self._run())
        await asyncio.wait({self._settled, self._task}, return_when=asyncio.FIRST_COMPLETED)
        if not self._settled.done():
            self._settled.cancel()
            if not self._task.cancelled():
                await self._task  # raises what it failed with, if anything
            self._dispose_early()
            raise EngineUnavailable("The engine was stopped while it started.")
        await self._settled

    def unavailable(self) -> EngineUnavailable:
        """The error for a request that comes while the engine is not ready."""
        wait = self._next_start + self._load_seconds - time.monotonic()
        why = "" if self.reason is None else f"{self.reason.what} {self.reason.why}".strip()
        words = {"starting": "is still loading", "stopped": "has stopped", "failed": "dies at every start"}
        what = f"The engine {words.get(self.state, 'is being restarted')}."
        return EngineUnavailable(what, retry_after=max(1.0, wait), why=why, remedy="Try again later.")

    async def close(self, grace: float) -> None:
        """End the process, by force after `grace` seconds, and stop. Safe to call twice."""
        self._closing = True
        self.state = "stopped"
        if self.connection is not None:
            await self.connection.shut_down(grace)
        elif self._task is not None:
            self._task.cancel()
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)
        self._dispose_early()

    def _dispose_early(self) -> None:
        """End a child that was launched early and that closing came before."""
        child, self._early = self._early, None
        if child is not None:
            child.dispose()

    async def _run(self) -> None:
        while not self._closing:
            began = time.monotonic()
            failure, deliberate, was_ready = await self._run_once()
            if self._closing:
                return
            self.reason = failure
            self._on_end(failure)
            if deliberate and not was_ready and self._first_start_pending():
                self.state = "failed"
                self._settle(error_of(failure))
                return
            if was_ready and time.monotonic() - began >= self._supervision.stable_after:
                self.starts_failed = 0
            self.starts_failed += 1
            await self._back_off()

    async def _run_once(self) -> tuple[EngineFailure, bool, bool]:
        """One process from start to end: why it ended, whether it said so itself, whether it was ready."""
        try:
            connection = self._connect()
        except OrtolanError as error:
            return failure_of(error), True, False
        # The sockets' own errors, as when no file descriptor is left, are no OSError.
        except (OSError, zmq.ZMQError) as error:
            return EngineFailure("EngineError", "The engine process cannot be started.", f"{error}."), False, False
        self.connection = connection
        try:
            failure = await connection.run(self._receive)
        finally:
            self.connection = None
        deliberate = connection.failed is not None and connection.failed.deliberate
        return failure, deliberate, connection.ready is not None

    def _connect(self) -> Connection:
        """A connection to the early child, if it was not used yet, or to a new one."""
        supervision = self._supervision
        child, self._early = self._early, None
        if child is None:
            child = EngineChild.launch(
                self._bundle, self._config, heartbeat=supervision.heartbeat, factory=supervision.factory
            )
        try:
            return Connection(child, load_timeout=supervision.load_timeout, hang_timeout=supervision.hang_timeout)
        except BaseException:
            child.dispose()
            raise

    def _receive(self, message: FromEngine) -> None:
        if isinstance(message, Ready) and not self._closing:
            self._load_seconds = message.load_seconds
            self.state = "ready"
            if self._first_start_pending():
                self._settle(None)
            else:
                self.restarts += 1
            logger.info("engine ready", extra={"load_seconds": round(message.load_seconds, 3)})
        self._on_message(message)

    async def _back_off(self) -> None:
        supervision = self._supervision
        lasting = self.starts_failed >= supervision.failed_after
        self.state = "failed" if lasting else "restarting"
        delay = min(supervision.longest_delay, supervision.first_delay * 2.0 ** min(self.starts_failed - 1, 30))
        self._next_start = time.monotonic() + delay
        if self.reason is not None:
            logger.error(
                "engine ended: %s", error_of(self.reason), extra={"attempt": self.starts_failed, "retry_in": delay}
            )
        if lasting and self._first_start_pending():
            self._settle(self.unavailable())
        await asyncio.sleep(delay)

    def _first_start_pending(self) -> bool:
        return self._settled is not None and not self._settled.done()

    def _settle(self, error: OrtolanError | None) -> None:
        if self._settled is None:
            return
        if error is None:
            self._settled.set_result(None)
        else:
            self._settled.set_exception(error)
