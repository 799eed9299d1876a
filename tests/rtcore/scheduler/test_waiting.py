"""Who is next: priorities with ageing, tenants by what they were served, arrival within a tenant."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rtcore.decoding.params import SamplingParams
from rtcore.kvcache.hash_chain import CacheKey, HashChain
from rtcore.request import EngineRequest
from rtcore.scheduler.fairness import TenantAccounts
from rtcore.scheduler.heap import KeyedHeap
from rtcore.scheduler.waiting import WaitingQueue
from rtcore.sequence import Sequence


def waiting(number: int, *, tenant: str = "", priority: int = 0, submitted: float = 0.0) -> Sequence:
    request = EngineRequest(str(number), [3], SamplingParams(), submitted, tenant=tenant, priority=priority)
    return Sequence.create(request, HashChain(CacheKey("1"), 4), number, 0, frozenset(), submitted)


class Queue:
    """A queue whose first sequence is served `tokens` tokens when it is taken."""

    def __init__(self, weights: dict[str, float] | None = None, ageing: float = 10.0) -> None:
        self.accounts = TenantAccounts(weights or {})
        self.queue = WaitingQueue(self.accounts, ageing)

    def take(self, now: float = 0.0, tokens: int = 100) -> Sequence:
        sequence = self.queue.first(now)
        assert sequence is not None
        self.queue.discard(sequence)
        self.accounts.serve(sequence.tenant)
        self.accounts.charge(sequence.tenant, tokens)
        return sequence


def test_one_tenant_is_served_in_order_of_arrival() -> None:
    queue = Queue()
    for number, submitted in enumerate((3.0, 1.0, 2.0)):
        queue.queue.add(waiting(number, submitted=submitted))
    assert [queue.take().request.id for _ in range(3)] == ["1", "2", "0"]
    assert queue.queue.first(0.0) is None


@pytest.mark.parametrize("weight", [1.0, 3.0])
def test_a_flood_gets_no_more_than_its_weight(weight: float) -> None:
    queue = Queue({"flood": weight})
    for number in range(400):
        queue.queue.add(waiting(number, tenant="flood"))
    for number in range(400, 500):
        queue.queue.add(waiting(number, tenant="small"))
    served = Counter(queue.take().tenant for _ in range(80))
    assert served["flood"] == pytest.approx(80 * weight / (weight + 1), abs=1)


def test_who_comes_back_after_a_pause_has_saved_nothing_up() -> None:
    queue = Queue()
    for number in range(60):
        queue.queue.add(waiting(number, tenant="a"))
    for _ in range(30):
        queue.take()
    for number in range(60, 90):
        queue.queue.add(waiting(number, tenant="b"))
    served = Counter(queue.take().tenant for _ in range(20))
    assert abs(served["a"] - served["b"]) <= 1


def test_better_priorities_go_first_until_the_others_have_waited() -> None:
    queue = Queue(ageing=10.0)
    queue.queue.add(waiting(0, priority=2, submitted=0.0))
    queue.queue.add(waiting(1, priority=0, submitted=15.0))
    assert queue.queue.first(15.0).request.id == "1"  # type: ignore[union-attr]
    queue.queue.discard(queue.queue.first(15.0))  # type: ignore[arg-type]
    queue.queue.add(waiting(2, priority=0, submitted=25.0))
    assert queue.queue.first(25.0).request.id == "0"  # type: ignore[union-attr]


def test_sequences_that_had_to_stop_come_first() -> None:
    queue = Queue()
    queue.queue.add(waiting(0, priority=-3))
    stopped = waiting(1, priority=5)
    queue.queue.put_back(stopped)
    assert queue.queue.first(0.0) is stopped
    queue.queue.discard(stopped)
    queue.queue.discard(stopped)
    assert len(queue.queue) == 1


@given(st.lists(st.tuples(st.sampled_from("pxr"), st.integers(0, 9), st.integers(0, 5))))
def test_heap_is_a_sorted_dictionary(steps: list[tuple[str, int, int]]) -> None:
    heap: KeyedHeap[int] = KeyedHeap()
    model: dict[int, tuple[int, int]] = {}
    for number, (kind, item, key) in enumerate(steps):
        if kind == "p":
            heap.push(key, item)
            model[item] = (key, number)
        elif kind == "x":
            heap.discard(item)
            model.pop(item, None)
        expected = min(model, key=lambda one: model[one], default=None)
        first = heap.first()
        assert len(heap) == len(model) and set(heap) == set(model)
        assert (first is None) if expected is None else (first == (model[expected][0], expected))


def test_a_heap_does_not_keep_what_was_discarded() -> None:
    heap: KeyedHeap[int] = KeyedHeap()
    for number in range(10_000):
        heap.push(-number, number)
        heap.discard(number - 5)
    assert len(heap) == 5 and len(heap._entries) < 200
