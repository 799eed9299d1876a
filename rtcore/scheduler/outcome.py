"""The outcome of one step of the engine: never a boolean."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from rtcore.request import TokenDelta


class Outcome(Enum):
    """What a step came to."""

    NO_WORK = "no work"
    CAPACITY_DEFERRED = "capacity deferred"
    COMMITTED = "committed"
    RETRYABLE_ABORT = "retryable abort"
    UNSERVICEABLE = "unserviceable request"
    FATAL = "fatal"


@dataclass(slots=True)
class StepResult:
    """The outcome and the deltas that it produced, in no particular order of requests."""

    outcome: Outcome
    deltas: list[TokenDelta] = field(default_factory=list)
