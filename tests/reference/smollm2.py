"""The committed fp32 reference of SmolLM2, and how a result is held against it.

transformers' own fp32 logits move by up to `noise` when only the order of arithmetic changes, so two of them
that lie closer than twice that may swap. Such positions are listed by `near_ties`; a result may leave the
reference there and nowhere else, and what follows such a position is not comparable.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import msgspec

PATH = Path(__file__).with_name("smollm2_fp32.json")
QUICK = ("capital-chat", "emoji", "python", "digits")
QUICK_TOKENS = 16


class Entry(msgspec.Struct, frozen=True):
    """One prompt: ids, the greedy ids that follow, and by how much each of these led the second best."""

    name: str
    prompt_ids: list[int]
    ids: list[int]
    margins: list[float]
    text: str = ""
    messages: list[dict[str, str]] = []


class Reference(msgspec.Struct, frozen=True):
    """The file. `noise` is an absolute difference of logits."""

    model_sha256: str
    made_with: dict[str, str]
    steps: int
    noise: float
    prompts: list[Entry]

    @property
    def bound(self) -> float:
        """A margin below this does not decide which of two tokens comes."""
        return 2 * self.noise

    def near_ties(self) -> list[tuple[str, int, float]]:
        """(prompt, step, margin) of every position whose margin does not decide."""
        return [
            (entry.name, step, margin)
            for entry in self.prompts
            for step, margin in enumerate(entry.margins)
            if margin < self.bound
        ]

    def quick(self) -> list[Entry]:
        return [entry for entry in self.prompts if entry.name in QUICK]


@cache
def reference() -> Reference:
    return msgspec.json.decode(PATH.read_bytes(), type=Reference)


def departure(entry: Entry, ids: list[int], bound: float) -> int | None:
    """The first step at which `ids` leave the reference, None if they do not.

    Fails when they do so at a step whose margin is not below `bound`.
    """
    for step, (expected, found) in enumerate(zip(entry.ids, ids, strict=False)):
        if expected != found:
            margin = entry.margins[step]
            if margin >= bound:
                raise AssertionError(
                    f"{entry.name}: step {step} gave {found}, not {expected}; the margin there is {margin:.4g}, "
                    f"more than {bound:.4g}, the noise of fp32"
                )
            return step
    return None
