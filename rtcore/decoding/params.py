"""SamplingParams: what a request may ask of the way its tokens are chosen."""

from __future__ import annotations

import math
from typing import Any

import msgspec

from ops.errors import InvalidRequest
from rtcore.decoding.grammar.spec import StructuredOutputs

MAX_STOP_STRINGS = 16
MAX_STOP_BYTES = 1024
MAX_SEQUENCES = 128
MAX_LOGPROBS = 20
MAX_BAD_WORDS = 256
MAX_BAD_WORD_TOKENS = 2048
MAX_BIASED_TOKENS = 1024
MAX_LISTED_TOKENS = 1 << 20
MAX_HOOKS = 8
MAX_BIAS = 100.0


class Hook(msgspec.Struct, frozen=True):
    """A logits processor or stop rule of the user's own: the name of its entry point, and what it is told."""

    name: str
    options: dict[str, Any] = {}


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True):
    """Parameters with the names and ranges that users of vLLM know (vllm/sampling_params.py).

    temperature: 0 chooses the most likely token. top_k: 0 or -1 keeps all tokens. top_p: in (0, 1]. min_p: keeps
    tokens at least so many times as likely as the likeliest, in [0, 1]. seed: makes a request's draws reproducible
    whatever runs beside it; None draws a seed. repetition_penalty: above 0; divides positive logits of tokens of
    prompt and answer and multiplies negative ones. presence_penalty, frequency_penalty: in [-2, 2]; taken from
    the logits of the answer's tokens, once and for each time. logit_bias: added to logits, -100 to 100.
    allowed_token_ids: the only ones that may be chosen; banned_token_ids: those that may not. bad_words: texts
    that the answer may not hold as the tokens that they are written with; bad_word_ids: the same as token ids,
    which the text side adds.

    max_tokens: tokens to generate at most; None means as many as the context has room for; with echo it may be 0,
    and the prompt is the whole answer. min_tokens: before that
    many neither a stop id nor a stop string ends the sequence. stop: strings that end the text (cut off unless
    include_stop_str_in_output). stop_token_ids: ids that do. ignore_eos: the model's own stop ids do not.

    n: how many independent sequences to generate for one prompt; sequence k of a seeded request is seeded with
    seed + k. best_of: of so many, the n with the highest cumulative log-probability.

    logprobs: the log-probability of each generated token, and of so many that were likeliest in its place, by the
    model's own distribution before any processor; None for none. prompt_logprobs: the same for the prompt.

    echo: the text begins with that of the prompt. logits_processors, stop_rules: the user's own, in the order in
    which they apply.

    structured_outputs: the form that the answer must have; the model's stop ids then come where the form is
    complete, and end the answer under ignore_eos too. speculation: False has no drafts tried for this request; the
    tokens are the same.
    """

    n: int = 1
    best_of: int | None = None
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[int, float] = {}
    allowed_token_ids: tuple[int, ...] | None = None
    banned_token_ids: tuple[int, ...] = ()
    bad_words: tuple[str, ...] = ()
    bad_word_ids: tuple[tuple[int, ...], ...] = ()
    max_tokens: int | None = 16
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    echo: bool = False
    logits_processors: tuple[Hook, ...] = ()
    stop_rules: tuple[Hook, ...] = ()
    structured_outputs: StructuredOutputs | None = None
    speculation: bool = True

    def __post_init__(self) -> None:
        for name in ("stop", "bad_words"):
            value = getattr(self, name)
            self._set(name, (value,) if isinstance(value, str) else tuple(value))
        for name in ("stop_token_ids", "banned_token_ids"):
            self._set(name, tuple(dict.fromkeys(getattr(self, name))))
        if self.allowed_token_ids is not None:
            self._set("allowed_token_ids", tuple(dict.fromkeys(self.allowed_token_ids)))
        self._set("bad_word_ids", tuple(map(tuple, self.bad_word_ids)))
        for name in ("logits_processors", "stop_rules"):
            hooks = getattr(self, name)
            hooks = (hooks,) if isinstance(hooks, str | Hook) else hooks
            self._set(name, tuple(Hook(hook) if isinstance(hook, str) else hook for hook in hooks))
        self.check()

    def _set(self, name: str, value: object) -> None:
        msgspec.structs.force_setattr(self, name, value)

    @property
    def sequences(self) -> int:
        """How many sequences run for one prompt."""
        return self.n if self.best_of is None else self.best_of

    @property
    def penalised(self) -> bool:
        """Whether what was generated changes what comes next."""
        return self.repetition_penalty != 1 or self.presence_penalty != 0 or self.frequency_penalty != 0

    def check(self) -> None:
        """Raise InvalidRequest naming the first field that is out of range."""
        if not 1 <= self.n <= MAX_SEQUENCES:
            raise _out_of_range("n", self.n, f"between 1 and {MAX_SEQUENCES}")
        if self.best_of is not None and not self.n <= self.best_of <= MAX_SEQUENCES:
            raise _out_of_range("best_of", self.best_of, f"between n, which is {self.n}, and {MAX_SEQUENCES}")
        self._check_distribution()
        self._check_tokens()
        self._check_end()
        for name in ("logprobs", "prompt_logprobs"):
            count = getattr(self, name)
            if count is not None and not 0 <= count <= MAX_LOGPROBS:
                raise _out_of_range(name, count, f"between 0 and {MAX_LOGPROBS}")
        for name in ("logits_processors", "stop_rules"):
            if len(getattr(self, name)) > MAX_HOOKS:
                raise _out_of_range(name, len(getattr(self, name)), f"at most {MAX_HOOKS} of them")

    def _check_distribution(self) -> None:
        if not (math.isfinite(self.temperature) and 0 <= self.temperature <= 100):
            raise _out_of_range("temperature", self.temperature, "between 0 and 100")
        if not -1 <= self.top_k < 2**31:
            raise _out_of_range("top_k", self.top_k, "-1 or 0 (all tokens) or a positive 32-bit integer")
        if not 0 < self.top_p <= 1:
            raise _out_of_range("top_p", self.top_p, "above 0 and at most 1")
        if not 0 <= self.min_p <= 1:
            raise _out_of_range("min_p", self.min_p, "between 0 and 1")
        if self.seed is not None and not -(2**63) <= self.seed < 2**64:
            raise _out_of_range("seed", self.seed, "a 64-bit integer")
        if not 0.01 <= self.repetition_penalty <= 100:
            raise _out_of_range("repetition_penalty", self.repetition_penalty, "between 0.01 and 100")
        for name in ("presence_penalty", "frequency_penalty"):
            if not -2 <= getattr(self, name) <= 2:
                raise _out_of_range(name, getattr(self, name), "between -2 and 2")

    def _check_tokens(self) -> None:
        if len(self.logit_bias) > MAX_BIASED_TOKENS:
            raise _out_of_range("logit_bias", len(self.logit_bias), f"at most {MAX_BIASED_TOKENS} tokens")
        for token, bias in self.logit_bias.items():
            if not -MAX_BIAS <= bias <= MAX_BIAS:
                raise _out_of_range(f"logit_bias[{token}]", bias, "between -100 and 100", "logit_bias")
        if self.allowed_token_ids is not None and not self.allowed_token_ids:
            raise InvalidRequest(
                "allowed_token_ids is empty.", why="No token could come.", param="allowed_token_ids"
            )
        if len(self.bad_words) > MAX_BAD_WORDS:
            raise _out_of_range("bad_words", len(self.bad_words), f"at most {MAX_BAD_WORDS} texts")
        for word in self.bad_words:
            if not _is_text(word):
                raise _out_of_range("bad_words", word[:32], f"texts of 1 to {MAX_STOP_BYTES} bytes of UTF-8")
        words = self.bad_word_ids
        if len(words) > 2 * MAX_BAD_WORDS or any(not 0 < len(word) <= MAX_BAD_WORD_TOKENS for word in words):
            raise _out_of_range(
                "bad_word_ids",
                len(words),
                f"at most {2 * MAX_BAD_WORDS} lists of 1 to {MAX_BAD_WORD_TOKENS} tokens",
            )
        listed = {
            "stop_token_ids": self.stop_token_ids,
            "allowed_token_ids": self.allowed_token_ids or (),
            "banned_token_ids": self.banned_token_ids,
            "logit_bias": self.logit_bias,
            "bad_word_ids": [token for word in words for token in word],
        }
        for name, ids in listed.items():
            if len(ids) > MAX_LISTED_TOKENS:
                raise _out_of_range(name, len(ids), f"at most {MAX_LISTED_TOKENS} ids")
            if min(ids, default=0) < 0:
                raise _out_of_range(name, min(ids), "non-negative")

    def largest_token_id(self) -> tuple[str, int]:
        """The field that names the largest token id of all, and the id; -1 where none names any."""
        found = {
            "stop_token_ids": max(self.stop_token_ids, default=-1),
            "allowed_token_ids": max(self.allowed_token_ids or (), default=-1),
            "banned_token_ids": max(self.banned_token_ids, default=-1),
            "logit_bias": max(self.logit_bias, default=-1),
            "bad_word_ids": max((max(word) for word in self.bad_word_ids), default=-1),
        }
        name = max(found, key=found.__getitem__)
        return name, found[name]

    def _check_end(self) -> None:
        least = 0 if self.echo else 1
        if self.max_tokens is not None and self.max_tokens < least:
            raise _out_of_range("max_tokens", self.max_tokens, f"at least {least}")
        if self.min_tokens < 0:
            raise _out_of_range("min_tokens", self.min_tokens, "at least 0")
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise _out_of_range("min_tokens", self.min_tokens, f"at most max_tokens, which is {self.max_tokens}")
        if len(self.stop) > MAX_STOP_STRINGS:
            raise _out_of_range("stop", len(self.stop), f"at most {MAX_STOP_STRINGS} strings")
        for text in self.stop:
            if not _is_text(text):
                raise _out_of_range("stop", text[:32], f"strings of 1 to {MAX_STOP_BYTES} bytes of UTF-8")


def _is_text(text: str) -> bool:
    try:
        return 0 < len(text.encode()) <= MAX_STOP_BYTES
    except UnicodeEncodeError:  # a lone surrogate, which no text holds and no message carries
        return False


def _out_of_range(field: str, value: object, allowed: str, param: str | None = None) -> InvalidRequest:
    return InvalidRequest(f"{field} is {value!r}; it must be {allowed}.", param=param or field)
