"""``ortolan bench perplexity``: how well the precisions of a bundle predict a text."""

from __future__ import annotations

import argparse
from pathlib import Path

import msgspec

from ops.errors import ConfigError
from rtcore.command import Command
from rtcore.config import EngineConfig
from rtcore.machine import available_cores
from server.commands.options import add_activations_flag

CONTEXT = 512
WINDOWS = 8


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("bundles", type=Path, nargs="+", metavar="BUNDLE", help="folders of bundles of one model")
    parser.add_argument("--text", type=Path, required=True, metavar="FILE", help="text to predict, in UTF-8")
    parser.add_argument(
        "--precision", metavar="NAME[,NAME]", help="precisions to measure; all of each bundle if not given"
    )
    parser.add_argument(
        "--context", type=int, default=CONTEXT, help=f"tokens of a window of the text (default {CONTEXT})"
    )
    parser.add_argument("--windows", type=int, default=WINDOWS, help=f"windows at most (default {WINDOWS})")
    parser.add_argument("--kernels", default="auto", help="code path of the CPU kernels (default auto)")
    add_activations_flag(parser)
    parser.add_argument("--threads", type=int, help="threads; all cores of this process if not given")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")


def _run(arguments: argparse.Namespace) -> int:
    from server.bench.likelihood import measure, table

    for name, least in (("context", 2), ("windows", 1)):
        if getattr(arguments, name) < least:
            raise ConfigError(f"--{name} is {getattr(arguments, name)}; it must be at least {least}.", param=name)
    try:
        text = arguments.text.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"The text {arguments.text} cannot be read.", why=str(error), remedy="Give a text file in UTF-8."
        ) from error
    threads = available_cores() if arguments.threads is None else arguments.threads
    config = EngineConfig.of(
        {
            "threads": threads,
            "check": "sizes",
            "kernels": arguments.kernels,
            "activations": arguments.activations,
            "max_sequences": 1,
        }
    )
    precisions = arguments.precision.split(",") if arguments.precision else None
    found = [
        likelihood
        for bundle in arguments.bundles
        for likelihood in measure(bundle, text, precisions, arguments.context, arguments.windows, config)
    ]
    if arguments.json:
        print(msgspec.json.format(msgspec.json.encode(found)).decode())
    else:
        print(table(found))
    return 0


PERPLEXITY = Command(
    name="perplexity",
    help="how well each precision predicts a text",
    description=(
        "Feed windows of a text to a model through the engine's executor and give its perplexity: the exponential "
        "of the mean negative log-likelihood of every token but the first of its window. Several bundles of a "
        "model can be compared; fp32 among them is what the others are held against."
    ),
    configure=_configure,
    run=_run,
)
