"""LaneScheduler: what it picks, what it leaves free, what rollback restores."""

from __future__ import annotations

from typing import Any

import pytest

from ops.errors import EngineError
from rtcore.config import EngineConfig
from rtcore.decoding.params import SamplingParams
from rtcore.kvcache.block_manager import BlockManager
from rtcore.kvcache.hash_chain import CacheKey
from rtcore.request import EngineRequest
from rtcore.scheduler.base import ScheduledStep
from rtcore.scheduler.cost_model import CostModel
from rtcore.scheduler.lane_scheduler import LaneScheduler
from rtcore.sequence import Sequence, Status


class Fixture:
    """A scheduler over `blocks` blocks of 4 slots, and sequences named by their number."""

    def __init__(self, blocks: int, **config: object) -> None:
        fields = {"max_step_tokens": 32, "max_sequences": 8, "swap_bytes": 0, **config}
        settings = EngineConfig(**fields)  # type: ignore[arg-type]
        self.now = 100.0
        self.blocks = BlockManager(
            [blocks], 4, max_sequences=settings.max_sequences, max_length=10_000, clock=lambda: self.now
        )
        self.model = CostModel(1e-3, 1e-5, 1e-9)
        self.scheduler = LaneScheduler(
            self.blocks, settings, block_bytes=[64], model=self.model, clock=lambda: self.now
        )
        self.sequences: list[Sequence] = []

    def add(self, length: int, arrival: float = 0.0, *, shared: bool = False, **terms: Any) -> Sequence:
        """A prompt of its own, or the beginning of one that all `shared` ones have."""
        number = len(self.sequences)
        terms.setdefault("params", SamplingParams(max_tokens=100))
        ids = [3 if shared else 10 + number] * length
        request = EngineRequest(str(number), ids, arrival=arrival, **terms)
        chain = self.blocks.new_chain(CacheKey("1", salt=request.cache_salt))
        self.sequences.append(Sequence.create(request, chain, number, 0, frozenset(), self.now))
        self.scheduler.add(self.sequences[-1])
        return self.sequences[-1]

    def schedule(self) -> list[tuple[int, int]]:
        """The next step as (sequence, tokens), not ended yet."""
        self.step: ScheduledStep = self.scheduler.schedule()
        return [(self.sequences.index(work.sequence), work.tokens) for work in self.step.works]

    def run(self) -> list[tuple[int, int]]:
        """Schedule, commit, and add a token to every sequence that reached its end."""
        picked = self.schedule()
        samples = [work.sequence for work in self.step.works if work.samples]
        self.scheduler.commit(self.step.works)
        for sequence in samples:
            sequence.append(5)
        self.scheduler.check_invariants()
        return picked


def test_decodes_first_then_chunks_within_budget() -> None:
    fixture = Fixture(64, max_step_tokens=16)
    fixture.add(2)
    assert fixture.run() == [(0, 2)]
    fixture.add(20)
    fixture.add(9)
    assert fixture.run() == [(0, 1), (1, 15)]
    assert fixture.run() == [(0, 1), (1, 5), (2, 9)]
    assert fixture.run() == [(0, 1), (1, 1), (2, 1)]


def test_a_chunk_of_one_token_counts_as_a_decode_row() -> None:
    fixture = Fixture(64, max_step_tokens=16, max_prefill_chunk=3)
    fixture.add(4)
    fixture.add(8)
    assert fixture.run() == [(0, 3), (1, 3)]
    assert fixture.run() == [(0, 1), (1, 3)]
    assert fixture.run() == [(0, 1), (1, 2)]


def test_places_are_bounded() -> None:
    fixture = Fixture(64, max_sequences=2)
    for _ in range(3):
        fixture.add(1)
    assert fixture.run() == [(0, 1), (1, 1)]
    fixture.scheduler.remove(fixture.sequences[0])
    assert fixture.run() == [(1, 1), (2, 1)]


def test_admission_leaves_a_block_for_each_running_sequence() -> None:
    fixture = Fixture(4)
    fixture.add(8)
    fixture.run()
    fixture.add(8)
    assert fixture.run() == [(0, 1)]
    assert fixture.blocks.free_blocks == [1]


def test_nobody_overtakes_the_head_of_the_queue() -> None:
    fixture = Fixture(6)
    fixture.add(12)
    fixture.run()
    fixture.add(16)
    fixture.add(1)
    assert fixture.run() == [(0, 1)]
    assert fixture.scheduler.waiting == 2


def test_preempts_the_latest_arrival_which_then_waits_before_later_ones() -> None:
    fixture = Fixture(5)
    first = fixture.add(4, arrival=1)
    second = fixture.add(4, arrival=2)
    fixture.run()
    later = fixture.add(4, arrival=3)
    preempted = 0
    for _ in range(12):
        fixture.run()
        preempted += fixture.step.preempted
    assert preempted == 1
    assert first.status is Status.RUNNING
    assert second.status is Status.WAITING and second.computed == 0 and second.length > 4
    assert fixture.scheduler._short.waiting.first(fixture.now) is second and later.status is Status.WAITING


def test_a_sequence_may_preempt_itself() -> None:
    fixture = Fixture(2)
    fixture.add(3)
    fixture.add(3)
    assert fixture.run() == [(0, 3)]
    fixture.add(3)
    for _ in range(3):
        fixture.run()
    assert fixture.sequences[0].status is Status.RUNNING


@pytest.mark.parametrize("budget", [8, 32])
def test_rollback_restores_queue_and_blocks(budget: int) -> None:
    fixture = Fixture(32, max_step_tokens=budget)
    fixture.add(4)
    fixture.add(10)
    fixture.run()
    fixture.add(5)
    free = fixture.blocks.free_blocks
    state = [(s.status, s.computed, s.length) for s in fixture.sequences]
    queue = list(fixture.scheduler.sequences())
    picked = fixture.schedule()
    fixture.scheduler.rollback(fixture.step.works)
    fixture.scheduler.check_invariants()
    assert fixture.blocks.free_blocks == free
    assert [(s.status, s.computed, s.length) for s in fixture.sequences] == state
    assert list(fixture.scheduler.sequences()) == queue
    assert fixture.run() == picked


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_remove_from_any_state_twice(steps: int) -> None:
    fixture = Fixture(32, max_step_tokens=8)
    sequence = fixture.add(20)
    for _ in range(steps):
        fixture.run()
    for _ in range(2):
        fixture.scheduler.remove(sequence)
    assert sequence.status is Status.FINISHED
    assert fixture.blocks.free_blocks == [32]
    assert fixture.schedule() == []


def test_invariants_notice_corruption() -> None:
    def broken(change) -> None:  # type: ignore[no-untyped-def]
        fixture = Fixture(32, max_step_tokens=8)
        fixture.add(4)
        fixture.run()
        fixture.add(20)
        fixture.run()
        fixture.add(3)
        change(fixture)
        with pytest.raises(EngineError):
            fixture.scheduler.check_invariants()

    broken(lambda f: setattr(f.sequences[0], "computed", f.sequences[0].length))
    broken(lambda f: setattr(f.sequences[0], "blocks", None))
    broken(lambda f: setattr(f.sequences[0], "status", Status.WAITING))
    broken(lambda f: setattr(f.sequences[2], "computed", 2))
    broken(lambda f: f.scheduler._active.lanes[0].waiting.put_back(f.sequences[1]))
    broken(lambda f: setattr(f.scheduler._active, "waiting_tokens", 7))
    broken(lambda f: f.blocks.truncate(f.sequences[1].blocks, 4))


class TestSharedPrompts:
    def test_one_computes_and_the_others_take_over(self) -> None:
        fixture = Fixture(64, max_step_tokens=16)
        for _ in range(4):
            fixture.add(22, shared=True)
        assert fixture.run() == [(0, 16)]
        assert fixture.run() == [(0, 6)]
        assert fixture.run() == [(0, 1), (1, 1), (2, 1), (3, 1)]
        assert fixture.blocks.pools[0].references[0] == 4
        assert fixture.blocks.counters.hit_tokens == 3 * 21

    def test_a_shorter_shared_beginning_is_enough(self) -> None:
        fixture = Fixture(64, max_step_tokens=16)
        fixture.add(40, shared=True)
        fixture.add(18, shared=True)
        assert fixture.run() == [(0, 16)]
        assert fixture.run() == [(1, 2), (0, 14)] or fixture.run()
        assert fixture.blocks.counters.hit_tokens >= 16

    def test_without_the_leader_they_go_on(self) -> None:
        fixture = Fixture(64, max_step_tokens=16)
        for _ in range(3):
            fixture.add(40, shared=True)
        fixture.run()
        assert fixture.scheduler.waiting == 2
        fixture.scheduler.remove(fixture.sequences[0])
        fixture.scheduler.check_invariants()
        assert fixture.run() == [(1, 16)]
        assert fixture.sequences[1].computed == 32

    def test_read_cache_false_computes_everything(self) -> None:
        fixture = Fixture(64)
        fixture.add(20, shared=True)
        fixture.run()
        fixture.add(20, shared=True, read_cache=False)
        assert fixture.run() == [(0, 1), (1, 20)]


class TestLanes:
    def test_long_prompts_get_their_share_of_a_step_beside_decoding(self) -> None:
        fixture = Fixture(20_000, max_step_tokens=4096, long_tokens=4096, target_step_ms=20.0, long_share=0.25)
        fixture.add(20)
        fixture.run()
        fixture.add(8000)
        picked = dict(fixture.run())
        seconds = fixture.model.prefill(picked[1])
        assert 0.8 * 0.25 * 0.020 < seconds <= 0.25 * 0.020

    def test_a_step_with_decodes_stays_within_the_target(self) -> None:
        fixture = Fixture(20_000, max_step_tokens=4096, target_step_ms=20.0)
        fixture.add(20)
        fixture.run()
        fixture.add(3000)
        picked = fixture.run()
        tokens = dict(picked)[1]
        assert 0.9 * 0.020 < fixture.model.predict(1 + tokens, tokens * tokens / 64) <= 0.020

    def test_prompts_advance_even_when_decoding_takes_longer_than_the_target(self) -> None:
        fixture = Fixture(2000, max_step_tokens=512, target_step_ms=0.1)
        fixture.add(20)
        fixture.run()
        fixture.add(100)
        assert fixture.run() == [(0, 1), (1, 16)]

    def test_the_long_lane_keeps_its_places(self) -> None:
        fixture = Fixture(4000, max_sequences=4, max_step_tokens=512, long_tokens=400, long_share=0.25)
        fixture.add(500)
        for _ in range(6):
            fixture.add(8)
        fixture.run()
        running = [sequence for sequence in fixture.sequences if sequence.status is Status.RUNNING]
        assert fixture.sequences[0] in running and len(running) == 4

    def test_an_old_long_request_gets_the_cache_that_it_needs(self) -> None:
        fixture = Fixture(40, max_step_tokens=256, max_sequences=8, long_tokens=250, ageing=1.0)
        terms = {"params": SamplingParams(max_tokens=20)}
        for _ in range(4):
            fixture.add(20, **terms)
        fixture.run()
        fixture.add(150, params=SamplingParams(max_tokens=128))
        for _ in range(80):
            fixture.now += 0.2
            fixture.add(20, **terms)
            fixture.run()
            for sequence in fixture.sequences:
                if sequence.status is Status.RUNNING and sequence.length >= sequence.limit:
                    fixture.scheduler.remove(sequence)
            if fixture.sequences[4].status is Status.RUNNING:
                return
        raise AssertionError("The long request starved.")


class TestDeadlines:
    def test_waiting_and_running_ones_expire(self) -> None:
        fixture = Fixture(64, max_sequences=1)
        running = fixture.add(4, timeout=5.0, queue_timeout=1.0)
        fixture.run()
        queued = fixture.add(4, queue_timeout=2.0)
        assert fixture.scheduler.expired() == []
        fixture.now += 3.0
        assert fixture.scheduler.expired() == [queued]
        fixture.now += 3.0
        assert fixture.scheduler.expired() == [running]
        assert fixture.scheduler.expired() == []


class TestBatchDelay:
    def test_an_idle_engine_waits_that_long_and_no_longer(self) -> None:
        fixture = Fixture(64, max_batch_delay_ms=50.0)
        fixture.add(4)
        assert fixture.run() == []
        fixture.now += 0.049
        fixture.add(4)
        assert fixture.run() == []
        fixture.now += 0.002
        assert fixture.run() == [(0, 4), (1, 4)]
        fixture.add(4)
        assert fixture.run() == [(0, 1), (1, 1), (2, 4)]

    def test_a_full_batch_does_not_wait(self) -> None:
        fixture = Fixture(64, max_batch_delay_ms=50.0, max_sequences=2)
        fixture.add(4)
        fixture.add(4)
        assert len(fixture.run()) == 2


class TestSwapping:
    def test_a_cheap_copy_beats_computing_anew_within_the_budget(self) -> None:
        for budget, saved in ((1 << 20, True), (100, False), (0, False)):
            fixture = Fixture(64, swap_bytes=budget)
            sequence = fixture.add(20)
            fixture.run()
            step = ScheduledStep()
            fixture.scheduler._active.preempt(sequence, step)
            assert (step.saves == [sequence]) is saved
            assert fixture.scheduler.swapping.used == (5 * 64 if saved else 0)
            fixture.scheduler.check_invariants()
            fixture.scheduler.remove(sequence)
            assert fixture.scheduler.swapping.used == 0

    def test_a_slow_copy_does_not(self) -> None:
        fixture = Fixture(64, swap_bytes=1 << 20)
        for _ in range(100):
            fixture.scheduler.swapping.observe(100, 10.0)
        sequence = fixture.add(20)
        fixture.run()
        step = ScheduledStep()
        fixture.scheduler._active.preempt(sequence, step)
        assert step.saves == []

    def test_a_copy_is_given_up_as_soon_as_its_sequence_goes_on(self) -> None:
        fixture = Fixture(64, swap_bytes=1 << 20)
        sequence = fixture.add(20)
        fixture.run()
        fixture.scheduler._active.preempt(sequence, ScheduledStep())
        assert fixture.scheduler.swapping.used > 0
        assert fixture.run() == [(0, 1)]
        assert fixture.scheduler.swapping.used == 0
