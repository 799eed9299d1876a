"""``ortolan bench scaling``: tokens a second over the number of sequences, and a step's cost over the context."""

from __future__ import annotations

import argparse
from pathlib import Path

import msgspec

from ops.errors import ConfigError
from rtcore.command import Command
from rtcore.config import EngineConfig
from rtcore.machine import available_cores

SEQUENCES = (1, 2, 4, 8, 16, 32)
CONTEXTS = (128, 256, 512, 1024, 2048, 4096, 8064)
STEPS = 32
NO_TARGET = 1e6
"""Milliseconds: prompts are not cut to keep steps short, lest the first sequence of many end before all began."""


def _numbers(text: str) -> tuple[int, ...]:
    """`1,2,4` as numbers; argparse turns a ValueError into its own words."""
    numbers = tuple(int(part) for part in text.split(","))
    if min(numbers) < 1:
        raise ValueError("numbers start at 1")
    return numbers


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("bundle", type=Path, metavar="BUNDLE", help="folder of the bundle")
    parser.add_argument("--precision", help="precision to measure; the bundle's default if not given")
    parser.add_argument(
        "--sequences",
        type=_numbers,
        default=SEQUENCES,
        metavar="N[,N]",
        help=f"sequences that decode together (default {','.join(map(str, SEQUENCES))})",
    )
    parser.add_argument(
        "--contexts",
        type=_numbers,
        default=CONTEXTS,
        metavar="N[,N]",
        help="tokens of one sequence that decodes; longer ones than the engine takes are left out (default "
        f"{','.join(map(str, CONTEXTS))})",
    )
    parser.add_argument("--steps", type=int, default=STEPS, help=f"steps of each measurement (default {STEPS})")
    parser.add_argument("--threads", type=int, help="threads; all cores of this process if not given")
    parser.add_argument("--plot", type=Path, metavar="FILE.svg", help="draw the figures (needs the extra bench)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")


def _run(arguments: argparse.Namespace) -> int:
    from server.bench.plot import draw, require_plot
    from server.bench.sweep import sweep, table

    if arguments.steps < 1:
        raise ConfigError(f"--steps is {arguments.steps}; it must be at least 1.", param="steps")
    if arguments.plot is not None:
        require_plot()
    threads = available_cores() if arguments.threads is None else arguments.threads
    config = EngineConfig(
        precision=arguments.precision,
        threads=threads,
        check="sizes",
        max_sequences=max(64, *arguments.sequences),
        target_step_ms=NO_TARGET,
        prefix_cache=False,
    )
    report = sweep(arguments.bundle, config, arguments.sequences, arguments.contexts, arguments.steps)
    if arguments.plot is not None:
        draw(report, arguments.plot)
    if arguments.json:
        print(msgspec.json.format(msgspec.json.encode(report)).decode())
    else:
        print(table(report))
    return 0


SCALING = Command(
    name="scaling",
    help="throughput over sequences, and the cost of a step over the context",
    description=(
        "Decode with growing numbers of sequences and with a growing context of one sequence, and give tokens a "
        "second, the time of a step, and the straight line that fits the time over the context best. Close other "
        "programs."
    ),
    configure=_configure,
    run=_run,
)
