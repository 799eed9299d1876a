"""The outcome of one step of the engine: never a boolean."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from rtcore.request import TokenDelta


class Outcome(Enum):
    """What a step came to.

    PREPARING: all that there is waits for something else than the model, and so did the step, for a moment.
    """

    NO_WORK = "no work"
    CAPACITY_DEFERRED = "capacity deferred"
    PREPARING = "preparing"
    COMMITTED = "committed"
    RETRYABLE_ABORT = "retryable abort"
    UNSERVICEABLE = "unserviceable request"
    FATAL = "fatal"


@dataclass(slots=True)
class StepResult:
    """The outcome and the deltas that it produced, in no particular order of requests. accepted: requests that were
    not queued when they were submitted and are now."""

    outcome: Outcome
    deltas: list[TokenDelta] = field(default_factory=list)
    accepted: list[str] = field(default_factory=list)
