"""Engines without a model, loaded into a real engine process through `Supervision.factory`.

A request's tokens are its prompt's ids again and again, so that a test knows what must come. Some first
prompt ids mean trouble: see the constants.
"""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ops.errors import BundleDamaged, InvalidRequest, Overloaded
from rtcore.config import EngineConfig
from rtcore.request import EngineRequest, TokenDelta
from rtcore.scheduler.outcome import Outcome, StepResult
from rtcore.stats import EngineStats

HERE = Path(__file__).resolve()
CONTEXT_LENGTH = 4096
VOCAB_SIZE = 512
EOS = 2

CRASH = 500
"""The process ends without a word in the first step that sees this prompt."""
HANG = 501
"""The step never returns."""
FATAL = 502
"""The step's outcome is FATAL."""
BUG = 503
"""The step raises something that is no OrtolanError."""
REFUSED = 504
"""Submitting raises InvalidRequest."""
OVERLOADED = 505
"""Submitting raises Overloaded."""
DEFERRED = 506
"""The request waits for capacity for ever."""


@dataclass
class Sequence:
    request: EngineRequest
    produced: list[int] = field(default_factory=list)


class FakeEngine:
    """The engine's interface over echoes; `pace` seconds a step."""

    context_length = CONTEXT_LENGTH
    vocab_size = VOCAB_SIZE

    def __init__(self, config: EngineConfig, pace: float = 0.0) -> None:
        self._config = config
        self._pace = pace
        self._waiting: deque[Sequence] = deque()
        self._running: dict[str, Sequence] = {}
        self._cancelled: list[str] = []
        self._steps = 0
        self.maintained = 0

    @property
    def has_work(self) -> bool:
        return bool(self._waiting or self._running or self._cancelled)

    def submit(self, request: EngineRequest) -> None:
        first = request.prompt_ids[0]
        if first == REFUSED:
            raise InvalidRequest("The fake engine refuses this.", param="prompt")
        if first == OVERLOADED or len(self._waiting) >= self._config.max_queue:
            raise Overloaded("The queue is full.", retry_after=7)
        self._waiting.append(Sequence(request))

    def cancel(self, request_id: str) -> None:
        self._cancelled.append(request_id)

    def step(self) -> StepResult:
        deltas = [TokenDelta(name, [], "cancelled") for name in self._cancelled if self._drop(name)]
        self._cancelled.clear()
        while self._waiting and len(self._running) < self._config.max_sequences:
            sequence = self._waiting.popleft()
            self._running[sequence.request.id] = sequence
        if self._pace:
            time.sleep(self._pace)
        self._steps += 1
        outcome = Outcome.COMMITTED if self._running else Outcome.NO_WORK
        for sequence in list(self._running.values()):
            first = sequence.request.prompt_ids[0]
            if first == CRASH:
                os._exit(9)
            if first == HANG:
                time.sleep(3600)
            if first == BUG:
                raise KeyError("no such thing")
            if first == FATAL:
                return StepResult(Outcome.FATAL, deltas)
            if first == DEFERRED:
                outcome = Outcome.CAPACITY_DEFERRED
                continue
            deltas.append(self._advance(sequence))
        return StepResult(outcome, deltas)

    def _advance(self, sequence: Sequence) -> TokenDelta:
        request = sequence.request
        token = request.prompt_ids[len(sequence.produced) % len(request.prompt_ids)]
        sequence.produced.append(token)
        reason = None
        stop_reason = None
        if token in request.params.stop_token_ids:
            reason, stop_reason = "stop", token
        elif token == EOS and not request.params.ignore_eos:
            reason = "stop"
        elif len(sequence.produced) >= (request.params.max_tokens or CONTEXT_LENGTH):
            reason = "length"
        if reason is not None:
            del self._running[request.id]
        return TokenDelta(request.id, [token], reason, stop_reason)

    def _drop(self, name: str) -> bool:
        if self._running.pop(name, None) is not None:
            return True
        for sequence in self._waiting:
            if sequence.request.id == name:
                self._waiting.remove(sequence)
                return True
        return False

    def stats(self) -> EngineStats:
        return EngineStats(
            waiting=len(self._waiting),
            running=len(self._running),
            blocks_total=[1],
            blocks_free=[1],
            block_size=16,
            context_length=CONTEXT_LENGTH,
            steps=self._steps,
            aborted_steps=0,
            tokens_prefilled=0,
            tokens_generated=0,
            preemptions=0,
            finished={},
            started=0.0,
        )

    def maintain(self) -> None:
        """Count the calls, which come when there is nothing to do."""
        self.maintained += 1

    def check_invariants(self) -> None:
        """Echoes hold no blocks."""

    def close(self) -> None:
        """Nothing to give back."""


def quick(bundle: str, config: EngineConfig) -> FakeEngine:
    return FakeEngine(config)


def slow(bundle: str, config: EngineConfig) -> FakeEngine:
    return FakeEngine(config, pace=0.02)


def damaged(bundle: str, config: EngineConfig) -> FakeEngine:
    raise BundleDamaged("weights/x.bin has the wrong size.", why="It was cut.", remedy="Copy it again.")


def dies(bundle: str, config: EngineConfig) -> FakeEngine:
    print("out of luck", flush=True)
    os._exit(7)


def breaks(bundle: str, config: EngineConfig) -> FakeEngine:
    raise ZeroDivisionError("an unforeseen thing")


def never_loads(bundle: str, config: EngineConfig) -> FakeEngine:
    time.sleep(3600)
    raise AssertionError("unreachable")


def once(bundle: str, config: EngineConfig) -> FakeEngine:
    """Starts well the first time that `bundle`, a file, is seen; every later start dies."""
    marker = Path(bundle)
    if marker.exists():
        os._exit(7)
    marker.touch()
    return FakeEngine(config)


def factory(function: str) -> str:
    """The factory's name for `Supervision.factory`."""
    return f"{HERE}:{function}"


def drawing(bundle: str, config: EngineConfig) -> Any:
    """A real engine over random logits, with the bundle's own tokenizer: it follows grammars, and nothing else."""
    sys.path.insert(0, str(HERE.parents[3]))  # for the process of its own, which has no import path to the tests
    from rtcore.bundle import Bundle
    from rtcore.decoding.grammar.vocabulary import vocabulary_of
    from rtcore.engine import Engine
    from tests.rtcore.fakes import FakeExecutor

    executor = FakeExecutor(num_blocks=(1024,), block_size=16, vocab_size=VOCAB_SIZE)
    opened = Bundle.open(bundle)
    return Engine(executor, opened.manifest, config, vocabulary=vocabulary_of(opened, VOCAB_SIZE))
