"""WaitingQueue: the sequences of one lane that wait to be started, and which of them is next."""

from __future__ import annotations

from collections.abc import Iterator

from rtcore.scheduler.fairness import TenantAccounts
from rtcore.scheduler.heap import KeyedHeap
from rtcore.sequence import Sequence


class _PriorityClass:
    """The waiting sequences of one priority: of each tenant in order of arrival."""

    def __init__(self, accounts: TenantAccounts) -> None:
        self._accounts = accounts
        self._tenants: dict[str, KeyedHeap[Sequence]] = {}
        self._by_counter: KeyedHeap[str] = KeyedHeap()
        self.by_age: KeyedHeap[Sequence] = KeyedHeap()

    def add(self, sequence: Sequence) -> None:
        tenant = sequence.tenant
        queue = self._tenants.get(tenant)
        if queue is None:
            queue = self._tenants[tenant] = KeyedHeap()
            self._accounts.activate(tenant)
            self._by_counter.push(self._accounts.counter(tenant), tenant)
        queue.push(sequence.order, sequence)
        self.by_age.push(sequence.submitted, sequence)

    def discard(self, sequence: Sequence) -> None:
        self.by_age.discard(sequence)
        queue = self._tenants.get(sequence.tenant)
        if queue is not None:
            queue.discard(sequence)
            if not len(queue):
                del self._tenants[sequence.tenant]
                self._by_counter.discard(sequence.tenant)

    def first(self) -> Sequence | None:
        """The oldest sequence of the tenant that was served least."""
        while (entry := self._by_counter.first()) is not None:
            key, tenant = entry
            counter = self._accounts.counter(tenant)
            if counter <= key:
                head = self._tenants[tenant].first()
                return head[1] if head is not None else None
            self._by_counter.push(counter, tenant)
        return None


class WaitingQueue:
    """Picks by priority class, within a class the tenant that was served least, of a tenant the oldest request.

    A class counts as better by one for every `ageing` seconds that its oldest sequence has waited, so that no
    class starves. Sequences that were started before and had to stop come before all others. Nothing here
    takes longer than the logarithm of the number of waiting sequences, times the number of classes in use.
    """

    def __init__(self, accounts: TenantAccounts, ageing: float) -> None:
        self._accounts = accounts
        self._ageing = ageing
        self._classes: dict[int, _PriorityClass] = {}
        self._stopped: KeyedHeap[Sequence] = KeyedHeap()
        self._members: dict[Sequence, _PriorityClass | None] = {}

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._members)

    def add(self, sequence: Sequence) -> None:
        queue = self._classes.get(sequence.priority)
        if queue is None:
            queue = self._classes[sequence.priority] = _PriorityClass(self._accounts)
        queue.add(sequence)
        self._members[sequence] = queue

    def put_back(self, sequence: Sequence) -> None:
        """Add a sequence that had its turn and was stopped."""
        self._stopped.push((sequence.priority, sequence.order), sequence)
        self._members[sequence] = None

    def discard(self, sequence: Sequence) -> None:
        """Take a sequence out; nothing happens when it is not here."""
        queue = self._members.pop(sequence, None)
        if queue is None:
            self._stopped.discard(sequence)
            return
        queue.discard(sequence)
        if not len(queue.by_age):
            del self._classes[sequence.priority]

    def oldest(self) -> float | None:
        """When the sequence that waits longest was submitted; None if none waits that was not started before."""
        heads = [entry[0] for queue in self._classes.values() if (entry := queue.by_age.first()) is not None]
        return min(heads, default=None)

    def first(self, now: float) -> Sequence | None:
        """The sequence to start next."""
        stopped = self._stopped.first()
        if stopped is not None:
            return stopped[1]
        best: tuple[float, int] | None = None
        for priority, queue in self._classes.items():
            entry = queue.by_age.first()
            if entry is not None:
                level = priority - (now - entry[0]) / self._ageing
                if best is None or (level, priority) < best:
                    best = (level, priority)
        return self._classes[best[1]].first() if best is not None else None
