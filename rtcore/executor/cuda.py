"""CudaExecutor: ONNX Runtime's CUDA provider with Ortolan's kernels; decode steps replay as CUDA graphs."""

from __future__ import annotations

import logging
import math
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from ops.cuda import CudaDevice
from ops.errors import BundleDamaged, ConfigError, EngineDied, EngineError
from rtcore.bundle import Bundle
from rtcore.config import EngineConfig
from rtcore.executor.base import Executor, Float32, Int32, Int64, Payload, StepInputs
from rtcore.executor.cuda_buckets import bucket_for, bucket_sizes
from rtcore.executor.cuda_inputs import StepPlaces
from rtcore.executor.cuda_kernels import load_kernels, of_bundle
from rtcore.executor.cuda_memory import Array, DeviceCache, Layout, choose_blocks
from rtcore.executor.cuda_sample import CudaSampler
from rtcore.executor.cuda_session import LOGITS, CudaSession, Place, import_runtime
from rtcore.executor.sample_arrays import SampleInputs, SampleOutputs
from rtcore.manifest import Variant
from rtcore.scheduler.batch import context_bucket
from rtcore.scheduler.drafting import MOST_DRAFT_ROWS
from rtcore.scheduler.plan import MAX_SCORED

logger = logging.getLogger(__name__)

#: Steps that may be on their way: one runs, one is queued behind it.
_TURNS = 2
_BLOCK_SIZE = 16


def load(bundle: Bundle, variant: Variant, config: EngineConfig) -> CudaExecutor:
    """The executor of a variant for the target cuda; see rtcore.executor.registry for the errors."""
    if config.block_size != _BLOCK_SIZE:
        raise ConfigError(
            f"block_size is {config.block_size}; on a GPU it must be {_BLOCK_SIZE}.",
            why="Kernels are compiled for it.",
            param="block_size",
        )
    if config.profile is not None:
        raise ConfigError(
            "ONNX Runtime's profile cannot be written on a GPU.",
            why="A replayed graph runs no operators that it could time.",
            remedy="Profile the target cpu, or use the tools of the GPU's maker.",
            param="profile",
        )
    if config.activations != "int8":
        raise ConfigError(
            "Activations are not rounded on a GPU.",
            why="Its products take them as they are, in 16 bits.",
            remedy="Leave the setting out.",
            param="activations",
        )
    if not variant.cache_tensors or variant.cache_tensors[0].dtype not in ("float16", "bfloat16", "int8"):
        raise BundleDamaged(
            "The manifest names no cache that a GPU's kernels can use.",
            why="They read float16, bfloat16 and int8.",
            remedy="Export the model anew.",
            param=variant.step,
        )
    runtime = import_runtime()
    device = CudaDevice()
    try:
        load_kernels(bundle, variant, device)
        activations = "bfloat16" if variant.precision == "bf16" else "float16"
        session = CudaSession(runtime, bundle, variant, device, activations)
        return CudaExecutor(device, session, bundle, variant, config)
    except EngineError as error:
        device.close()
        damaged = of_bundle(error, variant)
        if damaged is None:
            raise
        raise damaged from error
    except BaseException:
        device.close()
        raise


@dataclass(slots=True)
class _Graph:
    """A captured size: where its arrays lie, each turn's, and what it was captured with."""

    layout: Layout
    views: list[dict[str, Array]]
    binding: Any
    plan: Int32


@dataclass(slots=True)
class _Pending:
    """What a turn chooses."""

    executor: CudaExecutor
    inputs: SampleInputs
    turn: int

    def wait(self) -> SampleOutputs:
        return self.executor.read(self.inputs, self.turn)


class CudaExecutor(Executor):
    """One session, the cache on the GPU, and a captured graph for each batch size of decode steps.

    A step's small inputs are written into pinned memory and cross in one copy. Steps of decode rows alone are
    padded to a captured size; all others run eagerly. Everything is queued on one stream: `run` and `sample_later`
    return before the GPU is done, `sample` and `logits` wait for what they give. Steps take turns with two places
    in pinned memory, so that one is written while the other may still be read.
    """

    overlaps = True

    def __init__(
        self,
        device: CudaDevice,
        session: CudaSession,
        bundle: Bundle,
        variant: Variant,
        config: EngineConfig,
    ) -> None:
        self.block_size = config.block_size
        self.windows = [group.window for group in variant.cache_groups]
        self.vocab_size = bundle.manifest.dimensions.vocab_size
        self.device = device
        self._session: CudaSession | None = session
        session.check_names(variant, len(self.windows))
        self._context = bundle.manifest.dimensions.context_length
        self._width = math.ceil(self._context / config.block_size)
        self._tensors = variant.cache_tensors
        rows = config.max_sequences
        self._logit_rows = rows + MAX_SCORED + MOST_DRAFT_ROWS
        largest = (config.max_step_tokens, rows, self._logit_rows, self._width)
        self._places = StepPlaces(device, len(self.windows), largest, _TURNS)
        self._done = [device.record() for _ in range(_TURNS)]
        self._turn = 0
        self._logits = device.allocate(4 * self._logit_rows * self.vocab_size)
        self._sampler = CudaSampler(device, self._logit_rows, self.vocab_size, _TURNS)
        self._rows = 0
        self._free_before_cache = self._try_largest(config)
        blocks = choose_blocks(device, bundle.manifest, variant, config)
        self.num_blocks = [blocks] * len(self.windows)
        self._cache = DeviceCache(device, variant.cache_tensors, blocks, config.block_size)
        self.block_bytes = [
            sum(self._cache.block_bytes[tensor.name] for tensor in variant.cache_tensors if tensor.group == group)
            for group in range(len(self.windows))
        ]
        self._binding = self._bind_cache(self._cache)
        self._graphs: dict[int, _Graph] = {}
        self.sizes = bucket_sizes(config.max_sequences)
        self._capture()

    def _bind_cache(self, cache: DeviceCache) -> Any:
        """A binding of the cache alone."""
        if self._session is None:
            raise EngineDied("The executor was closed.")
        places: dict[str, Place] = {}
        for tensor in self._tensors:
            place = (cache.addresses[tensor.name], cache.shapes[tensor.name], tensor.dtype)
            places[tensor.name] = places[tensor.output] = place
        binding = self._session.binding()
        self._session.bind(binding, places)
        return binding

    def _bind_step(self, binding: Any, layout: Layout, plan: Int32) -> None:
        """Bind a step's inputs in the staging memory, and the logits."""
        if self._session is None:
            raise EngineDied("The executor was closed.")
        rows = layout.places["logit_rows"][1][0]
        logits = (self._logits, (rows, self.vocab_size), "float32")
        self._session.bind(binding, self._places.addresses(layout) | {LOGITS: logits}, plan)

    def _try_largest(self, config: EngineConfig) -> int:
        """Run the largest step on a cache of one block, so that what is free afterwards is free for the cache.

        All places decode but one, whose prompt fills the rest of the budget, and plan names the longest context,
        by which operators choose their memory; what rows attend to is kept short.
        """
        rows, tokens = config.max_sequences, config.max_step_tokens
        prompt = min(tokens - rows + 1, self._context)
        decodes = rows - 1
        count = decodes + prompt
        layout = self._places.layout(count, rows, self._logit_rows, [self._width] * len(self.windows))
        views = self._places.zeroed(layout, 0)
        views["query_start"][...] = [*range(rows), count]
        views["seq_lens"][...] = [*[1] * decodes, prompt]
        plan = np.array([decodes, 1, prompt, context_bucket(self._context), count, rows], np.int32)
        cache = DeviceCache(self.device, self._tensors, 1, self.block_size)
        try:
            self._places.send(layout, 0)
            binding = self._bind_cache(cache)
            self._bind_step(binding, layout, plan)
            self._run(binding)
            self.device.synchronize()
        finally:
            cache.release()
        return self.device.memory()[0]

    def _capture(self) -> None:
        """Capture a decode step of each size, the largest first, so that smaller ones find memory in place."""
        began, free = time.perf_counter(), self.device.memory()[0]
        for size in reversed(self.sizes):
            layout = self._places.layout(size, size, size, [self._width] * len(self.windows))
            plan = np.array([size, 0, 1, context_bucket(self._context), size, size], np.int32)
            views = [self._places.zeroed(layout, turn) for turn in range(_TURNS)]
            binding = self._bind_cache(self._cache)
            self._bind_step(binding, layout, plan)
            self._places.send(layout, 0)
            self._run(binding, size)
            self.device.synchronize()
            self._graphs[size] = _Graph(layout, views, binding, plan)
        self.capture_seconds = time.perf_counter() - began
        self.capture_bytes = free - self.device.memory()[0]
        logger.info(
            "Captured %d CUDA graphs in %.1f s, %.0f MB",
            len(self.sizes),
            self.capture_seconds,
            self.capture_bytes / 1e6,
        )

    def _run(self, binding: Any, graph: int = -1) -> None:
        if self._session is None:
            raise EngineDied("The executor was closed.")
        self._session.run(binding, graph)

    def run(self, inputs: StepInputs) -> None:
        rows, tokens = len(inputs.seq_lens), len(inputs.input_ids)
        self._rows = 0
        size = bucket_for(rows, self.sizes) if tokens == rows == int(inputs.plan[0]) else None
        self._turn = (self._turn + 1) % _TURNS
        # Of the step before the last one, nothing may read pinned memory any more.
        self.device.wait(self._done[self._turn])
        try:
            if size is not None and len(inputs.logit_rows) <= size:
                self._replay(size, inputs)
            else:
                self._eager(inputs)
        finally:
            self.device.record(self._done[self._turn])
        self._rows = len(inputs.logit_rows)

    def _replay(self, size: int, inputs: StepInputs) -> None:
        """Write the step into the places of a captured size, padding after it, and replay."""
        graph = self._graphs[size]
        self._places.pad(graph.views[self._turn], inputs)
        self._places.send(graph.layout, self._turn, inputs.token_source, self._sampler.ids)
        self._run(graph.binding, size)

    def replay_ms(self, inputs: StepInputs, times: int) -> float:
        """Run a step of decode rows, then its captured graph `times` times: the mean milliseconds of one.

        For measurements; the step writes the same slots each time.
        """
        self.run(inputs)
        size = bucket_for(len(inputs.seq_lens), self.sizes)
        if size is None:
            raise EngineError(f"No step of {len(inputs.seq_lens)} rows is captured.", remedy="Raise max_sequences.")
        binding = self._graphs[size].binding
        start = self.device.record()
        for _ in range(times):
            self._run(binding, size)
        end = self.device.record()
        milliseconds = self.device.elapsed(start, end) / times
        self.device.release_event(start)
        self.device.release_event(end)
        return milliseconds

    def _eager(self, inputs: StepInputs) -> None:
        rows = len(inputs.logit_rows)
        if rows > self._logit_rows:
            raise EngineError(
                f"A step asks for {rows} rows of logits, more than the {self._logit_rows} that there is room for.",
                remedy="Raise max_sequences.",
            )
        layout = self._places.of(inputs)
        self._places.fill(self._places.views(layout, self._turn), inputs)
        self._places.send(layout, self._turn, inputs.token_source, self._sampler.ids)
        # An eager run reads addresses and the plan while it queues its kernels, so the next step may bind others.
        self._bind_step(self._binding, layout, inputs.plan)
        self._run(self._binding)

    def logits(self) -> Float32:
        found = np.empty((self._rows, self.vocab_size), np.float32)
        if self._rows:
            self.device.to_host(found, self._logits)
        self.device.synchronize()
        return found

    def put_logits(self, rows: Int64, logits: Float32) -> None:
        for row, values in zip(rows.tolist(), np.ascontiguousarray(logits, np.float32), strict=True):
            self.device.to_device(self._logits + 4 * row * self.vocab_size, values)
        self.device.synchronize()

    def sample(self, inputs: SampleInputs) -> SampleOutputs:
        return self.sample_later(inputs).wait()

    def sample_later(self, inputs: SampleInputs) -> _Pending:
        if self._session is None:
            raise EngineDied("The executor was closed.")
        turn = self._turn
        try:
            self._sampler.queue(self._logits, inputs, turn)
        finally:
            self.device.record(self._done[turn])
        return _Pending(self, inputs, turn)

    def read(self, inputs: SampleInputs, turn: int) -> SampleOutputs:
        """Wait for what a turn chose."""
        if self._session is None:
            raise EngineDied("The executor was closed.")
        self.device.wait(self._done[turn])
        return self._sampler.read(inputs, turn)

    def copy_blocks(self, group: int, source: Int32, destination: Int32) -> None:
        self._cache.copy_blocks(group, source, destination)

    def save_blocks(self, group: int, blocks: Int32) -> Payload:
        return self._cache.save_blocks(group, blocks)

    def load_blocks(self, group: int, blocks: Int32, payload: Payload) -> None:
        self._cache.load_blocks(group, blocks, payload)

    def release_blocks(self, group: int, blocks: Int32) -> None:
        """Nothing to give back: the GPU's memory for the cache is taken whole, for as long as the engine lives."""

    def close(self) -> None:
        if self._session is None:
            return
        self._session = self._binding = None
        self._graphs.clear()
        try:
            self.device.synchronize()
            self._cache.release()
            self._places.release()
            self.device.release(self._logits)
            self._sampler.release()
            for event in self._done:
                self.device.release_event(event)
        finally:
            self.device.close()
