"""Admission: what is checked about a request before the engine takes it."""

from __future__ import annotations

import math

from ops.errors import CacheTooSmall, ContextLengthExceeded, InvalidRequest
from rtcore.request import MAX_PRIORITY, MIN_PRIORITY, EngineRequest


class Admission:
    """Refuses requests that cannot be served here, with an error that names the field and the numbers."""

    def __init__(self, *, vocab_size: int, context_length: int, cache_tokens: int) -> None:
        """context_length: of the model; cache_tokens: what one sequence can hold in the whole cache."""
        self._vocab_size = vocab_size
        self._context_length = context_length
        self._cache_tokens = cache_tokens

    def check(self, request: EngineRequest) -> None:
        """Raise InvalidRequest, ContextLengthExceeded or CacheTooSmall, or return."""
        prompt = request.prompt_ids
        if not prompt:
            raise InvalidRequest("The prompt is empty.", remedy="Send at least one token.", param="prompt")
        if not 0 <= min(prompt) <= max(prompt) < self._vocab_size:
            wrong = next(token for token in prompt if not 0 <= token < self._vocab_size)
            raise InvalidRequest(
                f"Token id {wrong} is not in the vocabulary.",
                why=f"Ids go from 0 to {self._vocab_size - 1}.",
                param="prompt",
            )
        if not math.isfinite(request.arrival):
            raise InvalidRequest(
                f"The arrival time is {request.arrival}.", why="It orders the queue.", param="arrival"
            )
        if request.params.max_tokens is None:
            raise InvalidRequest("max_tokens is not set.", why="The engine needs a number.", param="max_tokens")
        field, largest = request.params.largest_token_id()
        if largest >= self._vocab_size:
            raise InvalidRequest(
                f"Token id {largest} of {field} is not in the vocabulary.",
                why=f"Ids go from 0 to {self._vocab_size - 1}.",
                param=field,
            )
        self._check_terms(request)
        self._check_length(len(prompt), request.params.max_tokens)

    def _check_terms(self, request: EngineRequest) -> None:
        if not MIN_PRIORITY <= request.priority <= MAX_PRIORITY:
            raise InvalidRequest(
                f"priority is {request.priority}; it must be between {MIN_PRIORITY} and {MAX_PRIORITY}.",
                param="priority",
            )
        for name in ("queue_timeout", "timeout"):
            seconds = getattr(request, name)
            if seconds is not None and not seconds > 0:
                raise InvalidRequest(f"{name} is {seconds}; it must be above 0.", param=name)

    def _check_length(self, prompt: int, answer: int) -> None:
        if prompt + answer > self._context_length:
            raise ContextLengthExceeded(
                f"The prompt has {prompt} tokens and max_tokens is {answer}, {prompt + answer} together.",
                why=f"The model's context is {self._context_length} tokens.",
                remedy="Shorten the prompt or lower max_tokens." if answer else "Shorten the prompt.",
                param="prompt" if prompt >= self._context_length else "max_tokens",
            )
        if prompt + answer > self._cache_tokens:
            raise CacheTooSmall(
                f"The prompt has {prompt} tokens and max_tokens is {answer}, {prompt + answer} together.",
                why=f"The KV cache holds {self._cache_tokens} tokens of one sequence.",
                remedy="Shorten the prompt, lower max_tokens, or give the engine more cache memory (cache_bytes).",
                param="prompt" if prompt >= self._cache_tokens else "max_tokens",
            )
