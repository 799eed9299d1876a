"""``ortolan verify``: is a bundle whole, and does it compute here what it computed when it was exported?"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import msgspec

from rtcore.command import Command
from rtcore.config import EngineConfig, Kernels

if TYPE_CHECKING:
    from rtcore.verify import VerifyReport


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("bundle", type=Path, metavar="BUNDLE", help="directory that `ortolan export` wrote")
    parser.add_argument("--precision", help="replay only this precision (default: all for the target)")
    parser.add_argument("--target", default="cpu", help="target to replay on (default: cpu)")
    parser.add_argument("--threads", type=int, help="threads to compute with (default: all cores)")
    parser.add_argument(
        "--kernels",
        choices=get_args(Kernels),
        default="auto",
        help="force a code path of the CPU kernels (default: auto, the best that this machine has)",
    )
    parser.add_argument("--json", action="store_true", help="print the report as JSON")


def _run(arguments: argparse.Namespace) -> int:
    from rtcore.verify import verify

    config = EngineConfig(
        precision=arguments.precision,
        target=arguments.target,
        threads=arguments.threads,
        kernels=arguments.kernels,
    )
    report = verify(arguments.bundle, config)
    if arguments.json:
        sys.stdout.write(msgspec.json.encode(report).decode() + "\n")
    else:
        sys.stdout.write("".join(f"{line}\n" for line in _lines(report)))
    report.require()
    return 0


def _lines(report: VerifyReport) -> list[str]:
    """The report for people."""
    lines = [f"{report.bundle}", f"files    {report.files}, {report.bytes:,} bytes: sizes and sha256 are right"]
    for replay in report.replays:
        decisive = sum(prompt.decisive for prompt in replay.prompts)
        flipped = sum(len(prompt.flipped) for prompt in replay.prompts)
        lines.append(
            f"replay   {replay.title}: {'ok' if replay.ok else 'FAILED'}; "
            f"{len(replay.prompts)} prompts, logits within {replay.deviation:.2g} of {replay.bound:.2g} allowed, "
            f"arg-max equal at {decisive - flipped} of {decisive} decisive positions"
        )
    if report.replay_absent_because:
        lines.append(f"replay   none. {report.replay_absent_because}")
    return lines


VERIFY = Command(
    name="verify",
    help="check that a bundle is whole and computes here what it should",
    description=(
        "Compare size and sha256 of every file with the manifest, then replay the recorded reference logits "
        "on this machine. Exits with an error that names the file or the numbers when something is off."
    ),
    configure=_configure,
    run=_run,
)
