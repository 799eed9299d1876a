"""The engine as a state machine: whatever happens around a request, its tokens are those of a plain run.

Requests arrive alike and unlike, follow others as forks or later turns, are cancelled, expire, get preempted in a
small cache with and without a copy in host memory, run into faults of the executor, and are chunked by any
budget, while digests collide, windows slide and cached blocks expire. The model of truth computes each
request's tokens without an engine.
"""

from __future__ import annotations

from functools import cache
from hashlib import blake2b
from zlib import crc32

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from ops.errors import CacheTooSmall, DeadlineUnreachable, EngineError, Overloaded
from rtcore.decoding.params import SamplingParams
from rtcore.executor.base import StepInputs
from rtcore.kvcache.hash_chain import Digest
from rtcore.request import EngineRequest
from rtcore.scheduler.base import ScheduledStep
from rtcore.scheduler.outcome import Outcome
from tests.rtcore.fakes import Deltas, FakeExecutor, advance, drain, fake_engine, fake_logits, tokens_of
from tests.rtcore.truth import answer

VOCABULARY = 31
STOP = 2
BAD = 1
MAX_BAD = 2


@cache
def truth(
    prompt: tuple[int, ...], seed: int, temperature: float, max_tokens: int, ignore_eos: bool, window: int
) -> list[int]:
    """The tokens of a request by its definition alone: one token after the other from all tokens so far, or
    from the last `window` of them."""
    params = SamplingParams(temperature=temperature, seed=seed, max_tokens=max_tokens, ignore_eos=ignore_eos)
    tokens, _ = answer(lambda known: fake_logits(known[-window:], VOCABULARY), prompt, params, [STOP])
    return tokens


def distinct(data: tuple[int, bytes]) -> int:
    """The same in every process, where `hash` is not, so that a failure can be found again."""
    return int.from_bytes(blake2b(repr(data).encode(), digest_size=7).digest(), "little")


def colliding(data: tuple[int, bytes]) -> int:
    """Four digests for everything."""
    return crc32(repr(data).encode()) % 4


def constant(data: tuple[int, bytes]) -> int:
    """One digest for everything."""
    return 0


class EngineMachine(RuleBasedStateMachine):
    """`self.requests` is what was accepted; `self.deltas` what came back."""

    executor_type = FakeExecutor

    @initialize(
        pools=st.lists(st.integers(6, 16), min_size=1, max_size=2),
        block_size=st.integers(1, 5),
        sequences=st.integers(1, 6),
        extra=st.integers(0, 20),
        chunk=st.sampled_from([None, 1, 3, 7]),
        queue=st.integers(1, 8),
        window=st.sampled_from([0, 0, 1, 5]),
        everywhere=st.booleans(),
        digest=st.sampled_from([distinct, colliding, constant]),
        swap_bytes=st.sampled_from([0, 200, 10**6]),
        long_tokens=st.integers(1, 40),
        prefix_cache=st.sampled_from([True, True, True, False]),
        tenant_share=st.sampled_from([1.0, 0.3]),
        delay=st.sampled_from([0.0, 20.0]),
    )
    def start(
        self,
        pools: list[int],
        block_size: int,
        sequences: int,
        extra: int,
        chunk: int | None,
        queue: int,
        window: int,
        everywhere: bool,
        digest: Digest,
        **config: object,
    ) -> None:
        self.faults = 0
        self.now = 100.0
        self.preempted = False
        self.delay = config.pop("delay")
        windows = [window if everywhere or group else 0 for group in range(len(pools))]
        self.window = min(windows)
        self.executor = self.executor_type(
            num_blocks=pools,
            block_size=block_size,
            vocab_size=VOCABULARY,
            fault=self.fault,
            windows=windows,
        )
        self.engine = fake_engine(
            self.executor,
            stop_ids=(STOP,),
            clock=lambda: self.now,
            digest=digest,
            cache_ttl=30.0,
            cache_tenant_share=config.pop("tenant_share"),
            max_batch_delay_ms=self.delay,
            **config,
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
        prompt=st.one_of(
            st.lists(st.integers(3, VOCABULARY - 1), min_size=1, max_size=24),
            st.integers(1, 24).map(lambda length: [3] * length),
            st.tuples(st.integers(1, 20), st.integers(3, 6)).map(lambda pair: [3] * pair[0] + [pair[1]]),
        ),
        salt=st.sampled_from(["", "", "a"]),
        tenant=st.sampled_from(["x", "y"]),
        priority=st.integers(-1, 1),
        timeout=st.sampled_from([None, None, None, 20.0]),
        queue_timeout=st.sampled_from([None, None, None, 5.0]),
        read_cache=st.sampled_from([True, True, True, False]),
        max_tokens=st.integers(1, 20),
        temperature=st.sampled_from([0.0, 1.0]),
        ignore_eos=st.booleans(),
        arrival=st.integers(0, 3),
    )
    def submit(
        self,
        prompt: list[int],
        max_tokens: int,
        temperature: float,
        ignore_eos: bool,
        arrival: int,
        salt: str,
        **terms: object,
    ) -> None:
        params = SamplingParams(
            max_tokens=max_tokens, temperature=temperature, ignore_eos=ignore_eos, seed=len(self.requests)
        )
        self.submit_tokens(prompt, params, arrival, cache_salt=salt, **terms)

    @precondition(lambda self: any(self.good()))
    @rule(
        data=st.data(), copies=st.integers(1, 3), more=st.lists(st.integers(3, 6), max_size=6), turn=st.booleans()
    )
    def fork(self, data: st.DataObject, copies: int, more: list[int], turn: bool) -> None:
        """Requests with the prompt of another, or with all that it has so far, and something after it."""
        name = data.draw(st.sampled_from(self.good()))
        prompt = list(self.requests[name].prompt_ids)
        if turn:
            prompt += [token for token in tokens_of(self.deltas.get(name, [])) if token != STOP]
        for _ in range(copies):
            params = SamplingParams(max_tokens=6, temperature=1.0, seed=len(self.requests))
            self.submit_tokens(prompt + more, params, 1)

    def submit_tokens(self, prompt: list[int], params: SamplingParams, arrival: int, **terms: object) -> None:
        name = f"r{len(self.requests)}"
        before = self.engine.stats()
        request = EngineRequest(name, prompt, params, arrival, **terms)  # type: ignore[arg-type]
        try:
            self.engine.submit(request)
        except CacheTooSmall:
            assert len(prompt) + (params.max_tokens or 0) > min(self.executor.num_blocks) * self.executor.block_size
        except DeadlineUnreachable:
            assert request.timeout is not None or request.queue_timeout is not None
        except Overloaded:
            shedding = self.engine.stats().load.state == "shedding" and request.priority > 0
            assert shedding or self.engine.stats().load.state == "draining"
        else:
            self.requests[name] = request
            return
        after = self.engine.stats()
        assert (after.waiting, after.running, after.blocks_free) == (
            before.waiting,
            before.running,
            before.blocks_free,
        )

    def good(self) -> list[str]:
        return [name for name, request in self.requests.items() if request.prompt_ids[0] != BAD]

    @rule(seconds=st.sampled_from([0.1, 3.0, 40.0]))
    def wait(self, seconds: float) -> None:
        """Time passes; deadlines and cached blocks run out."""
        self.now += seconds
        self.engine.maintain()
        self.engine.check_invariants()

    @precondition(lambda self: self.engine._scheduler._active.running)
    @rule(data=st.data())
    def preempt(self, data: st.DataObject) -> None:
        """A running sequence loses its blocks without need."""
        victim = data.draw(st.sampled_from(list(self.engine._scheduler._active.running)))
        step = ScheduledStep()
        self.engine._scheduler._active.preempt(victim, step)
        assert self.engine._prepare(step) is Outcome.COMMITTED
        self.engine.check_invariants()

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

    @precondition(lambda self: not self.engine._runner._isolate and all(self.ended(name) for name in self.bad()))
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
        preemptions = self.engine.stats().preemptions
        result = advance(self.engine, self.deltas)
        assert pending <= {delta.id for delta in result.deltas if delta.finish_reason}
        assert result.outcome is not Outcome.FATAL
        if result.outcome is Outcome.CAPACITY_DEFERRED:
            assert self.delay or self.engine.stats().preemptions > preemptions
            self.now += 0.01
        failed = [
            delta.id
            for delta in result.deltas
            if delta.failure is not None and delta.failure.kind != "DeadlineExceeded"
        ]
        assert (result.outcome is Outcome.UNSERVICEABLE) == bool(failed)
        live = [name for name in self.requests if not self.ended(name)]
        assert self.engine.has_work == (bool(live) or self.engine._overlap.flying)
        if result.outcome is Outcome.NO_WORK:
            assert not self.engine.has_work and not any(delta.token_ids for delta in result.deltas)
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
            self.window,
        )
        tokens = tokens_of(deltas)
        assert tokens == whole[: len(tokens)]
        if not self.ended(name):
            assert len(tokens) < len(whole)
        elif deltas[-1].finish_reason == "cancelled":
            assert name in self.cancelled
        elif deltas[-1].failure is not None:
            assert deltas[-1].failure.kind == "DeadlineExceeded"
            assert request.timeout is not None or request.queue_timeout is not None
        else:
            assert tokens == whole
            stopped = whole[-1] == STOP and not params.ignore_eos
            assert deltas[-1].finish_reason == ("stop" if stopped else "length")

    def teardown(self) -> None:
        if not hasattr(self, "engine"):
            return
        self.delay = self.engine._scheduler._delay = 0
        drain(self.engine, self.deltas)
        for name in self.requests:
            assert self.ended(name)
            self.check(name)
        stats = self.engine.stats()
        assert stats.blocks_free == stats.blocks_total
        assert stats.swapped_bytes == 0 and stats.cache.bytes_used == 0
        assert stats.tokens_generated == sum(len(tokens_of(deltas)) for deltas in self.deltas.values())
        assert sum(stats.finished.values()) == len(self.requests)


EngineMachine.TestCase.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
TestEngine = EngineMachine.TestCase
