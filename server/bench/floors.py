"""What the machine's ceilings allow a bundle at best: bytes over bandwidth, operations over peak."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rtcore.manifest import Manifest, Variant
from server.bench.ceilings import Ceilings


@dataclass(frozen=True)
class Floors:
    """Floors of one variant on one machine. All times in seconds, sizes in bytes."""

    manifest: Manifest
    variant: Variant
    ceilings: Ceilings

    @property
    def peak_ops(self) -> float:
        """Operations a second: a quantised variant may use the faster of the float and the integer units."""
        if self.variant.precision == "fp32":
            return self.ceilings.fp32_ops_s
        return max(self.ceilings.fp32_ops_s, self.ceilings.int8_ops_s)

    @property
    def file_bytes(self) -> int:
        """The files that a run of the variant reads, all of which a full check hashes."""
        return sum(entry.size for entry in self.manifest.used(self.variant.precision, self.variant.target))

    def weight_bytes(self, tokens: int) -> float:
        """The weights that a step of `tokens` tokens reads; see `weight_bytes` below."""
        return weight_bytes(self.manifest, self.variant, tokens)

    def cache_bytes(self, tokens: int) -> int:
        """What `tokens` tokens of one sequence take in the cache; a window bounds what a layer keeps."""
        total = 0
        for tensor in self.variant.cache_tensors:
            window = self.variant.cache_groups[tensor.group].window
            kept = min(tokens, window) if window else tokens
            total += kept * tensor.slot_bytes
        return total

    def attention_ops(self, queries: int, context: int) -> float:
        """Operations of scores and weighted values for the last `queries` of `context` tokens of one sequence."""
        sizes = self.manifest.dimensions
        positions = np.arange(context - queries + 1, context + 1)
        total = 0.0
        for tensor in self.variant.cache_tensors:
            if tensor.kind != "k":
                continue
            window = self.variant.cache_groups[tensor.group].window
            seen = np.minimum(positions, window) if window else positions
            total += 4.0 * sizes.heads * tensor.shape[-1] * float(seen.sum())
        return total

    def prefill_seconds(self, tokens: int) -> float:
        """The least time of a prompt of `tokens` tokens whose last row alone goes through the head."""
        sizes = self.manifest.dimensions
        head = 2.0 * sizes.vocab_size * sizes.hidden_size
        operations = 2.0 * tokens * sizes.linear_parameters + head + self.attention_ops(tokens, tokens)
        read = self.weight_bytes(tokens) / self.ceilings.read_bytes_s
        return max(operations / self.peak_ops, read)

    def decode_seconds(self, sequences: int, context: int) -> float:
        """The least time of a step that gives each of `sequences` sequences with `context` tokens one more."""
        sizes = self.manifest.dimensions
        token = 2.0 * (sizes.linear_parameters + sizes.vocab_size * sizes.hidden_size)
        read = self.weight_bytes(sequences) + sequences * self.cache_bytes(context)
        return max(sequences * token / self.peak_ops, read / self.ceilings.read_bytes_s)

    def load_seconds(self) -> float:
        """The least time of reading every byte of the bundle once, as its full check does."""
        return self.file_bytes / self.ceilings.read_bytes_s

    def memory_bytes(self, sequences: int, context: int) -> int:
        """Weights that a step reads, and written cache."""
        return round(self.weight_bytes(sequences)) + sequences * self.cache_bytes(context)


def weight_bytes(manifest: Manifest, variant: Variant, tokens: int) -> float:
    """Bytes of weights that a step of `tokens` tokens reads, all of which go through the head.

    Of E experts a token goes to k. Where tokens choose independently and no expert is preferred, n tokens leave an
    expert out with probability (1 - k/E)^n, so the expected number of those that are read is E (1 - (1 - k/E)^n).
    """
    sizes = manifest.dimensions
    if not sizes.experts:
        return variant.linear_bytes
    share = sizes.experts_per_token / sizes.experts
    read = (1.0 - (1.0 - share) ** tokens) / share
    return variant.linear_bytes + (read - 1.0) * variant.expert_bytes
