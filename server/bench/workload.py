"""Workload: fixed requests driven through an engine in this process, and what they take."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from ops.errors import EngineError
from rtcore.config import EngineConfig
from rtcore.decoding.params import SamplingParams
from rtcore.engine import Engine
from rtcore.loading import load_engine
from rtcore.request import EngineRequest
from rtcore.scheduler.outcome import Outcome


def load(path: Path, config: EngineConfig) -> tuple[Engine, float]:
    """Load an engine as the server does, hashing what `config.check` asks for; also the seconds that it took."""
    start = time.perf_counter()
    engine = load_engine(path, config)
    return engine, time.perf_counter() - start


class Workload:
    """Runs prompts of random ids through one engine. The same seed gives the same ids."""

    def __init__(self, engine: Engine, seed: int) -> None:
        self._engine = engine
        self._random = np.random.default_rng(seed)
        self._number = 0

    def first_token_seconds(self, prompt_tokens: int) -> float:
        """Seconds from the submission of one prompt to its first token, nothing else running."""
        start = time.perf_counter()
        request = self._submit(prompt_tokens, 1)
        self._until(lambda seen: seen.get(request, 0) >= 1)
        seconds = time.perf_counter() - start
        self._drain()
        return seconds

    def decode_step_seconds(self, sequences: int, prompt_tokens: int, steps: int) -> float:
        """Mean seconds of `steps` steps in which each of `sequences` sequences gets one more token.

        The clock starts when all prompts have been prefilled and have given their first token.
        """
        with self.decoding(sequences, prompt_tokens, steps) as advance:
            start = time.perf_counter()
            tokens = advance(sequences * steps)
            seconds = time.perf_counter() - start
        return seconds * sequences / tokens

    @contextmanager
    def decoding(self, sequences: int, prompt_tokens: int, steps: int) -> Iterator[Callable[[int], int]]:
        """`sequences` sequences whose prompts have been prefilled and which have room for `steps` more tokens each.

        Yields a function that steps until it has seen as many new tokens as it is told, and returns how many.
        """
        room = self._engine.context_length - prompt_tokens
        requests = [self._submit(prompt_tokens, min(room, steps + 2 * sequences + 2)) for _ in range(sequences)]
        self._until(lambda seen: all(request in seen for request in requests))
        try:
            yield lambda tokens: sum(self._until(lambda seen: sum(seen.values()) >= tokens).values())
        finally:
            self._drain(requests)

    def complete(self, requests: int, prompt_tokens: int, answer_tokens: int) -> None:
        """Submit as many prompts at once and run them all to their end."""
        for _ in range(requests):
            self._submit(prompt_tokens, answer_tokens)
        while self._engine.has_work:
            self._engine.step()

    def _submit(self, prompt_tokens: int, max_tokens: int) -> str:
        self._number += 1
        request_id = f"bench-{self._number}"
        ids = self._random.integers(0, self._engine.vocab_size, prompt_tokens).tolist()
        params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
        self._engine.submit(EngineRequest(id=request_id, prompt_ids=ids, params=params))
        return request_id

    def _until(self, done: Callable[[dict[str, int]], bool]) -> dict[str, int]:
        """Step until `done(tokens seen of each request since this call)` and return what was seen."""
        seen: dict[str, int] = {}
        while not done(seen):
            result = self._engine.step()
            if result.outcome is not Outcome.COMMITTED:
                raise EngineError(
                    f"A step of the benchmark came to: {result.outcome.value}.",
                    remedy="Give the cache more memory, or use fewer or shorter sequences.",
                )
            for delta in result.deltas:
                seen[delta.id] = seen.get(delta.id, 0) + len(delta.token_ids)
        return seen

    def _drain(self, requests: list[str] | None = None) -> None:
        for request in requests or []:
            self._engine.cancel(request)
        while self._engine.has_work:
            self._engine.step()
