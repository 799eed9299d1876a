"""``ortolan bench http``: how a server answers many clients at once, ours or any that speaks OpenAI's protocol."""

from __future__ import annotations

import argparse
import asyncio
import math
from urllib.parse import urlsplit

import msgspec

from ops.errors import ConfigError
from rtcore.command import Command

_LEAST = {"requests": 1, "prompt": 1, "prefix": 0, "answer": 1, "rate": 0, "concurrency": 0, "vocabulary": 1}


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("url", metavar="URL", help="address of the server, such as http://127.0.0.1:8000")
    parser.add_argument("--model", help="model to ask for; the first that the server names if not given")
    parser.add_argument("--key", help="API key to send")
    parser.add_argument("--requests", type=int, default=64, help="requests to send (default 64)")
    parser.add_argument("--prompt", type=int, default=512, help="tokens of each prompt (default 512)")
    parser.add_argument("--prefix", type=int, default=0, help="of these, tokens that all begin with (default 0)")
    parser.add_argument("--answer", type=int, default=128, help="tokens to generate for each (default 128)")
    parser.add_argument("--rate", type=float, default=0.0, help="requests that come in a second; 0: all at once")
    parser.add_argument("--concurrency", type=int, default=0, help="open requests at most; 0: no bound")
    parser.add_argument(
        "--vocabulary", type=int, default=20_000, help="prompts are of token ids below this (default 20000)"
    )
    parser.add_argument("--seed", type=int, default=1, help="of prompts and times (default 1)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")


def _run(arguments: argparse.Namespace) -> int:
    from server.bench.http_load import HttpLoad, Load
    from server.bench.http_report import report, table

    given = _checked(arguments)
    load = Load(
        requests=given.requests,
        prompt=given.prompt,
        prefix=given.prefix,
        answer=given.answer,
        rate=given.rate,
        concurrency=given.concurrency,
        vocabulary=given.vocabulary,
        seed=given.seed,
    )
    sent = HttpLoad(given.url, load, given.model, given.key)
    try:
        asyncio.run(sent.run())
    except KeyboardInterrupt:
        if not any(answer.pieces for answer in sent.answers):
            raise
    found = report(load, sent.answers)
    print(msgspec.json.format(msgspec.json.encode(found)).decode() if arguments.json else table(found))
    return 1 if found.failures else 0


def _checked(arguments: argparse.Namespace) -> argparse.Namespace:
    for name, least in _LEAST.items():
        given = getattr(arguments, name)
        if not least <= given < math.inf:  # nor NaN
            raise ConfigError(f"--{name} is {given}; it must be at least {least}.", param=f"--{name}")
    try:
        address = urlsplit(arguments.url)
        known = address.scheme in ("http", "https") and bool(address.hostname) and address.port != 0
    except ValueError:
        known = False
    if not known:
        raise ConfigError(
            f"{arguments.url!r} is no address of a server.",
            remedy="Give one such as http://127.0.0.1:8000.",
            param="URL",
        )
    if arguments.key is not None and not arguments.key.isprintable():
        raise ConfigError("--key has characters that no header may have.", param="--key")
    if arguments.prefix > arguments.prompt:
        raise ConfigError(
            f"--prefix is {arguments.prefix}, but prompts have {arguments.prompt} tokens.",
            remedy="Give at most as many as --prompt.",
            param="--prefix",
        )
    return arguments


HTTP = Command(
    name="http",
    help="a server under many clients, over HTTP",
    description=(
        "Send completions of random token ids to a running server of OpenAI's protocol, all at once, at a rate or "
        "so many at a time, and tell rates, the time to the first token and between tokens. Any such server will "
        "do, so that two can be compared under the same load. An interrupt tells what there is by then. Exits with "
        "1 when a request failed."
    ),
    configure=_configure,
    run=_run,
)
