"""The highest rate of requests at which a scheduler keeps to limits of latency."""

from __future__ import annotations

import math

import numpy as np

from server.bench.simulation.run import MakeScheduler, Outcome, Run, percentile
from server.bench.simulation.traces import SEED, Trace

TTFT_LIMIT = 1.0
ITL_LIMIT = 0.050
SEARCH_SECONDS = 12.0
FEWEST_REQUESTS = 200
_HIGHEST_RATE = 1024.0
_SEARCH_STEPS = 4
_LOWEST_RATE = 1 / 64
_TOLERATED = 0.01


def highest_rate(trace: Trace, make: MakeScheduler, start: float) -> float:
    """The highest Poisson rate at which the 99th percentiles stay within the limits, to about 10 %.

    The search begins at the rate `start`. One of 1/64 a second counts as reached. Each rate is tried with the
    requests of 12 seconds, at least 200: a queue that grows at all has grown by then.
    """
    low = start
    while low > _LOWEST_RATE and not _meets(trace, make, low):
        low /= 4
    high = 4 * low
    while low == start and high <= _HIGHEST_RATE and _meets(trace, make, high):
        start = low = high
        high *= 4
    for _ in range(_SEARCH_STEPS):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if _meets(trace, make, middle) else (low, middle)
    return low


def _meets(trace: Trace, make: MakeScheduler, rate: float) -> bool:
    requests = max(FEWEST_REQUESTS, round(rate * SEARCH_SECONDS))

    def hopeless(outcome: Outcome) -> bool:
        return int(np.count_nonzero(np.asarray(outcome.ttft) > TTFT_LIMIT)) > _TOLERATED * requests

    arriving = trace.requests(requests, SEED, rate, documents=False)
    outcome = Run(make).drive(arriving, give_up=hopeless)
    return (
        not hopeless(outcome)
        and percentile(outcome.ttft, 99) <= TTFT_LIMIT
        and percentile(outcome.itl, 99) <= ITL_LIMIT
    )
