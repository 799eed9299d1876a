"""The standard sizes of ``ortolan bench run``."""

from __future__ import annotations

import msgspec

from ops.errors import ConfigError

PREFILL_TOKENS = 512
PROMPT_TOKENS = 128
DECODE_STEPS = 64
SEQUENCES = (1, 8, 16)
ROUNDS = 3


class Sizes(msgspec.Struct, frozen=True):
    """How long the prompts are and how many steps are timed, cut to the context of the engine."""

    prefill: int
    prompt: int
    steps: int

    @classmethod
    def within(cls, context_length: int) -> Sizes:
        """The standard sizes, or what a context of `context_length` tokens leaves of them."""
        prompt = min(PROMPT_TOKENS, context_length // 2)
        steps = min(DECODE_STEPS, context_length - prompt - 2 * max(SEQUENCES) - 2)
        if steps < 1:
            raise ConfigError(
                f"A context of {context_length} tokens is too short to benchmark.",
                why=f"{max(SEQUENCES)} sequences are started one after another and must all still run.",
                remedy="Give the cache more memory, or use a model with a longer context.",
            )
        return cls(prefill=min(PREFILL_TOKENS, context_length - 1), prompt=prompt, steps=steps)
