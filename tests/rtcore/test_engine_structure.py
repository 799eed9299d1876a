"""The engine with grammars: requests that wait for theirs, refusals, and what a grammar does to an ending."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import msgspec
import pytest

from ops.errors import InvalidRequest, Overloaded, UnsupportedParameter
from rtcore.decoding.grammar.compiler import Grammar
from rtcore.decoding.grammar.source import GrammarError
from rtcore.decoding.grammar.spec import StructuredOutputs
from rtcore.decoding.params import SamplingParams
from rtcore.engine import Engine
from rtcore.failure import error_of
from rtcore.request import EngineRequest, TokenDelta
from rtcore.scheduler.outcome import Outcome
from tests.rtcore.decoding.grammar.words import STOP, decode, load_words
from tests.rtcore.fakes import Deltas, FakeExecutor, advance, drain, fake_engine, tokens_of


@pytest.fixture
def engine() -> Iterator[Engine]:
    made = fake_engine(vocabulary=load_words)
    yield made
    made.close()


def request(name: str, spec: dict[str, Any], **params: Any) -> EngineRequest:
    chosen = {"max_tokens": 40, "temperature": 1.0, "seed": 1, **params}
    return EngineRequest(name, [5, 6, 7], SamplingParams(structured_outputs=StructuredOutputs(**spec), **chosen))


def plain(name: str, **params: Any) -> EngineRequest:
    return EngineRequest(name, [5, 6, 7], SamplingParams(**{"max_tokens": 4, "temperature": 0, **params}))


def text_of(deltas: list[TokenDelta]) -> str:
    return decode(tokens_of(deltas))


@pytest.mark.parametrize("seed", range(8))
def test_answers_match_their_grammar(engine: Engine, seed: int) -> None:
    specs = {
        "regex": {"regex": "[0-9]{2,8}[a-f]x"},
        "choice": {"choice": ["red", "green", "blue"]},
        "grammar": {"grammar": 'start: "<" /[a-z]{1,5}/ ">"'},
    }
    for name, spec in specs.items():
        engine.submit(request(name, spec, seed=seed))
    deltas = drain(engine)
    assert re.fullmatch("[0-9]{2,8}[a-f]x", text_of(deltas["regex"]))
    assert text_of(deltas["choice"]) in ("red", "green", "blue")
    assert re.fullmatch("<[a-z]{1,5}>", text_of(deltas["grammar"]))
    for name in specs:
        assert deltas[name][-1].finish_reason == "stop"
        assert tokens_of(deltas[name])[-1] == STOP


def test_preemption_and_a_small_cache_change_nothing() -> None:
    spec = {"regex": "[0-9]{10,20}x"}
    alone: dict[str, list[int]] = {}
    for number in range(6):
        engine = fake_engine(vocabulary=load_words)
        engine.submit(request(f"r{number}", spec, seed=number))
        alone |= {name: tokens_of(found) for name, found in drain(engine).items()}
        engine.close()
    engine = fake_engine(FakeExecutor(num_blocks=(18,)), vocabulary=load_words, swap_bytes=0)
    for number in range(6):
        engine.submit(request(f"r{number}", spec, seed=number))
    deltas = drain(engine)
    assert engine.stats().preemptions > 0
    assert {name: tokens_of(found) for name, found in deltas.items()} == alone
    engine.close()


def test_max_tokens_cuts() -> None:
    engine = fake_engine(vocabulary=load_words)
    engine.submit(request("r", {"regex": "[0-9]{30}"}, max_tokens=5))
    deltas = drain(engine)["r"]
    assert deltas[-1].finish_reason == "length"
    assert re.fullmatch("[0-9]{5}", text_of(deltas))
    engine.close()


@pytest.mark.parametrize(
    "params", [{"ignore_eos": True}, {"min_tokens": 4, "ignore_eos": True}, {"min_tokens": 20}]
)
def test_stop_ids_wait_until_nothing_else_can_come(engine: Engine, params: dict[str, Any]) -> None:
    engine.submit(request("r", {"regex": "a{1,6}"}, **params))
    deltas = drain(engine)["r"]
    assert text_of(deltas) == "aaaaaa"
    assert deltas[-1].finish_reason == "stop"


def test_min_tokens_is_met_where_the_grammar_has_them(engine: Engine) -> None:
    for seed in range(10):
        engine.submit(request(f"r{seed}", {"regex": "a{1,30}"}, min_tokens=8, seed=seed))
    for deltas in drain(engine).values():
        assert len(text_of(deltas)) >= 8


def test_own_stop_ids_end_where_the_grammar_may(engine: Engine) -> None:
    stop = 3 + ord("z") - 32
    found = []
    for seed in range(12):
        engine.submit(request(f"r{seed}", {"regex": "ab[cd]*"}, stop_token_ids=(stop,), seed=seed))
    for deltas in drain(engine).values():
        assert re.fullmatch("ab[cd]*z?", text_of(deltas))
        found.append(deltas[-1].stop_reason)
    assert stop in found


def test_a_request_whose_grammar_is_none_ends_with_one_delta(engine: Engine) -> None:
    assert engine.submit(request("bad", {"regex": "(("}))
    assert engine.has_work
    (delta,) = drain(engine)["bad"]
    assert delta.finish_reason == "error"
    assert delta.failure is not None
    assert delta.failure.kind == "InvalidRequest"
    assert delta.failure.param == "structured_outputs.regex"
    with pytest.raises(InvalidRequest) as caught:
        engine.submit(request("again", {"regex": "(("}))
    assert caught.value.param == "structured_outputs.regex"
    assert not engine.has_work


def test_tokens_that_nothing_allows_end_the_request(engine: Engine) -> None:
    engine.submit(request("r", {"choice": ["abc"]}, banned_token_ids=(3 + ord("b") - 32,)))
    deltas = drain(engine)["r"]
    assert deltas[-1].failure is not None
    assert deltas[-1].failure.kind == "InvalidRequest"
    assert text_of(deltas) == "a"


def test_without_a_vocabulary_grammars_are_refused() -> None:
    engine = fake_engine()
    with pytest.raises(UnsupportedParameter):
        # It may be known at once, or a moment later.
        engine.submit(request("r", {"regex": "a"}))
        (delta,) = drain(engine)["r"]
        assert delta.failure is not None
        raise error_of(delta.failure)
    engine.close()


class Held:
    """A compiler whose grammars come when a test says so."""

    def __init__(self) -> None:
        self.futures: list[Future[Grammar]] = []
        self.left: list[Future[Grammar]] = []

    def compile(self, spec: StructuredOutputs, tenant: str) -> Future[Grammar]:
        self.futures.append(Future())
        return self.futures[-1]

    def leave(self, spec: StructuredOutputs, future: Future[Grammar]) -> None:
        self.left.append(future)

    def close(self) -> None:
        """Nothing runs."""


@pytest.fixture
def held(engine: Engine) -> Held:
    compiler = Held()
    engine._intake.grammars._compiler = compiler  # type: ignore[assignment]
    return compiler


def grammar() -> Grammar:
    from rtcore.decoding.grammar.source import new_matcher
    from tests.rtcore.decoding.grammar.words import tokenizer

    return Grammar(new_matcher(tokenizer(), "choice", '["ok"]'), 0)


def test_others_go_on_while_a_grammar_is_compiled(engine: Engine, held: Held) -> None:
    deltas: Deltas = {}
    assert engine.submit(request("waits", {"regex": "a"}))
    assert not engine.submit(plain("goes"))
    while "goes" not in deltas or deltas["goes"][-1].finish_reason is None:
        assert advance(engine, deltas).outcome is Outcome.COMMITTED
    assert "waits" not in deltas
    assert engine.stats().waiting == 1
    began = time.monotonic()
    assert advance(engine, deltas).outcome is Outcome.PREPARING
    assert time.monotonic() - began < 5, "it waits for a moment only"
    held.futures[0].set_result(grammar())
    result = advance(engine, deltas)
    assert result.accepted == ["waits"]
    assert result.outcome is Outcome.COMMITTED
    drain(engine, deltas)
    assert text_of(deltas["waits"]) == "ok"
    assert engine.stats().waiting == 0


def test_cancelled_while_it_waits(engine: Engine, held: Held) -> None:
    engine.submit(request("r", {"regex": "a"}))
    engine.cancel("r")
    (delta,) = drain(engine)["r"]
    assert delta.finish_reason == "cancelled"
    assert held.left == held.futures
    held.futures[0].set_result(grammar())
    assert engine.step().outcome is Outcome.NO_WORK


def test_deadlines_pass_while_a_grammar_is_compiled() -> None:
    now = [100.0]
    engine = fake_engine(vocabulary=load_words, clock=lambda: now[0])
    engine._intake.grammars._compiler = Held()  # type: ignore[assignment]
    patient = request("patient", {"regex": "a"})
    for number, terms in enumerate(({"queue_timeout": 5.0}, {"timeout": 5.0})):
        engine.submit(msgspec.structs.replace(patient, id=f"r{number}", **terms))
    engine.submit(patient)
    deltas: Deltas = {}
    advance(engine, deltas)
    assert deltas == {}
    now[0] += 6
    advance(engine, deltas)
    kinds = [delta.failure.kind for found in deltas.values() for delta in found if delta.failure is not None]
    assert sorted(deltas) == ["r0", "r1"] and kinds == ["DeadlineExceeded"] * 2
    engine.cancel("patient")
    drain(engine, deltas)
    now[0] += 100
    assert engine.step().outcome is Outcome.NO_WORK
    engine.close()


def test_a_deadline_counts_from_the_submission() -> None:
    now = [100.0]
    compiler = Held()
    engine = fake_engine(vocabulary=load_words, clock=lambda: now[0], max_sequences=1)
    engine._intake.grammars._compiler = compiler  # type: ignore[assignment]
    engine.submit(msgspec.structs.replace(request("r", {"regex": "a"}), timeout=5.0))
    now[0] += 3
    compiler.futures[0].set_result(grammar())
    deltas: Deltas = {}
    advance(engine, deltas)
    now[0] += 3
    advance(engine, deltas)
    assert deltas["r"][-1].failure is not None
    assert deltas["r"][-1].failure.kind == "DeadlineExceeded"
    engine.close()


def test_an_id_that_waits_is_taken(engine: Engine, held: Held) -> None:
    engine.submit(request("r", {"regex": "a"}))
    with pytest.raises(InvalidRequest, match="is running"):
        engine.submit(plain("r"))


def test_no_more_may_wait_than_in_the_queue(held: Held, engine: Engine) -> None:
    small = fake_engine(vocabulary=load_words, max_queue=2)
    small._intake.grammars._compiler = held  # type: ignore[assignment]
    for number in range(2):
        small.submit(request(f"r{number}", {"regex": "a"}))
    with pytest.raises(Overloaded):
        small.submit(request("r2", {"regex": "a"}))
    small.close()


def test_whatever_compiling_fails_with_ends_the_request_alone(engine: Engine, held: Held) -> None:
    for number, error in enumerate([GrammarError("no"), RuntimeError("bug")]):
        engine.submit(request(f"r{number}", {"regex": "a"}))
        held.futures[number].set_exception(error)
    engine.submit(plain("goes"))
    deltas = drain(engine)
    kinds = [deltas[f"r{number}"][-1].failure.kind for number in range(2)]  # type: ignore[union-attr]
    assert kinds == ["InvalidRequest", "EngineError"]
    assert len(tokens_of(deltas["goes"])) > 0


def test_a_step_that_fails_leaves_the_grammar_where_it_was() -> None:
    faults = [True, False, True, True]
    executor = FakeExecutor(fault=lambda inputs: RuntimeError("passing") if faults and faults.pop() else None)
    engine = fake_engine(executor, vocabulary=load_words)
    engine.submit(request("r", {"regex": "[0-9]{6}x"}, seed=3))
    failing = text_of(drain(engine)["r"])
    engine.close()
    sound = fake_engine(vocabulary=load_words)
    sound.submit(request("r", {"regex": "[0-9]{6}x"}, seed=3))
    assert failing == text_of(drain(sound)["r"])
    sound.close()
