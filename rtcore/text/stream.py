"""TextStream: the token deltas of one request to the text that its user sees."""

from __future__ import annotations

import msgspec

from rtcore.request import EngineRequest, FinishReason, TokenDelta
from rtcore.text.detokenizer import Detokenizer
from rtcore.text.stops import StopMatcher
from rtcore.text.tokenizer import Tokenizer


class TextDelta(msgspec.Struct, frozen=True):
    """What one token delta adds for the user.

    text: may be empty while a character or a stop string is unfinished. token_ids: those that count, which are
    all up to the end of the sequence. stop_reason: the stop string or the id of `stop_token_ids` that ended it.
    cut: a stop string ended the sequence, so the engine's request must be cancelled; what it still sends is
    ignored here.
    """

    text: str = ""
    token_ids: list[int] = []
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    cut: bool = False


class TextStream:
    """One sequence; `feed` takes its deltas in order. `finished` is set with the last text."""

    def __init__(self, tokenizer: Tokenizer, request: EngineRequest) -> None:
        params = request.params
        self.finished = False
        self._detokenizer = Detokenizer(tokenizer, request.prompt_ids, params.skip_special_tokens)
        self._stops = StopMatcher(params.stop, params.include_stop_str_in_output)
        self._show_stop_token = params.include_stop_str_in_output

    def feed(self, delta: TokenDelta) -> TextDelta:
        """The text of a delta; empty once the sequence has finished."""
        if self.finished:
            return TextDelta()
        shown = len(delta.token_ids)
        # The id that ended the sequence is its last; it is shown only where the user named it and asked for it.
        hidden_stop = delta.finish_reason == "stop" and (delta.stop_reason is None or not self._show_stop_token)
        if hidden_stop:
            shown -= 1
        texts = []
        for number, token_id in enumerate(delta.token_ids[:shown], start=1):
            texts.append(self._stops.feed(self._detokenizer.feed(token_id)))
            if self._stops.matched is not None:
                return self._cut(texts, delta.token_ids[:number])
        if delta.finish_reason is None:
            return TextDelta("".join(texts), delta.token_ids)
        texts.append(self._stops.feed(self._detokenizer.finish()))
        if self._stops.matched is not None:
            return self._cut(texts, delta.token_ids[:shown])
        texts.append(self._stops.finish())
        self.finished = True
        return TextDelta("".join(texts), delta.token_ids, delta.finish_reason, delta.stop_reason)

    def _cut(self, texts: list[str], token_ids: list[int]) -> TextDelta:
        self.finished = True
        return TextDelta("".join(texts), token_ids, "stop", self._stops.matched, cut=True)
