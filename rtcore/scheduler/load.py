"""LoadMonitor: how long a new request would wait, and whether the engine takes it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from ops.errors import DeadlineUnreachable, Overloaded
from rtcore.config import EngineConfig
from rtcore.request import EngineRequest

_SMOOTHING = 0.05
_CALM = 0.5
_SHORTEST_RETRY = 1.0


class LoadState(Enum):
    """normal takes every request; shedding only those of priority 0 and better; draining none."""

    NORMAL = "normal"
    SHEDDING = "shedding"
    DRAINING = "draining"


@dataclass(frozen=True, slots=True)
class Load:
    """What the scheduler holds. queued_seconds: of prefill still to be computed, for waiting and running
    sequences; share: of the time of a step that prefill gets; step_seconds: of a step as it decodes now."""

    waiting: int
    waiting_tokens: int
    running: int
    queued_seconds: float
    share: float
    step_seconds: float


class LoadMonitor:
    """Estimates waiting times and decides about admission, with hysteresis.

    The level is the fullest of three measures: requests and tokens in the queue against their limits, and the
    estimated wait against max_wait. Above 1 of the wait, or three quarters of a limit, the engine sheds; at a
    full queue it drains; it leaves either state only when the level has fallen to half.
    """

    def __init__(self, config: EngineConfig) -> None:
        self._config = config
        self._answer = 128.0
        self._residence = 1.0
        self.state = LoadState.NORMAL

    def expected_tokens(self, request: EngineRequest) -> int:
        """Tokens of the answer: the mean of those seen, or max_tokens where that is less."""
        return max(1, min(request.params.max_tokens or 1, round(self._answer)))

    def finished(self, tokens: int, seconds: float) -> None:
        """A request ended by itself after so many tokens, and so long after it was started."""
        self._answer += _SMOOTHING * (tokens - self._answer)
        self._residence += _SMOOTHING * (seconds - self._residence)

    def wait(self, load: Load) -> float:
        """Seconds until a request submitted now would be started."""
        ahead = load.waiting + load.running + 1 - self._config.max_sequences
        places = max(0, ahead) * self._residence / self._config.max_sequences
        return max(places, load.queued_seconds / load.share)

    def update(self, load: Load) -> LoadState:
        """The state, by the level now."""
        limit = self._config.max_queue_tokens
        queue = max(load.waiting / self._config.max_queue, load.waiting_tokens / limit if limit else 0.0)
        wait = self.wait(load) / self._config.max_wait
        if queue >= 1:
            self.state = LoadState.DRAINING
        elif max(queue, wait) <= _CALM:
            self.state = LoadState.NORMAL
        elif self.state is LoadState.NORMAL and (queue > 0.75 or wait > 1):
            self.state = LoadState.SHEDDING
        return self.state

    def admit(self, request: EngineRequest, load: Load, prefill_seconds: float) -> None:
        """Raise Overloaded or DeadlineUnreachable, with the time after which to try again, or return.

        prefill_seconds: of the request's own prompt.
        """
        state = self.update(load)
        wait = self.wait(load)
        retry = max(_SHORTEST_RETRY, wait * (1 - _CALM))
        if state is LoadState.DRAINING:
            raise Overloaded(
                f"{load.waiting} requests with {load.waiting_tokens} tokens are waiting, as many as may.",
                why=f"A new one would wait about {wait:.1f} s.",
                remedy="Try again later.",
                retry_after=retry,
            )
        if state is LoadState.SHEDDING and request.priority > 0:
            raise Overloaded(
                "The engine is overloaded and takes no requests of low priority.",
                why=f"A new one would wait about {wait:.1f} s.",
                remedy="Try again later.",
                retry_after=retry,
            )
        if request.queue_timeout is not None and wait > request.queue_timeout:
            raise DeadlineUnreachable(
                f"The request would wait about {wait:.1f} s, longer than its {request.queue_timeout:g} s.",
                remedy="Try again later, or allow more time.",
                retry_after=max(_SHORTEST_RETRY, wait - request.queue_timeout),
            )
        total = wait + prefill_seconds / load.share + self.expected_tokens(request) * load.step_seconds
        if request.timeout is not None and total > request.timeout:
            raise DeadlineUnreachable(
                f"The request would take about {total:.1f} s, longer than its {request.timeout:g} s.",
                remedy="Try again later, ask for fewer tokens, or allow more time.",
                retry_after=max(_SHORTEST_RETRY, min(wait, total - request.timeout)),
            )
