"""SamplerCase: rows of logits and what they are sampled with, timed in the operator and in numpy."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np

from ops.library import register
from ops.reference.sample import sample
from ops.sample_columns import NEUTRAL_SETTINGS, NO_LOGPROBS, NO_MASK, NOT_FORCED, Number, Setting
from ops.schema import DOMAIN, SAMPLE
from rtcore.executor.base import Float32
from rtcore.executor.cpu_sample import CpuSampler
from rtcore.executor.sample_arrays import SampleInputs
from server.bench.onnx_bytes import Value, operator_model

PENALISED = 1000
WARM_UP = 3
_TYPES = {"float32": "float32", "I32": "int32", "I64": "int64", "U32": "uint32"}


class SamplerCost(msgspec.Struct, frozen=True):
    """How long sampling took, in microseconds for all rows. floor: what reading the logits once takes at the
    machine's bandwidth; times_floor: the median in floors. numpy: the same rows by the reference."""

    case: str
    rows: int
    vocabulary: int
    runs: int
    median: float
    best: float
    floor: float
    times_floor: float
    numpy: float


class SamplerCase:
    """`rows` rows of a vocabulary's logits, spread as those of language models are.

    The names of cases: greedy; draw (temperature 1); top_p (0.9); mask (half of the vocabulary allowed, drawn);
    logprobs (greedy, the 20 likeliest told); full (top-k 50, top-p 0.9, all penalties on PENALISED tokens).
    """

    NAMES = ("greedy", "draw", "top_p", "mask", "logprobs", "full")

    def __init__(self, rows: int, vocabulary: int, threads: int, seed: int = 0) -> None:
        self._rows = rows
        self._vocabulary = vocabulary
        self._random = np.random.default_rng(seed)
        self._logits = self._random.standard_normal((rows, vocabulary), np.float32) * np.float32(2.5)
        self._sampler = _sampler(vocabulary, threads)

    def measure(self, name: str, runs: int, bandwidth: float) -> SamplerCost:
        """bandwidth: bytes a second that the machine reads."""
        inputs = self._inputs(name)
        seconds = []
        for run in range(WARM_UP + runs):
            began = time.perf_counter()
            self._sampler.run(self._logits, inputs)
            if run >= WARM_UP:
                seconds.append(time.perf_counter() - began)
        began = time.perf_counter()
        sample(self._logits, *(array for _, array in inputs.named()))
        reference = time.perf_counter() - began
        floor = self._logits.nbytes / bandwidth
        median = float(np.median(seconds))
        return SamplerCost(
            case=name,
            rows=self._rows,
            vocabulary=self._vocabulary,
            runs=runs,
            median=median * 1e6,
            best=min(seconds) * 1e6,
            floor=floor * 1e6,
            times_floor=median / floor,
            numpy=reference * 1e6,
        )

    def check(self, name: str, logits: Float32 | None = None) -> float:
        """The share of rows for which operator and reference agree on the token."""
        inputs = self._inputs(name)
        logits = self._logits if logits is None else logits
        found = self._sampler.run(logits, inputs).ids
        return float((found == sample(logits, *(array for _, array in inputs.named())).ids).mean())

    def _inputs(self, name: str) -> SampleInputs:
        rows, words = self._rows, -(-self._vocabulary // 32)
        settings = np.tile(np.array(NEUTRAL_SETTINGS, np.float32), (rows, 1))
        numbers = np.zeros((rows, len(Number)), np.int64)
        numbers[:, Number.SEED] = np.arange(rows)
        numbers[:, Number.LOGPROBS] = 20 if name == "logprobs" else NO_LOGPROBS
        numbers[:, Number.FORCED], numbers[:, Number.MASK] = NOT_FORCED, NO_MASK
        nothing = np.zeros(0, np.int32)
        starts = np.zeros(rows + 1, np.int32)
        plain = SampleInputs(
            settings, numbers, starts, nothing, nothing, starts, nothing, np.zeros(0, np.float32), _words(0, words)
        )
        if name not in ("greedy", "logprobs"):
            settings[:, Setting.TEMPERATURE] = 1
        if name in ("top_p", "full"):
            settings[:, Setting.TOP_P] = 0.9
        if name == "mask":
            numbers[:, Number.MASK] = np.arange(rows)
            masks = self._random.integers(0, 2**32, (rows, words), np.uint32, endpoint=False)
            return replace(plain, masks=masks)
        if name != "full":
            return plain
        numbers[:, Number.TOP_K] = 50
        settings[:, Setting.REPETITION :] = (1.1, 0.2, 0.1)
        count = min(PENALISED, self._vocabulary)
        ids = [self._random.permutation(self._vocabulary)[:count].astype(np.int32) for _ in range(rows)]
        return replace(
            plain,
            token_start=np.arange(0, count * rows + 1, count, dtype=np.int32),
            token_ids=np.concatenate(ids),
            token_counts=self._random.integers(0, 4, count * rows, np.int32),
        )


def _words(rows: int, words: int) -> Any:
    return np.zeros((rows, words), np.uint32)


def _sampler(vocabulary: int, threads: int) -> CpuSampler:
    """The operator in a session of its own."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 4
    register(options)
    values: list[list[Value]] = [
        [(one.name, _TYPES[one.type], _shape(one.shape, one.name, vocabulary)) for one in ports]
        for ports in (SAMPLE.inputs, SAMPLE.outputs)
    ]
    model = operator_model(SAMPLE.name, DOMAIN, *values)
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    return CpuSampler(session, SAMPLE.name)


def _shape(words: str, name: str, vocabulary: int) -> tuple[int | str, ...]:
    """As many dimensions as a schema's shape has; all but the vocabulary may vary."""
    return tuple(
        vocabulary if dim.strip(" []") == "V" else f"{name}.{dim.strip(' []')}" for dim in words.split(",")
    )
