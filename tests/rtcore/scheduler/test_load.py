"""Admission: what the queue takes, what it refuses and with which estimate."""

from __future__ import annotations

import pytest

from ops.errors import DeadlineUnreachable, Overloaded
from rtcore.config import EngineConfig
from rtcore.decoding.params import SamplingParams
from rtcore.request import EngineRequest
from rtcore.scheduler.load import Load, LoadMonitor, LoadState

CONFIG = EngineConfig(max_sequences=4, max_step_tokens=64, max_queue=8, max_queue_tokens=1000, max_wait=10.0)


def load(waiting: int = 0, tokens: int = 0, running: int = 0, seconds: float = 0.0, share: float = 0.5) -> Load:
    return Load(waiting, tokens, running, seconds, share, 0.05)


def request(**terms: object) -> EngineRequest:
    return EngineRequest("x", [3], SamplingParams(max_tokens=20), **terms)  # type: ignore[arg-type]


def test_states_have_hysteresis() -> None:
    monitor = LoadMonitor(CONFIG)
    states = [monitor.update(load(waiting)).value for waiting in (3, 6, 7, 5, 8, 7, 5, 4, 6)]
    assert states == [
        "normal", "normal", "shedding", "shedding", "draining", "draining", "draining", "normal", "normal",
    ]  # fmt: skip


@pytest.mark.parametrize("full", [load(waiting=8), load(waiting=2, tokens=1000)])
def test_a_full_queue_refuses_everybody(full: Load) -> None:
    with pytest.raises(Overloaded, match="as many as may") as caught:
        LoadMonitor(CONFIG).admit(request(priority=-8), full, 0.1)
    assert caught.value.retry_after >= 1


def test_shedding_refuses_low_priorities_with_the_time_to_come_back() -> None:
    monitor = LoadMonitor(CONFIG)
    busy = load(waiting=2, seconds=20.0)
    with pytest.raises(Overloaded, match=r"about 40\.0 s") as caught:
        monitor.admit(request(priority=1), busy, 0.1)
    assert caught.value.retry_after == pytest.approx(20.0)
    assert monitor.state is LoadState.SHEDDING
    monitor.admit(request(priority=0), busy, 0.1)


@pytest.mark.parametrize(
    ("terms", "message"),
    [({"queue_timeout": 3.0}, r"wait about 4\.0 s"), ({"timeout": 5.0}, r"take about 6\.0 s, longer than its 5 s")],
)
def test_deadlines_that_cannot_be_met_are_refused(terms: dict[str, float], message: str) -> None:
    with pytest.raises(DeadlineUnreachable, match=message) as caught:
        LoadMonitor(CONFIG).admit(request(**terms), load(seconds=2.0), 0.5)
    assert caught.value.retry_after >= 1
    LoadMonitor(CONFIG).admit(request(**dict.fromkeys(terms, 7.0)), load(seconds=2.0), 0.5)


def test_waits_count_places_by_how_long_requests_stay() -> None:
    monitor = LoadMonitor(CONFIG)
    assert monitor.wait(load(running=4)) == pytest.approx(0.25)
    for _ in range(400):
        monitor.finished(50, 8.0)
    assert monitor.wait(load(waiting=3, running=4)) == pytest.approx(8.0, rel=0.01)
    assert monitor.expected_tokens(request()) == 20
