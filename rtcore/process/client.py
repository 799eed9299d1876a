"""EngineProcess: an engine in its own process, as an asyncio server uses it."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from pathlib import Path

from ops.errors import EngineDied, EngineUnavailable, Overloaded
from rtcore.config import EngineConfig
from rtcore.failure import error_of
from rtcore.process.child import EngineChild
from rtcore.process.messages import Accepted, AskStats, Cancel, Deltas, FromEngine, Ready, Stats, Submit
from rtcore.process.stream import TokenStream
from rtcore.process.supervisor import State, Supervision, Supervisor
from rtcore.request import EngineFailure, EngineRequest, TokenDelta
from rtcore.stats import EngineStats

STATS_SECONDS = 10.0
DRAIN_RETRY_SECONDS = 5.0


class EngineProcess:
    """Starts, feeds and watches an engine process; restarts it when it dies.

    Requests in flight when it dies get EngineDied, new ones EngineUnavailable until it is up again. All
    methods belong to the event loop that called `start`.
    """

    def __init__(self, bundle: Path, config: EngineConfig, supervision: Supervision | None = None) -> None:
        self._config = config
        self._supervisor = Supervisor(bundle, config, supervision or Supervision(), self._receive, self._lose)
        self._streams: dict[str, TokenStream] = {}
        self._unanswered: set[str] = set()
        self._asked: dict[int, asyncio.Future[EngineStats]] = {}
        self._tokens = itertools.count()
        self._idle = asyncio.Event()
        self._idle.set()
        self._draining = False
        self.engine: Ready | None = None

    @property
    def state(self) -> State:
        running = self._supervisor.state
        return "draining" if self._draining and running not in ("stopped", "failed") else running

    @property
    def draining(self) -> bool:
        """Whether the engine is about to end, so that nothing new is taken."""
        return self._draining

    @property
    def reason(self) -> EngineFailure | None:
        """Why the engine last ended, if it ever did."""
        return self._supervisor.reason

    @property
    def restarts(self) -> int:
        """How many times the engine came up again."""
        return self._supervisor.restarts

    @property
    def retry_after(self) -> float:
        """Seconds after which trying again may help, for a client that comes now."""
        return self.unavailable().retry_after

    @property
    def in_flight(self) -> int:
        """Requests that have not finished."""
        return len(self._streams)

    async def start(self, child: EngineChild | None = None) -> None:
        """Wait until the engine is ready; `child` is one that `EngineChild.launch` started early.

        Raises the error that the first start reported; see `Supervisor.start`.
        """
        await self._supervisor.start(child)

    def stream(self, request: EngineRequest) -> TokenStream:
        """Submit a request; see `stream_all`."""
        return self.stream_all([request])

    def stream_all(self, requests: Sequence[EngineRequest]) -> TokenStream:
        """Submit requests and return their deltas as one stream; closing it cancels them.

        Raises EngineUnavailable when the engine is not up or is draining, Overloaded when too many requests
        wait for the engine's answer, InvalidRequest when a request is too large for a message. The stream
        raises what the engine refuses, and EngineDied.
        """
        connection = self._supervisor.connection
        if self.state != "ready" or connection is None:
            raise self.unavailable()
        if len(self._unanswered) + len(requests) > self._config.max_queue + self._config.max_sequences:
            raise Overloaded("Too many requests wait for the engine.", remedy="Try again later.")
        stream = TokenStream([request.id for request in requests], self._cancel)
        try:
            for request in requests:
                connection.send(Submit(request))
                self._streams[request.id] = stream
                self._unanswered.add(request.id)
        except BaseException:
            self._cancel([request.id for request in requests])
            raise
        self._idle.clear()
        return stream

    async def stats(self) -> EngineStats:
        """The statistics of the running engine; raises EngineUnavailable when it is not up or too busy to say."""
        connection = self._supervisor.connection
        if connection is None or connection.ready is None:
            raise self.unavailable()
        token = next(self._tokens)
        answer: asyncio.Future[EngineStats] = asyncio.get_running_loop().create_future()
        self._asked[token] = answer
        try:
            connection.send(AskStats(token))
            return await asyncio.wait_for(answer, STATS_SECONDS)
        except TimeoutError:
            raise self.unavailable() from None
        finally:
            del self._asked[token]

    async def drain(self, timeout: float) -> bool:
        """Take no new requests and wait for those in flight; False when some were left after `timeout` s."""
        self._draining = True
        try:
            await asyncio.wait_for(self._idle.wait(), timeout)
        except TimeoutError:
            return False
        return True

    async def close(self, grace: float = 5.0) -> None:
        """End the engine process and whatever is in flight; nothing is left behind. Safe to call twice."""
        self._draining = True
        await self._supervisor.close(grace)
        self._end_all(EngineDied("The server was stopped while it worked on the request."))

    def unavailable(self) -> EngineUnavailable:
        """The error for a request that comes while nothing is taken."""
        if self._draining:
            return EngineUnavailable(
                "The server is shutting down.", retry_after=DRAIN_RETRY_SECONDS, remedy="Try again elsewhere."
            )
        return self._supervisor.unavailable()

    def _receive(self, message: FromEngine) -> None:
        match message:
            case Deltas(deltas=deltas):
                for delta in deltas:
                    self._deliver(delta)
            case Accepted(ids=ids):
                for request_id in ids:
                    self._unanswered.discard(request_id)
                    stream = self._streams.get(request_id)
                    if stream is not None:
                        stream.accept(request_id)
            case Stats(token=token, stats=stats):
                answer = self._asked.get(token)
                if answer is not None and not answer.done():
                    answer.set_result(stats)
            case Ready():
                self.engine = message

    def _deliver(self, delta: TokenDelta) -> None:
        self._unanswered.discard(delta.id)
        stream = self._streams.get(delta.id)
        if stream is None:
            return
        if delta.finish_reason is not None:
            self._forget(delta.id)
        if delta.failure is not None:
            stream.fail(error_of(delta.failure))
        else:
            stream.feed(delta)

    def _cancel(self, ids: list[str]) -> None:
        connection = self._supervisor.connection
        for request_id in ids:
            if self._streams.pop(request_id, None) is not None and connection is not None:
                connection.send(Cancel(request_id))
        self._set_idle()

    def _forget(self, request_id: str) -> None:
        self._streams.pop(request_id, None)
        self._set_idle()

    def _set_idle(self) -> None:
        if not self._streams:
            self._idle.set()

    def _lose(self, failure: EngineFailure) -> None:
        what = "The engine died while it worked on the request."
        self._end_all(EngineDied(what, why=f"{failure.what} {failure.why}".strip(), remedy="Try again."))

    def _end_all(self, error: EngineDied) -> None:
        streams = set(self._streams.values())
        self._streams.clear()
        self._unanswered.clear()
        for stream in streams:
            stream.fail(error)
        for answer in self._asked.values():
            if not answer.done():
                answer.set_exception(error)
        self._set_idle()
