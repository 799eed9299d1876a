"""StepBudget: how many tokens of prompts a step may still take."""

from __future__ import annotations

import math

from rtcore.scheduler.cost_model import CostModel

_SMALLEST_CHUNK = 16


class StepBudget:
    """Tokens by the step's limit, and seconds by the latency target, of which the decode rows took their part.

    Without decode rows nobody waits for the next token, and only the limit of tokens counts.
    """

    def __init__(
        self,
        model: CostModel,
        *,
        tokens: int,
        largest_chunk: int,
        target: float,
        decode_rows: int,
        decode_attended: int,
    ) -> None:
        self._model = model
        self._largest_chunk = largest_chunk
        self.tokens = tokens - decode_rows
        self.seconds = target - model.predict(decode_rows, decode_attended) if decode_rows else math.inf

    def chunk(self, begin: int, pending: int, seconds: float, owed: bool) -> int:
        """Tokens of a sequence to compute after `begin` others, with `seconds` for them; 0 if it has to wait.

        owed: the lane has had nothing of this step yet, so it gets a small chunk even if there is no time, and
        no decode load can keep prompts from advancing.
        """
        limit = min(pending, self._largest_chunk, self.tokens)
        affordable = limit if math.isinf(seconds) else self._model.chunk(seconds, begin)
        return max(0, min(limit, max(affordable, _SMALLEST_CHUNK if owed else 0)))

    def spend(self, begin: int, tokens: int) -> float:
        """Take a chunk out of the budget; returns its seconds."""
        seconds = self._model.prefill(tokens, begin)
        self.tokens -= tokens
        self.seconds -= seconds
        return seconds
