"""SamplingParams: what a request may ask of the way its tokens are chosen."""

from __future__ import annotations

import math

import msgspec

from ops.errors import InvalidRequest

MAX_STOP_STRINGS = 16
MAX_STOP_BYTES = 1024
MAX_SEQUENCES = 128


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True):
    """Parameters with the names that users of vLLM know.

    temperature: 0 chooses the most likely token. top_k: 0 or -1 keeps all tokens. top_p: in (0, 1].
    seed: makes a request's draws reproducible whatever runs beside it; None draws a seed.
    max_tokens: tokens to generate at most; None means as many as the context has room for.
    stop: strings that end the text (cut off unless include_stop_str_in_output). stop_token_ids: ids that do.
    n: how many independent sequences to generate for one prompt; sequence k of a seeded request is seeded
    with seed + k.
    """

    n: int = 1
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int | None = None
    max_tokens: int | None = 16
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    skip_special_tokens: bool = True

    def __post_init__(self) -> None:
        if isinstance(self.stop, str):
            msgspec.structs.force_setattr(self, "stop", (self.stop,))
        else:
            msgspec.structs.force_setattr(self, "stop", tuple(self.stop))
        msgspec.structs.force_setattr(self, "stop_token_ids", tuple(self.stop_token_ids))
        self.check()

    def check(self) -> None:
        """Raise InvalidRequest naming the first field that is out of range."""
        if not 1 <= self.n <= MAX_SEQUENCES:
            raise _out_of_range("n", self.n, f"between 1 and {MAX_SEQUENCES}")
        if not (math.isfinite(self.temperature) and 0 <= self.temperature <= 100):
            raise _out_of_range("temperature", self.temperature, "between 0 and 100")
        if not -1 <= self.top_k < 2**31:
            raise _out_of_range("top_k", self.top_k, "-1 or 0 (all tokens) or a positive 32-bit integer")
        if not 0 < self.top_p <= 1:
            raise _out_of_range("top_p", self.top_p, "above 0 and at most 1")
        if self.seed is not None and not -(2**63) <= self.seed < 2**64:
            raise _out_of_range("seed", self.seed, "a 64-bit integer")
        if self.max_tokens is not None and self.max_tokens < 1:
            raise _out_of_range("max_tokens", self.max_tokens, "at least 1")
        if len(self.stop) > MAX_STOP_STRINGS:
            raise _out_of_range("stop", len(self.stop), f"at most {MAX_STOP_STRINGS} strings")
        for text in self.stop:
            if not _is_stop(text):
                raise _out_of_range("stop", text[:32], f"strings of 1 to {MAX_STOP_BYTES} bytes of UTF-8")
        if any(token < 0 for token in self.stop_token_ids):
            raise _out_of_range("stop_token_ids", min(self.stop_token_ids), "non-negative")


def _is_stop(text: str) -> bool:
    try:
        return 0 < len(text.encode()) <= MAX_STOP_BYTES
    except UnicodeEncodeError:  # a lone surrogate, which no text holds and no message carries
        return False


def _out_of_range(field: str, value: object, allowed: str) -> InvalidRequest:
    return InvalidRequest(f"{field} is {value!r}; it must be {allowed}.", param=field)
