"""``ortolan bench profile``: one step of a bundle by operator, each with its floor, and the host's part in it."""

from __future__ import annotations

import argparse
from pathlib import Path

import msgspec

from ops.errors import ConfigError
from rtcore.command import Command
from rtcore.machine import available_cores

SEQUENCES = 1
CONTEXT = 128
STEPS = 32


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("bundle", type=Path, metavar="BUNDLE", help="folder of the bundle")
    parser.add_argument("--precision", help="precision to profile; the bundle's default if not given")
    parser.add_argument(
        "--sequences", type=int, default=SEQUENCES, help=f"sequences that decode in the step (default {SEQUENCES})"
    )
    parser.add_argument("--context", type=int, default=CONTEXT, help=f"tokens of each sequence (default {CONTEXT})")
    parser.add_argument("--prefill", type=int, metavar="TOKENS", help="profile the prefill of one prompt instead")
    parser.add_argument("--steps", type=int, default=STEPS, help=f"steps to take the mean of (default {STEPS})")
    parser.add_argument("--threads", type=int, help="threads; all cores of this process if not given")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")


def _run(arguments: argparse.Namespace) -> int:
    from server.bench.profiling.case import profile
    from server.bench.profiling.report import table

    for name in ("sequences", "context", "steps", "prefill"):
        value = getattr(arguments, name)
        if value is not None and value < 1:
            raise ConfigError(f"--{name} is {value}; it must be at least 1.", param=name)
    report = profile(
        arguments.bundle,
        precision=arguments.precision,
        threads=available_cores() if arguments.threads is None else arguments.threads,
        sequences=arguments.sequences,
        context=arguments.context,
        prefill=arguments.prefill,
        steps=arguments.steps,
    )
    if arguments.json:
        print(msgspec.json.format(msgspec.json.encode(report)).decode())
    else:
        print(table(report))
    return 0


PROFILE = Command(
    name="profile",
    help="one step by operator, with the floor of each",
    description=(
        "Take one step apart: decode of --sequences sequences with --context tokens each, or with --prefill the "
        "prefill of one prompt. For every operator and weight shape: calls, time, share of the step, bytes, "
        "operations, and the floor that the bandwidth and the arithmetic measured in the same run set; and what "
        "the host does around the graph. Close other programs."
    ),
    configure=_configure,
    run=_run,
)
