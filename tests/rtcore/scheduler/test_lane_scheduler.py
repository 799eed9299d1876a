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
