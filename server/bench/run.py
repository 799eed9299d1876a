"""``ortolan bench run``: how fast a bundle runs here, and what the machine would allow."""

from __future__ import annotations

import argparse
from pathlib import Path

import msgspec

from ops.errors import ConfigError
from rtcore.command import Command
from rtcore.config import EngineConfig
from rtcore.machine import available_cores
from server.bench.sizes import PREFILL_TOKENS, ROUNDS, SEQUENCES
from server.commands.options import add_activations_flag


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("bundle", type=Path, metavar="BUNDLE", help="folder of the bundle")
    parser.add_argument("--precision", help="precision to measure; the bundle's default if not given")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"rounds to measure (default {ROUNDS})")
    parser.add_argument("--threads", type=int, help="threads; all cores of this process if not given")
    add_activations_flag(parser)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")


def _run(arguments: argparse.Namespace) -> int:
    from server.bench.ceilings import measure_apart
    from server.bench.figure import FigureRecord, table
    from server.bench.floors import Floors
    from server.bench.rounds import Report, figures, measure

    if arguments.rounds < 1:
        raise ConfigError(f"--rounds is {arguments.rounds}; it must be at least 1.", param="rounds")
    threads = available_cores() if arguments.threads is None else arguments.threads
    config = EngineConfig(
        precision=arguments.precision, threads=threads, check="full", activations=arguments.activations
    )
    samples, sizes, manifest, variant = measure(arguments.bundle, config, arguments.rounds)
    ceilings = measure_apart(threads)
    rows = figures(samples, sizes, Floors(manifest, variant, ceilings))
    if arguments.json:
        report = Report(
            bundle=manifest.name,
            version=manifest.version,
            precision=variant.precision,
            threads=threads,
            rounds=arguments.rounds,
            sizes=sizes,
            ceilings=ceilings,
            figures=[FigureRecord.of(row) for row in rows],
        )
        print(msgspec.json.format(msgspec.json.encode(report)).decode())
        return 0
    print(f"{manifest.name}, {variant.precision}, {threads} threads, {arguments.rounds} rounds\n")
    print(table(rows))
    reads, fp32, int8 = (value / 1e9 for value in (ceilings.read_bytes_s, ceilings.fp32_ops_s, ceilings.int8_ops_s))
    print(f"\nThis machine: reads {reads:.1f} GB/s, fp32 {fp32:.0f} GFLOP/s, int8 {int8:.0f} GOP/s.")
    return 0


RUN = Command(
    name="run",
    help="prefill, decode, first token, load and memory of a bundle",
    description=(
        f"Measure prefill ({PREFILL_TOKENS} tokens), decode of {', '.join(map(str, SEQUENCES))} sequences, time to "
        "the first token, load time and memory of a bundle in this process. Beside each figure stands its floor: "
        "what the read bandwidth and the arithmetic measured in the same run would allow. Close other programs."
    ),
    configure=_configure,
    run=_run,
)
