"""The idle share of steps whose events come at known times."""

from __future__ import annotations

from typing import Any

import pytest

from ops.errors import EngineError
from server.bench.gpu_idle import IdleClock


class Device:
    """Gives events in the order of time, which passes as the test says."""

    def __init__(self) -> None:
        self.now = 0.0
        self.times: dict[int, float] = {}
        self.released: set[int] = set()

    def record(self) -> int:
        self.times[len(self.times) + 1] = self.now
        return len(self.times)

    def elapsed(self, start: int, end: int) -> float:
        return self.times[end] - self.times[start]

    def release_event(self, event: int) -> None:
        assert event not in self.released
        self.released.add(event)


class Executor:
    def __init__(self) -> None:
        self.device = Device()

    def run(self, inputs: Any) -> None:
        self.device.now += 9

    def sample_later(self, inputs: Any) -> str:
        self.device.now += 1
        return "tokens"


def test_what_passes_between_steps_is_idle() -> None:
    executor: Any = Executor()
    with IdleClock(executor) as clock:
        for gap in (100.0, 0.0, 5.0, 0.0, 2.5):
            executor.device.now += gap
            executor.run(None)
            assert executor.sample_later(None) == "tokens"
    assert clock.share(4) == pytest.approx(7.5 / 37.5)
    assert len(executor.device.released) == 10
    executor.run(None)
    assert len(executor.device.times) == 10  # nobody watches any more


def test_one_step_tells_nothing() -> None:
    executor: Any = Executor()
    with IdleClock(executor) as clock:
        executor.run(None)
        executor.sample_later(None)
    with pytest.raises(EngineError):
        clock.share(10)
