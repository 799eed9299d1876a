"""The engine as a state machine: whatever happens around a request, its tokens are those of a plain run.

Requests arrive, are cancelled, get preempted in a small cache, run into faults of the executor and are chunked
by any budget. The model of truth computes each request's tokens without an engine.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from ops.errors import CacheTooSmall, EngineError, Overloaded
from rtcore.decoding.params import SamplingParams
from rtcore.decoding.sampler import Sampler, SamplingRows
from rtcore.executor.base import StepInputs
from rtcore.request import EngineRequest
from rtcore.scheduler.outcome import Outcome
from tests.rtcore.fakes import Deltas, FakeExecutor, advance, drain, fake_engine, fake_logits, tokens_of

VOCABULARY = 31
STOP = 2
BAD = 1
MAX_BAD = 2


@cache
def truth(prompt: tuple[int, ...], seed: int, temperature: float, max_tokens: int, ignore_eos: bool) -> list[int]:
    """The tokens of a request by its definition alone: one token after the other from all tokens so far."""
    tokens = list(prompt)
    for _ in range(max_tokens):
        logits = fake_logits(tokens, VOCABULARY).astype(np.float32)[None]
        row = SamplingRows(
            np.array([temperature]),
            np.array([0], np.int32),
            np.array([1.0]),
            np.array([seed], np.uint64),
            np.array([len(tokens)], np.uint64),
        )
        tokens.append(int(Sampler().sample(logits, row)[0][0]))
        if tokens[-1] == STOP and not ignore_eos:
            break
    return tokens[len(prompt) :]


class EngineMachine(RuleBasedStateMachine):
    """`self.requests` is what was accepted; `self.deltas` what came back."""

    @initialize(
        pools=st.lists(st.integers(6, 16), min_size=1, max_size=2),
        block_size=st.integers(1, 5),
        sequences=st.integers(1, 6),
        extra=st.integers(0, 20),
        chunk=st.sampled_from([None, 1, 3, 7]),
        queue=st.integers(1, 8),
    )
    def start(
        self, pools: list[int], block_size: int, sequences: int, extra: int, chunk: int | None, queue: int
    ) -> None:
        self.faults = 0
        self.executor = FakeExecutor(
            num_blocks=pools, block_size=block_size, vocab_size=VOCABULARY, fault=self.fault
        )
        self.engine = fake_engine(
            self.executor,
            stop_ids=(STOP,),
            max_sequences=sequences,
            max_step_tokens=sequences + extra,
            max_prefill_chunk=chunk,
            max_queue=queue,
        )
        self.requests: dict[str, EngineRequest] = {}
        self.cancelled: set[str] = set()
        self.deltas: Deltas = {}

    def fault(self, inputs: StepInputs) -> Exception | None:
        """A passing fault while `faults` lasts, and one in every step that computes the start of a bad prompt."""
        if self.faults:
            self.faults -= 1
            return EngineError("passing")
        bad = bool((inputs.input_ids[inputs.positions == 0] == BAD).any())
        return EngineError("bad prompt") if bad else None

    @rule(
        prompt=st.lists(st.integers(3, VOCABULARY - 1), min_size=1, max_size=24),
        max_tokens=st.integers(1, 20),
        temperature=st.sampled_from([0.0, 1.0]),
        ignore_eos=st.booleans(),
        arrival=st.integers(0, 3),
    )
    def submit(
        self, prompt: list[int], max_tokens: int, temperature: float, ignore_eos: bool, arrival: int
    ) -> None:
        params = SamplingParams(
            max_tokens=max_tokens, temperature=temperature, ignore_eos=ignore_eos, seed=len(self.requests)
        )
        self.submit_tokens(prompt, params, arrival)

    def submit_tokens(self, prompt: list[int], params: SamplingParams, arrival: int) -> None:
        name = f"r{len(self.requests)}"
        before = self.engine.stats()
        try:
            self.engine.submit(EngineRequest(name, prompt, params, arrival))
        except CacheTooSmall:
            assert len(prompt) + (params.max_tokens or 0) > min(self.executor.num_blocks) * self.executor.block_size
        except Overloaded:
            assert before.waiting >= self.engine._max_queue
        else:
            self.requests[name] = EngineRequest(name, prompt, params, arrival)
            return
        assert self.engine.stats() == before

    def bad(self) -> list[str]:
        return [name for name, request in self.requests.items() if request.prompt_ids[0] == BAD]

    @precondition(lambda self: len(self.bad()) < MAX_BAD)
    @rule(length=st.integers(1, 20))
    def submit_bad(self, length: int) -> None:
        """Fewer of them than would make the engine believe that its executor is broken."""
        self.submit_tokens([BAD] * length, SamplingParams(max_tokens=2, seed=1), 1)

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.requests)))
        if not self.ended(name):
            self.cancelled.add(name)
        self.engine.cancel(name)

    @rule(count=st.integers(1, 6))
    def step(self, count: int) -> None:
        for _ in range(count):
            self.one_step()

    @precondition(lambda self: not self.engine._isolate and all(self.ended(name) for name in self.bad()))
    @rule()
    def step_with_a_passing_fault(self) -> None:
        """A step that fails as a whole; afterwards the executor works again."""
        self.faults = 1
        before = self.engine.stats()
        outcome = self.one_step()
        if self.faults == 0:
            assert outcome is Outcome.RETRYABLE_ABORT
            assert self.engine.stats().steps == before.steps
        self.faults = 0

    def one_step(self) -> Outcome:
        pending = {name for name in self.cancelled if not self.ended(name)}
        result = advance(self.engine, self.deltas)
        assert pending <= {delta.id for delta in result.deltas if delta.finish_reason}
        assert result.outcome not in (Outcome.FATAL, Outcome.CAPACITY_DEFERRED)
        failed = [delta.id for delta in result.deltas if delta.finish_reason == "error"]
        assert (result.outcome is Outcome.UNSERVICEABLE) == bool(failed)
        live = [name for name in self.requests if not self.ended(name)]
        assert self.engine.has_work == bool(live)
        if result.outcome is Outcome.NO_WORK:
            assert not live
        for name in self.requests:
            self.check(name)
        return result.outcome

    def ended(self, name: str) -> bool:
        return bool(self.deltas.get(name)) and self.deltas[name][-1].finish_reason is not None

    def check(self, name: str) -> None:
        """What came so far is the beginning of the truth, and all of it once the request ended by itself."""
        request, deltas = self.requests[name], self.deltas.get(name, [])
        params = request.params
        assert [delta.finish_reason for delta in deltas[:-1]] == [None] * (len(deltas) - 1 if deltas else 0)
        if request.prompt_ids[0] == BAD:
            assert tokens_of(deltas) == []
            assert not deltas or deltas[-1].finish_reason == "error" or name in self.cancelled
            return
        whole = truth(
            tuple(request.prompt_ids),
            params.seed or 0,
            params.temperature,
            params.max_tokens or 0,
            params.ignore_eos,
        )
        tokens = tokens_of(deltas)
        assert tokens == whole[: len(tokens)]
        if not self.ended(name):
            assert len(tokens) < len(whole)
        elif deltas[-1].finish_reason == "cancelled":
            assert name in self.cancelled
        else:
            assert tokens == whole
            stopped = whole[-1] == STOP and not params.ignore_eos
            assert deltas[-1].finish_reason == ("stop" if stopped else "length")

    def teardown(self) -> None:
        if not hasattr(self, "engine"):
            return
        drain(self.engine, self.deltas)
        for name in self.requests:
            assert self.ended(name)
            self.check(name)
        stats = self.engine.stats()
        assert stats.blocks_free == stats.blocks_total
        assert stats.tokens_generated == sum(len(tokens_of(deltas)) for deltas in self.deltas.values())
        assert sum(stats.finished.values()) == len(self.requests)


EngineMachine.TestCase.settings = settings(max_examples=80, stateful_step_count=30, deadline=None)
TestEngine = EngineMachine.TestCase
