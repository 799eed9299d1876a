"""The interface of an executor and the arrays of one step."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from rtcore.executor.sample_arrays import SampleInputs, SampleOutputs

Int32 = NDArray[np.int32]
Int64 = NDArray[np.int64]
Float32 = NDArray[np.float32]
Payload = list[NDArray[Any]]


@dataclass(slots=True)
class StepInputs:
    """T tokens of R sequences packed in one row: decode rows first, then prefill chunks.

    input_ids int64 [T]; positions int64 [T]; query_start int32 [R + 1]; seq_lens int32 [R], the length after
    this step; logit_rows int64 [S], the rows that go through the head. Per cache group g: block_tables[g]
    int32 [R, M_g] and slot_mapping[g] int32 [T], where -1 writes nothing. plan int32 [6] in host memory:
    decode rows, prefill rows, longest query, longest context rounded to its bucket, T, R. token_source int32 [T]:
    -1 takes input_ids, others the token that this row of the step before chose; None where all are -1. An object
    that is given again holds the same arrays, with other numbers in them, but for token_source.
    """

    input_ids: Int64
    positions: Int64
    query_start: Int32
    seq_lens: Int32
    logit_rows: Int64
    block_tables: list[Int32]
    slot_mapping: list[Int32]
    plan: Int32
    token_source: Int32 | None = None


class PendingSample(Protocol):
    """Tokens that are being chosen."""

    def wait(self) -> SampleOutputs:
        """What was chosen. Raises EngineError when the step or the choice failed."""


@dataclass(slots=True)
class Chosen:
    """Tokens that are chosen already."""

    outputs: SampleOutputs

    def wait(self) -> SampleOutputs:
        return self.outputs


class Executor(ABC):
    """Runs steps against a paged cache of `num_blocks[g]` blocks of `block_size` slots for each cache group.

    windows[g]: tokens of the group's window (a query sees kv > q - window), 0 for all. block_bytes[g]: memory of
    one block, all cache tensors of the group together. overlaps: whether `run` and `sample_later` return before
    they are done, so that a step may be queued before the tokens of the one before are known. Then it may name them
    in StepInputs.token_source and SampleInputs.pending; of more than one step, only the last two can be waited for.
    """

    overlaps: bool = False

    block_size: int
    num_blocks: list[int]
    windows: list[int]
    block_bytes: list[int]
    vocab_size: int

    def foresee(self, inputs: SampleInputs) -> None:  # noqa: B027
        """Say before `run` what the step's rows will be sampled with, if nothing of it can change any more.

        An executor may then choose the tokens while it runs; `sample` with the same object gives them. Others do
        nothing here. It holds for one run.
        """

    @abstractmethod
    def run(self, inputs: StepInputs) -> None:
        """Run one step, write K and V into the cache, and keep the logits of its S rows until the next step.

        Raises EngineError when the step failed; the slots it was to write are then undefined, all others untouched.
        """

    @abstractmethod
    def sample(self, inputs: SampleInputs) -> SampleOutputs:
        """Choose one token for each of the first len(inputs) rows of logits, which stay as they are.

        The arrays may be overwritten by the next call. Raises EngineError when it failed. May be called again, but
        where `pending` names rows only with all tokens forced: what those chose is overwritten.
        """

    def sample_later(self, inputs: SampleInputs) -> PendingSample:
        """`sample`, without waiting for what was chosen where the executor can do that.

        With no rows, waiting for it tells whether the step ran.
        """
        return Chosen(self.sample(inputs))

    @abstractmethod
    def logits(self) -> Float32:
        """The logits float32 [S, vocab_size] of the last step in host memory, for whoever must look at them.

        On a device this copies; where logits lie in host memory it is a view, which the next step overwrites.
        """

    @abstractmethod
    def put_logits(self, rows: Int64, logits: Float32) -> None:
        """Have `sample` read other logits, float32 [n, vocab_size], as those of n rows of the last step."""

    @abstractmethod
    def copy_blocks(self, group: int, source: Int32, destination: Int32) -> None:
        """Copy whole blocks of all cache tensors of a group, before the next step; both int32 [n]."""

    @abstractmethod
    def save_blocks(self, group: int, blocks: Int32) -> Payload:
        """Copies of whole blocks of a group in host memory: one array [n, ...] for each cache tensor."""

    @abstractmethod
    def load_blocks(self, group: int, blocks: Int32, payload: Payload) -> None:
        """Write what `save_blocks` returned into as many blocks, before the next step."""

    @abstractmethod
    def release_blocks(self, group: int, blocks: Int32) -> None:
        """Give back the memory of blocks, as far as it is whole pages; what they hold is lost, addresses stay.

        blocks: int32 [n], ascending.
        """

    @abstractmethod
    def close(self) -> None:
        """Give back the session and the cache memory. Safe to call twice."""
