"""``ortolan bench gpu``: decode, prefill, throughput and memory of a bundle on this machine's GPU."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import msgspec

from ops.errors import ConfigError
from rtcore.command import Command
from rtcore.config import EngineConfig


def _numbers(text: str) -> tuple[int, ...]:
    try:
        found = tuple(int(part) for part in text.split(","))
    except ValueError:
        found = ()
    if not found or min(found) < 1:
        raise ConfigError(
            f"{text!r} is no list of numbers.", remedy="Give one such as 1,32,256.", param="--sequences"
        )
    return found


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("bundle", type=Path, metavar="BUNDLE", help="the bundle to measure")
    parser.add_argument("--precision", help="precisions, separated by commas (default: the bundle's)")
    parser.add_argument("--sequences", default="1,32,128,256", help="batch sizes (default: 1,32,128,256)")
    parser.add_argument("--context", type=int, default=528, help="tokens of each sequence (default: 528)")
    parser.add_argument("--prefill", type=int, default=4096, help="tokens of the timed prompt (default: 4096)")
    parser.add_argument("--requests", type=int, default=512, help="requests of the load test (default: 512)")
    parser.add_argument("--check", default="full", choices=("full", "sizes"), help="full hashes all files first")
    parser.add_argument("--json", type=Path, help="write the report to this file as well")


def _run(arguments: argparse.Namespace) -> int:
    from server.bench.gpu_case import measure

    sequences = _numbers(arguments.sequences)
    reports = []
    for precision in arguments.precision.split(",") if arguments.precision else [None]:
        config = EngineConfig(
            target="cuda",
            precision=precision,
            max_sequences=max(sequences),
            max_step_tokens=max(8192, max(sequences)),
            prefix_cache=False,
            target_step_ms=1000.0,
            check=arguments.check,
        )

        def told(text: str, name: str = precision or "default") -> None:
            print(f"{name}: {text}", file=sys.stderr, flush=True)

        load_test = (arguments.requests, 512, 128)
        reports.append(
            measure(arguments.bundle, config, sequences, arguments.context, arguments.prefill, load_test, told)
        )
    text = msgspec.json.format(msgspec.json.encode(reports), indent=2)
    if arguments.json is not None:
        arguments.json.write_bytes(text + b"\n")
    print(text.decode())
    return 0


GPU = Command(
    name="gpu",
    help="decode, prefill, throughput and memory on a GPU",
    description=(
        "Measure a bundle on this machine's GPU through the real engine: decode steps by batch size, on the GPU "
        "alone and with all the host does, the time to the first token of a long prompt, many requests at once, "
        "start-up and memory. Floors follow from the bandwidth that a copy reaches in the same run. Prints JSON."
    ),
    configure=_configure,
    run=_run,
)
