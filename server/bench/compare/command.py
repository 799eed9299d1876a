"""``ortolan bench compare``: a bundle beside other engines on the same model, prompts and threads."""

from __future__ import annotations

import argparse
import math
import os
import sys
import time
from pathlib import Path

import msgspec

from ops.errors import ConfigError
from rtcore.command import Command
from rtcore.machine import available_cores

ROUNDS = 3
TIMEOUT = 600.0


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("bundle", type=Path, metavar="BUNDLE", help="folder of the bundle")
    parser.add_argument(
        "--peers", type=Path, required=True, metavar="FILE", help="the engines to compare with, in TOML"
    )
    parser.add_argument(
        "--precision", metavar="NAME[,NAME]", help="precisions to compare; the bundle's default if not given"
    )
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"rounds over all engines (default {ROUNDS})")
    parser.add_argument(
        "--threads", type=int, help="threads of each engine; all cores of this process if not given"
    )
    parser.add_argument(
        "--timeout",
        type=float,
        default=TIMEOUT,
        metavar="SECONDS",
        help=f"how long one engine may take in one round (default {TIMEOUT:g})",
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=math.inf,
        help="begin no measurement after this time, and report what is there; an interrupt does the same",
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")


def _run(arguments: argparse.Namespace) -> int:
    from rtcore.bundle import Bundle
    from server.bench.compare.entries import own_entries, read_peers
    from server.bench.compare.report import CompareReport, best_peers, results, table
    from server.bench.compare.rounds import CACHE_TOKENS, request_for, run_rounds
    from server.bench.machine import processor_name
    from server.bench.sizes import Sizes

    for name in ("rounds", "timeout", "seconds", "threads"):
        value = getattr(arguments, name)
        if value is not None and not value > 0:
            raise ConfigError(f"--{name} is {value}; it must be above 0.", param=name)
    threads = available_cores() if arguments.threads is None else arguments.threads
    peers = read_peers(arguments.peers)
    with Bundle.open(arguments.bundle, check="sizes") as bundle:
        manifest = bundle.manifest
        precisions = arguments.precision.split(",") if arguments.precision else [manifest.default_precision]
        for precision in precisions:
            bundle.variant(precision, "cpu")
    entries = own_entries(arguments.bundle, precisions) + peers
    sizes = Sizes.within(min(CACHE_TOKENS, manifest.dimensions.context_length))
    request = request_for(sizes, manifest.dimensions.vocab_size, threads)
    load = os.getloadavg()[0]
    answers = run_rounds(
        entries,
        request,
        arguments.rounds,
        arguments.timeout,
        lambda text: print(text, file=sys.stderr, flush=True),
        time.monotonic() + arguments.seconds,
    )
    found = results(entries, answers, sizes.prefill)
    report = CompareReport(
        bundle=manifest.name,
        version=manifest.version,
        threads=threads,
        rounds=arguments.rounds,
        cache_tokens=CACHE_TOKENS,
        sizes=sizes,
        processor=processor_name(),
        load_average=load,
        entries=found,
        best=best_peers(found),
    )
    if arguments.json:
        print(msgspec.json.format(msgspec.json.encode(report)).decode())
    else:
        print(table(report))
    return 0


COMPARE = Command(
    name="compare",
    help="a bundle beside other engines on the same machine",
    description=(
        "Run a bundle and the engines of a peers file on the same token ids with the same number of threads, "
        "greedy, each in a process of its own Python, round by round: prefill, decode of 1, 8 and 16 sequences, "
        "load and peak memory, as medians with their range, and how many times better Ortolan is than each. An "
        "engine that is not installed is reported as missing. Close other programs."
    ),
    configure=_configure,
    run=_run,
)
