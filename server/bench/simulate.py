"""``ortolan bench simulate``: the real scheduler and cache on a simulated machine, in virtual time."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

import msgspec

from ops.errors import ConfigError
from rtcore.command import Command
from rtcore.machine import available_cores

if TYPE_CHECKING:
    from server.bench.simulation.figures import Background, TraceFigures

REQUESTS = 2000
NAMES = ("shared", "chat", "mixed", "burst")
HEADER = (
    "trace    waste  hits  of infinite  ITL ratio (FCFS)    rate (static)       ratio  fairness  TTFT p99  ITL p99"
)


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--requests", type=int, default=REQUESTS, help=f"requests of a trace (default {REQUESTS})")
    parser.add_argument("--trace", choices=NAMES, action="append", help="a trace to run, several times for more")
    parser.add_argument(
        "--jobs", type=int, help="runs at once, each in its own process (default: one for each core)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")


def _run(arguments: argparse.Namespace) -> int:
    from server.bench.simulation.figures import Measurement
    from server.bench.simulation.traces import TRACES
    from server.bench.simulation.workers import side_by_side

    if arguments.requests < 1:
        raise ConfigError(f"--requests is {arguments.requests}; it must be at least 1.", param="requests")
    jobs = available_cores() if arguments.jobs is None else arguments.jobs
    if jobs < 1:
        raise ConfigError(f"--jobs is {jobs}; it must be at least 1.", param="jobs")
    chosen = [trace for trace in TRACES if trace.name in (arguments.trace or NAMES)]
    with side_by_side(jobs) as executor:
        # Traces with documents have the longest runs, which therefore begin first.
        order = sorted(chosen, key=lambda trace: not trace.documents)
        measured = {trace.name: Measurement(trace, arguments.requests, executor) for trace in order}
        if arguments.json:
            report = {trace.name: measured[trace.name].result()[0] for trace in chosen}
            print(msgspec.json.format(msgspec.json.encode(report)).decode())
            return 0
        print(HEADER)
        for trace in chosen:  # a row as soon as it is there: a hundred thousand requests take minutes a trace
            print(_row(trace.name, *measured[trace.name].result()), flush=True)
    return 0


def _row(name: str, figures: TraceFigures, made_of: Background) -> str:
    share = figures.hit_rate / figures.hit_rate_infinite if figures.hit_rate_infinite else 1.0
    return (
        f"{name:7} {figures.waste:6.2%} {figures.hit_rate:5.1%} {share:12.1%} "
        f"{figures.short_itl_p99_ratio:8.2f} {made_of.fcfs_itl_p99_ratio:9.2f} "
        f"{made_of.rate:6.2f} {made_of.static_rate:8.3f}/s {figures.throughput_vs_static:10.1f} "
        f"{figures.fairness:9.2f} {made_of.ttft_p99:7.2f} s {made_of.itl_p99 * 1e3:5.1f} ms"
    )


SIMULATE = Command(
    name="simulate",
    help="scheduler and cache on a simulated GPU, against baselines",
    description=(
        "Run the real scheduler and cache through fixed traces on a simulated machine (8 billion parameters on one "
        "H200) in virtual time: prompts with shared beginnings, chats, chats mixed with documents of 50,000 to "
        "100,000 tokens, and bursts. Compared with a cache that holds everything, with static batching, and with "
        "first come first served. Needs no model and no GPU."
    ),
    configure=_configure,
    run=_run,
)
