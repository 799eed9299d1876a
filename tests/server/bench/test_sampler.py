"""The benchmark of sampling: its cases are what they are called, and operator and definition agree on them."""

from __future__ import annotations

import argparse
import json

import pytest

from ops.errors import ConfigError
from server.bench import sampler
from server.bench.sampler_case import SamplerCase


@pytest.mark.parametrize("name", SamplerCase.NAMES)
def test_operator_and_definition_agree(name: str) -> None:
    case = SamplerCase(24, 2000, 2)
    # A draw may fall within rounding of a border between two tokens, in one row of thousands.
    assert case.check(name) >= 23 / 24
    cost = case.measure(name, 3, 1e9)
    assert (cost.case, cost.rows, cost.vocabulary, cost.runs) == (name, 24, 2000, 3)
    assert 0 < cost.best <= cost.median and cost.floor == pytest.approx(24 * 2000 * 4 / 1e9 * 1e6)
    assert cost.times_floor == pytest.approx(cost.median / cost.floor)


def test_a_changed_row_is_noticed() -> None:
    case = SamplerCase(24, 2000, 2)
    logits = case._logits.copy()
    logits[:12, 7] = 100
    assert (case._sampler.run(logits, case._inputs("greedy")).ids[:12] == 7).all()


def test_json(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sampler, "SHAPES", ((2, 300),))
    monkeypatch.setattr(sampler, "BANDWIDTH_BYTES", 1 << 20)
    parser = argparse.ArgumentParser()
    sampler.SAMPLER.configure(parser)
    assert sampler.SAMPLER.run(parser.parse_args(["--runs", "3", "--json"])) == 0
    costs = json.loads(capsys.readouterr().out)
    assert [cost["case"] for cost in costs] == list(SamplerCase.NAMES)
    assert sampler.SAMPLER.run(parser.parse_args(["--runs", "3"])) == 0
    with pytest.raises(ConfigError):
        sampler.SAMPLER.run(parser.parse_args(["--runs", "0"]))
