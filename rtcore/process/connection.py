"""Connection: the parent's side of one run of the engine process, from its start to its end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable

import msgspec
import zmq

from rtcore.process import messages
from rtcore.process.child import EngineChild
from rtcore.process.messages import Failed, FromEngine, Ready, Shutdown, ToEngine
from rtcore.request import EngineFailure

logger = logging.getLogger("ortolan.engine")

KEPT_OUTPUT_LINES = 20
MAX_OUTPUT_LINE = 2000
SETTLE_SECONDS = 0.05
REAP_SECONDS = 2.0
MESSAGES_AT_ONCE = 64
"""Messages taken before other work of the event loop gets its turn."""


class Connection:
    """Talks to one engine process and watches it.

    `failed` is the engine's own report, if it made one; `output` holds its last lines of output.
    """

    def __init__(self, child: EngineChild, *, load_timeout: float, hang_timeout: float) -> None:
        """Listens for the child at its address; raises zmq.ZMQError where that cannot be done."""
        self.child = child
        self.ready: Ready | None = None
        self.failed: Failed | None = None
        self.output: deque[str] = deque(maxlen=KEPT_OUTPUT_LINES)
        self._load_timeout = load_timeout
        self._hang_timeout = hang_timeout
        self._heard = False
        self._ended = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._on_message: Callable[[FromEngine], None] = lambda message: None
        self._context = zmq.Context(io_threads=1)
        try:
            self._socket = self._context.socket(zmq.PAIR)
            self._socket.setsockopt(zmq.MAXMSGSIZE, messages.MAX_MESSAGE_BYTES)
            self._socket.setsockopt(zmq.LINGER, 0)
            self._socket.setsockopt(zmq.SNDHWM, 0)  # the client bounds what it has outstanding
            self._socket.bind(child.address)
        except BaseException:
            self._context.destroy(linger=0)
            raise

    def send(self, message: ToEngine) -> None:
        """Queue a message; never blocks. Raises InvalidRequest when it is too large.

        A message to a process that is gone is dropped: its end reaches everyone who waits for an answer.
        """
        frame = messages.encode(message)
        if self._socket.closed:
            return
        with contextlib.suppress(zmq.Again):
            self._socket.send(frame, zmq.NOBLOCK)
        self._loop.call_soon(self._receive)  # sending may have used up the socket's edge-triggered wake-up

    async def run(self, on_message: Callable[[FromEngine], None]) -> EngineFailure:
        """Pass on messages until the process is gone, and say why it went; cancelling kills it."""
        self._on_message = on_message
        self._loop.add_reader(self._socket.FD, self._receive)
        self._loop.call_soon(self._receive)
        reader = asyncio.create_task(self._read_output())
        try:
            hung = await self._until_gone()
            await self._settle()
            return self._explain(hung)
        finally:
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)
            self._loop.remove_reader(self._socket.FD)
            self._socket.close()
            self._context.term()
            self.child.dispose()

    async def shut_down(self, grace: float) -> None:
        """Ask the process to end, and kill it after `grace` seconds, at once while it loads; `run` then returns."""
        if self.ready is None:
            self.child.kill()
        self.send(Shutdown())
        try:
            await asyncio.wait_for(self._ended.wait(), grace)
        except TimeoutError:
            self.child.kill()

    def _receive(self) -> None:
        if self._socket.closed:
            return
        empty = False
        try:
            for _ in range(MESSAGES_AT_ONCE):
                try:
                    frame = self._socket.recv(zmq.NOBLOCK)
                except zmq.Again:
                    empty = True
                    return
                self._heard = True
                self._take(frame)
        finally:
            # Also after an error in whoever takes the messages: the socket wakes us for new ones only.
            if not empty:
                self._loop.call_soon(self._receive)

    def _take(self, frame: bytes) -> None:
        try:
            message = messages.decode_from_engine(frame)
        except msgspec.DecodeError as error:
            failure = EngineFailure("EngineError", "The engine sent a message that cannot be read.", f"{error}.")
            self.failed = Failed(failure, deliberate=False)
            self.child.kill()
            return
        if isinstance(message, Ready):
            self.ready = message
        elif isinstance(message, Failed):
            self.failed = message
            if message.detail:
                logger.debug("engine failure\n%s", message.detail)
        self._on_message(message)

    async def _read_output(self) -> None:
        """Log what the process writes; the end of the pipe is the end of the process."""
        stream = asyncio.StreamReader(limit=MAX_OUTPUT_LINE)
        transport, _ = await self._loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(stream), self.child.process.stdout
        )
        try:
            while not stream.at_eof():
                try:
                    line = await stream.readuntil(b"\n")
                except asyncio.LimitOverrunError:
                    line = await stream.read(MAX_OUTPUT_LINE)
                except asyncio.IncompleteReadError as error:
                    line = error.partial
                text = line.decode(errors="replace").rstrip()
                if text:
                    self.output.append(text)
                    logger.warning("engine output: %s", text)
        finally:
            self._ended.set()
            transport.close()

    async def _until_gone(self) -> bool:
        """Wait for the end; True when the process was killed because it gave no sign of life.

        Counts silent intervals rather than time, so that a stall of our own loop counts as one at most.
        """
        silent = 0.0
        while True:
            limit = self._load_timeout if self.ready is None else self._hang_timeout
            interval = min(1.0, limit / 4)
            try:
                await asyncio.wait_for(self._ended.wait(), interval)
                return False
            except TimeoutError:
                silent = 0.0 if self._heard else silent + interval
                self._heard = False
            if not self.child.alive:
                return False
            if silent >= limit:
                self.child.kill()
                return True

    async def _settle(self) -> None:
        """Wait for the exit status and for the last messages of a process that has closed its output."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(REAP_SECONDS):
                while self.child.alive:
                    await asyncio.sleep(0.01)
        self.child.kill()
        self._heard = True
        while self._heard:
            self._heard = False
            await asyncio.sleep(SETTLE_SECONDS)

    def _explain(self, hung: bool) -> EngineFailure:
        if self.failed is not None:
            return self.failed.failure
        if hung:
            doing, limit = ("load", self._load_timeout) if self.ready is None else ("answer", self._hang_timeout)
            return EngineFailure("EngineDied", f"The engine did not {doing} within {limit:g} s and was ended.")
        last = f" Its last words: {self.output[-1]}" if self.output else ""
        end = self.child.describe_end()
        return EngineFailure("EngineDied", "The engine process died.", f"{end[0].upper()}{end[1:]}.{last}")
