"""SampleInputs and SampleOutputs: what the sample graph is given beside the logits, and what it answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ops.sample_columns import Number, Setting

Uint32 = NDArray[np.uint32]
Ids = NDArray[np.int32]

# Names of the graph's inputs and outputs beside `logits`, as the operator Sample has them.
INPUTS = (
    "settings",
    "numbers",
    "token_start",
    "token_ids",
    "token_counts",
    "bias_start",
    "bias_ids",
    "bias_values",
    "masks",
)
OUTPUTS = ("ids", "status", "logprobs", "ranks", "top_ids", "top_logprobs")


@dataclass(slots=True)
class SampleInputs:
    """S rows, in the order of the step's logit rows; those after them are not looked at.

    settings float32 [S, 6] and numbers int64 [S, 6]: columns as in ops.sample_columns. Lists of row i are at
    [start[i], start[i + 1]): token_ids and token_counts int32 [N], the tokens that penalties count, each once, and
    how often each was generated (0: it is in the prompt alone); bias_ids int32 and bias_values float32 [B], what is
    added to logits (-inf bans). masks uint32 [M, ceil(V / 32)]: bit i % 32 of word i // 32 allows token i; a row
    names its mask by number. starts int32 [S + 1]. Whatever nobody asks for is empty. An object that is given again
    may have other positions and other bits in its masks; all else is as it was. pending int32 [S]: the row of the
    step before whose token the row's list does not count yet, because the host does not know it, -1 for none; None
    where all are -1.
    """

    settings: NDArray[np.float32]
    numbers: NDArray[np.int64]
    token_start: Ids
    token_ids: Ids
    token_counts: Ids
    bias_start: Ids
    bias_ids: Ids
    bias_values: NDArray[np.float32]
    masks: Uint32
    pending: Ids | None = None

    def __len__(self) -> int:
        return len(self.settings)

    def named(self) -> list[tuple[str, NDArray[Any]]]:
        """The arrays by the graph's names."""
        return [(name, getattr(self, name)) for name in INPUTS]


def no_rows(vocab_size: int) -> SampleInputs:
    """What chooses no token."""
    return SampleInputs(
        settings=np.zeros((0, len(Setting)), np.float32),
        numbers=np.zeros((0, len(Number)), np.int64),
        token_start=np.zeros(1, np.int32),
        token_ids=np.zeros(0, np.int32),
        token_counts=np.zeros(0, np.int32),
        bias_start=np.zeros(1, np.int32),
        bias_ids=np.zeros(0, np.int32),
        bias_values=np.zeros(0, np.float32),
        masks=np.zeros((0, -(-vocab_size // 32)), np.uint32),
    )


@dataclass(slots=True)
class SampleOutputs:
    """One token a row.

    ids int64 [S], chosen or, where forced, the given ones; status int32 [S], a RowStatus, and where it is not SOUND
    the rest of the row means nothing. Where asked for: logprobs float32 [S] of the ids by the raw logits, ranks
    int32 [S] (1 and one more for each token that is likelier), top_ids int32 and top_logprobs float32 [S, L], the
    likeliest tokens first; unused places hold -1 and 0.
    """

    ids: NDArray[np.int64]
    status: Ids
    logprobs: NDArray[np.float32]
    ranks: Ids
    top_ids: Ids
    top_logprobs: NDArray[np.float32]
