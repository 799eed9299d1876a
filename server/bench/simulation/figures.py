"""What a trace comes to: the figures of the simulator, and the runs that they are made of."""

from __future__ import annotations

from concurrent.futures import Executor, Future
from dataclasses import dataclass

import msgspec

from server.bench.simulation.baselines import first_come_first_served, static_batching
from server.bench.simulation.infinite import InfiniteCache, infinite_cache
from server.bench.simulation.machine import NUM_BLOCKS
from server.bench.simulation.rates import highest_rate
from server.bench.simulation.run import MakeScheduler, Run, lanes, percentile
from server.bench.simulation.traces import SEED, Trace

_RATE_START = 32.0
_STATIC_RATE_START = 1.0


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


@dataclass(frozen=True, slots=True)
class Served:
    """One run of a trace: 99th percentiles of short requests in seconds, the rest as in TraceFigures."""

    waste: float
    hit_rate: float
    fairness: float
    ttft_p99: float
    itl_p99: float
    infinite: InfiniteCache


class Measurement:
    """The runs of one trace. They know nothing of each other, so an executor may have them run side by side."""

    def __init__(self, trace: Trace, requests: int, executor: Executor) -> None:
        """requests: of the trace, about as many. Submits everything."""
        self._served = executor.submit(serve, trace, requests, lanes)
        self._short: Future[Served] | None = None
        self._fcfs: Future[Served] | None = None
        if trace.documents:
            self._short = executor.submit(serve, trace, requests, lanes, documents=False)
            self._fcfs = executor.submit(serve, trace, requests, first_come_first_served)
        self._rate = executor.submit(highest_rate, trace, lanes, _RATE_START)
        self._static_rate = executor.submit(highest_rate, trace, static_batching, _STATIC_RATE_START)

    def result(self) -> tuple[TraceFigures, Background]:
        """Wait for all runs. Raises EngineError when a scheduler made no progress in one."""
        served = self._served.result()
        ratio = fcfs_ratio = 1.0
        if self._short is not None and self._fcfs is not None:
            short = self._short.result()
            ratio, fcfs_ratio = served.itl_p99 / short.itl_p99, self._fcfs.result().itl_p99 / short.itl_p99
        rate, static_rate = self._rate.result(), self._static_rate.result()
        figures = TraceFigures(
            waste=served.waste,
            hit_rate=served.hit_rate,
            hit_rate_infinite=served.infinite.hit_rate,
            short_itl_p99_ratio=ratio,
            throughput_vs_static=rate / static_rate,
            fairness=served.fairness,
        )
        return figures, Background(served.ttft_p99, served.itl_p99, rate, static_rate, fcfs_ratio)


def serve(trace: Trace, requests: int, make: MakeScheduler, documents: bool = True) -> Served:
    """Run a trace with about `requests` requests, or with those of them that are no documents."""
    infinite = infinite_cache(trace.requests(requests, SEED, documents=documents))
    run = Run(make, infinite.blocks // 2 if trace.halved else NUM_BLOCKS)
    outcome = run.drive(trace.requests(requests, SEED, documents=documents))
    return Served(
        waste=outcome.waste,
        hit_rate=outcome.hit_rate,
        fairness=outcome.fairness,
        ttft_p99=percentile(outcome.ttft, 99),
        itl_p99=percentile(outcome.itl, 99),
        infinite=infinite,
    )
