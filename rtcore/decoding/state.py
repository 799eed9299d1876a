"""DecodingState: what the choice of a sequence's next token depends on besides its logits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ops.sample_columns import NO_LOGPROBS
from rtcore.decoding.counts import TokenCounts
from rtcore.decoding.grammar.state import GrammarState
from rtcore.decoding.params import SamplingParams
from rtcore.decoding.speculation.adaptive import DraftLength

Ids = NDArray[np.int32]
Values = NDArray[np.float32]
Words = NDArray[np.uint32]

_NO_IDS = np.zeros(0, np.int32)
_NO_VALUES = np.zeros(0, np.float32)


class DecodingState:
    """One for each sequence, from its submission to its end: a function of its tokens, so that a preemption, which
    keeps the tokens, cannot change it.

    settings: the row's columns as in ops.sample_columns.Setting. seed, as a signed number. logprobs: how many
    likeliest tokens to tell, 0 only the chosen one, -1 nothing; prompt_logprobs likewise. prompt_scored: tokens of
    the prompt whose log-probability is known, the first one among them, which has none. grammar: set once it is
    compiled, where the request has one. draft_length: how many drafts are worth trying, once any are. hooks: state
    of the user's own processors and stop rules, in the order of params.
    """

    __slots__ = (
        "_bad_words",
        "_bias",
        "_guarded",
        "_longest",
        "_tail",
        "allowed",
        "counts",
        "draft_length",
        "grammar",
        "logprobs",
        "min_length",
        "plain",
        "processors",
        "prompt_logprobs",
        "prompt_scored",
        "scores_prompt",
        "seed",
        "settings",
        "stop_rules",
        "top_k",
        "words",
    )

    def __init__(
        self, params: SamplingParams, prompt: NDArray[np.int64], seed: int, stop_ids: frozenset[int]
    ) -> None:
        """prompt: its ids int64 [n]. seed: of 64 bits. stop_ids: all ids that end the sequence."""
        self.settings = (
            params.temperature,
            params.top_p,
            params.min_p,
            params.repetition_penalty,
            params.presence_penalty,
            params.frequency_penalty,
        )
        self.seed = seed - (1 << 64) if seed >= 1 << 63 else seed
        self.top_k = max(0, params.top_k)
        self.logprobs = NO_LOGPROBS if params.logprobs is None else params.logprobs
        self.prompt_logprobs = NO_LOGPROBS if params.prompt_logprobs is None else params.prompt_logprobs
        self.prompt_scored = 1
        self.scores_prompt = params.prompt_logprobs is not None and len(prompt) > 1
        self.counts = TokenCounts(prompt) if params.penalised else None
        self.allowed = params.allowed_token_ids
        self.words: Words | None = None
        self.grammar: GrammarState | None = None
        self.draft_length: DraftLength | None = None
        self.processors: list[Any] = []
        self.stop_rules: list[Any] = []
        self.min_length = len(prompt) + params.min_tokens
        # A grammar that has come to its end allows nothing but stop ids, so its masks hold them back instead.
        guarded = bool(params.min_tokens) and params.structured_outputs is None
        self._guarded = np.array(sorted(stop_ids), np.int32) if guarded else _NO_IDS
        self._bias = _bias(params)
        self._bad_words = params.bad_word_ids
        self._tail: list[int] = []
        self._longest = max((len(word) for word in self._bad_words), default=1)
        self.plain = not (len(self._guarded) or len(self._bias[0]) or self._bad_words)

    def take(self, token: int) -> None:
        """A token was added to the sequence."""
        if self.counts is not None:
            self.counts.add(token)
        if self._bad_words:
            self._tail = [*self._tail, token][-self._longest :]

    @property
    def needs_tokens(self) -> bool:
        """Whether a choice depends on the tokens before it in ways that only the host knows; counts do not."""
        return (
            self.grammar is not None
            or self.scores_prompt
            or bool(self._bad_words or self.processors or self.stop_rules)
        )

    @property
    def masked(self) -> bool:
        """Whether not all tokens of the vocabulary may be chosen."""
        return self.allowed is not None or self.grammar is not None

    def bias(self, length: int, drafts: Sequence[int]) -> tuple[Ids, Values]:
        """Ids and what is added to their logits, for a token after `length` others of which the last are drafts."""
        ids, values = self._bias
        banned: list[int] = []
        if self._bad_words:
            tail = [*self._tail, *drafts]
            banned = [word[-1] for word in self._bad_words if _ends_with(tail, word[:-1])]
        guarded = self._guarded if length < self.min_length else _NO_IDS
        if not (banned or len(guarded)):
            return ids, values
        ids = np.concatenate([ids, guarded, np.array(banned, np.int32)])
        return ids, np.concatenate([values, np.full(len(ids) - len(values), -np.inf, np.float32)])


def _bias(params: SamplingParams) -> tuple[Ids, Values]:
    """The bias that never changes: logit_bias, and -inf for tokens that are banned."""
    if not (params.logit_bias or params.banned_token_ids):
        return _NO_IDS, _NO_VALUES
    ids = [*params.logit_bias, *params.banned_token_ids]
    values = [*params.logit_bias.values(), *[-np.inf] * len(params.banned_token_ids)]
    return np.array(ids, np.int32), np.array(values, np.float32)


def _ends_with(tokens: list[int], beginning: Sequence[int]) -> bool:
    return not beginning or tuple(tokens[-len(beginning) :]) == tuple(beginning)
