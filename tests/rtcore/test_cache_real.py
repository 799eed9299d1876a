"""SmolLM2 itself: its tokens do not depend on what the cache and the scheduler do."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from zlib import crc32

import pytest

from rtcore.bundle import Bundle
from rtcore.config import EngineConfig
from rtcore.decoding.params import SamplingParams
from rtcore.engine import Engine
from rtcore.executor.registry import load_executor
from rtcore.kvcache.hash_chain import Digest
from rtcore.request import EngineRequest, TokenLogprobs
from rtcore.scheduler.base import ScheduledStep
from rtcore.scheduler.outcome import Outcome
from tests.rtcore.fakes import Deltas, advance, drain, tokens_of

BEGINNING = [504, 3575, 282, 4649, 314, 260, 2240, 28, 284, 1194, 702, 6330, 29, 28, 357, 2418, 597, 41, 260]
PROMPTS = [BEGINNING + [253, 17 + 5 * number] * (4 + 3 * number) for number in range(3)] + [
    BEGINNING[:16],
    BEGINNING[:16],
]


class Model:
    """One loaded executor, and fresh engines around it."""

    def __init__(self, path: Path) -> None:
        self.bundle = Bundle.open(path, check="sizes")
        self.executor = load_executor(self.bundle, EngineConfig(precision="fp32", cache_bytes=64 << 20))

    def engine(self, digest: Digest = hash, blocks: int | None = None, **config: object) -> Engine:
        full = self.executor.num_blocks
        self.executor.num_blocks = [min(count, blocks or count) for count in full]
        settings = EngineConfig(debug_invariants=True, **config)  # type: ignore[arg-type]
        engine = Engine(self.executor, self.bundle.manifest, settings, digest=digest)
        self.executor.num_blocks = full
        return engine


@pytest.fixture(scope="module")
def model(smollm2_bundle: Path) -> Iterator[Model]:
    model = Model(smollm2_bundle)
    yield model
    model.executor.close()


def params_of(number: int, tokens: int) -> SamplingParams:
    return SamplingParams(
        temperature=0.8 if number % 2 else 0,
        seed=number,
        max_tokens=tokens,
        ignore_eos=True,
        frequency_penalty=0.2,
        logprobs=2,
    )


def submit(engine: Engine, name: str = "", tokens: int = 6, prompts: list[list[int]] | None = None) -> None:
    for number, prompt in enumerate(PROMPTS if prompts is None else prompts):
        engine.submit(EngineRequest(f"{name}{number}", prompt, params_of(number, tokens)))


Answer = tuple[list[int], list[TokenLogprobs]]


def answers(deltas: Deltas) -> list[Answer]:
    """Of each request its tokens, and how likely they were, to the last bit."""
    return [
        (tokens_of(items), [told for delta in items for told in delta.logprobs])
        for _, items in sorted(deltas.items())
    ]


@pytest.fixture(scope="module")
def truth(model: Model) -> list[Answer]:
    """Each request alone, nothing cached."""
    alone = []
    for number, prompt in enumerate(PROMPTS):
        engine = model.engine(prefix_cache=False)
        engine.submit(EngineRequest("x", prompt, params_of(number, 6)))
        alone += answers(drain(engine))
    return alone


@pytest.mark.parametrize("config", [{"max_prefill_chunk": 7}, {"prefix_cache": False}])
def test_prefix_cache(model: Model, truth: list[Answer], config: dict[str, object]) -> None:
    engine = model.engine(**config)
    for turn in "ab":
        submit(engine, turn)
        assert answers(drain(engine)) == truth
    assert (engine.stats().cache.hit_tokens > 0) == config.get("prefix_cache", True)


def test_a_running_answer_is_taken_over(model: Model) -> None:
    """A second request goes on from what the first is still decoding."""
    engine = model.engine()
    engine.submit(EngineRequest("a", PROMPTS[0], params_of(0, 60)))
    deltas: Deltas = {}
    while len(tokens_of(deltas.get("a", []))) < 40:
        advance(engine, deltas)
    longer = [*PROMPTS[0], *tokens_of(deltas["a"]), 9]
    engine.submit(EngineRequest("b", longer, params_of(1, 6)))
    drain(engine, deltas)
    assert engine.stats().cache.hit_tokens > len(PROMPTS[0]) + 16
    alone = []
    for number, prompt, tokens in ((0, PROMPTS[0], 60), (1, longer, 6)):
        cold = model.engine(prefix_cache=False)
        cold.submit(EngineRequest("x", prompt, params_of(number, tokens)))
        alone += answers(drain(cold))
    assert answers(deltas) == alone


def check_preemption(model: Model, truth: list[Answer], moment: int, swap_bytes: int, cached: bool) -> None:
    """All requests lose their blocks after `moment` steps; what they give afterwards goes on as if nothing was."""
    engine = model.engine(swap_bytes=swap_bytes, prefix_cache=cached)
    submit(engine)
    deltas: Deltas = {}
    for _ in range(moment):
        advance(engine, deltas)
    step = ScheduledStep()
    for victim in list(engine._scheduler._active.running):
        engine._scheduler._active.preempt(victim, step)
    assert step.preempted and engine._prepare(step) is Outcome.COMMITTED
    assert answers(drain(engine, deltas)) == truth
    assert (engine.stats().swaps > 0) == (swap_bytes > 0)


@pytest.mark.parametrize(("swap_bytes", "cached"), [(0, False), (1 << 28, True)])
def test_preemption(model: Model, truth: list[Answer], swap_bytes: int, cached: bool) -> None:
    check_preemption(model, truth, 3, swap_bytes, cached)


@pytest.mark.slow
@pytest.mark.parametrize("moment", range(1, 7))
@pytest.mark.parametrize("swap_bytes", [0, 1 << 28])
def test_preemption_at_every_step(model: Model, truth: list[Answer], moment: int, swap_bytes: int) -> None:
    check_preemption(model, truth, moment, swap_bytes, moment % 2 == 0)


def test_one_block_too_few(model: Model, truth: list[Answer]) -> None:
    needed = sum(-(-(len(prompt) + 6) // 16) for prompt in PROMPTS[:3])
    engine = model.engine(blocks=needed - 1, swap_bytes=0, prefix_cache=False)
    submit(engine, prompts=PROMPTS[:3])
    assert answers(drain(engine)) == truth[:3]
    assert engine.stats().blocks_free == engine.stats().blocks_total


def test_colliding_digests(model: Model, truth: list[Answer]) -> None:
    engine = model.engine(digest=lambda data: crc32(repr(data).encode()) % 2)
    for turn in "ab":
        submit(engine, turn)
        assert answers(drain(engine)) == truth
    assert engine.stats().cache.collisions > 0


@pytest.mark.slow
def test_a_warm_prefix_answers_in_a_fraction_of_the_time(model: Model) -> None:
    """A prompt of 1,000 tokens and more: the first token comes in at most 0.15 of the cold time."""
    prompt = [100 + 7 * number % 5000 for number in range(1000)]
    cold, warm = [], []
    for turn in range(5):
        engine = model.engine(max_step_tokens=512)
        for times in (cold, warm):
            began = time.perf_counter()
            engine.submit(
                EngineRequest(f"r{turn}", [*prompt, 9 + turn], SamplingParams(temperature=0, max_tokens=1))
            )
            drain(engine)
            times.append(time.perf_counter() - began)
    assert min(warm) <= 0.15 * min(cold)


@pytest.mark.slow
def test_sixty_four_mixed_requests_at_once(model: Model) -> None:
    engine = model.engine(max_sequences=32)
    for number in range(64):
        prompt = [*(BEGINNING * 20)[: 5 + 23 * number % 300], number]
        params = SamplingParams(
            temperature=number % 3 / 2, seed=number, max_tokens=4 + number % 29, ignore_eos=True, n=1
        )
        engine.submit(EngineRequest(f"r{number}", prompt, params, tenant=str(number % 3), priority=number % 2))
    deltas = drain(engine)
    assert all(items[-1].finish_reason == "length" for items in deltas.values()) and len(deltas) == 64
    stats = engine.stats()
    assert stats.blocks_free == stats.blocks_total and stats.cache.bytes_used == 0
    cached, free = engine._blocks.cached_blocks[0], engine._blocks.pools[0].free
    assert cached + free == stats.blocks_total[0]
