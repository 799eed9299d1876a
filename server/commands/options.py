"""The flags that `ortolan generate` and `ortolan chat` share."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any, get_args

if TYPE_CHECKING:
    from rtcore import LLM, SamplingParams

_ENGINE_FLAGS = (
    "precision",
    "target",
    "threads",
    "kernels",
    "activations",
    "check",
    "speculation",
    "max_drafts",
    "draft_bundle",
)
_SAMPLING_FLAGS = (
    "n",
    "max_tokens",
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "min_tokens",
    "seed",
    "stop",
    "stop_token_ids",
    "include_stop_str_in_output",
    "ignore_eos",
    "skip_special_tokens",
)


def add_engine_flags(parser: argparse.ArgumentParser) -> None:
    """How the bundle is run."""
    from rtcore.config import Kernels

    group = parser.add_argument_group("engine")
    group.add_argument("--precision", help="precision to run, such as fp32 or int8 (default: the bundle's own)")
    group.add_argument("--target", choices=("cpu", "cuda"), default="cpu", help="what to run on (default: cpu)")
    group.add_argument("--threads", type=int, metavar="N", help="threads to compute with (default: all cores)")
    group.add_argument(
        "--cache-bytes",
        metavar="BYTES",
        help="memory for the KV cache, such as 2GiB (default: what is free allows)",
    )
    group.add_argument(
        "--kernels",
        choices=get_args(Kernels),
        default="auto",
        help="code path of the CPU kernels (default: the machine's best)",
    )
    group.add_argument(
        "--speculation",
        metavar="NAME",
        default="none",
        help="who makes drafts that the model verifies: none, ngram, draft, or an installed one (default: none)",
    )
    group.add_argument(
        "--max-drafts", type=int, metavar="N", default=8, help="drafts of a sequence in a step at most (default: 8)"
    )
    group.add_argument("--draft-bundle", metavar="DIRECTORY", help="bundle of a smaller model that makes drafts")
    group.add_argument(
        "--check",
        choices=("full", "sizes"),
        default="full",
        help="full hashes the bundle before it runs, sizes is quicker and compares sizes only (default: full)",
    )
    add_activations_flag(group)


def add_activations_flag(parser: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    """Whether products with quantised weights round their input."""
    from rtcore.config import Activations

    parser.add_argument(
        "--activations",
        choices=get_args(Activations),
        default="int8",
        help="what products with quantised weights round their input to; float32 is exact and slow (default: int8)",
    )


def add_sampling_flags(parser: argparse.ArgumentParser, max_tokens: int | None) -> None:
    """How tokens are chosen and when to stop; `max_tokens` is the default for --max-tokens."""
    group = parser.add_argument_group("sampling (defaults: what the model's makers recommend)")
    room = "as many as the context has room for" if max_tokens is None else str(max_tokens)
    group.add_argument(
        "--max-tokens",
        type=int,
        metavar="N",
        default=max_tokens,
        help=f"tokens to generate at most (default: {room})",
    )
    group.add_argument("--temperature", type=float, metavar="X", help="0 takes the most likely token each time")
    group.add_argument("--top-k", type=int, metavar="N", help="choose among the N most likely tokens (0: all)")
    group.add_argument("--top-p", type=float, metavar="X", help="choose among the likeliest tokens of mass X")
    group.add_argument(
        "--min-p", type=float, metavar="X", help="drop tokens less than X times as likely as the best"
    )
    for name, counted in (("repetition", "prompt and answer"), ("presence", "answer"), ("frequency", "answer")):
        group.add_argument(f"--{name}-penalty", type=float, metavar="X", help=f"of tokens that the {counted} holds")
    group.add_argument("--min-tokens", type=int, metavar="N", help="do not end before N tokens")
    group.add_argument("--seed", type=int, metavar="N", help="make the draws reproducible")
    group.add_argument("--stop", action="append", metavar="TEXT", help="end before this text; may be repeated")
    group.add_argument(
        "--stop-token-id",
        action="append",
        type=int,
        metavar="ID",
        dest="stop_token_ids",
        help="end at this token id",
    )
    group.add_argument(
        "--include-stop",
        action="store_true",
        default=None,
        dest="include_stop_str_in_output",
        help="show the stop text that ended the output",
    )
    group.add_argument("--ignore-eos", action="store_true", default=None, help="go on past the model's own end")
    group.add_argument(
        "--show-special-tokens",
        action="store_false",
        default=None,
        dest="skip_special_tokens",
        help="show special tokens",
    )


def engine_settings(arguments: argparse.Namespace) -> dict[str, Any]:
    """The keywords for LLM."""
    from server.config_sources import bytes_of

    settings = {name: getattr(arguments, name) for name in _ENGINE_FLAGS}
    if arguments.cache_bytes is not None:
        settings["cache_bytes"] = bytes_of(arguments.cache_bytes, "--cache-bytes")
    return settings


def sampling_params(llm: LLM, arguments: argparse.Namespace) -> SamplingParams:
    """The model's own parameters, less what was given. max_tokens None means the room that is left."""
    from msgspec.structs import replace

    from rtcore.config import MOST

    given = {name: getattr(arguments, name, None) for name in _SAMPLING_FLAGS}
    if given["max_tokens"] is not None:
        return llm.default_params(**given)
    return replace(llm.default_params(**{**given, "max_tokens": MOST}), max_tokens=None)
