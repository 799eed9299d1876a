"""Typed errors to EngineFailure and back, for what must cross a process border or ride in a delta."""

from __future__ import annotations

from ops import errors
from ops.errors import EngineError, EngineUnavailable, OrtolanError, Overloaded
from rtcore.request import EngineFailure


def failure_of(error: OrtolanError) -> EngineFailure:
    """The failure that `error_of` turns back into an equal error."""
    return EngineFailure(
        kind=type(error).__name__,
        what=error.what,
        why=error.why,
        remedy=error.remedy,
        param=error.param,
        retry_after=getattr(error, "retry_after", None),
    )


def error_of(failure: EngineFailure) -> OrtolanError:
    """The typed error; a kind that ops.errors does not know becomes an EngineError."""
    kind = getattr(errors, failure.kind, None)
    if not (isinstance(kind, type) and issubclass(kind, OrtolanError)):
        kind = EngineError
    if issubclass(kind, Overloaded | EngineUnavailable):
        retry_after = 1.0 if failure.retry_after is None else failure.retry_after
        return kind(failure.what, retry_after=retry_after, why=failure.why, remedy=failure.remedy)
    return kind(failure.what, why=failure.why, remedy=failure.remedy, param=failure.param)
