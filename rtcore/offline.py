"""Batches of the offline API: prompts that are driven through an engine in this process."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Generator

import msgspec

from ops.errors import EngineDied, EngineError, EngineUnavailable, OrtolanError, Overloaded
from rtcore.decoding.params import SamplingParams
from rtcore.engine import Engine
from rtcore.failure import error_of
from rtcore.output import CompletionOutput, RequestOutput, choices_of
from rtcore.request import EngineRequest, TokenDelta
from rtcore.scheduler.outcome import Outcome
from rtcore.text.stream import TextDelta, TextStream
from rtcore.text.tokenizer import Tokenizer

# An engine that holds requests may defer them once or twice, but not for ever.
_MAX_IDLE_STEPS = 16
_PAUSE = 0.001


class Driver:
    """Steps an engine and hands each delta to the batch that its request belongs to."""

    def __init__(self, engine: Engine, delay: float = 0.0) -> None:
        """delay: seconds for which the engine may hold a first step back to fill it."""
        self._engine: Engine | None = engine
        self._delay = delay
        self._worked = time.monotonic()
        self._owners: dict[str, Batch] = {}
        self._idle = 0

    @property
    def engine(self) -> Engine:
        """The engine. Raises EngineUnavailable after close."""
        if self._engine is None:
            raise EngineUnavailable("The model is closed.", remedy="Open its bundle again with LLM(...).")
        return self._engine

    def check_open(self) -> None:
        """Raise EngineUnavailable after close."""
        _ = self.engine

    def submit(self, request: EngineRequest, owner: Batch) -> None:
        """Give a request to the engine; raises what Engine.submit raises."""
        self.engine.submit(request)
        self._worked = time.monotonic()
        self._owners[request.id] = owner

    def cancel(self, request_id: str) -> None:
        """End a request with the next step."""
        if request_id in self._owners:
            self.engine.cancel(request_id)

    def release(self, owner: Batch) -> None:
        """Step once, if need be, so that the engine lets go of what the batch has cancelled."""
        if owner in self._owners.values():
            self.step()
        # An interrupt may have lost the delta that says so.
        self._owners = {number: other for number, other in self._owners.items() if other is not owner}

    def step(self) -> None:
        """One step for all batches. Raises EngineDied or EngineError where the engine does no more."""
        result = self.engine.step()
        for delta in result.deltas:
            owner = self._owners.get(delta.id)
            if delta.finish_reason is not None:
                self._owners.pop(delta.id, None)
            if owner is not None:
                owner.take(delta)
        if result.outcome is Outcome.FATAL and not result.deltas:
            self._owners.clear()
            raise EngineDied("The engine is dead.", remedy="Open the bundle again with LLM(...).")
        worked = result.deltas or result.outcome not in (Outcome.NO_WORK, Outcome.CAPACITY_DEFERRED)
        now = time.monotonic()
        if worked:
            self._worked = now
        elif result.outcome is Outcome.CAPACITY_DEFERRED and now - self._worked <= self._delay:
            time.sleep(_PAUSE)
            return
        self._idle = 0 if worked else self._idle + 1
        if self._idle > _MAX_IDLE_STEPS:
            raise EngineError("The engine holds requests that it does not run.", remedy="Report this with the log.")

    def close(self) -> None:
        """Close the engine. Safe to call twice."""
        self._owners.clear()
        if self._engine is not None:
            self._engine.close()
            self._engine = None


class _Running:
    """One sequence of a prompt on its way. outputs: those of all sequences that run for the prompt."""

    def __init__(
        self,
        stream: TextStream,
        prompt: RequestOutput,
        output: CompletionOutput,
        outputs: list[CompletionOutput],
        tokenizer: Tokenizer,
    ) -> None:
        self.stream = stream
        self.prompt = prompt
        self.output = output
        self._outputs = outputs
        self._tokenizer = tokenizer

    def add(self, delta: TextDelta) -> CompletionOutput:
        """Add a delta to the whole; returns it by itself."""
        whole = self.output
        new = CompletionOutput(whole.index, delta.text, delta.token_ids, delta.finish_reason, delta.stop_reason)
        whole.text += new.text
        whole.token_ids += new.token_ids
        whole.finish_reason, whole.stop_reason = new.finish_reason, new.stop_reason
        if delta.logprobs:
            new.cumulative_logprob = sum(told.logprob for told in delta.logprobs)
            whole.cumulative_logprob = (whole.cumulative_logprob or 0.0) + new.cumulative_logprob
        if whole.logprobs is not None:
            new.logprobs = choices_of(self._tokenizer, delta.token_ids, delta.logprobs)
            whole.logprobs += new.logprobs
        # With echo every sequence is told of the prompt; one is enough here.
        if whole.index == 0 and delta.prompt_logprobs and self.prompt.prompt_logprobs is not None:
            known = len(self.prompt.prompt_logprobs)
            ids = self.prompt.prompt_token_ids[known : known + len(delta.prompt_logprobs)]
            self.prompt.prompt_logprobs += choices_of(self._tokenizer, ids, delta.prompt_logprobs)
        if delta.finish_reason is not None and all(output.finish_reason for output in self._outputs):
            self._finish()
        return new

    def _finish(self) -> None:
        """All sequences have ended: of best_of the best n stay, the best first."""
        wanted = len(self.prompt.outputs)
        if wanted < len(self._outputs):
            best = sorted(self._outputs, key=lambda output: -(output.cumulative_logprob or 0.0))[:wanted]
            self.prompt.outputs[:] = [
                msgspec.structs.replace(output, index=index) for index, output in enumerate(best)
            ]
        self.prompt.finished = True


class Batch:
    """Prompts that run together. `outputs` holds a RequestOutput for each, in order, and grows as they run."""

    def __init__(self, driver: Driver, tokenizer: Tokenizer) -> None:
        """tokenizer: it names the tokens of log-probabilities."""
        self._tokenizer = tokenizer
        self.outputs: list[RequestOutput] = []
        self._driver = driver
        self._waiting: deque[tuple[EngineRequest, _Running]] = deque()
        self._running: dict[str, _Running] = {}
        self._added: list[RequestOutput] = []
        self._failure: OrtolanError | None = None

    def add(
        self, prompt: str | None, params: SamplingParams, sequences: list[tuple[EngineRequest, TextStream]]
    ) -> None:
        """Add a prompt: a request and the stream of its text for each of its sequences."""
        ids = list(sequences[0][0].prompt_ids)
        outputs = [
            CompletionOutput(index, logprobs=None if params.logprobs is None else [])
            for index in range(len(sequences))
        ]
        whole = RequestOutput(
            len(self.outputs),
            prompt,
            ids,
            outputs[: params.n],
            prompt_logprobs=None if params.prompt_logprobs is None else [None],
        )
        self.outputs.append(whole)
        for (request, stream), output in zip(sequences, outputs, strict=True):
            self._waiting.append((request, _Running(stream, whole, output, outputs, self._tokenizer)))

    def run(self) -> Generator[list[RequestOutput]]:
        """Run to the end, and give what each step adds. Left early for any reason, it cancels what still runs."""
        try:
            while True:
                # Steps that another batch asked for may have added something here too.
                added, self._added = self._added, []
                if added:
                    yield added
                if self._failure is not None:
                    raise self._failure
                if not (self._waiting or self._running or self._added):
                    return
                self._submit()
                self._driver.step()
        finally:
            self._stop()

    def take(self, delta: TokenDelta) -> None:
        """What the driver calls with each delta; those after a stop string are ignored."""
        running = self._running.get(delta.id)
        if running is None:
            return
        added = running.stream.feed(delta)
        new = running.add(added)
        if added.finish_reason is not None:
            del self._running[delta.id]
        if added.cut:
            self._driver.cancel(delta.id)
        if delta.failure is not None:
            self._failure = error_of(delta.failure)
        self._added.append(msgspec.structs.replace(running.prompt, outputs=[new]))

    def _submit(self) -> None:
        """Give the engine as many of the waiting requests as its queue takes."""
        while self._waiting:
            request, running = self._waiting[0]
            try:
                self._driver.submit(request, self)
            except Overloaded:
                return
            self._running[request.id] = running
            self._waiting.popleft()

    def _stop(self) -> None:
        """Cancel what runs, so that the engine holds nothing of this batch."""
        self._waiting.clear()
        for request_id in self._running:
            self._driver.cancel(request_id)
        self._running.clear()
        self._driver.release(self)
