"""What `ortolan bench gpu` measures: one precision of a bundle on this machine's GPU."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np

from ops.cuda import CudaDevice
from ops.errors import EngineError
from ops.sample_columns import NEUTRAL_SETTINGS, NO_LOGPROBS, NO_MASK, NOT_FORCED, Setting
from rtcore.config import EngineConfig
from rtcore.engine import Engine
from rtcore.executor.base import StepInputs
from rtcore.executor.cuda import CudaExecutor
from rtcore.executor.sample_arrays import no_rows
from rtcore.scheduler.batch import context_bucket
from server.bench.floors import weight_bytes
from server.bench.gpu_idle import IdleClock
from server.bench.workload import Workload, load

COPY_BYTES = 4 << 30
ROUNDS = 5
REPLAYS = 20
ENGINE_STEPS = 32
#: Temperature 0.8 and top-p 0.95, no penalties.
DRAWN = (0.8, 0.95, *NEUTRAL_SETTINGS[2:])


class GpuStep(msgspec.Struct, frozen=True):
    """A decode step: milliseconds of the GPU alone (the captured graph, again and again), low and high of the
    rounds; of steps that are queued one behind the other, which is all that the GPU does for them: inputs, graph,
    the choice of tokens (queued greedily, drawn by temperature, top-k and top-p); and of the whole engine. idle: of
    the engine's time, what the GPU did nothing in. floor: bytes of weights and of cache that a step reads over the
    bandwidth measured in the same run."""

    sequences: int
    context: int
    gpu: float
    low: float
    high: float
    queued: float
    drawn: float
    engine: float
    idle: float
    floor: float


class GpuReport(msgspec.Struct, frozen=True):
    """One precision of a bundle. bandwidth: bytes a second that a copy on the GPU reads and writes together. Times
    in seconds but where a name says ms."""

    device: str
    model: str
    precision: str
    bandwidth: float
    load_seconds: float
    capture_seconds: float
    capture_bytes: int
    used_bytes: int
    cache_blocks: int
    weight_bytes: int
    steps: list[GpuStep]
    prefill_tokens: int
    prefill_ms: float
    requests: int
    output_tokens_per_second: float


@contextmanager
def opened(path: Path, config: EngineConfig) -> Iterator[tuple[Engine, CudaExecutor, float]]:
    """An engine on the GPU, its executor, and the seconds that loading took."""
    engine, seconds = load(path, config)
    try:
        executor = engine.executor
        if not isinstance(executor, CudaExecutor):
            raise EngineError("The engine does not run on a GPU.", remedy="Ask for the target cuda.")
        yield engine, executor, seconds
    finally:
        engine.close()


def measure(
    path: Path,
    config: EngineConfig,
    sequences: tuple[int, ...],
    context: int,
    prefill: int,
    load_test: tuple[int, int, int],
    told: Callable[[str], None],
) -> GpuReport:
    """Measure the precision that `config` names.

    sequences: batch sizes of decode steps at `context` tokens each. prefill: tokens of the one prompt whose first
    token is timed. load_test: requests, their prompt's tokens, and how many each generates, all submitted at once.
    """
    with opened(path, config) as (engine, executor, seconds):
        told(f"loaded in {seconds:.1f} s, {executor.num_blocks[0]:,} cache blocks")
        bandwidth = copy_bandwidth(executor.device)
        variant = next(
            variant
            for variant in engine.manifest.variants
            if variant.target == "cuda"
            and variant.precision == (config.precision or engine.manifest.default_precision)
        )
        workload = Workload(engine, seed=1)
        cached = sum(tensor.slot_bytes for tensor in variant.cache_tensors)
        steps = []
        for count in sequences:
            times = [executor.replay_ms(decode_inputs(executor, count, context), REPLAYS) for _ in range(ROUNDS)]
            inputs = decode_inputs(executor, count, context)
            queued, drawn = (queued_ms(executor, inputs, one, REPLAYS) for one in (NEUTRAL_SETTINGS, DRAWN))
            with IdleClock(executor) as clock:
                whole = workload.decode_step_seconds(count, context - 16, ENGINE_STEPS) * 1e3
            idle = clock.share(ENGINE_STEPS)
            weights = weight_bytes(engine.manifest, variant, count)
            floor = (weights + count * context * cached) / bandwidth * 1e3
            middle = statistics.median(times)
            steps.append(GpuStep(count, context, middle, min(times), max(times), queued, drawn, whole, idle, floor))
            told(
                f"{count} sequences: graph {middle:.3f} ms, queued {queued:.3f} ms, drawn {drawn:.3f} ms, engine "
                f"{whole:.3f} ms (idle {idle:.1%}), floor {floor:.2f} ms"
            )
        firsts = [workload.first_token_seconds(prefill) for _ in range(3)]
        told(f"first token of {prefill} tokens: {min(firsts) * 1e3:.1f} ms")
        requests, prompt, answer = load_test
        began = time.perf_counter()
        workload.complete(requests, prompt, answer)
        rate = requests * answer / (time.perf_counter() - began) if requests else 0.0
        told(f"{requests} requests: {rate:,.0f} output tokens/s")
        free, total = executor.device.memory()
        return GpuReport(
            device=executor.device.name,
            model=engine.manifest.name,
            precision=variant.precision,
            bandwidth=bandwidth,
            load_seconds=seconds,
            capture_seconds=executor.capture_seconds,
            capture_bytes=executor.capture_bytes,
            used_bytes=total - free,
            cache_blocks=executor.num_blocks[0],
            weight_bytes=variant.linear_bytes,
            steps=steps,
            prefill_tokens=prefill,
            prefill_ms=statistics.median(firsts) * 1e3,
            requests=requests,
            output_tokens_per_second=rate,
        )


def copy_bandwidth(device: CudaDevice) -> float:
    """Bytes a second that a copy within the GPU reads and writes, the best of several."""
    source, target = device.allocate(COPY_BYTES), device.allocate(COPY_BYTES)
    try:
        device.fill(source, COPY_BYTES)
        start, end = device.record(), device.record()
        times = []
        for _ in range(ROUNDS):
            device.record(start)
            device.copy(target, source, COPY_BYTES)
            device.record(end)
            times.append(device.elapsed(start, end))
        device.release_event(start)
        device.release_event(end)
    finally:
        device.release(source)
        device.release(target)
    return 2 * COPY_BYTES / min(times) * 1e3


def queued_ms(executor: CudaExecutor, inputs: StepInputs, settings: tuple[float, ...], times: int) -> float:
    """Milliseconds of a step, of `times` that are queued without waiting for any.

    settings: columns as in ops.sample_columns.Setting; with a temperature tokens are drawn from the 50 likeliest.
    """
    rows = len(inputs.seq_lens)
    top_k = 50 if settings[Setting.TEMPERATURE] > 0 else 0
    chosen = replace(
        no_rows(executor.vocab_size),
        settings=np.tile(np.array(settings, np.float32), (rows, 1)),
        numbers=np.tile(np.array([0, 0, top_k, NO_LOGPROBS, NOT_FORCED, NO_MASK], np.int64), (rows, 1)),
        token_start=np.zeros(rows + 1, np.int32),
        bias_start=np.zeros(rows + 1, np.int32),
    )
    fed = replace(inputs, token_source=np.arange(rows, dtype=np.int32))
    executor.run(inputs)
    executor.sample(chosen)
    start = executor.device.record()
    for _ in range(times):
        executor.run(fed)
        executor.sample_later(chosen)
    end = executor.device.record()
    milliseconds = executor.device.elapsed(start, end) / times
    executor.device.release_event(start)
    executor.device.release_event(end)
    return milliseconds


def decode_inputs(executor: CudaExecutor, sequences: int, context: int) -> StepInputs:
    """A decode step of sequences that hold `context` tokens each, in blocks of their own while there are any."""
    width = -(-context // executor.block_size)
    rows = np.arange(sequences, dtype=np.int32)
    tables, slots = [], []
    for blocks in executor.num_blocks:
        table = ((rows[:, None] * width + np.arange(width, dtype=np.int32)) % blocks).astype(np.int32)
        tables.append(table)
        last = (context - 1) % executor.block_size
        slots.append((table[:, (context - 1) // executor.block_size] * executor.block_size + last).astype(np.int32))
    return StepInputs(
        input_ids=np.ones(sequences, np.int64),
        positions=np.full(sequences, context - 1, np.int64),
        query_start=np.arange(sequences + 1, dtype=np.int32),
        seq_lens=np.full(sequences, context, np.int32),
        logit_rows=np.arange(sequences, dtype=np.int64),
        block_tables=tables,
        slot_mapping=slots,
        plan=np.array([sequences, 0, 1, context_bucket(context), sequences, sequences], np.int32),
    )
