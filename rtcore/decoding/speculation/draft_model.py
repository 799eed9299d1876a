"""DraftModel: a smaller model of the same vocabulary that writes ahead, with a cache of its own."""

from __future__ import annotations

import json
from collections.abc import Sequence as Tokens
from typing import Any

import msgspec
import numpy as np

from ops.errors import BundleDamaged, ConfigError
from rtcore.bundle import Bundle
from rtcore.config import EngineConfig
from rtcore.decoding.params import SamplingParams
from rtcore.decoding.rows import RowBuilder, rows_of
from rtcore.decoding.speculation.base import Ask, Proposer
from rtcore.executor.base import Executor
from rtcore.executor.registry import load_executor
from rtcore.kvcache.block_manager import BlockManager
from rtcore.kvcache.hash_chain import CacheKey
from rtcore.kvcache.match import Match
from rtcore.kvcache.policy import CachePolicy
from rtcore.manifest import TOKENIZER_FOLDER
from rtcore.request import EngineRequest
from rtcore.scheduler.base import Work
from rtcore.scheduler.batch import BatchBuilder
from rtcore.sequence import Sequence, Status, held
from rtcore.text.tokenizer import TOKENIZER_FILE

_GREEDY = SamplingParams(temperature=0, max_tokens=1)


class DraftModel(Proposer):
    """Drafts are the draft model's most likely tokens.

    For each sequence it keeps a shadow: the same tokens, as far as they are known here, and the blocks that hold
    their K and V. When the target accepts less than was drafted, the shadow goes back to where they agree. Shadows
    that the cache has no room for get no drafts; those that were not asked about for the longest go first.
    """

    def __init__(self, executor: Executor, *, context_length: int, max_sequences: int, max_tokens: int) -> None:
        """max_tokens: of one step, and of all that one call computes of sequences that are new here."""
        self._executor = executor
        self._max_tokens = max_tokens
        self._max_sequences = max_sequences
        self._blocks = BlockManager(
            executor.num_blocks,
            executor.block_size,
            max_sequences=max_sequences,
            max_length=context_length,
            windows=executor.windows,
            policy=CachePolicy(enabled=False),
        )
        self._longest = min(context_length, self._blocks.capacity)
        self._batch = BatchBuilder(
            max_tokens=max_tokens, block_size=executor.block_size, tables=self._blocks.tables
        )
        self._rows = RowBuilder(executor.vocab_size)
        self._shadows: dict[str, Sequence] = {}

    def propose(self, asks: list[Ask]) -> list[Tokens[int]]:
        wanted: dict[Sequence, int] = {}
        shadows: list[Sequence | None] = []
        for ask in asks:
            room = self._longest - len(ask.tokens)
            shadow = self._follow(ask) if room > 0 else None
            shadows.append(shadow)
            if shadow is not None:
                wanted[shadow] = min(ask.count, room)
        # Later asks may have taken the places of earlier ones.
        wanted = {shadow: count for shadow, count in wanted.items() if shadow.blocks is not None}
        ahead = self._catch_up(wanted)
        while ahead := [shadow for shadow in ahead if len(_drafts(shadow)) < wanted[shadow]]:
            ahead = self._run([(shadow, 1) for shadow in ahead])
        return [[] if shadow is None or shadow not in wanted else _drafts(shadow) for shadow in shadows]

    def _follow(self, ask: Ask) -> Sequence:
        """The shadow of a sequence, brought to its tokens; what it had beyond them is forgotten."""
        shadow = self._shadows.pop(ask.key, None)
        if shadow is None:
            while len(self._shadows) >= self._max_sequences:
                self.forget(next(iter(self._shadows)))
            shadow = self._new(ask)
        self._shadows[ask.key] = shadow  # the last in the order of being asked about
        length = len(ask.tokens)
        # Up to prompt_length it was the sequence's own tokens already the last time; drafts follow.
        same = shadow.prompt_length
        end = min(shadow.length, length)
        differing = np.flatnonzero(shadow.tokens[same:end] != ask.tokens[same:end])
        common = same + int(differing[0]) if len(differing) else end
        if length > len(shadow.tokens):
            shadow.tokens = np.resize(shadow.tokens, 2 * length)
        shadow.tokens[same:length] = ask.tokens[same:]
        shadow.length = shadow.prompt_length = length
        shadow.last = int(ask.tokens[-1])
        shadow.computed = min(shadow.computed, common, length - 1)
        self._blocks.truncate(held(shadow), shadow.computed)
        return shadow

    def _new(self, ask: Ask) -> Sequence:
        request = EngineRequest(ask.key, ask.tokens.tolist(), _GREEDY)
        chain = self._blocks.new_chain(CacheKey(""))
        shadow = Sequence.create(request, chain, 0, 0, frozenset())
        shadow.status = Status.RUNNING
        shadow.blocks = self._blocks.open(chain, Match([]))
        return shadow

    def _catch_up(self, wanted: dict[Sequence, int]) -> list[Sequence]:
        """Compute what is missing of shadows, in one step; those that are complete, with one draft each."""
        room = self._max_tokens
        works: list[tuple[Sequence, int]] = []
        for shadow in sorted(wanted, key=lambda one: one.pending):
            tokens = min(shadow.pending, room)
            if tokens:
                works.append((shadow, tokens))
                room -= tokens
        return self._run(works)

    def _run(self, parts: list[tuple[Sequence, int]]) -> list[Sequence]:
        """Compute the next tokens of shadows, as far as there are blocks; those that got one more token from it."""
        works: list[Work] = []
        for shadow, tokens in parts:
            blocks = held(shadow)
            if self._blocks.can_append(blocks, shadow.computed + tokens):
                works.append(Work(shadow, tokens, blocks.length, tokens == shadow.pending))
                self._blocks.append(blocks, shadow.computed + tokens, shadow.computed)
        if not works:
            return []
        works.sort(key=lambda work: work.tokens > 1)
        rows = rows_of(works)
        self._executor.run(self._batch.build(works))
        ids = self._executor.sample(self._rows.build(rows)).ids.tolist() if rows else []
        grown = [work.sequence for work in works if work.samples]
        for work in works:
            work.sequence.computed += work.tokens
        for shadow, token in zip(grown, ids, strict=True):
            shadow.append(token)
        return grown

    def forget(self, key: str) -> None:
        shadow = self._shadows.pop(key, None)
        if shadow is not None and shadow.blocks is not None:
            self._blocks.close(shadow.blocks)
            shadow.blocks = None

    def close(self) -> None:
        for key in list(self._shadows):
            self.forget(key)
        self._executor.close()


def _drafts(shadow: Sequence) -> list[int]:
    """What a shadow holds beyond its sequence's tokens."""
    drafts: list[int] = shadow.tokens[shadow.prompt_length : shadow.length].tolist()
    return drafts


def load(bundle: Bundle, config: EngineConfig) -> Proposer:
    """The draft model that the configuration names, for the model of `bundle`.

    Raises ConfigError when none is named or its vocabulary is another one, and what loading a bundle raises.
    """
    if config.draft_bundle is None:
        raise ConfigError(
            "There is no draft model.",
            why="speculation is 'draft'.",
            remedy="Name its bundle (draft_bundle).",
            param="draft_bundle",
        )
    with Bundle.open(config.draft_bundle, check=config.check) as draft:
        check_vocabularies(bundle, draft)
        executor = load_executor(draft, msgspec.structs.replace(config, precision=None))
        return DraftModel(
            executor,
            context_length=draft.manifest.dimensions.context_length,
            max_sequences=config.max_sequences,
            max_tokens=config.max_step_tokens,
        )


def check_vocabularies(target: Bundle, draft: Bundle) -> None:
    """Raise ConfigError unless two bundles' tokenizers have the same entries under the same ids."""
    if _vocabulary(draft) != _vocabulary(target):
        raise ConfigError(
            f"{draft.path.name} has another vocabulary than {target.path.name}.",
            why="A draft model has to name tokens by the same ids.",
            remedy="Use a smaller model of the same family.",
            param="draft_bundle",
        )


def _vocabulary(bundle: Bundle) -> dict[str, int]:
    """Every entry of a bundle's tokenizer with its id."""
    path = bundle.file(f"{TOKENIZER_FOLDER}/{TOKENIZER_FILE}")
    try:
        description: dict[str, Any] = json.loads(path.read_bytes())
        vocabulary = description["model"]["vocab"]
        if isinstance(vocabulary, list):
            vocabulary = {entry[0]: number for number, entry in enumerate(vocabulary)}
        added = {entry["content"]: entry["id"] for entry in description.get("added_tokens", ())}
        return {**vocabulary, **added}
    except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        raise BundleDamaged(
            f"The tokenizer {path} cannot be read.", why=str(error), remedy="Export the bundle again."
        ) from error
