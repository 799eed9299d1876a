"""TextStream: the token deltas of one request to the text that its user sees."""

from __future__ import annotations

import msgspec

from rtcore.request import EngineRequest, FinishReason, TokenDelta, TokenLogprobs
from rtcore.text.detokenizer import Detokenizer
from rtcore.text.stops import StopMatcher
from rtcore.text.tokenizer import Tokenizer


class TextDelta(msgspec.Struct, frozen=True):
    """What one token delta adds for the user.

    text: may be empty while a character or a stop string is unfinished. token_ids: those that count, which are
    all up to the end of the sequence. shown: how many of them stand for text, which a stop id that is not shown
    does not. stop_reason: the stop string or the id of `stop_token_ids` that ended it, or what a stop rule says.
    cut: a stop string ended the sequence, so the engine's request must be cancelled; what it still sends is
    ignored here. logprobs: one for each of token_ids where they were asked for. offsets: where the text of each of
    token_ids begins, in characters of the whole text, prompt included with echo. prompt_logprobs: as in TokenDelta;
    all of them come before or with the delta that begins the text, which holds the echoed prompt as well.
    """

    text: str = ""
    token_ids: list[int] = []
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    cut: bool = False
    shown: int = 0
    logprobs: list[TokenLogprobs] = []
    offsets: list[int] = []
    prompt_logprobs: list[TokenLogprobs] = []
    begins: bool = False


class TextStream:
    """One sequence; `feed` takes its deltas in order. `finished` is set with the last text.

    prompt_offsets: where in the prompt's text, with which the answer begins, each token of the prompt begins; empty
    without echo.
    """

    def __init__(self, tokenizer: Tokenizer, request: EngineRequest) -> None:
        params = request.params
        self.finished = False
        self.prompt_offsets: list[int] = []
        # With echo the prompt's text is shown too, so that a character may begin there and end in the answer.
        context = [] if params.echo else request.prompt_ids
        self._detokenizer = Detokenizer(tokenizer, context, params.skip_special_tokens)
        self._stops = StopMatcher(params.stop, params.include_stop_str_in_output)
        self._show_stop_token = params.include_stop_str_in_output
        self._unstoppable = params.min_tokens
        self._length = 0
        self._begun = False
        self._echo = "".join(self._shown(token_id) for token_id in request.prompt_ids) if params.echo else ""

    def _shown(self, token_id: int) -> str:
        """The text of a token of the prompt."""
        self.prompt_offsets.append(self._length)
        text = self._detokenizer.feed(token_id)
        self._length += len(text)
        return text

    def feed(self, delta: TokenDelta) -> TextDelta:
        """The text of a delta; empty once the sequence has finished."""
        if self.finished:
            return TextDelta()
        begins = not self._begun and bool(delta.token_ids or delta.finish_reason)
        self._begun |= begins
        shown = len(delta.token_ids)
        # The id that ended the sequence is its last; it is shown only where the user named it and asked for it.
        by_id = delta.finish_reason == "stop" and not isinstance(delta.stop_reason, str)
        if by_id and (delta.stop_reason is None or not self._show_stop_token):
            shown -= 1
        texts, offsets = [self._echo if begins else ""], []
        for number, token_id in enumerate(delta.token_ids[:shown], start=1):
            offsets.append(self._length)
            texts.append(self._passed(self._detokenizer.feed(token_id)))
            self._unstoppable -= 1
            if self._stops.matched is not None:
                return self._cut(delta, texts, offsets, number, begins)
        if delta.finish_reason is not None:
            texts.append(self._passed(self._detokenizer.finish()))
            if self._stops.matched is not None:
                return self._cut(delta, texts, offsets, shown, begins)
            texts.append(self._stops.finish())
            self.finished = True
        return TextDelta(
            "".join(texts),
            delta.token_ids,
            delta.finish_reason,
            delta.stop_reason,
            shown=shown,
            logprobs=delta.logprobs,
            offsets=offsets + [self._length] * (len(delta.token_ids) - shown),
            prompt_logprobs=delta.prompt_logprobs,
            begins=begins,
        )

    def _passed(self, text: str) -> str:
        """What can be shown by now of new text; that of the first min_tokens tokens can be no stop."""
        self._length += len(text)
        return text if self._unstoppable > 0 else self._stops.feed(text)

    def _cut(self, delta: TokenDelta, texts: list[str], offsets: list[int], count: int, begins: bool) -> TextDelta:
        self.finished = True
        return TextDelta(
            "".join(texts),
            delta.token_ids[:count],
            "stop",
            self._stops.matched,
            cut=True,
            shown=count,
            logprobs=delta.logprobs[:count],
            offsets=offsets,
            prompt_logprobs=delta.prompt_logprobs,
            begins=begins,
        )
