"""Masks beside the step: in time, late, and failing."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from rtcore.decoding.grammar.mask_worker import MaskJob, MaskWorker
from rtcore.decoding.grammar.state import GrammarState
from tests.rtcore.decoding.grammar.words import VOCAB_SIZE, allowed, encode, state_of


class Slow(GrammarState):
    """A state whose masks wait for an event."""

    def __init__(self, release: threading.Event) -> None:
        inner = state_of(regex="abc")
        super().__init__(inner._matcher, inner._spec, frozenset(), VOCAB_SIZE)
        self._release = release

    def masks(self, *arguments: Any) -> Any:
        self._release.wait(60)
        return super().masks(*arguments)


class Broken(Slow):
    def masks(self, *arguments: Any) -> Any:
        raise RuntimeError("native code gave up")


@pytest.fixture
def worker() -> Any:
    made = MaskWorker(seconds=0.2)
    yield made
    made.close()


def test_tokens_are_followed_before_the_mask(worker: MaskWorker) -> None:
    jobs = [MaskJob(state_of(regex="abc"), encode("ab")), MaskJob(state_of(regex="xy"), (), encode("x"))]
    worker.begin(jobs)
    worker.finish()
    assert [allowed(row) for row in jobs[0].rows] == [set(encode("c"))]
    assert [allowed(row) for row in jobs[1].rows] == [set(encode("x")), set(encode("y"))]


def test_one_that_is_late_ends_and_the_others_go_on(worker: MaskWorker) -> None:
    release = threading.Event()
    states = [state_of(regex="abc"), Slow(release), state_of(regex="xyz")]
    jobs = [MaskJob(state, ()) for state in states]
    worker.begin(jobs)
    worker.finish()
    try:
        assert states[1].error is not None
        assert "longer than" in str(states[1].error)
        assert states[0].error is None and states[2].error is None
        assert allowed(jobs[2].rows[0]) == set(encode("x"))
        assert jobs[1].rows.shape == jobs[0].rows.shape
        again = [MaskJob(states[2], encode("x"))]
        worker.begin(again)
        worker.finish()
        assert allowed(again[0].rows[0]) == set(encode("y"))
    finally:
        release.set()


def test_one_that_fails_ends_and_the_others_go_on(worker: MaskWorker) -> None:
    broken = Broken(threading.Event())
    jobs = [MaskJob(broken, (), encode("a")), MaskJob(state_of(regex="xyz"), ())]
    worker.begin(jobs)
    worker.finish()
    assert "native code gave up" in str(broken.error)
    assert [len(allowed(row)) for row in jobs[0].rows] == [VOCAB_SIZE, 0]
    assert allowed(jobs[1].rows[0]) == set(encode("x"))


def test_jobs_of_a_step_that_failed_are_waited_for(worker: MaskWorker) -> None:
    state = state_of(regex="abc")
    worker.begin([MaskJob(state, encode("a"))])
    worker.settle()
    worker.settle()
    assert state.accepted == 1
