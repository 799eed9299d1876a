"""golden.json: what a bundle's own reference answered, as structs that need no torch to read.

For each precision the exporter ran transformers in float32 with that precision's dequantised weights over
fixed token sequences (teacher-forced: the tokens are given, not generated) and kept the largest logits after
every recorded position. A replay feeds the same tokens through the bundle's step graph; its logits must lie
within `bound` of the reference, and its arg-max must be the reference's wherever the reference's margin
exceeds twice the bound.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

GOLDEN_FORMAT = 1


class GoldenPrompt(msgspec.Struct, frozen=True):
    """One teacher-forced sequence of N tokens.

    positions: the recorded positions, ascending, each below N; logits after position p predict token p + 1.
    top_ids and top_logits: for each recorded position the K ids of the largest logits, in descending order,
    and those logits. greedy: what greedy decoding gives after the N tokens, only for fp32.
    """

    name: str
    token_ids: list[int]
    positions: list[int]
    top_ids: list[list[int]]
    top_logits: list[list[float]]
    greedy: list[int] = []

    def __post_init__(self) -> None:
        if not self.token_ids or not len(self.positions) == len(self.top_ids) == len(self.top_logits):
            raise ValueError(f"golden prompt {self.name!r}: positions, ids and logits differ in number")
        if any(not 0 <= position < len(self.token_ids) for position in self.positions):
            raise ValueError(f"golden prompt {self.name!r}: a position lies outside its tokens")
        for ids, logits in zip(self.top_ids, self.top_logits, strict=True):
            if len(ids) != len(logits) or not ids or not all(map(math.isfinite, logits)):
                raise ValueError(f"golden prompt {self.name!r}: ids and finite logits must be paired")


class GoldenPrecision(msgspec.Struct, frozen=True):
    """The record of one precision. bound: the largest allowed |logit - reference|; derivation says where it
    comes from. exact_bound: the same for a replay whose products keep activations in float32, where the target
    has that choice and rounds them to int8 otherwise; it is so much smaller that it tells wrong weights apart."""

    bound: float
    derivation: str
    prompts: list[GoldenPrompt]
    exact_bound: float | None = None
    exact_derivation: str = ""


class Golden(msgspec.Struct, frozen=True):
    """The content of golden.json, by the names that `golden_key` gives."""

    precisions: dict[str, GoldenPrecision]
    format: int = GOLDEN_FORMAT

    def record(self, precision: str, target: str) -> GoldenPrecision | None:
        """The record of a precision for a target, if there is one."""
        return self.precisions.get(golden_key(precision, target))


def golden_key(precision: str, target: str) -> str:
    """The name of a record: a target other than the CPU rounds otherwise, and so has records of its own."""
    return precision if target == "cpu" else f"{precision}.{target}"


class PromptDeviation(msgspec.Struct, frozen=True):
    """How far a replay of one prompt was from its record.

    deviation: the largest |logit - reference| over the recorded ids. decisive: positions whose margin exceeds
    twice the bound; flipped: those of them whose arg-max differs.
    """

    name: str
    deviation: float
    decisive: int
    flipped: list[int]

    def within(self, bound: float) -> bool:
        return self.deviation <= bound and not self.flipped


def compare(
    prompt: GoldenPrompt, logits: NDArray[np.float32] | Sequence[NDArray[np.float32]], bound: float
) -> PromptDeviation:
    """Compare logits float32 [recorded positions, vocabulary], in the order of `prompt.positions`.

    A logit that is not finite counts as an infinite deviation.
    """
    deviation, decisive, flipped = 0.0, 0, []
    for position, ids, expected, row in zip(
        prompt.positions, prompt.top_ids, prompt.top_logits, logits, strict=True
    ):
        error = float(np.max(np.abs(row[ids] - np.asarray(expected, np.float32))))
        deviation = max(deviation, error if np.isfinite(row).all() else math.inf)
        if len(expected) > 1 and expected[0] - expected[1] > 2 * bound:
            decisive += 1
            if int(np.argmax(row)) != ids[0]:
                flipped.append(position)
    return PromptDeviation(prompt.name, deviation, decisive, flipped)


def encode(golden: Golden) -> bytes:
    return msgspec.json.encode(golden)


def decode(content: bytes) -> Golden:
    """Parse golden.json. Raises msgspec.DecodeError or msgspec.ValidationError when it is malformed."""
    return msgspec.json.decode(content, type=Golden)
