"""What a trace comes to: the figures of the simulator, and how they are measured."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import msgspec

from ops.errors import EngineError
from rtcore.config import EngineConfig
from rtcore.kvcache.block_manager import BlockManager
from rtcore.scheduler.base import Scheduler
from server.bench.simulation.baselines import FirstComeFirstServed, StaticBatching
from server.bench.simulation.machine import NUM_BLOCKS
from server.bench.simulation.run import MakeScheduler, Outcome, Run, lanes, percentile
from server.bench.simulation.traces import Trace, TraceRequest

SEED = 1
TTFT_LIMIT = 1.0
ITL_LIMIT = 0.050
_SEARCH_SECONDS = 12.0
_FEWEST_REQUESTS = 200
_HIGHEST_RATE = 1024.0
_SEARCH_STEPS = 4
_LOWEST_RATE = 1 / 64
_TOLERATED = 0.01


class TraceFigures(msgspec.Struct, frozen=True):
    """waste: share of allocated cache slots that hold nothing. hit_rate: prompt tokens found in the cache.
    hit_rate_infinite: the same with a cache that holds everything. short_itl_p99_ratio: 99th percentile of the
    time between tokens of short requests, over that of the same trace without its documents.
    throughput_vs_static: highest Poisson rate within the latency limits over that of static batching.
    fairness: Jain's index over tenants while several wait."""

    waste: float
    hit_rate: float
    hit_rate_infinite: float
    short_itl_p99_ratio: float
    throughput_vs_static: float
    fairness: float


@dataclass(frozen=True, slots=True)
class Background:
    """What the figures are made of: seconds, rates in requests a second, and the baseline without lanes."""

    ttft_p99: float
    itl_p99: float
    rate: float
    static_rate: float
    fcfs_itl_p99_ratio: float


def measure(trace: Trace, requests: int) -> tuple[TraceFigures, Background]:
    """Run a trace with about `requests` requests, and whatever it is compared with.

    Raises EngineError when a scheduler makes no progress.
    """
    infinite = Run(num_blocks=NUM_BLOCKS + requests * trace.own_blocks).drive(trace.requests(requests, SEED))
    if infinite.evicted:
        raise EngineError(f"The cache that should hold all of the trace {trace.name!r} did not.")
    blocks = infinite.most_blocks // 2 if trace.halved else NUM_BLOCKS
    served = Run(num_blocks=blocks).drive(trace.requests(requests, SEED))
    ratio = fcfs_ratio = 1.0
    if trace.documents:
        short = Run().drive(_without_documents(trace.requests(requests, SEED)))
        ratio = percentile(served.itl, 99) / percentile(short.itl, 99)
        fcfs = Run(_fcfs).drive(trace.requests(requests, SEED))
        fcfs_ratio = percentile(fcfs.itl, 99) / percentile(short.itl, 99)
    rate = highest_rate(trace, lanes, 32.0)
    static_rate = highest_rate(trace, _static, 1.0)
    figures = TraceFigures(
        waste=served.waste,
        hit_rate=served.hit_rate,
        hit_rate_infinite=infinite.hit_rate,
        short_itl_p99_ratio=ratio,
        throughput_vs_static=rate / static_rate,
        fairness=served.fairness,
    )
    return figures, Background(
        percentile(served.ttft, 99), percentile(served.itl, 99), rate, static_rate, fcfs_ratio
    )


def highest_rate(trace: Trace, make: MakeScheduler, start: float) -> float:
    """The highest Poisson rate at which the 99th percentiles stay within the limits, to about 10 %.

    The search begins at the rate `start`. One of 1/64 a second counts as reached.
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
    requests = max(_FEWEST_REQUESTS, round(rate * _SEARCH_SECONDS))

    def hopeless(outcome: Outcome) -> bool:
        return sum(ttft > TTFT_LIMIT for ttft in outcome.ttft) > _TOLERATED * requests

    outcome = Run(make).drive(_without_documents(trace.requests(requests, SEED, rate)), give_up=hopeless)
    return (
        not hopeless(outcome)
        and percentile(outcome.ttft, 99) <= TTFT_LIMIT
        and percentile(outcome.itl, 99) <= ITL_LIMIT
    )


def _without_documents(requests: Iterable[TraceRequest]) -> Iterator[TraceRequest]:
    return (request for request in requests if not request.document)


def _static(blocks: BlockManager, config: EngineConfig, clock: Callable[[], float]) -> Scheduler:
    return StaticBatching(blocks)


def _fcfs(blocks: BlockManager, config: EngineConfig, clock: Callable[[], float]) -> Scheduler:
    return FirstComeFirstServed(blocks)
