"""Rounds over all entries, so that what disturbs the machine for a while disturbs all of them alike."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

import numpy as np

from server.bench.compare.entries import Entry
from server.bench.compare.process import Answer, Request, ask
from server.bench.sizes import SEQUENCES, Sizes

CACHE_TOKENS = 8192
"""Tokens that every engine's cache holds, over all sequences."""
_SPECIAL = 256


def request_for(sizes: Sizes, vocabulary: int, threads: int) -> Request:
    """The same token ids for every engine. They come from the middle of the vocabulary: the first ids are often
    special ones, and the last are not known to every engine."""
    random = np.random.default_rng(0)
    low, high = (_SPECIAL, vocabulary // 2) if vocabulary > 4 * _SPECIAL else (0, vocabulary)

    def prompt(tokens: int) -> list[int]:
        return [int(token) for token in random.integers(low, high, tokens)]

    return Request(
        model="",
        threads=threads,
        options={},
        cache_tokens=CACHE_TOKENS,
        sequences=max(SEQUENCES),
        warm_up=prompt(min(32, sizes.prompt)),
        prefill=prompt(sizes.prefill),
        decode={str(count): [prompt(sizes.prompt) for _ in range(count)] for count in SEQUENCES},
        new_tokens={str(count): sizes.steps if count == 1 else max(2, sizes.steps // 2) for count in SEQUENCES},
    )


def run_rounds(
    entries: Sequence[Entry],
    request: Request,
    rounds: int,
    timeout: float,
    tell: Callable[[str], None],
    until: float = math.inf,
) -> list[list[Answer]]:
    """The answers of each entry, one a round. Every round begins with another entry; one that is missing, that
    failed, or that has had its own number of rounds, is not asked again. An interrupt, or `until` on the clock of
    time.monotonic, ends the rounds with what is there: whoever has no answer yet says so.
    """
    answers: list[list[Answer]] = [[] for _ in entries]
    order = [(number, (place + number) % len(entries)) for number in range(rounds) for place in range(len(entries))]
    try:
        for number, index in order:
            given = answers[index]
            if given and (given[-1].missing or given[-1].error or len(given) == entries[index].rounds):
                continue
            if time.monotonic() >= until:
                tell("The time is up.")
                break
            tell(f"round {number + 1} of {rounds}: {entries[index].name}")
            given.append(ask(entries[index], request, timeout))
    except KeyboardInterrupt:
        tell("Interrupted.")
    return [given or [Answer(error="it was not its turn before the end")] for given in answers]
