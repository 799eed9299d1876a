"""What a load over HTTP came to: rates, and percentiles of what clients wait for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec
import numpy as np

from server.bench.http_load import Answer, Load

_PERCENTILES = (50, 90, 99, 100)


class Spread(msgspec.Struct, frozen=True):
    """Percentiles of milliseconds."""

    median: float
    p90: float
    p99: float
    highest: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Spread | None:
        """None where there is nothing to tell of."""
        if not seconds:
            return None
        return cls(*(float(value) * 1e3 for value in np.percentile(seconds, _PERCENTILES)))


class HttpReport(msgspec.Struct, frozen=True):
    """seconds: from the first request to the last answer. Rates are a second, over all that was answered whole.

    first_token_ms: from when a request was due to the first piece of its answer. token_ms: of each answer, the rest
    of its time over the rest of its tokens. gap_ms: between the pieces of an answer. short: answers of fewer tokens
    than were asked for, of a server that does not know ignore_eos. failures: how often each came.
    """

    load: Load
    seconds: float
    answered: int
    requests_per_second: float
    prompt_tokens_per_second: float
    answer_tokens_per_second: float
    first_token_ms: Spread | None
    token_ms: Spread | None
    gap_ms: Spread | None
    short: int
    failures: dict[str, int]


def report(load: Load, answers: Sequence[Answer]) -> HttpReport:
    """The figures of a load's answers."""
    whole = [answer for answer in answers if not answer.failure and answer.pieces]
    seconds = max((answer.pieces[-1] for answer in whole), default=0.0)

    def rate(count: int) -> float:
        return count / seconds if seconds else 0.0

    return HttpReport(
        load=load,
        seconds=seconds,
        answered=len(whole),
        requests_per_second=rate(len(whole)),
        prompt_tokens_per_second=rate(sum(answer.prompt_tokens for answer in whole)),
        answer_tokens_per_second=rate(sum(answer.answer_tokens for answer in whole)),
        first_token_ms=Spread.of([answer.pieces[0] - answer.due for answer in whole]),
        token_ms=Spread.of(
            [
                (answer.pieces[-1] - answer.pieces[0]) / (answer.answer_tokens - 1)
                for answer in whole
                if answer.answer_tokens > 1
            ]
        ),
        gap_ms=Spread.of([float(gap) for answer in whole for gap in np.diff(answer.pieces)]),
        short=sum(answer.answer_tokens < load.answer for answer in whole),
        failures=dict(Counter(answer.failure for answer in answers if answer.failure).most_common()),
    )


def table(found: HttpReport) -> str:
    """The report as plain text."""
    rates = f"requests/s {found.requests_per_second:,.2f}, prompt tokens/s {found.prompt_tokens_per_second:,.0f}"
    lines = [
        f"{found.answered} of {found.load.requests} requests answered in {found.seconds:.2f} s",
        f"{rates}, answer tokens/s {found.answer_tokens_per_second:,.0f}",
        "",
        f"{'ms':24}{'median':>10}{'90 %':>10}{'99 %':>10}{'highest':>10}",
    ]
    for name, spread in (
        ("first token", found.first_token_ms),
        ("each further token", found.token_ms),
        ("between two pieces", found.gap_ms),
    ):
        if spread is not None:
            values = (spread.median, spread.p90, spread.p99, spread.highest)
            lines.append(f"{name:24}" + "".join(f"{value:>10,.1f}" for value in values))
    if found.short:
        lines.append(f"{found.short} answers have fewer than {found.load.answer} tokens")
    lines += [f"{count} failed: {text}" for text, count in found.failures.items()]
    return "\n".join(lines)
