"""The benchmark of scheduling: it measures a steady state, and its cases hold what they say."""

from __future__ import annotations

import argparse
import json

import pytest

from ops.errors import ConfigError
from server.bench import scheduler
from server.bench.scheduler_case import SchedulerCase


def test_a_case_stays_as_full_as_it_is() -> None:
    case = SchedulerCase(4, 30, 200, seed=1)
    cost = case.measure(300)
    assert (cost.sequences, cost.waiting, cost.cached_blocks, cost.steps) == (4, 30, 200, 300)
    assert 0 < cost.median <= cost.p99 <= cost.longest
    assert case._scheduler.running == 4 and 30 <= case._scheduler.waiting <= 34
    assert case._blocks.cached_blocks[0] >= 150
    case._scheduler.check_invariants()


def test_json(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(scheduler, "CASES", ((16, 2, 10),))
    parser = argparse.ArgumentParser()
    scheduler.SCHEDULER.configure(parser)
    assert scheduler.SCHEDULER.run(parser.parse_args(["--steps", "20", "--json"])) == 0
    assert json.loads(capsys.readouterr().out)[0]["steps"] == 20
    assert scheduler.SCHEDULER.run(parser.parse_args(["--steps", "20"])) == 0
    with pytest.raises(ConfigError):
        scheduler.SCHEDULER.run(parser.parse_args(["--steps", "0"]))
