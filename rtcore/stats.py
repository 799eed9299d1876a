"""EngineStats: what an engine counts, as it is shown and sent between processes."""

from __future__ import annotations

import msgspec


class EngineStats(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot.

    waiting, running: sequences without and with cache blocks. blocks_total, blocks_free: per cache group, of
    block_size tokens each. context_length: tokens that a sequence may have here, prompt and answer together,
    the smaller of the model's context and what the cache holds. tokens_prefilled counts tokens of prompts
    that ran, those run anew after a preemption included; tokens_generated counts tokens given out. started:
    seconds since the epoch.
    """

    waiting: int
    running: int
    blocks_total: list[int]
    blocks_free: list[int]
    block_size: int
    context_length: int
    steps: int
    aborted_steps: int
    tokens_prefilled: int
    tokens_generated: int
    preemptions: int
    finished: dict[str, int]
    started: float
