"""CacheCounters: what the prefix cache gave and lost."""

from __future__ import annotations

from dataclasses import dataclass, field

EVICTION_CAUSES = ("capacity", "expired", "quota", "replaced")


@dataclass(slots=True)
class CacheCounters:
    """query_tokens: of prompts that looked for a cached beginning, hit_tokens: those that they found.

    evictions: blocks by cause: capacity (memory was needed), expired, quota (a namespace had more than its
    share), replaced (a longer beginning of the same block came). collisions: blocks not cached because another
    had their digest. copies: blocks copied on write.
    """

    query_tokens: int = 0
    hit_tokens: int = 0
    evictions: dict[str, int] = field(default_factory=lambda: dict.fromkeys(EVICTION_CAUSES, 0))
    collisions: int = 0
    copies: int = 0
