"""Intake: from a request to a sequence in the scheduler's queue."""

from __future__ import annotations

import secrets
from collections.abc import Callable

from ops.errors import OrtolanError, Overloaded
from rtcore.admission import Admission
from rtcore.decoding.grammar.gate import GrammarGate
from rtcore.decoding.hooks import Hooks
from rtcore.kvcache.hash_chain import CacheKey, HashChain
from rtcore.request import EngineRequest
from rtcore.scheduler.lane_scheduler import LaneScheduler
from rtcore.sequence import Sequence, Status

_SEED_MASK = 2**64 - 1


class Intake:
    """Checks requests, makes sequences of them, and queues each once its grammar is compiled, if it has one."""

    def __init__(
        self,
        admission: Admission,
        scheduler: LaneScheduler,
        hooks: Hooks,
        grammars: GrammarGate,
        *,
        new_chain: Callable[[CacheKey], HashChain],
        version: str,
        stop_ids: frozenset[int],
        max_waiting: int,
        clock: Callable[[], float],
    ) -> None:
        """version: of the model, for the prefix cache. stop_ids: the model's. max_waiting: for grammars."""
        self.grammars = grammars
        self._admission = admission
        self._scheduler = scheduler
        self._hooks = hooks
        self._new_chain = new_chain
        self._version = version
        self._stop_ids = stop_ids
        self._max_waiting = max_waiting
        self._clock = clock
        self._number = 0

    def take(self, request: EngineRequest) -> tuple[Sequence, bool]:
        """The sequence of a request, and whether it waits for its grammar instead of being queued.

        Raises InvalidRequest, ContextLengthExceeded, CacheTooSmall, Overloaded or DeadlineUnreachable; then nothing
        has changed.
        """
        self._admission.check(request)
        self._scheduler.admit(request)
        if request.params.structured_outputs is not None and len(self.grammars) >= self._max_waiting:
            raise Overloaded("Too many requests wait for their grammars.", remedy="Try again later.")
        # A request without a seed gets one here, so that a preemption cannot change its draws.
        seed = secrets.randbits(64) if request.params.seed is None else request.params.seed & _SEED_MASK
        chain = self._new_chain(CacheKey(self._version, salt=request.cache_salt))
        sequence = Sequence.create(request, chain, self._number, seed, self._stop_ids, self._clock())
        self._hooks.attach(sequence)
        waits = self.grammars.enter(sequence)
        self._number += 1
        if waits:
            self._scheduler.watch(sequence)
        else:
            self._scheduler.add(sequence)
        return sequence, waits

    def settle(self) -> list[tuple[Sequence, OrtolanError | None]]:
        """Queue sequences whose grammars are compiled; those, and others with why theirs is none."""
        settled = self.grammars.ready()
        for sequence, error in settled:
            if error is None:
                self._scheduler.add(sequence)
            else:
                sequence.status = Status.FINISHED
        return settled

    def remove(self, sequence: Sequence) -> None:
        """Take a sequence out of whatever state it is in."""
        if self.grammars.discard(sequence):
            sequence.status = Status.FINISHED
        self._scheduler.remove(sequence)
