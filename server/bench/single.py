"""One request at a time through an engine, with the time of each step that gave it tokens."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from ops.errors import EngineError
from rtcore.engine import Engine
from rtcore.failure import error_of
from rtcore.request import EngineRequest


@dataclass
class Timed:
    """A finished request: its tokens, and the seconds of each step after the one that gave the first token."""

    tokens: list[int] = field(default_factory=list)
    steps: list[float] = field(default_factory=list)
    reason: str | None = None

    @property
    def seconds_per_token(self) -> float:
        """Of the tokens after the first step's."""
        return sum(self.steps) / max(1, len(self.tokens) - 1)


def run(engine: Engine, requests: list[EngineRequest]) -> list[Timed]:
    """Run requests together, nothing else beside them. A step counts for each request that is still running, once
    all have their first token. Raises the error of one that fails."""
    found = {request.id: Timed() for request in requests}
    for request in requests:
        engine.submit(request)
    while engine.has_work:
        began = time.perf_counter()
        result = engine.step()
        seconds = time.perf_counter() - began
        started = all(timed.tokens for timed in found.values())
        for delta in result.deltas:
            if delta.failure is not None:
                raise error_of(delta.failure)
            timed = found[delta.id]
            timed.tokens += delta.token_ids
            timed.reason = delta.finish_reason
            if started and delta.token_ids:
                timed.steps.append(seconds)
    if any(timed.reason is None for timed in found.values()):
        raise EngineError("A request of the benchmark did not end.")
    return list(found.values())
