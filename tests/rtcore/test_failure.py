"""Every typed error crosses the process border and comes back as it was."""

from __future__ import annotations

import pytest

from ops import errors
from ops.errors import EngineError, OrtolanError
from rtcore.failure import error_of, failure_of
from rtcore.request import EngineFailure

KINDS = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, OrtolanError)]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_there_and_back(kind: type[OrtolanError]) -> None:
    error = kind("What.", why="Why.", remedy="Remedy.")
    if hasattr(error, "retry_after"):
        error.retry_after = 7.5
    else:
        error.param = "n"
    back = error_of(failure_of(error))
    assert type(back) is kind
    assert vars(back) == vars(error)
    assert str(back) == str(error)


@pytest.mark.parametrize("name", ["SystemExit", "annotations", "", "NoSuchError", "__name__"])
def test_unknown_kinds_are_engine_errors(name: str) -> None:
    back = error_of(EngineFailure(name, "What."))
    assert (type(back), back.what) == (EngineError, "What.")
