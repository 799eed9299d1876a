"""Match: what of a sequence is cached already."""

from __future__ import annotations

from dataclasses import dataclass

from rtcore.kvcache.prefix_index import NONE


@dataclass(slots=True)
class Match:
    """The longest cached beginning of a sequence: full nodes, then `tail_tokens` tokens of the node `tail`."""

    nodes: list[int]
    tail: int = NONE
    tail_tokens: int = 0
    tokens: int = 0
