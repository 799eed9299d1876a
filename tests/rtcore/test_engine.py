"""The engine around a fake executor: limits, endings, cancellation, faults, preemption."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from ops.errors import (
    CacheTooSmall,
    ContextLengthExceeded,
    EngineDied,
    EngineError,
    EngineUnavailable,
    InvalidRequest,
    Overloaded,
)
from rtcore.decoding.params import SamplingParams
from rtcore.engine import Engine
from rtcore.executor.base import StepInputs
from rtcore.request import EngineRequest
from rtcore.scheduler.outcome import Outcome
from tests.rtcore.fakes import Deltas, FakeExecutor, advance, drain, fake_engine, fake_logits, tokens_of

PROMPTS = [[5 + i + j * 7 % 60 for j in range(1 + 9 * i % 31)] for i in range(9)]


def request(number: int, **params: object) -> EngineRequest:
    fields: dict[str, object] = {"temperature": 0.0, "max_tokens": 12, **params}
    return EngineRequest(f"r{number}", PROMPTS[number % len(PROMPTS)], SamplingParams(**fields))  # type: ignore[arg-type]


def greedy(prompt: Sequence[int], count: int, stop: Sequence[int] = (2,)) -> list[int]:
    """What greedy decoding gives, without any engine."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(int(np.argmax(fake_logits(tokens, 97))))
        if tokens[-1] in stop:
            break
    return tokens[len(prompt) :]


def alone(number: int, **params: object) -> list[int]:
    engine = fake_engine()
    engine.submit(request(number, **params))
    return tokens_of(drain(engine)[f"r{number}"])


def assert_clean(engine: Engine) -> None:
    stats = engine.stats()
    assert stats.blocks_free == stats.blocks_total
    assert stats.waiting == stats.running == 0
    engine.check_invariants()


def test_greedy_is_arg_max_of_everything_so_far() -> None:
    for number in range(9):
        assert alone(number) == greedy(PROMPTS[number], 12)


@pytest.mark.parametrize("chunk", [1, 7, 16, None])
@pytest.mark.parametrize("params", [{}, {"temperature": 0.8, "top_k": 20, "top_p": 0.9, "seed": 3}])
def test_batching_and_chunking_change_nothing(chunk: int | None, params: dict[str, object]) -> None:
    engine = fake_engine(max_prefill_chunk=chunk, max_step_tokens=32, max_sequences=8)
    deltas: Deltas = {}
    for number in range(9):
        engine.submit(request(number, **params))
        advance(engine, deltas)
    drain(engine, deltas)
    for number in range(9):
        assert tokens_of(deltas[f"r{number}"]) == alone(number, **params)


def test_decode_rows_and_prefill_chunks_share_a_step_within_the_budget() -> None:
    executor = FakeExecutor()
    engine = fake_engine(executor, max_step_tokens=16, max_sequences=8)
    engine.submit(EngineRequest("short", [5, 6], SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)))
    engine.step()
    engine.submit(EngineRequest("long", list(range(3, 63)), SamplingParams(temperature=0, max_tokens=4)))
    engine.step()
    assert executor.seen == [(2, 1), (16, 2)]
    drain(engine)
    assert all(tokens <= 16 for tokens, _ in executor.seen)


class TestEndings:
    def test_max_tokens(self) -> None:
        engine = fake_engine(stop_ids=())
        engine.submit(request(1, max_tokens=5))
        deltas = drain(engine)["r1"]
        assert [len(delta.token_ids) for delta in deltas] == [1] * 5
        assert [delta.finish_reason for delta in deltas] == [None] * 4 + ["length"]
        assert_clean(engine)

    def test_model_stop_id_is_the_last_token(self) -> None:
        third = greedy(PROMPTS[1], 3, stop=())[2]
        engine = fake_engine(stop_ids=(third,))
        engine.submit(request(1))
        last = drain(engine)["r1"][-1]
        assert (last.token_ids, last.finish_reason, last.stop_reason) == ([third], "stop", None)
        assert_clean(engine)

    def test_ignore_eos_goes_on(self) -> None:
        third = greedy(PROMPTS[1], 3, stop=())[2]
        engine = fake_engine(stop_ids=(third,))
        engine.submit(request(1, ignore_eos=True))
        deltas = drain(engine)["r1"]
        assert tokens_of(deltas) == greedy(PROMPTS[1], 12, stop=())
        assert deltas[-1].finish_reason == "length"

    def test_request_stop_id_is_named_and_holds_under_ignore_eos(self) -> None:
        second = greedy(PROMPTS[1], 2, stop=())[1]
        engine = fake_engine(stop_ids=())
        engine.submit(request(1, stop_token_ids=(second,), ignore_eos=True))
        last = drain(engine)["r1"][-1]
        assert (last.token_ids, last.finish_reason, last.stop_reason) == ([second], "stop", second)


class TestSubmit:
    @pytest.mark.parametrize(
        ("prompt", "params", "error", "param"),
        [
            ([], {}, InvalidRequest, "prompt"),
            ([3, 97], {}, InvalidRequest, "prompt"),
            ([3, -1], {}, InvalidRequest, "prompt"),
            ([3], {"max_tokens": None}, InvalidRequest, "max_tokens"),
            ([3], {"stop_token_ids": (97,)}, InvalidRequest, "stop_token_ids"),
            ([3] * 257, {"max_tokens": 1}, ContextLengthExceeded, "prompt"),
            ([3] * 200, {"max_tokens": 57}, ContextLengthExceeded, "max_tokens"),
        ],
    )
    def test_refusals_name_the_field(
        self, prompt: list[int], params: dict[str, object], error: type[InvalidRequest], param: str
    ) -> None:
        engine = fake_engine()
        with pytest.raises(error) as caught:
            engine.submit(EngineRequest("x", prompt, SamplingParams(**params)))  # type: ignore[arg-type]
        assert caught.value.param == param
        assert type(caught.value) is error
        assert not engine.has_work

    def test_what_never_fits_the_cache_is_refused_with_numbers(self) -> None:
        engine = fake_engine(FakeExecutor(num_blocks=[5], block_size=4))
        assert engine.context_length == engine.stats().context_length == 20
        with pytest.raises(CacheTooSmall, match=r"21 together.*holds 20 tokens.*cache_bytes"):
            engine.submit(EngineRequest("x", [3] * 11, SamplingParams(max_tokens=10)))
        engine.submit(EngineRequest("y", [3] * 10, SamplingParams(max_tokens=10, temperature=0, ignore_eos=True)))
        assert len(tokens_of(drain(engine)["y"])) == 10

    def test_the_smallest_group_limits(self) -> None:
        assert fake_engine(FakeExecutor(num_blocks=[9, 5], block_size=4)).context_length == 20

    def test_whole_context_can_be_used(self) -> None:
        engine = fake_engine(context_length=32, stop_ids=())
        engine.submit(EngineRequest("x", [3] * 20, SamplingParams(max_tokens=12, temperature=0)))
        assert len(tokens_of(drain(engine)["x"])) == 12

    def test_queue_is_bounded(self) -> None:
        engine = fake_engine(max_queue=2)
        engine.submit(request(0))
        engine.submit(request(1))
        with pytest.raises(Overloaded):
            engine.submit(request(2))
        engine.step()
        engine.submit(request(2))
        assert set(drain(engine)) == {"r0", "r1", "r2"}

    def test_ids_are_unique_among_live_requests_only(self) -> None:
        engine = fake_engine()
        engine.submit(request(1))
        with pytest.raises(InvalidRequest):
            engine.submit(request(1))
        drain(engine)
        engine.submit(request(1))
        drain(engine)

    def test_requests_without_a_seed_differ(self) -> None:
        engine = fake_engine(stop_ids=())
        for number in range(2):
            engine.submit(EngineRequest(f"r{number}", [9], SamplingParams(temperature=1, max_tokens=20)))
        deltas = drain(engine)
        assert tokens_of(deltas["r0"]) != tokens_of(deltas["r1"])

    def test_negative_seeds_are_seeds_too(self) -> None:
        assert alone(1, temperature=1.0, seed=-5) == alone(1, temperature=1.0, seed=2**64 - 5)
        assert alone(1, temperature=1.0, seed=-5) != alone(1, temperature=1.0, seed=5)


class TestCancel:
    @pytest.mark.parametrize("steps", [0, 1, 2, 5])
    def test_from_any_state_in_the_next_step(self, steps: int) -> None:
        engine = fake_engine(max_sequences=1, max_step_tokens=4)
        engine.submit(EngineRequest("a", [7] * 10, SamplingParams(max_tokens=50, temperature=0, ignore_eos=True)))
        engine.submit(EngineRequest("b", [8] * 10, SamplingParams(max_tokens=50, temperature=0, ignore_eos=True)))
        for _ in range(steps):
            engine.step()
        for name in ("a", "b", "b", "unknown"):
            engine.cancel(name)
        result = engine.step()
        assert sorted((delta.id, delta.token_ids, delta.finish_reason) for delta in result.deltas) == [
            ("a", [], "cancelled"),
            ("b", [], "cancelled"),
        ]
        assert not engine.has_work
        assert_clean(engine)
        assert engine.stats().finished["cancelled"] == 2

    def test_after_the_end_nothing_happens(self) -> None:
        engine = fake_engine()
        engine.submit(request(1))
        drain(engine)
        engine.cancel("r1")
        assert engine.step().deltas == []


class TestPreemption:
    @pytest.mark.parametrize("params", [{}, {"temperature": 0.9, "top_p": 0.95}])
    def test_continues_exactly(self, params: dict[str, object]) -> None:
        engine = fake_engine(FakeExecutor(num_blocks=[12, 13], block_size=4), max_sequences=6, stop_ids=())
        fields: dict[str, object] = {"temperature": 0.0, "max_tokens": 30, **params}
        requests = [
            EngineRequest(f"r{n}", PROMPTS[2][: 2 + n], SamplingParams(seed=n, **fields))  # type: ignore[arg-type]
            for n in range(6)
        ]
        for item in requests:
            engine.submit(item)
        together = drain(engine)
        assert engine.stats().preemptions > 3
        for item in requests:
            single = fake_engine(stop_ids=())
            single.submit(item)
            assert tokens_of(drain(single)[item.id]) == tokens_of(together[item.id])
        assert_clean(engine)

    def test_the_latest_arrival_gives_way_and_the_first_never_does(self) -> None:
        engine = fake_engine(FakeExecutor(num_blocks=[8], block_size=2), max_sequences=4, stop_ids=())
        for number in range(4):
            engine.submit(EngineRequest(f"r{number}", [5 + number], SamplingParams(temperature=0, max_tokens=14)))
        ends = [delta.id for _ in range(200) for delta in engine.step().deltas if delta.finish_reason]
        assert ends == ["r0", "r1", "r2", "r3"]
        assert engine.stats().preemptions > 0


class TestOrder:
    def test_earlier_arrival_goes_first_whatever_the_order_of_submission(self) -> None:
        engine = fake_engine(max_sequences=1, max_step_tokens=8, stop_ids=())
        for name, arrival in (("late", 30.0), ("early", 10.0), ("middle", 20.0)):
            engine.submit(EngineRequest(name, [5], SamplingParams(temperature=0, max_tokens=2), arrival))
        ends = [delta.id for _ in range(20) for delta in engine.step().deltas if delta.finish_reason]
        assert ends == ["early", "middle", "late"]


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


def test_close_drops_everything_and_refuses_more() -> None:
    executor = FakeExecutor()
    engine = fake_engine(executor)
    engine.submit(request(1))
    engine.close()
    engine.close()
    assert executor.closed and not engine.has_work
    with pytest.raises(EngineUnavailable):
        engine.submit(request(2))


def test_stats_count_tokens() -> None:
    engine = fake_engine(stop_ids=())
    engine.submit(EngineRequest("x", [3] * 20, SamplingParams(max_tokens=12, temperature=0)))
    drain(engine)
    stats = engine.stats()
    assert (stats.tokens_prefilled, stats.tokens_generated, stats.steps) == (20, 12, 12)
    assert stats.finished == {"stop": 0, "length": 1, "cancelled": 0, "error": 0}


def test_idle_engines_check_themselves_and_notice_a_leak() -> None:
    engine = fake_engine()
    engine.submit(request(1))
    engine._blocks.pools[0].take()
    with pytest.raises(EngineError, match="do not add up"):
        drain(engine)
