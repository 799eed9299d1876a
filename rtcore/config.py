"""The engine's configuration: a frozen struct, parsed once by whoever starts the engine."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, Literal, Self

import msgspec

from ops.errors import ConfigError

Kernels = Literal["auto", "avx512-amx", "avx512-vnni", "avx512", "avx2-vnni", "avx2", "portable"]
"""The code paths of the CPU kernels; auto takes the best that the machine has."""
Activations = Literal["int8", "float32"]
"""What products with quantised weights round their input to on a CPU; float32 rounds nothing."""
MOST = 2**31 - 1
"""The largest number of tokens, sequences or requests that a setting may name."""
LIMITS = {"threads": 1024, "cache_bytes": 2**62, "max_drafts": 64}
"""Where another number is the largest; more threads than a machine has cores only wait for one another."""


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How one engine runs one bundle.

    precision: None takes the manifest's default. block_size: slots of a cache block. cache_bytes: memory for
    the KV cache; None chooses from the machine's free memory. max_step_tokens: token budget of a step.
    max_prefill_chunk: tokens of one prompt in one step at most; None is bound by the budget alone.
    max_sequences: sequences in one step at most. max_queue: waiting requests at most, beyond them Overloaded.
    max_queue_tokens: tokens of waiting requests at most; None bounds their number only. max_wait: seconds; when
    a new request would wait longer, the engine counts as overloaded, which refuses priorities above 0.
    target_step_ms: what a step that decodes should take at most; prefill chunks are cut to it. long_tokens:
    from how many tokens, prompt and expected answer together, a request goes to the lane of long ones.
    long_share: of time, places and cache, what that lane gets when both lanes want more. ageing: seconds of
    waiting that are worth one priority. tenant_weights: shares of tenants that do not have the weight 1.
    max_batch_delay_ms: how long an idle engine waits for more requests to fill its first step.
    prefix_cache: whether blocks stay for requests that begin alike. cache_ttl: seconds that an unused block
    stays. cache_tenant_share: of all blocks, what the unused ones of one cache salt may take. swap_bytes: host
    memory for the cache of preempted sequences, used where copying is cheaper than computing anew; 0 never
    does. speculation: who makes drafts for the model to verify: none, ngram, draft (a smaller model,
    draft_bundle), or the name of an installed proposer. max_drafts: of one sequence in a step. overlap: whether a
    step is queued while the one before runs, where the executor can; for comparison. threads: None
    takes the cores this process may use. check: full hashes what the engine reads, sizes only compares sizes.
    kernels: forces a code path of the CPU kernels. activations: what products with quantised weights round their
    input to; float32 is exact, slow, and for verification. debug_invariants: check after every step. profile: path
    and beginning of the names of files, one a graph, into which ONNX Runtime writes how long each operator of every
    step took; they are complete once the engine is closed, and steps are slower meanwhile.
    """

    precision: str | None = None
    target: str = "cpu"
    block_size: int = 16
    cache_bytes: int | None = None
    max_step_tokens: int = 512
    max_prefill_chunk: int | None = None
    max_sequences: int = 64
    max_queue: int = 1024
    max_queue_tokens: int | None = None
    max_wait: float = 30.0
    target_step_ms: float = 100.0
    long_tokens: int = 4096
    long_share: float = 0.25
    ageing: float = 10.0
    tenant_weights: dict[str, float] = {}
    max_batch_delay_ms: float = 0.0
    prefix_cache: bool = True
    cache_ttl: float = 3600.0
    cache_tenant_share: float = 1.0
    swap_bytes: int = 256 * 2**20
    speculation: str = "none"
    max_drafts: int = 8
    overlap: bool = True
    draft_bundle: str | None = None
    threads: int | None = None
    check: Literal["full", "sizes"] = "full"
    kernels: Kernels = "auto"
    activations: Activations = "int8"
    debug_invariants: bool = False
    profile: str | None = None

    def __post_init__(self) -> None:
        if self.block_size < 1:
            raise ConfigError(f"block_size is {self.block_size}; it must be at least 1.", param="block_size")
        for name in ("max_step_tokens", "max_sequences", "max_queue", "long_tokens", "max_drafts"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be at least 1.", param=name)
        if self.max_step_tokens < self.max_sequences:
            raise ConfigError(
                f"max_step_tokens ({self.max_step_tokens}) is below max_sequences ({self.max_sequences}).",
                why="Every running sequence decodes one token in a step.",
                remedy="Raise max_step_tokens or lower max_sequences.",
                param="max_step_tokens",
            )
        for name in ("max_wait", "target_step_ms", "ageing", "cache_ttl"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be above 0.", param=name)
        for name in ("max_batch_delay_ms", "swap_bytes"):
            if not getattr(self, name) >= 0:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be at least 0.", param=name)
        if not 0 < self.long_share < 1:
            raise ConfigError(f"long_share is {self.long_share}; it must be between 0 and 1.", param="long_share")
        if not 0 < self.cache_tenant_share <= 1:
            raise ConfigError(
                f"cache_tenant_share is {self.cache_tenant_share}; it must be above 0 and at most 1.",
                param="cache_tenant_share",
            )
        for tenant, weight in self.tenant_weights.items():
            if not weight > 0:
                raise ConfigError(
                    f"The weight of tenant {tenant!r} is {weight}; it must be above 0.", param="tenant_weights"
                )
        for name in ("cache_bytes", "max_prefill_chunk", "max_queue_tokens", "threads"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name} is {value}; it must be at least 1.", param=name)
        for name in ("block_size", "max_step_tokens", "max_sequences", "max_queue", "max_prefill_chunk", *LIMITS):
            value, most = getattr(self, name), LIMITS.get(name, MOST)
            if value is not None and value > most:
                raise ConfigError(f"{name} is {value}; it must be at most {most}.", param=name)

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """A configuration from untyped values. Raises ConfigError for unknown names, wrong types and ranges."""
        for name in values:
            if name not in cls.__struct_fields__:
                near = get_close_matches(name, cls.__struct_fields__, n=1)
                raise ConfigError(
                    f"The engine has no setting {name!r}.",
                    remedy=f"Did you mean {near[0]!r}?" if near else f"It has {', '.join(cls.__struct_fields__)}.",
                    param=name,
                )
        try:
            return msgspec.convert(dict(values), cls)
        except msgspec.ValidationError as error:
            field = str(error).rpartition("$.")[2].rstrip("`")
            raise ConfigError(f"{field} is {values.get(field)!r}.", why=f"{error}.", param=field) from error
