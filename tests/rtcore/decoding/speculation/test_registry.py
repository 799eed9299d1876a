"""Proposers by name, the user's own among them."""

from __future__ import annotations

import re
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ops.errors import ConfigError
from rtcore.config import EngineConfig
from rtcore.decoding.speculation import registry
from rtcore.decoding.speculation.base import Ask
from rtcore.decoding.speculation.ngram import NgramProposer
from rtcore.decoding.speculation.registry import load_proposer


class Own(NgramProposer):
    """What a user might install."""


def make(bundle: Any, config: EngineConfig) -> Own:
    return Own()


def fail(bundle: Any, config: EngineConfig) -> Own:
    raise KeyError("no such thing")


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    here = __name__
    found = EntryPoints(
        [
            EntryPoint("own", f"{here}:make", registry.GROUP),
            EntryPoint("failing", f"{here}:fail", registry.GROUP),
            EntryPoint("missing", f"{here}:missing", registry.GROUP),
        ]
    )
    monkeypatch.setattr(registry, "entry_points", lambda group: found.select(group=group))


def test_by_name() -> None:
    assert load_proposer(None, EngineConfig()) is None  # type: ignore[arg-type]
    assert type(load_proposer(None, EngineConfig(speculation="ngram"))) is NgramProposer  # type: ignore[arg-type]
    assert type(load_proposer(None, EngineConfig(speculation="own"))) is Own  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["unknown", "failing", "missing"])
def test_what_cannot_be_loaded(name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_proposer(None, EngineConfig(speculation=name))  # type: ignore[arg-type]
    assert caught.value.param == "speculation"
    if name == "unknown":
        assert "failing, missing, ngram, none, own" in str(caught.value)


def test_the_example_of_the_documentation() -> None:
    text = (Path(__file__).parents[4] / "docs" / "speculation.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    names: dict[str, Any] = {}
    exec(code, names)
    proposer = names["load"](None, EngineConfig())
    asks = [Ask("a", np.array([5, 271]), 3), Ask("b", np.array([271, 5]), 3)]
    assert proposer.propose(asks) == [[314], []]
    proposer.forget("a")
    proposer.close()
