"""The engine as a state machine with drafts and grammars: neither changes what is answered, or leaks a block.

Everything that happens in the machine it extends happens here too: faults, preemption with and without a copy,
cancelled requests, sliding windows, colliding digests, shared prompts.
"""

from __future__ import annotations

import string
from concurrent.futures import Future
from functools import cache

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from rtcore.decoding.grammar.compiler import Grammar
from rtcore.decoding.grammar.source import new_matcher
from rtcore.decoding.grammar.spec import StructuredOutputs
from rtcore.decoding.grammar.vocabulary import GrammarVocabulary
from rtcore.decoding.params import SamplingParams
from rtcore.decoding.speculation.ngram import NgramProposer
from rtcore.request import EngineRequest
from rtcore.scheduler.outcome import Outcome
from tests.rtcore.decoding.grammar.words import allowed
from tests.rtcore.fakes import fake_logits, tokens_of
from tests.rtcore.guessing import Prophet, Raising, speculate
from tests.rtcore.test_engine_machine import STOP, VOCABULARY, EngineMachine, truth
from tests.rtcore.truth import choose

SPECS = (
    StructuredOutputs(regex="[a-h]{2,6}x?"),
    StructuredOutputs(choice=("abc", "abd", "b")),
    StructuredOutputs(grammar='start: "a" rest\nrest: "b" rest "c" | "d"'),
)


@cache
def grammar_of(spec: StructuredOutputs) -> Grammar:
    letters = string.ascii_lowercase.encode() + b"[]"
    tokens = [b"", b"", b""] + [bytes([letter]) for letter in letters]
    vocabulary = GrammarVocabulary(tokens, [0, 1, STOP], [STOP])
    return Grammar(new_matcher(vocabulary.tokenizer(), spec.kind, spec.source), 0)


class Compiled:
    """A compiler that has compiled everything already."""

    def compile(self, spec: StructuredOutputs, tenant: str) -> Future[Grammar]:
        future: Future[Grammar] = Future()
        future.set_result(grammar_of(spec))
        return future

    def leave(self, spec: StructuredOutputs, future: Future[Grammar]) -> None:
        """What is compiled is not waited for."""

    def close(self) -> None:
        """Nothing runs."""


@cache
def structured_truth(prompt: tuple[int, ...], encoded: bytes, window: int) -> list[int]:
    """The tokens of a request with a grammar, whose mask is worked out from the start for each token."""
    params = msgspec.msgpack.decode(encoded, type=SamplingParams)
    spec = params.structured_outputs
    assert spec is not None
    tokens = list(prompt)
    for _ in range(params.max_tokens or 0):
        answer = tokens[len(prompt) :]
        state = grammar_of(spec).start(spec, frozenset({STOP}), VOCABULARY)
        state.accept(answer)
        held = params.ignore_eos or len(answer) < params.min_tokens
        mask = allowed(state.masks((), frozenset(), int(held))[0])
        plain = msgspec.structs.replace(
            params, structured_outputs=None, allowed_token_ids=tuple(sorted(mask)), min_tokens=0
        )
        logits = fake_logits(tokens[-window:], VOCABULARY)
        token = int(choose(logits, plain, tokens, len(prompt)).ids[0])
        tokens.append(token)
        if token == STOP:
            break
    return tokens[len(prompt) :]


class DraftsMachine(EngineMachine):
    """`self.kind` says who guesses."""

    drafting = None

    @initialize(
        kind=st.sampled_from(["prophet", "prophet", "misled", "ngram", "raising"]),
        most=st.integers(1, 6),
    )
    def choose_proposer(self, kind: str, most: int) -> None:
        self.kind, self.most = kind, most

    def attach(self) -> None:
        """The other initialisation may come after ours."""
        if self.drafting is not None or not hasattr(self, "kind"):
            return
        self.engine._intake.grammars._compiler = Compiled()
        made = {
            "prophet": lambda: Prophet(self.whole),
            "misled": lambda: Prophet(self.whole, lambda position: position % 4 == 0, lambda token: token * 7 - 40),
            "ngram": NgramProposer,
            "raising": Raising,
        }[self.kind]()
        self.drafting = speculate(self.engine, made, self.most)

    def whole(self, name: str) -> list[int]:
        request = self.requests[name]
        return [*request.prompt_ids, *self.expected(request)]

    def expected(self, request: EngineRequest) -> list[int]:
        params = request.params
        prompt = tuple(request.prompt_ids)
        if params.structured_outputs is not None:
            return structured_truth(prompt, msgspec.msgpack.encode(params), self.window)
        return truth(
            prompt, params.seed or 0, params.temperature, params.max_tokens or 0, params.ignore_eos, self.window
        )

    def submit_tokens(self, prompt: list[int], params: SamplingParams, arrival: int, **terms: object) -> None:
        self.attach()
        super().submit_tokens(prompt, params, arrival, **terms)

    @rule(
        prompt=st.lists(st.integers(3, 6), min_size=1, max_size=12),
        spec=st.sampled_from(SPECS),
        max_tokens=st.integers(1, 20),
        temperature=st.sampled_from([0.0, 1.0]),
        ignore_eos=st.booleans(),
        min_tokens=st.integers(0, 5),
        speculation=st.sampled_from([True, True, True, False]),
    )
    def submit_structured(
        self, prompt: list[int], spec: StructuredOutputs, max_tokens: int, min_tokens: int, **terms: object
    ) -> None:
        params = SamplingParams(
            structured_outputs=spec,
            max_tokens=max_tokens,
            min_tokens=min(min_tokens, max_tokens),
            seed=len(self.requests),
            **terms,  # type: ignore[arg-type]
        )
        self.submit_tokens(prompt, params, 1)

    def one_step(self) -> Outcome:
        self.attach()
        outcome = super().one_step()
        drafts, accepted = self.engine.stats().drafts, self.engine.stats().drafts_accepted
        assert 0 <= accepted <= drafts
        return outcome

    def check(self, name: str) -> None:
        request, deltas = self.requests[name], self.deltas.get(name, [])
        if request.params.structured_outputs is None:
            super().check(name)
            return
        tokens, whole = tokens_of(deltas), self.expected(request)
        assert tokens == whole[: len(tokens)]
        if deltas and deltas[-1].finish_reason in ("stop", "length"):
            assert tokens == whole
            assert deltas[-1].finish_reason == ("stop" if whole[-1] == STOP else "length")
        elif self.ended(name):
            assert name in self.cancelled

    def teardown(self) -> None:
        if not hasattr(self, "engine"):
            return
        self.attach()
        super().teardown()
        self.engine.close()


DraftsMachine.TestCase.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
TestDrafts = DraftsMachine.TestCase
