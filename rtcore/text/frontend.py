"""TextFrontend: text and messages to engine requests, for the library and the server alike."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any

import msgspec

from ops.errors import BundleDamaged, ContextLengthExceeded
from rtcore.admission import Admission
from rtcore.bundle import Bundle
from rtcore.decoding.params import SamplingParams
from rtcore.manifest import TOKENIZER_FOLDER
from rtcore.request import EngineRequest, ServiceTerms
from rtcore.text.chat import ChatTemplate, Message
from rtcore.text.stream import TextStream
from rtcore.text.tokenizer import TOKENIZER_FILE, Tokenizer

_SEEDS = 1 << 64
# What of a checkpoint's generation configuration decides here, as in vLLM.
_MODEL_DEFAULTS = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
_PLAIN = ServiceTerms()
# Most tokens stand for fewer characters, so that many for each token of the context are too many for it.
_CHARACTERS_A_TOKEN = 8
_CUT_SLACK = 256


class TextFrontend:
    """The text side of one model. Attributes: tokenizer, chat, context_length (of the model)."""

    def __init__(self, bundle: Bundle, cache_tokens: int | None = None) -> None:
        """cache_tokens: the longest sequence that the engine's cache holds, where that is known.

        Raises BundleDamaged and BundleError where the tokenizer cannot be used.
        """
        manifest = bundle.manifest
        self.tokenizer = Tokenizer.open(bundle.file(f"{TOKENIZER_FOLDER}/{TOKENIZER_FILE}"), manifest.text)
        self.context_length = manifest.dimensions.context_length
        self._vocab_size = manifest.dimensions.vocab_size
        self.fit(cache_tokens)
        self._sampling = manifest.text.sampling
        template = manifest.text.chat_template
        source = None if template is None else _read_text(bundle, template)
        self.chat = ChatTemplate(source, _special_tokens(bundle, self.tokenizer))

    def fit(self, cache_tokens: int | None) -> None:
        """Learn the longest sequence that the engine's cache holds, for a server that knows it only later."""
        self._room = self.context_length if cache_tokens is None else min(self.context_length, cache_tokens)
        self._admission = Admission(
            vocab_size=self._vocab_size, context_length=self.context_length, cache_tokens=self._room
        )

    def default_params(self, **given: Any) -> SamplingParams:
        """Parameters with the model's own sampling defaults, less what is given (None counts as not given).

        Raises InvalidRequest for values out of range.
        """
        values = {name: value for name, value in self._sampling.items() if name in _MODEL_DEFAULTS}
        if "top_k" in values:
            values["top_k"] = int(values["top_k"])
        values.update((name, value) for name, value in given.items() if value is not None)
        return SamplingParams(**values)  # type: ignore[arg-type]

    def encode(self, text: str) -> list[int]:
        """The ids of a plain prompt, begun as the model expects. Raises ContextLengthExceeded, see `_encode`."""
        return self._encode(text, add_special_tokens=True)

    def render_chat(self, messages: Sequence[Message], **options: Any) -> list[int]:
        """The ids of a conversation; the options are those of ChatTemplate.render."""
        return self.encode_chat(self.chat.render(messages, **options))

    def encode_chat(self, text: str) -> list[int]:
        """The ids of a rendered conversation: the template has written all special tokens itself."""
        return self._encode(text, add_special_tokens=False)

    def _encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Raises ContextLengthExceeded by the beginning of a text, where that alone is too long by far.

        Megabytes take seconds. Where a text is cut changes the tokens next to the cut, which the slack covers.
        """
        begin = self.context_length * _CHARACTERS_A_TOKEN
        if len(text) > 2 * begin:
            count = len(self.tokenizer.encode(text[:begin], add_special_tokens))
            if count > self.context_length + _CUT_SLACK:
                raise ContextLengthExceeded(
                    f"The prompt has {len(text)} characters, and the first {begin} are {count} tokens.",
                    why=f"The model's context is {self.context_length} tokens.",
                    remedy="Shorten the prompt.",
                    param="prompt",
                )
        return self.tokenizer.encode(text, add_special_tokens)

    def requests(
        self, prompt_ids: Sequence[int], params: SamplingParams, base_id: str, terms: ServiceTerms = _PLAIN
    ) -> list[EngineRequest]:
        """One request for each sequence of a prompt (n, or best_of), with max_tokens, seeds and bad words resolved.

        Without echo the first alone tells the prompt's log-probabilities. They are called `base_id`, or
        `base_id-0`, `base_id-1`... Raises InvalidRequest, ContextLengthExceeded or CacheTooSmall, each naming the
        numbers.
        """
        ids = list(prompt_ids)  # one for all sequences: a prompt may be long and n large
        arrival = time.time()
        count = params.sequences
        # Which are the best is told by the log-probabilities of their tokens.
        ranked = 0 if count > params.n and params.logprobs is None else params.logprobs
        one = msgspec.structs.replace(
            params,
            n=1,
            best_of=None,
            max_tokens=self._max_tokens(len(ids), params),
            logprobs=ranked,
            bad_word_ids=(*params.bad_word_ids, *self._bad_words(params.bad_words)),
        )
        further = one if params.echo else msgspec.structs.replace(one, prompt_logprobs=None)
        shared = msgspec.structs.asdict(terms)
        requests = [
            EngineRequest(
                id=base_id if count == 1 else f"{base_id}-{number}",
                prompt_ids=ids,
                params=msgspec.structs.replace(further if number else one, seed=_seed(params.seed, number)),
                arrival=arrival,
                **shared,
            )
            for number in range(count)
        ]
        self._admission.check(requests[0])
        return requests

    def _bad_words(self, words: Sequence[str]) -> list[tuple[int, ...]]:
        """The tokens of each word as it is written at the beginning of a text and after a space."""
        found: dict[tuple[int, ...], None] = {}
        for word in words:
            for spelling in (word.lstrip(" ") or word, " " + word.lstrip(" ")):
                ids = tuple(self.tokenizer.encode(spelling, add_special_tokens=False))
                if ids:
                    found[ids] = None
        return list(found)

    def stream(self, request: EngineRequest) -> TextStream:
        """The way back from a request's tokens to text."""
        return TextStream(self.tokenizer, request)

    def _max_tokens(self, prompt: int, params: SamplingParams) -> int:
        if params.max_tokens is not None:
            return params.max_tokens
        if prompt >= self.context_length:
            raise ContextLengthExceeded(
                f"The prompt has {prompt} tokens and leaves no room for an answer.",
                why=f"The model's context is {self.context_length} tokens.",
                remedy="Shorten the prompt.",
                param="prompt",
            )
        # A prompt that fills the cache asks for one token more, and is refused for that with the cache's numbers.
        return max(self._room - prompt, 1)


def _seed(seed: int | None, number: int) -> int | None:
    """The seed of sequence `number`: seed + number, within 64 bits."""
    if seed is None or seed + number < _SEEDS:
        return None if seed is None else seed + number
    return seed + number - _SEEDS


def _read_text(bundle: Bundle, relative: str) -> str:
    path = bundle.file(relative)
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BundleDamaged(
            f"{relative} cannot be read.", why=str(error), remedy="Copy or export the bundle again.", param=relative
        ) from error


def _special_tokens(bundle: Bundle, tokenizer: Tokenizer) -> dict[str, str]:
    """What chat templates know as bos_token, eos_token...: as the checkpoint says, else from the manifest."""
    text = bundle.manifest.text
    ids = {"bos_token": text.bos_id, "eos_token": next(iter(text.stop_ids), None), "pad_token": text.pad_id}
    found = {name: tokenizer.entry(number) for name, number in ids.items() if number is not None}
    tokens = {name: entry for name, entry in found.items() if entry is not None}
    relative = f"{TOKENIZER_FOLDER}/tokenizer_config.json"
    if not bundle.file(relative).is_file():
        return tokens
    try:
        config = json.loads(_read_text(bundle, relative))
    except (ValueError, RecursionError) as error:
        raise BundleDamaged(
            f"{relative} is no JSON.", why=str(error), remedy="Export the bundle again.", param=relative
        ) from error
    for name, value in config.items() if isinstance(config, dict) else ():
        content = value.get("content") if isinstance(value, dict) else value
        if name.endswith("_token") and isinstance(content, str):
            tokens[name] = content
    return tokens
