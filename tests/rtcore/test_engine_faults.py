"""Faults of the executor: who pays for them, and when the engine gives up."""

from __future__ import annotations

import pytest

from ops.errors import EngineDied, EngineError, EngineUnavailable
from rtcore.decoding.params import SamplingParams
from rtcore.engine import Engine
from rtcore.executor.base import StepInputs
from rtcore.request import EngineRequest
from rtcore.scheduler.outcome import Outcome
from tests.rtcore.engine_requests import PROMPTS, assert_clean, greedy, request
from tests.rtcore.fakes import Deltas, FakeExecutor, advance, drain, fake_engine, tokens_of


class Faults:
    """Raises `error` while `active` says so of a step."""

    def __init__(self, active, error: type[Exception] = EngineError) -> None:  # type: ignore[no-untyped-def]
        self.active = active
        self.error = error
        self.raised = 0

    def __call__(self, inputs: StepInputs) -> Exception | None:
        if not self.active(inputs):
            return None
        self.raised += 1
        return self.error("injected")


def by_id(deltas: Deltas) -> dict[str, str | None]:
    return {name: items[-1].finish_reason for name, items in deltas.items()}


class TestFaults:
    def engine(self, faults: Faults, count: int = 6) -> Engine:
        engine = fake_engine(FakeExecutor(fault=faults), stop_ids=())
        for number in range(count):
            engine.submit(request(number))
        return engine

    @pytest.mark.parametrize("error", [EngineError, RuntimeError, MemoryError])
    def test_a_passing_fault_costs_nobody_anything(self, error: type[Exception]) -> None:
        times = iter([False, True, False, False, True])
        faults = Faults(lambda inputs: next(times, False), error)
        engine = self.engine(faults)
        deltas: Deltas = {}
        assert advance(engine, deltas).outcome is Outcome.COMMITTED
        free = engine.stats().blocks_free
        assert advance(engine, deltas).outcome is Outcome.RETRYABLE_ABORT
        assert engine.stats().blocks_free == free
        drain(engine, deltas)
        assert faults.raised == 2
        for number in range(6):
            assert tokens_of(deltas[f"r{number}"]) == greedy(PROMPTS[number], 12, stop=())
        assert_clean(engine)

    @pytest.mark.parametrize("culprit", range(6))
    def test_only_the_culprit_fails(self, culprit: int) -> None:
        mark = PROMPTS[culprit][0]
        faults = Faults(lambda inputs: bool((inputs.input_ids[inputs.positions == 0] == mark).any()))
        engine = self.engine(faults)
        deltas = drain(engine)
        reasons = by_id(deltas)
        assert reasons == {f"r{n}": "error" if n == culprit else "length" for n in range(6)}
        failure = deltas[f"r{culprit}"][-1].failure
        assert failure is not None and failure.kind == "EngineError" and failure.what == "injected"
        for number in set(range(6)) - {culprit}:
            assert tokens_of(deltas[f"r{number}"]) == greedy(PROMPTS[number], 12, stop=())
        assert_clean(engine)

    def test_the_step_that_ends_the_culprit_says_so(self) -> None:
        faults = Faults(lambda inputs: 5 in inputs.input_ids[inputs.positions == 0])
        engine = fake_engine(FakeExecutor(fault=faults))
        engine.submit(EngineRequest("bad", [5], SamplingParams(max_tokens=3)))
        assert [engine.step().outcome for _ in range(3)] == [
            Outcome.RETRYABLE_ABORT,
            Outcome.UNSERVICEABLE,
            Outcome.NO_WORK,
        ]

    def test_many_culprits_between_successes_are_not_fatal(self) -> None:
        faults = Faults(lambda inputs: 5 in inputs.input_ids[inputs.positions == 0])
        engine = fake_engine(FakeExecutor(fault=faults))
        for number in range(6):
            engine.submit(EngineRequest(f"bad{number}", [5], SamplingParams(max_tokens=3)))
            assert by_id(drain(engine)) == {f"bad{number}": "error"}
            engine.submit(EngineRequest("good", [6], SamplingParams(max_tokens=1)))
            drain(engine)

    def test_a_step_too_large_is_split(self) -> None:
        faults = Faults(lambda inputs: len(inputs.input_ids) > 30)
        engine = fake_engine(FakeExecutor(fault=faults), stop_ids=())
        engine.submit(EngineRequest("long", [9] * 45, SamplingParams(temperature=0, max_tokens=3)))
        assert tokens_of(drain(engine)["long"]) == greedy([9] * 45, 3, stop=())
        assert_clean(engine)

    @pytest.mark.parametrize("temperature", [0.0, 1.0])
    def test_nan_logits_fail_their_row_only(self, temperature: float) -> None:
        engine = fake_engine(FakeExecutor(poison=96), stop_ids=())
        engine.submit(EngineRequest("bad", [5, 96], SamplingParams(temperature=temperature, max_tokens=5)))
        engine.submit(EngineRequest("good", [5, 6], SamplingParams(temperature=0, max_tokens=5)))
        result = engine.step()
        assert result.outcome is Outcome.COMMITTED
        bad = next(delta for delta in result.deltas if delta.id == "bad")
        assert (bad.token_ids, bad.finish_reason) == ([], "error")
        assert bad.failure is not None and "NaN" in bad.failure.why
        assert tokens_of([delta for delta in result.deltas if delta.id == "good"])
        drain(engine)
        assert_clean(engine)

    def test_an_executor_that_fails_for_everyone_is_fatal(self) -> None:
        engine = self.engine(Faults(lambda inputs: True))
        outcomes, deltas = [], []
        for _ in range(4):
            result = engine.step()
            outcomes.append(result.outcome)
            deltas += result.deltas
        assert outcomes == [Outcome.RETRYABLE_ABORT, Outcome.FATAL, Outcome.FATAL, Outcome.FATAL]
        assert sorted(delta.id for delta in deltas) == [f"r{n}" for n in range(6)]
        assert all(delta.finish_reason == "error" and delta.failure for delta in deltas)
        assert not engine.has_work
        assert_clean(engine)
        with pytest.raises(EngineUnavailable):
            engine.submit(request(7))

    @pytest.mark.parametrize("at", [0, 1, 3])
    def test_an_executor_that_says_it_died_is_fatal_at_once(self, at: int) -> None:
        times = iter([False] * at + [True] * 9)
        engine = self.engine(Faults(lambda inputs: next(times), EngineDied))
        results = [engine.step() for _ in range(at + 1)]
        assert results[-1].outcome is Outcome.FATAL
        assert {delta.failure.kind for delta in results[-1].deltas if delta.failure} == {"EngineDied"}
        assert_clean(engine)

    def test_death_while_isolating_is_fatal(self) -> None:
        errors = iter([EngineError("first"), None, EngineDied("gone")])
        engine = fake_engine(FakeExecutor(fault=lambda inputs: next(errors)))
        for number in range(4):
            engine.submit(request(number))
        assert [engine.step().outcome for _ in range(2)] == [Outcome.RETRYABLE_ABORT, Outcome.FATAL]
        assert_clean(engine)
