"""The traces: fixed by name and seed, made request by request so that long ones take no memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Tokens = NDArray[np.int32]

SEED = 1
_VOCABULARY = 32_000
_TENANTS = ("a", "b", "c", "d")
_DEMAND = (0.55, 0.25, 0.15, 0.05)


@dataclass(slots=True, eq=False)
class TraceRequest:
    """One request: when it arrives, its prompt and the answer that it is going to get.

    turns: of its conversation that are still to come. pause: seconds from the end of this turn to the next.
    """

    arrival: float
    prompt: Tokens
    answer: Tokens
    tenant: str
    document: bool = False
    turns: int = 0
    pause: float = 0.0


@dataclass(frozen=True, slots=True)
class Trace:
    """A named mix of requests. rate: conversations a second in the ordinary run. make: the first request of a
    conversation at a time. own_blocks: cache blocks that a request adds at most, on average, so that a cache of
    as many holds everything. documents: whether some requests are documents. bursty: arrivals come in bursts
    instead of as a Poisson process. halved: it is served with half the cache that everything would take.
    turns: of a conversation on average."""

    name: str
    rate: float
    make: Callable[[np.random.Generator, float], TraceRequest]
    own_blocks: int
    documents: bool = False
    bursty: bool = False
    halved: bool = False
    turns: float = 1.0

    def requests(
        self, count: int, seed: int, rate: float | None = None, *, documents: bool = True
    ) -> Iterator[TraceRequest]:
        """First requests of conversations in order of arrival; with later turns about `count` requests.

        rate: makes a Poisson process of `count` requests a second of this, without later turns. documents: whether
        those that are documents come too; the others do not depend on it.
        """
        random = np.random.default_rng(seed)
        arrivals = np.random.default_rng(seed + 1)
        now = 0.0
        for number in range(count if rate else max(1, round(count / self.turns))):
            if self.bursty and rate is None:
                now = number // _BURST * (_BURST / self.rate)
            else:
                now += float(arrivals.exponential(1 / (rate or self.rate)))
            request = self.make(random, now)
            if rate is not None:
                request.turns = 0
            if documents or not request.document:
                yield request


_BURST = 600


def _tokens(random: np.random.Generator, low: int, high: int) -> Tokens:
    """A text of random tokens, its length between low and high."""
    return random.integers(0, _VOCABULARY, int(random.integers(low, high + 1)), dtype=np.int32)


def _tenant(random: np.random.Generator) -> str:
    return _TENANTS[int(random.choice(len(_TENANTS), p=_DEMAND))]


@dataclass(slots=True)
class _SystemPrompts:
    """Fixed prompts that many requests begin with."""

    count: int
    length: int
    prompts: list[Tokens] = field(default_factory=list)

    def pick(self, random: np.random.Generator) -> Tokens:
        if not self.prompts:
            fixed = np.random.default_rng(7)
            self.prompts = [_tokens(fixed, self.length, self.length) for _ in range(self.count)]
        return self.prompts[int(random.integers(self.count))]


_SHARED_PROMPTS = _SystemPrompts(32, 1024)
_CHAT_PROMPTS = _SystemPrompts(4, 256)


def _shared(random: np.random.Generator, now: float) -> TraceRequest:
    prompt = np.concatenate([_SHARED_PROMPTS.pick(random), _tokens(random, 32, 96)])
    return TraceRequest(now, prompt, _tokens(random, 32, 128), _tenant(random))


def _chat(random: np.random.Generator, now: float) -> TraceRequest:
    prompt = np.concatenate([_CHAT_PROMPTS.pick(random), _tokens(random, 20, 300)])
    turns = int(random.integers(1, 9)) - 1
    pause = float(random.exponential(10.0))
    return TraceRequest(now, prompt, _tokens(random, 32, 256), _tenant(random), turns=turns, pause=pause)


def _mixed(random: np.random.Generator, now: float) -> TraceRequest:
    request = _chat(random, now)
    request.turns = 0
    extra = np.random.default_rng(int(random.integers(2**32)))
    if extra.random() < 0.01:
        request.document = True
        request.prompt = _tokens(extra, 50_000, 100_000)
    else:
        request.prompt = np.concatenate([request.prompt, _tokens(extra, 100, 400)])
    return request


def _burst(random: np.random.Generator, now: float) -> TraceRequest:
    return TraceRequest(now, _tokens(random, 100, 700), _tokens(random, 64, 256), _tenant(random))


def next_turn(request: TraceRequest, ended: float) -> TraceRequest | None:
    """The next request of a conversation whose last one ended, if it has one."""
    if not request.turns:
        return None
    seed = int(request.prompt[-1]) << 20 | len(request.prompt)
    random = np.random.default_rng(seed)
    prompt = np.concatenate([request.prompt, request.answer, _tokens(random, 20, 200)])
    pause = float(random.exponential(10.0))
    return TraceRequest(
        ended + request.pause,
        prompt,
        _tokens(random, 32, 256),
        request.tenant,
        turns=request.turns - 1,
        pause=pause,
    )


TRACES = (
    Trace("shared", 60.0, _shared, 20),
    Trace("chat", 2.0, _chat, 48, halved=True, turns=4.5),
    Trace("mixed", 8.0, _mixed, 150, documents=True),
    Trace("burst", 40.0, _burst, 56, bursty=True),
)
