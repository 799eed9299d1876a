"""The engine around a fake executor: limits, endings, cancellation, faults, preemption."""

from __future__ import annotations

import numpy as np
import pytest

from ops.errors import (
    CacheTooSmall,
    ContextLengthExceeded,
    EngineError,
    EngineUnavailable,
    InvalidRequest,
    Overloaded,
)
from rtcore.decoding.params import SamplingParams
from rtcore.request import EngineRequest
from tests.rtcore.engine_requests import PROMPTS, assert_clean, greedy, request
from tests.rtcore.fakes import Deltas, FakeExecutor, advance, drain, fake_engine, fake_logits, tokens_of


def alone(number: int, **params: object) -> list[int]:
    engine = fake_engine()
    engine.submit(request(number, **params))
    return tokens_of(drain(engine)[f"r{number}"])


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

    def test_an_arrival_that_has_no_place_in_the_queue(self) -> None:
        with pytest.raises(InvalidRequest, match="arrival"):
            fake_engine().submit(EngineRequest("x", [3], SamplingParams(), float("nan")))

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

    @pytest.mark.parametrize("cached", [False, True])
    @pytest.mark.parametrize("length", [32, 64])
    def test_a_prompt_that_fills_the_context_can_be_scored(self, length: int, cached: bool) -> None:
        """By the model's context of 64, and by a cache of 8 blocks of 4 tokens."""
        executor = FakeExecutor(num_blocks=[8 if length == 32 else 20], block_size=4)
        engine = fake_engine(executor, context_length=64, stop_ids=())
        prompt = [3 + place % 50 for place in range(length)]
        if cached:
            engine.submit(EngineRequest("before", prompt[:-1], SamplingParams(max_tokens=1)))
            drain(engine)
        params = SamplingParams(max_tokens=0, echo=True, prompt_logprobs=1, logprobs=1)
        engine.submit(EngineRequest("x", prompt, params))
        deltas = drain(engine)["x"]
        assert tokens_of(deltas) == [] and not any(delta.logprobs for delta in deltas)
        assert [delta.finish_reason for delta in deltas if delta.finish_reason] == ["length"]
        told = [one for delta in deltas for one in delta.prompt_logprobs]
        for place, one in enumerate(told, start=1):
            logits = fake_logits(prompt[:place], 97)
            logprob = logits[prompt[place]] - np.log(np.exp(logits).sum())
            assert one.logprob == pytest.approx(logprob, abs=1e-4)
        assert len(told) == length - 1
        with pytest.raises((ContextLengthExceeded, CacheTooSmall)):
            engine.submit(EngineRequest("y", [*prompt, 3], params))
        assert_clean(engine)

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
    engine._check_every_step = False
    engine.submit(request(1))
    engine._blocks.pools[0].take(1)
    while engine.has_work:
        engine.step()
    with pytest.raises(EngineError, match="do not add up"):
        engine.maintain()
