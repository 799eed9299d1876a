"""Engine: the step loop over queue, cache, executor and sampler."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import ExitStack

from ops.errors import EngineDied, EngineUnavailable
from rtcore.admission import Admission
from rtcore.bundle import Bundle
from rtcore.config import EngineConfig
from rtcore.decoding.grammar.compiler import GrammarCompiler
from rtcore.decoding.grammar.gate import GrammarGate
from rtcore.decoding.grammar.vocabulary import LoadVocabulary, no_vocabulary, vocabulary_of
from rtcore.decoding.hooks import Hooks
from rtcore.decoding.speculation.base import Proposer
from rtcore.decoding.speculation.registry import load_proposer
from rtcore.decoding.stage import DecodingStage
from rtcore.executor.base import Executor
from rtcore.executor.registry import load_executor
from rtcore.intake import Intake
from rtcore.kvcache.block_manager import BlockManager
from rtcore.kvcache.hash_chain import Digest
from rtcore.kvcache.policy import CachePolicy
from rtcore.live_requests import LiveRequests
from rtcore.manifest import Manifest
from rtcore.overlap import Overlap
from rtcore.request import EngineRequest
from rtcore.scheduler.base import ScheduledStep
from rtcore.scheduler.batch import BatchBuilder
from rtcore.scheduler.lane_scheduler import LaneScheduler
from rtcore.scheduler.outcome import Outcome, StepResult
from rtcore.stats import EngineStats
from rtcore.step_runner import Ran, StepRunner
from rtcore.tally import Tally
from rtcore.transfers import Transfers

logger = logging.getLogger(__name__)

_MAINTENANCE_SECONDS = 1.0
_PREPARING_SECONDS = 0.005


class Engine:
    """Serves many requests at once, one packed step at a time. Not thread-safe: one thread drives it.

    A step reserves cache blocks, runs, and commits; if the run fails, everything reserved is given back and
    the next step runs the same work again in ever smaller parts, until what fails is one request alone: only
    that one ends with an error. When several requests in a row fail alone without any success in between, or the
    executor says that it died, the engine is dead: the step is FATAL and so are all later ones.

    Attributes: manifest; vocab_size; context_length, the tokens that one sequence may have here, which is the
    model's context or, if that is less, what the cache holds.
    """

    def __init__(
        self,
        executor: Executor,
        manifest: Manifest,
        config: EngineConfig,
        clock: Callable[[], float] = time.monotonic,
        digest: Digest = hash,
        vocabulary: LoadVocabulary = no_vocabulary,
        proposer: Proposer | None = None,
    ) -> None:
        """clock: seconds, for deadlines, ages and the cost model. digest: the hash function of the prefix cache.
        vocabulary: gives the tokens as bytes; without it requests with a grammar are refused. proposer: of drafts.
        """
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
        self._scheduler = LaneScheduler(
            self._blocks,
            config,
            block_bytes=executor.block_bytes,
            clock=clock,
            proposer=proposer,
            vocab_size=self.vocab_size,
        )
        self._transfers = Transfers(executor, self._scheduler.swapping)
        batch = BatchBuilder(
            max_tokens=config.max_step_tokens, block_size=executor.block_size, tables=self._blocks.tables
        )
        hooks = Hooks(self.vocab_size)
        self._decoding = DecodingStage(executor, hooks)
        self._runner = StepRunner(executor, batch, self._decoding, self._scheduler, clock)
        self._overlap = Overlap(self._runner, self._scheduler, executor.overlaps and config.overlap)
        self._tally = Tally(
            self._blocks, self._scheduler, self._runner, self._overlap, self._transfers, executor.block_bytes
        )
        stop_ids = frozenset(manifest.text.stop_ids)
        self._intake = Intake(
            Admission(vocab_size=self.vocab_size, context_length=model_context, cache_tokens=self._blocks.capacity),
            self._scheduler,
            hooks,
            GrammarGate(GrammarCompiler(vocabulary), stop_ids, self.vocab_size),
            new_chain=self._blocks.new_chain,
            version=manifest.version,
            stop_ids=stop_ids,
            max_waiting=config.max_queue,
            clock=clock,
        )
        self._check_every_step = config.debug_invariants
        self._requests = LiveRequests(self._intake, self._scheduler, self._tally)
        self._idle_checked = True
        self._maintained = clock()
        self._dead: EngineDied | None = None

    @classmethod
    def load(cls, bundle: Bundle, config: EngineConfig) -> Engine:
        """An engine for the bundle's variant that the configuration asks for.

        Raises WrongTarget, CacheTooSmall, BundleDamaged and what else the executor finds wrong.
        """
        with ExitStack() as undo:
            executor = load_executor(bundle, config)
            undo.callback(executor.close)
            proposer = load_proposer(bundle, config)
            if proposer is not None:
                undo.callback(proposer.close)
            vocabulary = vocabulary_of(bundle, executor.vocab_size)
            engine = cls(executor, bundle.manifest, config, vocabulary=vocabulary, proposer=proposer)
            undo.pop_all()
        return engine

    @property
    def executor(self) -> Executor:
        """What runs the steps: for whoever measures it, not for running steps past the engine."""
        return self._executor

    def submit(self, request: EngineRequest) -> bool:
        """Queue a request, or have it wait for its grammar; whether it waits. `StepResult.accepted` names it once
        it is queued, and if its grammar is none, its only delta says so.

        Raises InvalidRequest, ContextLengthExceeded, CacheTooSmall (it could never fit), Overloaded (too much
        waits already), DeadlineUnreachable (it would not be in time) or EngineUnavailable (the engine is dead);
        then the engine has not changed.
        """
        if self._dead is not None:
            raise EngineUnavailable("The engine is dead.", why=self._dead.what, remedy="Load it again.")
        return self._requests.submit(request)

    def cancel(self, request_id: str) -> None:
        """End a request in the next step, whatever state it is in; nothing happens when it is not live."""
        self._requests.cancel(request_id)

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything."""
        return bool(self._requests) or self._overlap.flying

    def step(self) -> StepResult:
        """Do the next piece of work; see Outcome for what it can come to. Raises only on broken invariants."""
        if self._dead is not None:
            return StepResult(Outcome.FATAL)
        accepted = self._requests.settle()
        flying = self._overlap.flying
        outcome = Outcome.COMMITTED if self._overlap.go_ahead() else self._land()
        if outcome is Outcome.COMMITTED:
            outcome = self._run_next(bool(accepted), flying)
        if self._requests and self._clock() - self._maintained >= _MAINTENANCE_SECONDS:
            self.maintain()
        if self._check_every_step:
            self.check_invariants()
        return StepResult(outcome, self._requests.take_deltas(), accepted)

    def _run_next(self, accepted: bool, flying: bool) -> Outcome:
        """Schedule a step and run it, and land what was in flight before it."""
        step = self._scheduler.schedule()
        self._tally.preemptions += step.preempted
        if step.works:
            self._idle_checked = False
        if (prepared := self._prepare(step)) is not Outcome.COMMITTED:
            return prepared
        if step.works:
            return self._take_in(self._overlap.run(step.works))
        landed = self._land()
        return (
            self._idle(accepted or bool(self._requests.deltas), flying) if landed is Outcome.COMMITTED else landed
        )

    def _land(self) -> Outcome:
        """End the step that is in flight, if any."""
        ran = self._overlap.land()
        return Outcome.COMMITTED if ran is None else self._take_in(ran)

    def _idle(self, produced: bool, landed: bool) -> Outcome:
        """The outcome of a step with nothing to run. produced: there is something to send; landed: a step ended."""
        if self._scheduler.waiting:
            return Outcome.CAPACITY_DEFERRED
        grammars = self._intake.grammars
        if not len(grammars):
            return Outcome.COMMITTED if landed else Outcome.NO_WORK
        if not produced:
            grammars.wait(_PREPARING_SECONDS)
        return Outcome.PREPARING

    def maintain(self) -> None:
        """Let cached blocks expire, give memory of idle blocks back, and look for leaks once nothing runs.

        Steps with requests do it now and then; without any it is to be called when nobody waits.
        """
        self._maintained = self._clock()
        self._blocks.cache.expire()
        for group, pool in enumerate(self._blocks.pools):
            idle = pool.idle_memory()
            if len(idle):
                self._executor.release_blocks(group, idle)
        if not (self._requests or self._idle_checked):
            self.check_invariants()
            self._idle_checked = True

    def _prepare(self, step: ScheduledStep) -> Outcome:
        """Move the blocks that the step needs moved. If that fails, the sequences concerned start anew."""
        error = self._transfers.prepare(step)
        if error is None:
            return Outcome.COMMITTED
        logger.warning("Cache blocks could not be moved, and what they held is computed anew: %s", error)
        self._runner.aborted += 1
        self._scheduler.rollback(step.works)
        if self._land() is Outcome.FATAL:
            return Outcome.FATAL
        for sequence in {*step.saves, *step.loads} or {work.sequence for work in step.works}:
            self._scheduler.restart(sequence)
        return Outcome.RETRYABLE_ABORT

    def _take_in(self, ran: Ran) -> Outcome:
        """Give out what works came to, and end the sequences that failed."""
        for one in ran.drawn:
            self._requests.give_out(one)
        for sequence, error in ran.failed:
            self._requests.finish(sequence, "error", error)
        return ran.outcome if ran.died is None else self._die(ran.died)

    def _die(self, error: EngineDied) -> Outcome:
        """End every request; the engine takes no more."""
        logger.critical("The engine is dead: %s", error)
        self._dead = error
        self._overlap.drop()
        self._requests.finish_all(error)
        return Outcome.FATAL

    def stats(self) -> EngineStats:
        """What the engine does now and has done since it started."""
        return self._tally.stats(len(self._intake.grammars), self.context_length)

    def check_invariants(self) -> None:
        """Raise EngineError unless requests, queue, running set and cache blocks agree. Call between steps."""
        self._scheduler.check_invariants()
        self._requests.check_invariants()

    def close(self) -> None:
        """Give back session and cache; requests in flight are dropped. Safe to call twice."""
        self._requests.drop()
        self._overlap.drop()
        self._dead = self._dead or EngineDied("The engine was closed.")
        self._intake.grammars.close()
        self._scheduler.close()
        self._decoding.close()
        self._executor.close()
