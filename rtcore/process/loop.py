"""The engine process's loop: take what came in, run a step, send what it produced."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import msgspec
import zmq

from ops.errors import EngineError, OrtolanError
from rtcore.failure import error_of, failure_of
from rtcore.process import messages
from rtcore.process.messages import Accepted, Alive, AskStats, Cancel, Deltas, FromEngine, Stats, Submit, ToEngine
from rtcore.request import TokenDelta
from rtcore.scheduler.outcome import Outcome

if TYPE_CHECKING:
    from rtcore.engine import Engine

LINGER_MS = 2000
RETRY_MS = 2
"""Pause after a step that could commit nothing, so that waiting for capacity does not spin."""


class EngineSocket:
    """The engine's end of the ipc socket. Sending blocks while the server does not read, which bounds memory."""

    def __init__(self, address: str) -> None:
        self._context = zmq.Context(io_threads=1)
        self._socket = self._context.socket(zmq.PAIR)
        self._socket.setsockopt(zmq.MAXMSGSIZE, messages.MAX_MESSAGE_BYTES)
        self._socket.setsockopt(zmq.RECONNECT_IVL, 10)  # the server may bind only after we are up
        self._socket.setsockopt(zmq.LINGER, LINGER_MS)
        self._socket.connect(address)
        self.last_sent = time.monotonic()

    def send(self, message: FromEngine) -> None:
        self._socket.send(messages.encode(message))
        self.last_sent = time.monotonic()

    def receive(self, timeout_ms: int) -> list[ToEngine]:
        """All messages that are there, after waiting up to `timeout_ms` for the first."""
        if timeout_ms and not self._socket.poll(timeout_ms):
            return []
        received: list[ToEngine] = []
        while True:
            try:
                frame = self._socket.recv(zmq.NOBLOCK)
            except zmq.Again:
                return received
            try:
                received.append(messages.decode_to_engine(frame))
            except msgspec.DecodeError as error:
                raise EngineError("The engine got a message that it cannot read.", why=str(error)) from error

    def close(self) -> None:
        self._socket.close()
        self._context.term()


class EngineLoop:
    """Runs an engine until the server says Shutdown; raises EngineError when the engine cannot go on."""

    def __init__(self, engine: Engine, socket: EngineSocket, heartbeat: float) -> None:
        self._engine = engine
        self._socket = socket
        self._heartbeat = heartbeat

    def run(self) -> None:
        wait_ms = 0
        outcome = Outcome.COMMITTED
        while True:
            if not self._take_messages(wait_ms):
                return
            # A client that asks one thing after the other comes back at once: what can wait does not begin before
            # a whole wait brought no work.
            idle = outcome is Outcome.NO_WORK
            outcome = self._step() if self._engine.has_work else Outcome.NO_WORK
            if outcome is Outcome.NO_WORK:
                if idle:
                    self._engine.maintain()
                wait_ms = int(self._heartbeat * 1000)
            elif outcome in (Outcome.COMMITTED, Outcome.UNSERVICEABLE, Outcome.PREPARING):
                wait_ms = 0
            else:
                wait_ms = RETRY_MS
            if time.monotonic() - self._socket.last_sent >= self._heartbeat:
                self._socket.send(Alive())

    def _step(self) -> Outcome:
        result = self._engine.step()
        if result.accepted:
            self._socket.send(Accepted(result.accepted))
        if result.deltas:
            self._socket.send(Deltas(result.deltas))
        if result.outcome is Outcome.FATAL:
            failures = [delta.failure for delta in result.deltas if delta.failure is not None]
            raise error_of(failures[0]) if failures else EngineError("The engine cannot go on.")
        return result.outcome

    def _take_messages(self, wait_ms: int) -> bool:
        """Act on what came in; False means Shutdown."""
        accepted: list[str] = []
        refused: list[TokenDelta] = []
        for message in self._socket.receive(wait_ms):
            match message:
                case Submit(request=request):
                    try:
                        prepared_first = self._engine.submit(request)
                    except OrtolanError as error:
                        refused.append(TokenDelta(request.id, [], "error", failure=failure_of(error)))
                    else:
                        if not prepared_first:
                            accepted.append(request.id)
                case Cancel(id=request_id):
                    self._engine.cancel(request_id)
                case AskStats(token=token):
                    self._socket.send(Stats(token, self._engine.stats()))
                case _:
                    return False
        if accepted:
            self._socket.send(Accepted(accepted))
        if refused:
            self._socket.send(Deltas(refused))
        return True
