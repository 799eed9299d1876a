"""``ortolan bench sampler``: how long choosing tokens takes, beside reading the logits once."""

from __future__ import annotations

import argparse

import msgspec

from ops.errors import ConfigError
from rtcore.command import Command

RUNS = 200
SHAPES = ((16, 49_152), (256, 151_936))
BANDWIDTH_BYTES = 256 * 2**20


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--runs", type=int, default=RUNS, help=f"runs to time of the smaller shape (default {RUNS})"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")


def _run(arguments: argparse.Namespace) -> int:
    from rtcore.machine import available_cores
    from server.bench.ceilings import read_bandwidth
    from server.bench.sampler_case import SamplerCase

    if arguments.runs < 1:
        raise ConfigError(f"--runs is {arguments.runs}; it must be at least 1.", param="runs")
    threads = available_cores()
    costs = []
    for rows, vocabulary in SHAPES:
        case = SamplerCase(rows, vocabulary, threads)
        # Larger shapes are timed for about as long as the smallest one.
        runs = max(1, arguments.runs * SHAPES[0][0] * SHAPES[0][1] // (rows * vocabulary))
        bandwidth = read_bandwidth(threads, BANDWIDTH_BYTES)
        costs += [case.measure(name, runs, bandwidth) for name in SamplerCase.NAMES]
    if arguments.json:
        print(msgspec.json.format(msgspec.json.encode(costs)).decode())
        return 0
    print("rows x vocabulary  case          median       best      floor  of floor        numpy")
    for cost in costs:
        print(
            f"{cost.rows:4,} x {cost.vocabulary:9,}  {cost.case:8} {cost.median:9,.0f} us {cost.best:7,.0f} us "
            f"{cost.floor:7,.0f} us {cost.times_floor:8.1f}x {cost.numpy:9,.0f} us"
        )
    return 0


SAMPLER = Command(
    name="sampler",
    help="how long choosing tokens takes",
    description=(
        "Time the operator Sample on 16 rows of 49,152 logits and 256 rows of 151,936: greedy, drawn, with top-p, "
        "with a mask, with log-probabilities, and with top-k, top-p and penalties on 1,000 tokens. The floor is "
        "what reading the logits once takes at the read bandwidth measured in the same run; beside it stands "
        "the definition in numpy. Needs about 1 GB of memory."
    ),
    configure=_configure,
    run=_run,
)
