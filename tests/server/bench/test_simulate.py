"""The simulator: what its figures mean, on traces small enough for a test."""

from __future__ import annotations

import argparse
import json

import numpy as np
import pytest

from ops.errors import ConfigError
from server.bench.simulate import SIMULATE
from server.bench.simulation import figures
from server.bench.simulation.baselines import first_come_first_served, static_batching
from server.bench.simulation.infinite import infinite_cache
from server.bench.simulation.machine import MAX_SEQUENCES, NUM_BLOCKS
from server.bench.simulation.run import MakeScheduler, Outcome, Run, lanes, percentile
from server.bench.simulation.traces import TRACES, Trace, next_turn
from server.bench.simulation.workers import side_by_side

KEYS = ["waste", "hit_rate", "hit_rate_infinite", "short_itl_p99_ratio", "throughput_vs_static", "fairness"]


def trace(name: str) -> Trace:
    return next(trace for trace in TRACES if trace.name == name)


@pytest.mark.parametrize("name", [trace.name for trace in TRACES])
def test_traces_are_fixed_and_long_enough(name: str) -> None:
    requests = list(trace(name).requests(60, 1))
    again = list(trace(name).requests(60, 1))
    assert all(np.array_equal(one.prompt, two.prompt) for one, two in zip(requests, again, strict=True))
    assert [one.arrival for one in requests] == [two.arrival for two in again]
    turns = []
    for request in requests:
        following: object = request
        while following is not None:
            turns.append(len(following.prompt) + len(following.answer))  # type: ignore[attr-defined]
            following = next_turn(following, 0.0)  # type: ignore[arg-type]
    assert np.mean(turns) >= 400


@pytest.mark.parametrize("make", [static_batching, first_come_first_served])
def test_baselines_serve_everything(make: MakeScheduler) -> None:
    run = Run(make)
    assert run.drive(trace("burst").requests(80, 1)).finished == 80
    assert run._blocks.free_blocks == [NUM_BLOCKS]


def test_goals_of_a_short_run() -> None:
    served = Run().drive(trace("shared").requests(400, 1))
    infinite = infinite_cache(trace("shared").requests(400, 1))
    assert served.finished == 400
    assert served.waste < 0.04
    assert served.hit_rate >= 0.98 * infinite.hit_rate > 0.8
    assert percentile(served.itl, 99) < 0.05


@pytest.mark.parametrize("name", ["chat", "mixed"])
def test_a_cache_that_holds_everything_finds_no_more_than_the_infinite_one(name: str) -> None:
    """And no less than what is still being computed when it is asked for."""
    infinite = infinite_cache(trace(name).requests(150, 1))
    run = Run(num_blocks=NUM_BLOCKS * 4)
    outcome = run.drive(trace(name).requests(150, 1))
    assert outcome.evicted == 0
    assert infinite.hit_rate - 0.02 <= outcome.hit_rate <= infinite.hit_rate
    assert run._blocks.cached_blocks[0] == pytest.approx(infinite.blocks, rel=0.01)


def test_without_documents_the_other_requests_are_the_same() -> None:
    everything = [request for request in trace("mixed").requests(400, 1) if not request.document]
    without = list(trace("mixed").requests(400, 1, documents=False))
    assert len(without) < 400
    assert [one.arrival for one in everything] == [two.arrival for two in without]
    assert all(np.array_equal(one.prompt, two.prompt) for one, two in zip(everything, without, strict=True))


@pytest.mark.parametrize("jobs", [1, 2])
def test_runs_side_by_side_come_to_the_same(jobs: int) -> None:
    with side_by_side(jobs) as executor:
        measured = [executor.submit(figures.serve, trace("shared"), 40, lanes) for _ in range(2)]
        assert measured[0].result() == measured[1].result() == figures.serve(trace("shared"), 40, lanes)


def test_tenants_get_equal_shares_of_a_burst() -> None:
    assert Run().drive(trace("burst").requests(2 * MAX_SEQUENCES, 1)).fairness > 0.95


def test_jain() -> None:
    uneven = Outcome(served={"a": 2.0}, owed={"a": 1.0, "b": 1.0}, contended=100)
    assert uneven.fairness == pytest.approx(0.5)
    assert Outcome().fairness == 1.0


def test_json_has_the_agreed_keys(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(figures, "highest_rate", lambda trace, make, start: start)
    parser = argparse.ArgumentParser()
    SIMULATE.configure(parser)
    arguments = parser.parse_args(
        ["--requests", "40", "--trace", "shared", "--trace", "chat", "--jobs", "1", "--json"]
    )
    assert SIMULATE.run(arguments) == 0
    report = json.loads(capsys.readouterr().out)
    assert list(report) == ["shared", "chat"]
    assert all(list(entry) == KEYS for entry in report.values())
    assert SIMULATE.run(parser.parse_args(["--requests", "40", "--trace", "burst", "--jobs", "1"])) == 0
    assert "burst" in capsys.readouterr().out


def test_nonsense_is_refused() -> None:
    parser = argparse.ArgumentParser()
    SIMULATE.configure(parser)
    with pytest.raises(ConfigError, match="--requests is 0"):
        SIMULATE.run(parser.parse_args(["--requests", "0"]))
    with pytest.raises(ConfigError, match="--jobs is 0"):
        SIMULATE.run(parser.parse_args(["--jobs", "0"]))
