"""CachePolicy: what the prefix cache keeps, and for how long."""

from __future__ import annotations

from dataclasses import dataclass

from rtcore.kvcache.hash_chain import Digest


@dataclass(frozen=True, slots=True)
class CachePolicy:
    """enabled: whether anything is kept. ttl: seconds that an unused block stays. protected_share: of the
    unused blocks, those that were hit, before the oldest of them lose their protection. tenant_share: of all
    blocks, what the unused ones of one salt may take. digest: the hash function; tests give one that collides.
    """

    enabled: bool = True
    ttl: float = 3600.0
    protected_share: float = 0.5
    tenant_share: float = 1.0
    digest: Digest = hash
