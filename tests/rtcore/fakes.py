"""A fake executor with a real paged cache, and engines around it that need no bundle."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from ops.errors import EngineError
from ops.reference.sample import sample
from rtcore.config import EngineConfig
from rtcore.decoding.grammar.vocabulary import LoadVocabulary, no_vocabulary
from rtcore.engine import Engine
from rtcore.executor.base import Executor, Float32, Int32, Int64, Payload, StepInputs
from rtcore.executor.sample_arrays import SampleInputs, SampleOutputs
from rtcore.kvcache.hash_chain import Digest
from rtcore.manifest import Dimensions, Manifest, Source, TextInfo
from rtcore.request import TokenDelta
from rtcore.scheduler.outcome import StepResult

Fault = Callable[[StepInputs], Exception | None]


class FakeExecutor(Executor):
    """Logits that are a pure function of all tokens up to a row, read back through the block tables.

    The cache stores token ids in slots. A row's logits come from the tokens found at the slots of positions
    0..p of its sequence, so a wrong block, slot, position or length changes them. `fault` is asked before each
    run and may return an exception to raise; a failed run spoils the slots that it was to write.
    """

    def __init__(
        self,
        *,
        num_blocks: Sequence[int] = (64,),
        block_size: int = 4,
        vocab_size: int = 97,
        fault: Fault | None = None,
        poison: int | None = None,
        windows: Sequence[int] | None = None,
    ) -> None:
        """poison: a token id; rows of sequences that hold it get NaN logits."""
        self.block_size = block_size
        self.num_blocks = list(num_blocks)
        self.windows = list(windows or [0] * len(num_blocks))
        self.block_bytes = [8 * block_size] * len(num_blocks)
        self.vocab_size = vocab_size
        self.fault = fault
        self.poison = poison
        self.runs = 0
        self.released = 0
        self.closed = False
        self.seen: list[tuple[int, int]] = []
        self._cache = [np.full(count * block_size, -1, np.int64) for count in num_blocks]
        self._rows = np.zeros((0, vocab_size), np.float32)

    def run(self, inputs: StepInputs) -> None:
        self.runs += 1
        self._check(inputs)
        error = self.fault(inputs) if self.fault else None
        for cache, slots in zip(self._cache, inputs.slot_mapping, strict=True):
            cache[slots[slots >= 0]] = -2 if error else inputs.input_ids[slots >= 0]
        if error:
            raise error
        self.seen.append((int(inputs.plan[4]), int(inputs.plan[5])))
        rows = [self._logits(inputs, int(row)) for row in inputs.logit_rows]
        self._rows = np.stack(rows).astype(np.float32)

    def logits(self) -> Float32:
        return self._rows

    def put_logits(self, rows: Int64, logits: Float32) -> None:
        self._rows[rows] = logits

    def sample(self, inputs: SampleInputs) -> SampleOutputs:
        return SampleOutputs(*sample(self._rows, *(array for _, array in inputs.named())))

    def _check(self, inputs: StepInputs) -> None:
        """Raise EngineError where the arrays break what StepInputs promises."""
        lengths = np.diff(inputs.query_start)
        total, rows = len(inputs.input_ids), len(inputs.seq_lens)
        decode = int(inputs.plan[0])
        sound = (
            inputs.query_start[0] == 0
            and inputs.query_start[-1] == total == len(inputs.positions)
            and (lengths > 0).all()
            and (lengths[:decode] == 1).all()
            and (lengths[decode:] > 1).all()
            and inputs.plan[1] == rows - decode
            and inputs.plan[2] == lengths.max()
            and inputs.plan[3] >= inputs.seq_lens.max()
            and inputs.plan[4] == total
            and inputs.plan[5] == rows
            and inputs.input_ids.dtype == inputs.positions.dtype == inputs.logit_rows.dtype == np.int64
            and inputs.query_start.dtype == inputs.seq_lens.dtype == inputs.plan.dtype == np.int32
            and all(array.dtype == np.int32 and array.flags.c_contiguous for array in inputs.block_tables)
            and all(array.dtype == np.int32 and len(array) == total for array in inputs.slot_mapping)
            and all(len(np.unique(slots)) == total for slots in inputs.slot_mapping)
        )
        if not sound:
            raise EngineError("The step's inputs contradict each other.")

    def _logits(self, inputs: StepInputs, row: int) -> NDArray[np.float64]:
        sequence = int(np.searchsorted(inputs.query_start, row, side="right")) - 1
        position = int(inputs.positions[row])
        expected = int(inputs.seq_lens[sequence]) - int(inputs.query_start[sequence + 1]) + row
        if position != expected:
            raise EngineError("A row's position does not follow from its sequence's length.")
        histories = []
        for cache, table, window in zip(self._cache, inputs.block_tables, self.windows, strict=True):
            first = max(0, position - window + 1) if window else 0
            index, offset = np.divmod(np.arange(first, position + 1), self.block_size)
            histories.append(cache[table[sequence, index] * self.block_size + offset])
        longest = max(histories, key=len)
        if any(not np.array_equal(history, longest[len(longest) - len(history) :]) for history in histories):
            raise EngineError("The cache groups hold different tokens.")

        if self.poison is not None and self.poison in longest:
            return np.full(self.vocab_size, np.nan)
        return fake_logits(longest.tolist(), self.vocab_size)

    def copy_blocks(self, group: int, source: Int32, destination: Int32) -> None:
        blocks = self._cache[group].reshape(-1, self.block_size)
        for origin, target in zip(source.tolist(), destination.tolist(), strict=True):
            blocks[target] = blocks[origin]

    def save_blocks(self, group: int, blocks: Int32) -> Payload:
        return [self._cache[group].reshape(-1, self.block_size)[blocks]]

    def load_blocks(self, group: int, blocks: Int32, payload: Payload) -> None:
        self._cache[group].reshape(-1, self.block_size)[blocks] = payload[0]

    def release_blocks(self, group: int, blocks: Int32) -> None:
        self._cache[group].reshape(-1, self.block_size)[blocks] = -3
        self.released += len(blocks)

    def close(self) -> None:
        self.closed = True


def fake_logits(tokens: Sequence[int], vocab_size: int) -> NDArray[np.float64]:
    """The logits after `tokens`: normal numbers seeded by them."""
    digest = hashlib.blake2b(np.asarray(tokens, np.int64).tobytes(), digest_size=8).digest()
    return np.random.default_rng(int.from_bytes(digest, "little")).standard_normal(vocab_size) * 3


def fake_manifest(*, vocab_size: int = 97, context_length: int = 256, stop_ids: tuple[int, ...] = (2,)) -> Manifest:
    """A manifest as far as the engine reads one: no variants and no files."""
    return Manifest(
        name="fake",
        family="fake",
        version="0",
        source=Source("random", "fake"),
        dimensions=Dimensions(vocab_size, 8, 1, 1, 1, 8, context_length, 0),
        variants=(),
        default_precision="fp32",
        text=TextInfo(stop_ids=stop_ids),
        files=(),
    )


def fake_engine(
    executor: FakeExecutor | None = None,
    *,
    context_length: int = 256,
    stop_ids: tuple[int, ...] = (2,),
    clock: Callable[[], float] = time.monotonic,
    digest: Digest = hash,
    vocabulary: LoadVocabulary = no_vocabulary,
    **config: object,
) -> Engine:
    """An engine around a fake executor; further keywords go to EngineConfig."""
    executor = executor or FakeExecutor()
    manifest = fake_manifest(vocab_size=executor.vocab_size, context_length=context_length, stop_ids=stop_ids)
    settings = EngineConfig(debug_invariants=True, **config)  # type: ignore[arg-type]
    return Engine(executor, manifest, settings, clock, digest, vocabulary)


Deltas = dict[str, list[TokenDelta]]


def advance(engine: Engine, deltas: Deltas) -> StepResult:
    """One step, its deltas added to those of each request."""
    result = engine.step()
    for delta in result.deltas:
        deltas.setdefault(delta.id, []).append(delta)
    return result


def drain(engine: Engine, deltas: Deltas | None = None, limit: int = 10_000) -> Deltas:
    """Step until there is no work; the deltas of each request in order, after those given."""
    deltas = {} if deltas is None else deltas
    for _ in range(limit):
        if not engine.has_work:
            return deltas
        advance(engine, deltas)
    raise AssertionError(f"The engine still has work after {limit} steps.")


def tokens_of(deltas: list[TokenDelta]) -> list[int]:
    """All token ids of a request's deltas."""
    return [token for delta in deltas for token in delta.token_ids]
