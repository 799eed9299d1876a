"""``ortolan bench``: measurements, one sub-command each."""

from __future__ import annotations

import argparse

from rtcore.command import Command
from server.bench.registry import BENCHMARKS


def _configure(parser: argparse.ArgumentParser) -> None:
    choices = parser.add_subparsers(dest="benchmark", metavar="BENCHMARK", required=True)
    for benchmark in BENCHMARKS:
        child = choices.add_parser(benchmark.name, help=benchmark.help, description=benchmark.description)
        benchmark.configure(child)
        child.set_defaults(run_benchmark=benchmark.run)


def _run(arguments: argparse.Namespace) -> int:
    code: int = arguments.run_benchmark(arguments)
    return code


BENCH = Command(
    name="bench",
    help="measure how fast a bundle runs on this machine",
    description="Measure how fast a bundle runs on this machine, with the floor that its hardware sets beside it.",
    configure=_configure,
    run=_run,
)
