"""SavedBlocks: the cache of a preempted sequence in host memory."""

from __future__ import annotations

from dataclasses import dataclass, field

from rtcore.executor.base import Int32, Payload


@dataclass(slots=True, eq=False)
class SavedBlocks:
    """The blocks that hold the first `tokens` tokens of a sequence.

    starts[g] is the first column of group g that was still held. blocks[g] are the block ids int32 [n] to copy
    from before the save is done, and later those to copy to. payload[g] is what the executor returned.
    """

    tokens: int
    size: int
    starts: list[int]
    blocks: list[Int32]
    payload: list[Payload] = field(default_factory=list)
