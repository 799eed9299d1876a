"""Steps that are queued before the tokens of the one before are known: nothing but the order of work may change."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from ops.errors import EngineDied, EngineError
from rtcore.decoding.params import SamplingParams
from rtcore.executor.base import StepInputs
from rtcore.request import EngineRequest
from rtcore.scheduler.base import ScheduledStep
from rtcore.scheduler.outcome import Outcome
from tests.rtcore.fakes import Deltas, FakeExecutor, advance, drain, fake_engine, tokens_of
from tests.rtcore.late_executor import LateExecutor
from tests.rtcore.test_engine_machine import EngineMachine

PROMPT = [11, 12, 13, 14, 15, 16, 17]


def request(name: str, prompt: list[int] = PROMPT, **params: Any) -> EngineRequest:
    given = {"max_tokens": 12, "ignore_eos": True, "temperature": 1.0, "seed": 5, **params}
    return EngineRequest(name, prompt, SamplingParams(**given), 1)


KINDS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "drawn": {"top_p": 0.9},
    "stopping": {"ignore_eos": False, "temperature": 2.0, "max_tokens": 60},
    "counted": {"presence_penalty": 1.5, "frequency_penalty": 0.5, "repetition_penalty": 1.3, "temperature": 0.5},
    "biased": {"logit_bias": {5: 3.0, 9: -4.0}, "min_tokens": 3, "ignore_eos": False},
    "told": {"logprobs": 3},
    "allowed": {"allowed_token_ids": (5, 6, 7, 8, 50)},
    "one": {"max_tokens": 1},
    "bad words": {"bad_word_ids": ((5, 6), (7,))},
    "scored": {"prompt_logprobs": 2},
}


def outcome_of(executor: FakeExecutor, kinds: list[str], **config: Any) -> tuple[Deltas, Any]:
    """The answers of requests of some kinds that run together, and the engine's statistics."""
    engine = fake_engine(executor, **config)
    for number, kind in enumerate(kinds):
        engine.submit(request(f"{number} {kind}", [30 + number, *PROMPT], **KINDS[kind], seed=number))
    deltas = drain(engine)
    return deltas, engine.stats()


def told(deltas: Deltas) -> dict[str, Any]:
    """What requests were told, however it was cut into deltas."""
    return {
        name: (
            tokens_of(parts),
            parts[-1].finish_reason,
            [one for part in parts for one in part.logprobs],
            [one for part in parts for one in part.prompt_logprobs],
        )
        for name, parts in deltas.items()
    }


@pytest.mark.parametrize("kind", [*KINDS, "all"])
def test_answers_are_the_same_ahead_or_not(kind: str) -> None:
    kinds = list(KINDS) if kind == "all" else [kind] * 3
    for config in ({}, {"max_step_tokens": 12, "max_sequences": 4, "max_prefill_chunk": 3}):
        late = LateExecutor()
        ahead, stats = outcome_of(late, kinds, **config)
        plain, _ = outcome_of(FakeExecutor(), kinds, **config)
        off, without = outcome_of(LateExecutor(), kinds, overlap=False, **config)
        assert told(ahead) == told(plain) == told(off)
        assert without.steps_ahead == 0
        assert stats.blocks_free == stats.blocks_total
        if kind not in ("one", "bad words", "scored"):
            assert stats.steps_ahead > 5 and late.most_queued == 2
        if kind in ("bad words", "scored"):
            assert stats.steps_ahead == 0


def test_answers_in_a_small_cache_are_the_same() -> None:
    kinds = ["drawn", "counted", "stopping", "greedy"] * 2
    ahead, stats = outcome_of(LateExecutor(num_blocks=(18,)), kinds)
    plain, before = outcome_of(FakeExecutor(num_blocks=(18,)), kinds)
    assert told(ahead) == told(plain)
    assert stats.preemptions > 0 and before.preemptions > 0 and stats.steps_ahead > 0


def test_a_chunk_that_leaves_one_token_may_need_a_block_too() -> None:
    """Nobody is preempted for it while what runs counts as computed."""

    def run(executor: FakeExecutor) -> tuple[Deltas, Any]:
        engine = fake_engine(executor, max_prefill_chunk=2, max_step_tokens=12, max_sequences=5)
        for number, (length, tokens) in enumerate([(17, 24), (3, 23), (9, 5), (5, 8)]):
            prompt = [10 + (7 * number + place) % 60 for place in range(length)]
            engine.submit(request(str(number), prompt, max_tokens=tokens, seed=number))
        return drain(engine), engine.stats()

    ahead, stats = run(LateExecutor(num_blocks=(14,)))
    plain, _ = run(FakeExecutor(num_blocks=(14,)))
    assert stats.preemptions > 0 and stats.steps_ahead > 0
    assert told(ahead) == told(plain)


def test_a_request_that_comes_meanwhile_starts_in_the_next_step() -> None:
    engine = fake_engine(LateExecutor())
    engine.submit(request("a", max_tokens=30))
    deltas: Deltas = {}
    for _ in range(4):
        advance(engine, deltas)
    engine.submit(request("b", [40, *PROMPT]))
    advance(engine, deltas)
    advance(engine, deltas)
    assert len(tokens_of(deltas["b"])) == 1
    alone = fake_engine()
    alone.submit(request("b", [40, *PROMPT]))
    assert tokens_of(drain(engine, deltas)["b"]) == tokens_of(drain(alone)["b"])


def test_a_step_that_only_ends_what_was_in_flight_is_committed() -> None:
    engine = fake_engine(LateExecutor())
    engine.submit(request("a", max_tokens=1))
    results = [engine.step(), engine.step()]
    assert [result.outcome for result in results] == [Outcome.COMMITTED] * 2
    assert [delta.finish_reason for delta in results[1].deltas] == ["length"]
    assert not engine.has_work and engine.step().outcome is Outcome.NO_WORK


def test_what_is_in_flight_for_nobody_is_work_until_it_has_landed() -> None:
    runs: list[int] = []

    def fault(inputs: StepInputs) -> Exception | None:
        runs.append(1)
        return EngineDied("gone") if len(runs) == 4 else None

    engine = fake_engine(LateExecutor(fault=fault))
    engine.submit(request("a", max_tokens=30))
    for _ in range(4):
        engine.step()
    engine.cancel("a")
    assert engine.has_work
    outcomes = []
    while engine.has_work:
        outcomes.append(engine.step().outcome)
    # A death that nobody waits for is noticed all the same.
    assert outcomes == [Outcome.FATAL]


def test_a_cancelled_request_gives_its_blocks_back_at_once() -> None:
    engine = fake_engine(LateExecutor(), prefix_cache=False)
    engine.submit(request("a", max_tokens=50))
    engine.submit(request("b", [40, *PROMPT], max_tokens=20))
    deltas: Deltas = {}
    for _ in range(4):
        advance(engine, deltas)
    engine.cancel("a")
    advance(engine, deltas)
    assert deltas["a"][-1].finish_reason == "cancelled"
    engine.check_invariants()
    alone = fake_engine()
    alone.submit(request("b", [40, *PROMPT], max_tokens=20))
    assert tokens_of(drain(engine, deltas)["b"]) == tokens_of(drain(alone)["b"])
    assert engine.stats().blocks_free == engine.stats().blocks_total


@pytest.mark.parametrize("at", [0, 1, 4, 5])
def test_a_step_that_fails_takes_the_one_behind_it_along(at: int) -> None:
    runs: list[int] = []

    def fault(inputs: StepInputs) -> Exception | None:
        runs.append(1)
        return EngineError("once") if len(runs) == at + 1 else None

    engine = fake_engine(LateExecutor(fault=fault))
    for number in range(3):
        engine.submit(request(f"{number}", [30 + number, *PROMPT], seed=number))
    deltas: Deltas = {}
    outcomes = []
    while engine.has_work:
        outcomes.append(advance(engine, deltas).outcome)
    assert outcomes.count(Outcome.RETRYABLE_ABORT) == 1 and engine.stats().aborted_steps == 1
    plain = fake_engine()
    for number in range(3):
        plain.submit(request(f"{number}", [30 + number, *PROMPT], seed=number))
    assert told(deltas) == told(drain(plain))


def test_a_step_that_cannot_be_queued_leaves_the_one_before_whole() -> None:
    class Full(LateExecutor):
        refused = 0

        def run(self, inputs: StepInputs) -> None:
            if inputs.token_source is not None and not self.refused:
                self.refused = 1
                raise EngineError("no room")
            super().run(inputs)

    executor = Full()
    engine = fake_engine(executor)
    engine.submit(request("a"))
    deltas = drain(engine)
    assert executor.refused == 1 and engine.stats().aborted_steps == 1
    plain = fake_engine()
    plain.submit(request("a"))
    assert told(deltas) == told(drain(plain))


def test_a_dead_executor_ends_all() -> None:
    runs: list[int] = []

    def fault(inputs: StepInputs) -> Exception | None:
        runs.append(1)
        return EngineDied("gone") if len(runs) > 3 else None

    engine = fake_engine(LateExecutor(fault=fault))
    engine.submit(request("a", max_tokens=40))
    deltas: Deltas = {}
    while engine.has_work:
        outcome = advance(engine, deltas).outcome
    assert outcome is Outcome.FATAL and deltas["a"][-1].finish_reason == "error"
    engine.close()


def test_rows_without_usable_logits_end_alone() -> None:
    engine = fake_engine(LateExecutor(poison=77))
    engine.submit(request("a", [77, *PROMPT]))
    engine.submit(request("b", [30, *PROMPT]))
    deltas = drain(engine)
    assert deltas["a"][-1].finish_reason == "error" and deltas["b"][-1].finish_reason == "length"


def test_copies_are_made_anew_when_moving_blocks_fails() -> None:
    class Clumsy(LateExecutor):
        failures = 0

        def copy_blocks(self, group: int, source: Any, destination: Any) -> None:
            if self.failures:
                self.failures -= 1
                raise EngineError("no copy")
            super().copy_blocks(group, source, destination)

    executor = Clumsy()
    engine = fake_engine(executor)
    engine.submit(request("a", max_tokens=30))
    deltas: Deltas = {}
    for _ in range(4):
        advance(engine, deltas)
    executor.failures = 1
    engine.submit(request("b", [*PROMPT, 50], max_tokens=5))
    drain(engine, deltas)
    plain = fake_engine()
    plain.submit(request("a", max_tokens=30))
    assert tokens_of(deltas["a"]) == tokens_of(drain(plain)["a"])
    assert executor.failures == 0 and engine.stats().aborted_steps == 1


def test_an_executor_that_is_found_dead_when_moving_blocks_fails_ends_all() -> None:
    class Dying(LateExecutor):
        dead = False

        def copy_blocks(self, group: int, source: Any, destination: Any) -> None:
            self.dead = True
            raise EngineError("no copy")

    executor = Dying(fault=lambda inputs: EngineDied("gone") if executor.dead else None)
    engine = fake_engine(executor)
    engine.submit(request("a", max_tokens=30))
    deltas: Deltas = {}
    for _ in range(4):
        advance(engine, deltas)
    engine.submit(request("b", [*PROMPT, 50], max_tokens=5))
    while engine.has_work:
        outcome = advance(engine, deltas).outcome
    assert outcome is Outcome.FATAL and {parts[-1].finish_reason for parts in deltas.values()} == {"error"}


class OverlapMachine(EngineMachine):
    """The same machine, whose executor is always a step late."""

    executor_type = LateExecutor

    def land(self) -> None:
        """What the test does past the engine it does while nothing is in flight."""
        self.engine._land()
        requests = self.engine._requests
        for delta in requests.take_deltas():
            self.deltas.setdefault(delta.id, []).append(delta)
        requests._cancelled = [name for name in requests._cancelled if name in requests._sequences]

    @precondition(lambda self: self.engine._scheduler._active.running)
    @rule(data=st.data())
    def preempt(self, data: st.DataObject) -> None:
        self.land()
        running = list(self.engine._scheduler._active.running)
        if running:
            step = ScheduledStep()
            self.engine._scheduler._active.preempt(data.draw(st.sampled_from(running)), step)
            assert self.engine._prepare(step) is Outcome.COMMITTED
        self.engine.check_invariants()

    @precondition(lambda self: not self.engine._runner._isolate and all(self.ended(name) for name in self.bad()))
    @rule()
    def step_with_a_passing_fault(self) -> None:
        """A step that fails as a whole shows it when its tokens are waited for; afterwards the executor works."""
        self.land()
        self.faults = 1
        aborted = self.engine.stats().aborted_steps
        outcomes = [self.one_step(), self.one_step()]
        if self.faults == 0:
            assert Outcome.RETRYABLE_ABORT in outcomes
            assert self.engine.stats().aborted_steps == aborted + 1
        self.faults = 0


OverlapMachine.TestCase.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
TestOverlapMachine = OverlapMachine.TestCase


def test_lists_of_a_late_executor_count_what_it_chose() -> None:
    """The fake's own part in this: counts without the newest token, and the row that chooses it."""
    executor = LateExecutor()
    executor._chosen = np.array([4, 6], np.int64)
    engine = fake_engine(FakeExecutor())
    rows = engine._decoding._builder.build([])
    one = replace(
        rows,
        token_start=np.array([0, 2], np.int32),
        token_ids=np.array([4, 6], np.int32),
        token_counts=np.array([1, 0], np.int32),
        pending=np.array([1], np.int32),
    )
    counted = executor._counted(one)
    assert counted.token_ids.tolist() == [4, 6] and counted.token_counts.tolist() == [1, 1]
