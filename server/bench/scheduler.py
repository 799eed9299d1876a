"""``ortolan bench scheduler``: what a step costs the host before and after the model runs."""

from __future__ import annotations

import argparse

import msgspec

from ops.errors import ConfigError
from rtcore.command import Command

STEPS = 2000
CASES = (
    (16, 10, 1_000),
    (16, 10_000, 1_000),
    (16, 10, 1_000_000),
    (256, 10, 1_000),
    (256, 10_000, 1_000),
    (256, 10, 1_000_000),
)
GOALS = {16: 150.0, 256: 1000.0}


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--steps", type=int, default=STEPS, help=f"steps to time in each case (default {STEPS})")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")


def _run(arguments: argparse.Namespace) -> int:
    from server.bench.scheduler_case import SchedulerCase

    if arguments.steps < 1:
        raise ConfigError(f"--steps is {arguments.steps}; it must be at least 1.", param="steps")
    costs = [SchedulerCase(*case, seed=1).measure(arguments.steps) for case in CASES]
    if arguments.json:
        print(msgspec.json.format(msgspec.json.encode(costs)).decode())
        return 0
    print("sequences   waiting     cached   median       mean        p99      goal")
    for cost in costs:
        print(
            f"{cost.sequences:9,} {cost.waiting:9,} {cost.cached_blocks:10,} {cost.median:5,.0f} us "
            f"{cost.mean:7,.0f} us {cost.p99:7,.0f} us {GOALS[cost.sequences]:6,.0f} us"
        )
    return 0


SCHEDULER = Command(
    name="scheduler",
    help="what scheduling a step costs the host",
    description=(
        "Time the scheduler, the paged cache and the building of a step's arrays without a model: 16 and 256 "
        "running sequences, 10 and 10,000 waiting ones, a thousand and a million cached blocks. Sampling and text "
        "are not part of it. Needs about 2 GB of memory. Close other programs."
    ),
    configure=_configure,
    run=_run,
)
