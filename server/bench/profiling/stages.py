"""StageClock: what the stages of an engine's steps take, by timing the methods that they consist of."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from rtcore.engine import Engine

STAGES = ("schedule", "build", "bind", "run", "sample", "commit", "rest")


class StageClock:
    """Times the stages of every step of one engine from now on.

    An engine is not slowed by clocks that nobody reads, so it has none: this one puts itself in the place of the
    bound methods of this engine's parts. `bind` is what the executor does around the session's run.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._seconds: dict[str, float] = {}
        self.runs = 0
        executor = engine._executor
        self._watch(engine, "step", "step")
        self._watch(engine._scheduler, "schedule", "schedule")
        self._watch(engine._runner._batch, "build", "build")
        self._watch(executor, "run", "execute")
        self._watch(executor._session, "run_with_iobinding", "run")  # type: ignore[attr-defined]
        self._watch(engine._decoding, "begin", "build")
        self._watch(engine._decoding, "choose", "sample")
        self._watch(engine._decoding, "finish", "sample")
        self._watch(engine._scheduler, "commit", "commit")

    def _watch(self, owner: Any, method: str, name: str) -> None:
        """Let calls of `owner.method` count for `name`."""
        inner: Callable[..., Any] = getattr(owner, method)

        def timed(*arguments: Any, **named: Any) -> Any:
            start = time.perf_counter()
            try:
                return inner(*arguments, **named)
            finally:
                self._seconds[name] = self._seconds.get(name, 0.0) + time.perf_counter() - start
                self.runs += name == "run"

        setattr(owner, method, timed)

    def start(self) -> None:
        """Forget what was measured so far."""
        self._seconds.clear()
        self.runs = 0

    def stages(self) -> dict[str, float]:
        """Seconds of each of STAGES since `start`, all steps together; they add up to the steps themselves."""
        seconds = {name: self._seconds.get(name, 0.0) for name in STAGES}
        seconds["bind"] = self._seconds.get("execute", 0.0) - seconds["run"]
        seconds["rest"] = self._seconds.get("step", 0.0) - sum(seconds.values())
        return seconds
