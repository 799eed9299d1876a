"""EngineStats: what an engine counts, as it is shown and sent between processes."""

from __future__ import annotations

import msgspec


class CacheStats(msgspec.Struct, frozen=True, kw_only=True):
    """The prefix cache, counted since the start.

    query_tokens: of prompts that looked for a cached beginning; hit_tokens: those found. evictions: cached
    blocks that went, by cause. collisions: blocks not cached because of an equal digest. copies: blocks copied
    on write. bytes_used: of blocks that sequences use; bytes_cached: of cached blocks that none uses;
    bytes_free: of the others. bytes_written: of memory that was written and not given back since.
    """

    query_tokens: int = 0
    hit_tokens: int = 0
    evictions: dict[str, int] = {}
    collisions: int = 0
    copies: int = 0
    bytes_used: int = 0
    bytes_cached: int = 0
    bytes_free: int = 0
    bytes_written: int = 0


class LoadStats(msgspec.Struct, frozen=True, kw_only=True):
    """What the scheduler expects.

    state: normal, shedding or draining. waiting_long, running_long: of the long lane. estimated_wait: seconds
    until a request submitted now would be started. step_*: the cost model, in seconds.
    """

    state: str = "normal"
    waiting_tokens: int = 0
    waiting_long: int = 0
    running_long: int = 0
    estimated_wait: float = 0.0
    step_base: float = 0.0
    step_per_token: float = 0.0
    step_per_attended: float = 0.0


class EngineStats(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot.

    waiting, running: sequences without and with cache blocks. blocks_total, blocks_free: per cache group, of
    block_size tokens each; cached blocks that no sequence uses are free. swaps: preempted sequences whose blocks
    were copied to host memory, swapped_bytes: what such copies take now. context_length: tokens that a sequence may
    have here, prompt and answer together, the smaller of the model's context and what the cache holds.
    tokens_prefilled counts tokens of prompts that ran, those run anew after a preemption included; tokens_generated
    counts tokens given out. drafts: guesses that steps verified, drafts_accepted: those that held, each of them a
    token without a step of its own. steps_ahead: of the steps those that were queued before the tokens of the one
    before were known. started: seconds since the epoch.
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
    drafts: int = 0
    drafts_accepted: int = 0
    swaps: int = 0
    steps_ahead: int = 0
    swapped_bytes: int = 0
    cache: CacheStats = CacheStats()
    load: LoadStats = LoadStats()
    finished: dict[str, int]
    started: float
