"""``ortolan generate``: complete prompts from the command line."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from ops.errors import ConfigError
from rtcore.command import Command
from server.commands.options import add_engine_flags, add_sampling_flags, engine_settings, sampling_params
from server.commands.terminal import show

if TYPE_CHECKING:
    from rtcore import RequestOutput

_DEFAULT_MAX_TOKENS = 128


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("bundle", type=Path, metavar="BUNDLE", help="directory that `ortolan export` wrote")
    parser.add_argument(
        "prompts", nargs="*", metavar="PROMPT", help="text to continue; none or - reads standard input"
    )
    parser.add_argument("--n", type=int, metavar="N", help="sequences for each prompt (default: 1)")
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object a prompt, with token ids and why it ended"
    )
    add_sampling_flags(parser, max_tokens=_DEFAULT_MAX_TOKENS)
    add_engine_flags(parser)


def _run(arguments: argparse.Namespace) -> int:
    prompts = _prompts(arguments.prompts)
    # Loads onnxruntime, so not before the prompts are known.
    from rtcore import LLM

    with LLM(arguments.bundle, **engine_settings(arguments)) as llm:
        params = sampling_params(llm, arguments)
        if arguments.json:
            _print_json(llm.generate(prompts, params))
        elif len(prompts) == 1 and params.n == 1:
            for added in llm.stream(prompts, params, delta=True):
                show(added.outputs[0].text)
            show("\n")
        else:
            _print_all(llm.generate(prompts, params))
    return 0


def _prompts(given: list[str]) -> list[str]:
    """The prompts, with standard input in the place of - or where there are none."""
    if given.count("-") > 1:
        raise ConfigError("Standard input can be read only once.", remedy="Give - once.", param="prompts")
    if not given and sys.stdin.isatty():
        raise ConfigError(
            "There is no prompt.",
            remedy="Write it after the bundle, or send it to standard input.",
            param="prompts",
        )
    return [_standard_input() if prompt == "-" else prompt for prompt in given or ["-"]]


def _standard_input() -> str:
    try:
        return sys.stdin.buffer.read().decode("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(
            "Standard input is not UTF-8.", why=f"{error}.", remedy="Convert it first.", param="prompts"
        ) from error


def _print_json(outputs: Iterable[RequestOutput]) -> None:
    import msgspec

    for output in outputs:
        sys.stdout.write(msgspec.json.encode(output).decode() + "\n")


def _print_all(outputs: list[RequestOutput]) -> None:
    """Several answers, each under the numbers of its prompt and sequence."""
    for output in outputs:
        for answer in output.outputs:
            number = f"{output.index + 1}" if len(output.outputs) == 1 else f"{output.index + 1}.{answer.index + 1}"
            show(f"[{number}] {output.prompt}{answer.text}\n")


GENERATE = Command(
    name="generate",
    help="complete a prompt with a bundle's model",
    description=(
        "Continue a text with the model of a bundle and show it as it is written. With several prompts, or --n, "
        "they run together and are shown when all are done. To talk with a model, use `ortolan chat`."
    ),
    configure=_configure,
    run=_run,
)
