"""What the engine does with its cache: what it keeps, shares, moves, forgets, and what it does when that fails."""

from __future__ import annotations

import numpy as np
import pytest

from ops.errors import DeadlineUnreachable, EngineError, InvalidRequest, Overloaded
from rtcore.decoding.params import SamplingParams
from rtcore.executor.base import Int32, Payload
from rtcore.request import EngineRequest
from rtcore.scheduler.base import ScheduledStep
from rtcore.scheduler.outcome import Outcome
from tests.rtcore.fakes import Deltas, FakeExecutor, advance, drain, fake_engine, tokens_of

PROMPT = [5 + number % 7 for number in range(22)]


def request(name: str, prompt: list[int] | None = None, tokens: int = 5, **terms: object) -> EngineRequest:
    params = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
    return EngineRequest(name, prompt or PROMPT, params, **terms)  # type: ignore[arg-type]


def test_a_second_turn_computes_only_what_is_new() -> None:
    engine = fake_engine()
    engine.submit(request("a"))
    answer = tokens_of(drain(engine)["a"])
    before = engine.stats().tokens_prefilled
    engine.submit(request("b", [*PROMPT, *answer, 9, 9]))
    drain(engine)
    assert engine.stats().tokens_prefilled - before == 3
    assert engine.stats().cache.hit_tokens == len(PROMPT) + 4


def test_answers_to_one_prompt_compute_it_once() -> None:
    engine = fake_engine(stop_ids=())
    for number in range(5):
        params = SamplingParams(temperature=1, seed=number, max_tokens=6)
        engine.submit(EngineRequest(f"r{number}", PROMPT, params))
    deltas = drain(engine)
    assert engine.stats().tokens_prefilled == len(PROMPT) + 4
    assert len({tuple(tokens_of(items)) for items in deltas.values()}) > 1
    assert engine.stats().cache.copies >= 4


def test_a_cancelled_request_leaves_what_it_computed() -> None:
    engine = fake_engine(max_step_tokens=64, max_prefill_chunk=10)
    engine.submit(request("a"))
    engine.step()
    engine.cancel("a")
    engine.step()
    engine.submit(request("b"))
    drain(engine)
    assert engine.stats().cache.hit_tokens == 10


def test_a_request_takes_over_what_a_running_one_decodes() -> None:
    engine = fake_engine(stop_ids=())
    engine.submit(request("a", tokens=40))
    deltas: Deltas = {}
    for _ in range(20):
        advance(engine, deltas)
    known = [*PROMPT, *tokens_of(deltas["a"])]
    computed = len(known) - 1
    engine.submit(request("b", [*known, 9], tokens=12))
    drain(engine, deltas)
    size = engine._blocks.block_size
    assert engine.stats().cache.hit_tokens == computed - computed % size > len(PROMPT) + size
    for name, prompt, tokens in (("a", PROMPT, 40), ("b", [*known, 9], 12)):
        alone = fake_engine(prefix_cache=False, stop_ids=())
        alone.submit(request("x", prompt, tokens=tokens))
        assert tokens_of(deltas[name]) == tokens_of(drain(alone)["x"])


@pytest.mark.parametrize("end", ["cancel", "preempt", "swap"])
def test_whatever_ends_a_request_leaves_what_it_decoded(end: str) -> None:
    engine = fake_engine(stop_ids=(), swap_bytes=1 << 20 if end == "swap" else 0)
    engine.submit(request("a", tokens=40))
    deltas: Deltas = {}
    for _ in range(21):
        advance(engine, deltas)
    known = [*PROMPT, *tokens_of(deltas["a"])]
    if end == "cancel":
        engine.cancel("a")
    else:
        step = ScheduledStep()
        active = engine._scheduler._active
        active.preempt(active.least_important(), step)
        assert len(step.saves) == (end == "swap")
        assert engine._prepare(step) is Outcome.COMMITTED
    engine.submit(request("b", [*known, 9], priority=-1))
    advance(engine, deltas)
    assert engine.stats().cache.hit_tokens == len(known) - 1
    drain(engine, deltas)
    if end != "cancel":
        alone = fake_engine(prefix_cache=False, stop_ids=())
        alone.submit(request("x", tokens=40))
        assert tokens_of(deltas["a"]) == tokens_of(drain(alone)["x"])


def test_salts_and_read_cache() -> None:
    engine = fake_engine()
    for name, terms in (("a", {"cache_salt": "x"}), ("b", {"cache_salt": "y"}), ("c", {"read_cache": False})):
        engine.submit(request(name, **terms))
        drain(engine)
    assert engine.stats().cache.hit_tokens == 0
    engine.submit(request("d", cache_salt="x"))
    drain(engine)
    assert engine.stats().cache.hit_tokens == len(PROMPT) - 1


def test_what_may_be_wrong_is_not_cached() -> None:
    executor = FakeExecutor(poison=96)
    engine = fake_engine(executor)
    engine.submit(request("a", [*PROMPT[:6], 96]))
    assert drain(engine)["a"][-1].finish_reason == "error"
    assert engine.stats().cache.bytes_cached == 0


def test_idle_engines_forget_and_give_memory_back() -> None:
    now = [0.0]
    executor = FakeExecutor()
    engine = fake_engine(executor, clock=lambda: now[0], cache_ttl=60.0)
    engine.submit(request("a"))
    drain(engine)
    assert engine.stats().cache.bytes_cached > 0
    for _ in range(3):
        now[0] += 61.0
        engine.maintain()
    stats = engine.stats().cache
    assert (stats.bytes_cached, stats.bytes_written) == (0, 0)
    assert stats.evictions["expired"] == executor.released == 7


class TestDeadlines:
    def test_expired_requests_end_in_the_next_step_whatever_state_they_are_in(self) -> None:
        now = [0.0]
        engine = fake_engine(clock=lambda: now[0], max_sequences=1, stop_ids=())
        engine.submit(request("running", tokens=50, timeout=10.0))
        engine.submit(request("queued", queue_timeout=5.0))
        deltas: Deltas = {}
        advance(engine, deltas)
        now[0] = 6.0
        advance(engine, deltas)
        assert deltas["queued"][-1].failure.kind == "DeadlineExceeded"  # type: ignore[union-attr]
        assert "waited longer" in deltas["queued"][-1].failure.what  # type: ignore[union-attr]
        now[0] = 11.0
        advance(engine, deltas)
        assert "took longer" in deltas["running"][-1].failure.what  # type: ignore[union-attr]
        assert not engine.has_work

    def test_hopeless_ones_are_refused_with_the_estimate(self) -> None:
        engine = fake_engine(max_sequences=1)
        for number in range(20):
            engine.submit(request(f"r{number}"))
        with pytest.raises(DeadlineUnreachable, match="would wait about") as caught:
            engine.submit(request("late", queue_timeout=0.01))
        assert caught.value.retry_after > 0 and isinstance(caught.value, Overloaded)

    @pytest.mark.parametrize("terms", [{"timeout": 0.0}, {"queue_timeout": -1.0}, {"priority": 9}])
    def test_nonsense_is_refused(self, terms: dict[str, float]) -> None:
        with pytest.raises(InvalidRequest) as caught:
            fake_engine().submit(request("x", **terms))
        assert caught.value.param == next(iter(terms))


class Clumsy(FakeExecutor):
    """Fails to move blocks as often as told."""

    failures = 0

    def _fail(self) -> None:
        if self.failures:
            self.failures -= 1
            raise MemoryError("no host memory")

    def save_blocks(self, group: int, blocks: Int32) -> Payload:
        self._fail()
        return super().save_blocks(group, blocks)

    def load_blocks(self, group: int, blocks: Int32, payload: Payload) -> None:
        self._fail()
        super().load_blocks(group, blocks, payload)

    def copy_blocks(self, group: int, source: Int32, destination: Int32) -> None:
        if self.failures:
            self.failures -= 1
            raise EngineError("no copy")
        super().copy_blocks(group, source, destination)


@pytest.mark.parametrize("when", ["save", "load", "copy"])
def test_blocks_that_could_not_be_moved_are_computed_anew(when: str) -> None:
    executor = Clumsy()
    engine = fake_engine(executor, prefix_cache=when == "copy", stop_ids=())
    for number in range(3):
        engine.submit(request(f"r{number}", PROMPT if when == "copy" else [40 + number, *PROMPT], tokens=9))
    deltas: Deltas = {}
    advance(engine, deltas)
    if when == "copy":
        executor.failures = 1
        assert advance(engine, deltas) is not None
    else:
        step = ScheduledStep()
        executor.failures = int(when == "save")
        for victim in list(engine._scheduler._active.running):
            engine._scheduler._active.preempt(victim, step)
        assert len(step.saves) == 3
        prepared = Outcome.COMMITTED if when == "load" else Outcome.RETRYABLE_ABORT
        assert engine._prepare(step) is prepared
        executor.failures = int(when == "load")
        outcome = advance(engine, deltas).outcome
        assert outcome is (Outcome.RETRYABLE_ABORT if when == "load" else Outcome.COMMITTED)
    assert executor.failures == 0
    drain(engine, deltas)
    for number in range(3):
        alone = fake_engine(stop_ids=())
        alone.submit(request("x", PROMPT if when == "copy" else [40 + number, *PROMPT], tokens=9))
        assert tokens_of(deltas[f"r{number}"]) == tokens_of(drain(alone)["x"])
    stats = engine.stats()
    assert stats.blocks_free == stats.blocks_total and stats.swapped_bytes == 0


def test_the_cost_model_learns_from_steps_that_ran() -> None:
    engine = fake_engine()
    engine.submit(request("a", tokens=20))
    drain(engine)
    assert engine._scheduler.model.observed == engine.stats().steps
    assert np.isfinite(engine.stats().load.estimated_wait)


def test_a_prompt_that_takes_the_whole_cache_starts_once_it_is_alone() -> None:
    """The beginning of a block that is cached takes a block beside its copy, which the cache does not have."""
    engine = fake_engine(FakeExecutor(num_blocks=(8,), block_size=4), stop_ids=())
    engine.submit(request("cached", PROMPT[:6], tokens=1))
    drain(engine)
    engine.submit(request("running", [30, 31, 32], tokens=9))
    engine.submit(request("whole", [*PROMPT[:6], *range(40, 65)], tokens=1))
    deltas: Deltas = {}
    for _ in range(30):
        if engine.has_work:
            advance(engine, deltas)
    assert not engine.has_work
    assert [len(tokens_of(deltas[name])) for name in ("running", "whole")] == [9, 1]
