"""Engine: the step loop over queue, cache, executor and sampler."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable

from ops.errors import DeadlineExceeded, EngineDied, EngineError, EngineUnavailable, InvalidRequest, OrtolanError
from rtcore.admission import Admission
from rtcore.bundle import Bundle
from rtcore.config import EngineConfig
from rtcore.decoding.hooks import Hooks
from rtcore.decoding.stage import DecodingStage, Drawn
from rtcore.executor.base import Executor
from rtcore.executor.registry import load_executor
from rtcore.failure import failure_of
from rtcore.kvcache.block_manager import BlockManager
from rtcore.kvcache.hash_chain import CacheKey, Digest, blake2b_digest
from rtcore.kvcache.policy import CachePolicy
from rtcore.kvcache.report import cache_stats
from rtcore.manifest import Manifest
from rtcore.request import EngineRequest, FinishReason, TokenDelta
from rtcore.scheduler.base import ScheduledStep, Work
from rtcore.scheduler.batch import BatchBuilder
from rtcore.scheduler.lane_scheduler import LaneScheduler
from rtcore.scheduler.outcome import Outcome, StepResult
from rtcore.sequence import Sequence
from rtcore.stats import EngineStats
from rtcore.transfers import Transfers

logger = logging.getLogger(__name__)

_SEED_MASK = 2**64 - 1
_MAX_LONE_FAILURES = 3
_MAINTENANCE_SECONDS = 1.0


class Engine:
    """Serves many requests at once, one packed step at a time. Not thread-safe: one thread drives it.

    A step reserves cache blocks, runs, and commits; if the run fails, everything reserved is given back and
    the next step runs the same work again in ever smaller parts, until what fails is one request alone: only
    that one ends with an error. When `_MAX_LONE_FAILURES` requests in a row fail alone without any success in
    between, or the executor says that it died, the engine is dead: the step is FATAL and so are all later ones.

    Attributes: manifest; vocab_size; context_length, the tokens that one sequence may have here, which is the
    model's context or, if that is less, what the cache holds.
    """

    def __init__(
        self,
        executor: Executor,
        manifest: Manifest,
        config: EngineConfig,
        clock: Callable[[], float] = time.monotonic,
        digest: Digest = blake2b_digest,
    ) -> None:
        """clock: seconds, for deadlines, ages and the cost model. digest: the hash function of the prefix cache."""
        self.manifest = manifest
        self.vocab_size = executor.vocab_size
        self._executor = executor
        self._clock = clock
        model_context = manifest.dimensions.context_length
        self._blocks = BlockManager(
            executor.num_blocks,
            executor.block_size,
            max_sequences=config.max_sequences,
            max_length=model_context,
            windows=executor.windows,
            policy=CachePolicy(
                enabled=config.prefix_cache,
                ttl=config.cache_ttl,
                tenant_share=config.cache_tenant_share,
                digest=digest,
            ),
            clock=clock,
        )
        self.context_length = min(model_context, self._blocks.capacity)
        if self.context_length < model_context:
            logger.warning(
                "The KV cache holds %d tokens of one sequence, fewer than the model's context of %d: requests are "
                "limited to that. More cache memory (cache_bytes) lifts the limit.",
                self.context_length,
                model_context,
            )
        self._admission = Admission(
            vocab_size=self.vocab_size, context_length=model_context, cache_tokens=self._blocks.capacity
        )
        self._scheduler = LaneScheduler(self._blocks, config, block_bytes=executor.block_bytes, clock=clock)
        self._transfers = Transfers(executor, self._scheduler.swapping)
        self._batch = BatchBuilder(
            max_tokens=config.max_step_tokens, block_size=executor.block_size, tables=self._blocks.tables
        )
        self._hooks = Hooks(self.vocab_size)
        self._decoding = DecodingStage(executor, self._hooks)
        self._check_every_step = config.debug_invariants
        self._stop_ids = frozenset(manifest.text.stop_ids)
        self._live: dict[str, Sequence] = {}
        self._cancelled: list[str] = []
        self._number = 0
        self._isolate = False
        self._lone_failures = 0
        self._idle_checked = True
        self._maintained = clock()
        self._dead: EngineDied | None = None
        self._started = time.time()
        self._steps = self._aborted = self._prefilled = self._generated = self._preemptions = 0
        self._finished: dict[str, int] = dict.fromkeys(("stop", "length", "cancelled", "error"), 0)

    @classmethod
    def load(cls, bundle: Bundle, config: EngineConfig) -> Engine:
        """An engine for the bundle's variant that the configuration asks for.

        Raises WrongTarget, CacheTooSmall, BundleDamaged and what else the executor finds wrong.
        """
        return cls(load_executor(bundle, config), bundle.manifest, config)

    @property
    def executor(self) -> Executor:
        """What runs the steps: for whoever measures it, not for running steps past the engine."""
        return self._executor

    def submit(self, request: EngineRequest) -> None:
        """Queue a request. A request without a seed gets one here, so that a preemption cannot change its draws.

        Raises InvalidRequest, ContextLengthExceeded, CacheTooSmall (it could never fit), Overloaded (too much
        waits already), DeadlineUnreachable (it would not be in time) or EngineUnavailable (the engine is dead);
        then the engine has not changed.
        """
        if self._dead is not None:
            raise EngineUnavailable("The engine is dead.", why=self._dead.what, remedy="Load it again.")
        if request.id in self._live:
            raise InvalidRequest(f"A request with id {request.id!r} is running.", param="id")
        self._admission.check(request)
        self._scheduler.admit(request)
        seed = secrets.randbits(64) if request.params.seed is None else request.params.seed & _SEED_MASK
        chain = self._blocks.new_chain(CacheKey(self.manifest.version, salt=request.cache_salt))
        sequence = Sequence.create(request, chain, self._number, seed, self._stop_ids, self._clock())
        self._hooks.attach(sequence)
        self._number += 1
        self._live[request.id] = sequence
        self._scheduler.add(sequence)

    def cancel(self, request_id: str) -> None:
        """End a request in the next step, whatever state it is in; nothing happens when it is not live."""
        if request_id in self._live and request_id not in self._cancelled:
            self._cancelled.append(request_id)

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything."""
        return bool(self._live)

    def step(self) -> StepResult:
        """Do the next piece of work; see Outcome for what it can come to. Raises only on broken invariants."""
        if self._dead is not None:
            return StepResult(Outcome.FATAL)
        deltas: list[TokenDelta] = []
        for request_id in self._cancelled:
            self._finish(self._live[request_id], "cancelled", deltas)
        self._cancelled.clear()
        for sequence in self._scheduler.expired():
            self._finish(sequence, "error", deltas, _too_late(sequence))
        step = self._scheduler.schedule()
        self._preemptions += step.preempted
        prepared = self._prepare(step)
        if step.works:
            self._idle_checked = False
        if not prepared:
            outcome = Outcome.RETRYABLE_ABORT
        elif step.works:
            outcome = self._run_parts(step, deltas) if self._isolate else self._run_whole(step, deltas)
        else:
            outcome = Outcome.CAPACITY_DEFERRED if self._scheduler.waiting else Outcome.NO_WORK
        if self._clock() - self._maintained >= _MAINTENANCE_SECONDS:
            self.maintain()
        if self._check_every_step or not (self._live or self._idle_checked):
            self.check_invariants()
            self._idle_checked = not self._live
        return StepResult(outcome, deltas)

    def maintain(self) -> None:
        """Let cached blocks expire and give memory of idle blocks back; to be called when there is no work too."""
        self._maintained = self._clock()
        self._blocks.cache.expire()
        for group, pool in enumerate(self._blocks.pools):
            idle = pool.idle_memory()
            if len(idle):
                self._executor.release_blocks(group, idle)

    def _prepare(self, step: ScheduledStep) -> bool:
        """Move the blocks that the step needs moved. If that fails, the sequences concerned start anew."""
        error = self._transfers.prepare(step)
        if error is None:
            return True
        logger.warning("Cache blocks could not be moved, and what they held is computed anew: %s", error)
        self._aborted += 1
        self._scheduler.rollback(step.works)
        moved = {*step.saves, *step.loads}
        for sequence in moved or {work.sequence for work in step.works}:
            self._scheduler.restart(sequence)
        return False

    def _run_whole(self, step: ScheduledStep, deltas: list[TokenDelta]) -> Outcome:
        """Run all work at once; on failure give everything back and have the next step isolate the cause."""
        error = self._try(step.works, deltas)
        if error is None:
            return Outcome.COMMITTED
        self._scheduler.rollback(step.works)
        self._aborted += 1
        if isinstance(error, EngineDied):
            return self._die(error, deltas)
        logger.warning("A step of %d sequences failed and is tried again in parts: %s", len(step.works), error)
        self._isolate = True
        return Outcome.RETRYABLE_ABORT

    def _run_parts(self, step: ScheduledStep, deltas: list[TokenDelta]) -> Outcome:
        """Run halves of the work, and halves of what fails of them, down to single requests."""
        self._isolate = False
        outcome = Outcome.COMMITTED
        middle = (len(step.works) + 1) // 2
        parts = [part for part in (step.works[middle:], step.works[:middle]) if part]
        while parts:
            works = parts.pop()
            error = self._try(works, deltas)
            if error is not None and len(works) == 1 and works[0].tokens > 1:
                works = [_less(works[0])]
                error = self._try(works, deltas)
            if error is None:
                continue
            if isinstance(error, EngineDied):
                return self._die(error, deltas)
            if len(works) > 1:
                middle = (len(works) + 1) // 2
                parts += [works[middle:], works[:middle]]
                continue
            logger.error("Request %s fails alone and is ended: %s", works[0].sequence.request.id, error)
            self._finish(works[0].sequence, "error", deltas, error)
            outcome = Outcome.UNSERVICEABLE
            self._lone_failures += 1
            if self._lone_failures >= _MAX_LONE_FAILURES:
                died = EngineDied(
                    f"{self._lone_failures} requests in a row failed alone.",
                    why=str(error),
                    remedy="The engine has to be loaded again.",
                )
                return self._die(died, deltas)
        return outcome

    def _try(self, works: list[Work], deltas: list[TokenDelta]) -> EngineError | None:
        """Run works and commit them; on failure change nothing and return the error.

        A failure of any kind counts, not only the typed ones: one request must not end all others.
        """
        began = self._clock()
        try:
            rows = self._decoding.begin(works)
            self._executor.run(self._batch.build(works))
            drawn = self._decoding.finish(rows)
        except EngineError as error:
            return error
        except Exception as error:
            logger.exception("The executor raised an error without a type")
            return EngineError("A step failed.", why=f"{type(error).__name__}: {error}")
        self._scheduler.observe(works, self._clock() - began)
        self._steps += 1
        self._lone_failures = 0
        for work in works:
            if work.sequence.computed < work.sequence.prompt_length or work.tokens > 1 + len(work.drafts):
                self._prefilled += work.tokens
        for one in drawn:
            if one.failure is not None:
                self._scheduler.distrust(one.sequence)
            for token in one.tokens[:-1]:
                one.sequence.append(token)
        self._scheduler.commit(works)
        for one in drawn:
            self._give_out(one, deltas)
        return None

    def _give_out(self, drawn: Drawn, deltas: list[TokenDelta]) -> None:
        """Send what a step gave a sequence, and end the sequence if its newest token is the last."""
        sequence = drawn.sequence
        if drawn.failure is not None:
            self._finish(sequence, "error", deltas, drawn.failure)
            return
        sequence.decoding.prompt_scored += len(drawn.prompt_logprobs)
        reason: FinishReason | None = None
        stop: int | str | None = None
        if drawn.tokens:
            reason = sequence.append(drawn.tokens[-1])
            self._generated += len(drawn.tokens)
            if reason == "stop":
                stop = sequence.stop_reason(drawn.tokens[-1])
            elif drawn.stop is not None:
                reason, stop = "stop", drawn.stop
        elif not drawn.prompt_logprobs:
            return
        if reason is not None:
            self._forget(sequence, reason)
        deltas.append(
            TokenDelta(
                sequence.request.id,
                drawn.tokens,
                reason,
                stop,
                logprobs=drawn.logprobs,
                prompt_logprobs=drawn.prompt_logprobs,
            )
        )

    def _finish(
        self, sequence: Sequence, reason: FinishReason, deltas: list[TokenDelta], error: OrtolanError | None = None
    ) -> None:
        """End a sequence without a new token."""
        self._forget(sequence, reason)
        failure = failure_of(error) if error is not None else None
        deltas.append(TokenDelta(sequence.request.id, [], reason, failure=failure))

    def _forget(self, sequence: Sequence, reason: FinishReason) -> None:
        self._scheduler.remove(sequence)
        del self._live[sequence.request.id]
        self._finished[reason] += 1

    def _die(self, error: EngineDied, deltas: list[TokenDelta]) -> Outcome:
        """End every request; the engine takes no more."""
        logger.critical("The engine is dead: %s", error)
        self._dead = error
        for sequence in list(self._live.values()):
            self._finish(sequence, "error", deltas, error)
        return Outcome.FATAL

    def stats(self) -> EngineStats:
        return EngineStats(
            waiting=self._scheduler.waiting,
            running=self._scheduler.running,
            blocks_total=self._blocks.num_blocks,
            blocks_free=self._blocks.free_blocks,
            cache=cache_stats(self._blocks, self._executor.block_bytes),
            load=self._scheduler.load_stats(),
            block_size=self._blocks.block_size,
            context_length=self.context_length,
            steps=self._steps,
            aborted_steps=self._aborted,
            tokens_prefilled=self._prefilled,
            tokens_generated=self._generated,
            preemptions=self._preemptions,
            swaps=self._transfers.saves,
            swapped_bytes=self._scheduler.swapping.used,
            finished=dict(self._finished),
            started=self._started,
        )

    def check_invariants(self) -> None:
        """Raise EngineError unless requests, queue, running set and cache blocks agree. Call between steps."""
        self._scheduler.check_invariants()
        if {id(sequence) for sequence in self._scheduler.sequences()} != {id(s) for s in self._live.values()}:
            raise EngineError("The live requests are not those that the scheduler holds.")

    def close(self) -> None:
        """Give back session and cache; requests in flight are dropped. Safe to call twice."""
        self._live.clear()
        self._cancelled.clear()
        self._dead = self._dead or EngineDied("The engine was closed.")
        self._executor.close()


def _too_late(sequence: Sequence) -> DeadlineExceeded:
    request = sequence.request
    if sequence.started is None and request.queue_timeout is not None:
        return DeadlineExceeded(
            "The request waited longer than it may.", why=f"It allows {request.queue_timeout:g} s."
        )
    return DeadlineExceeded("The request took longer than it may.", why=f"It allows {request.timeout:g} s.")


def _less(work: Work) -> Work:
    """A smaller part of a work that fails alone: without its drafts, or half of its tokens."""
    if work.drafts:
        return Work(work.sequence, work.tokens - len(work.drafts), work.reserved, work.samples)
    return Work(work.sequence, work.tokens // 2, work.reserved, False)
