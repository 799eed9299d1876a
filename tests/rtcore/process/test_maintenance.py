"""An engine without work is still asked to let its cache expire and to give memory back."""

from __future__ import annotations

import time

from rtcore.config import EngineConfig
from rtcore.process.loop import EngineLoop
from rtcore.process.messages import FromEngine, Shutdown, ToEngine
from tests.rtcore.process.fakes import FakeEngine


class QuietSocket:
    """Nothing comes for three rounds, then the end."""

    def __init__(self) -> None:
        self.last_sent = time.monotonic()
        self.waits: list[int] = []
        self.sent: list[FromEngine] = []

    def receive(self, timeout_ms: int) -> list[ToEngine]:
        self.waits.append(timeout_ms)
        return [Shutdown()] if len(self.waits) > 3 else []

    def send(self, message: FromEngine) -> None:
        self.sent.append(message)


def test_after_every_wait_without_work() -> None:
    engine = FakeEngine(EngineConfig())
    socket = QuietSocket()
    EngineLoop(engine, socket, heartbeat=0.25).run()  # type: ignore[arg-type]
    assert engine.maintained == 2
    assert socket.waits == [0, 250, 250, 250]
