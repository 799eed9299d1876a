"""Sequence: the one record of a request that is carried through queue, batch and commit."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import numpy as np

from ops.errors import EngineError
from rtcore.decoding.state import DecodingState
from rtcore.executor.base import Int64
from rtcore.kvcache.hash_chain import HashChain
from rtcore.kvcache.sequence_blocks import SequenceBlocks
from rtcore.kvcache.swap import SavedBlocks
from rtcore.request import EngineRequest, FinishReason

_ROOM = 64


class Status(Enum):
    """Where a sequence is: queued without blocks, in the running set with blocks, or done."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(slots=True, eq=False)
class Sequence:
    """One request and its tokens.

    tokens: int64, prompt and generated ids in tokens[:length], the rest is room to grow. computed: tokens
    whose K and V are in the cache; when it reaches length - 1 only the newest is left, and the next step
    decodes. decoding: what its next token depends on besides logits. order: place in the queue, smaller first.
    stop_ids: ids that end it, the model's (not under ignore_eos) and its own. limit: length at which it ends.
    blocks: None while waiting. last: the newest token. chain: the digests of its blocks. saved: what a preemption
    copied to host memory. submitted, started: seconds of the engine's clock, started None until it leaves the queue
    for the first time. long: which lane it belongs to. frontier: while its prompt is computed, the digest of the
    block that is next. charged: tokens that its tenant was charged for. needed: blocks of each group that it lacked
    when it last could not start. source: while a step is made before the tokens of
    the one before are known, the row of that one which chooses the newest token; -1 otherwise.
    """

    request: EngineRequest
    decoding: DecodingState
    chain: HashChain
    order: tuple[float, int]
    stop_ids: frozenset[int]
    tokens: Int64
    length: int
    prompt_length: int
    computed: int = 0
    blocks: SequenceBlocks | None = None
    status: Status = Status.WAITING
    limit: int = 0
    last: int = 0
    tenant: str = ""
    priority: int = 0
    saved: SavedBlocks | None = None
    submitted: float = 0.0
    started: float | None = None
    long: bool = False
    frontier: int | None = None
    charged: int = 0
    needed: list[int] | None = None
    source: int = -1

    @classmethod
    def create(
        cls,
        request: EngineRequest,
        chain: HashChain,
        number: int,
        seed: int,
        stop_ids: frozenset[int],
        submitted: float = 0.0,
    ) -> Sequence:
        """A waiting sequence of a request whose params.max_tokens is set; number: order of submission."""
        params = request.params
        prompt_length = len(request.prompt_ids)
        tokens = np.empty(prompt_length + _ROOM, np.int64)
        tokens[:prompt_length] = request.prompt_ids
        ignored = params.ignore_eos and params.structured_outputs is None
        ends = frozenset(params.stop_token_ids) | (frozenset() if ignored else stop_ids)
        return cls(
            request=request,
            decoding=DecodingState(params, tokens[:prompt_length], seed, ends),
            chain=chain,
            order=(request.arrival, number),
            stop_ids=ends,
            tokens=tokens,
            length=prompt_length,
            prompt_length=prompt_length,
            limit=prompt_length + (params.max_tokens or 0),
            last=request.prompt_ids[-1],
            tenant=request.tenant,
            priority=request.priority,
            submitted=submitted,
        )

    @property
    def reads_cache(self) -> bool:
        """Whether it may begin with cached blocks: not while logits of its prompt are still wanted."""
        decoding = self.decoding
        scored = not decoding.scores_prompt or decoding.prompt_scored == self.prompt_length
        return scored and self.request.read_cache

    @property
    def prompt_only(self) -> bool:
        """Whether nothing that is generated counts, only the prompt."""
        return self.limit == self.prompt_length

    @property
    def pending(self) -> int:
        """Known tokens that are not in the cache yet; 1 for a sequence that decodes."""
        return self.length - self.computed

    def expect(self, source: int) -> None:
        """Count a token that row `source` of the running step will choose."""
        self._make_room()
        self.tokens[self.length] = self.last = 0
        self.length += 1
        self.source = source

    def unexpect(self) -> None:
        """Be again as before `expect`; nothing happens where no token is expected."""
        if self.source >= 0:
            self.source = -1
            self.length -= 1
            self.last = self.tokens.item(self.length - 1)

    def _make_room(self) -> None:
        if self.length == len(self.tokens):
            larger = np.empty(2 * self.length, np.int64)
            larger[: self.length] = self.tokens
            self.tokens = larger

    def append(self, token: int) -> FinishReason | None:
        """Add a generated token; the reason if the sequence ends with it."""
        self._make_room()
        self.tokens[self.length] = self.last = token
        self.length += 1
        self.decoding.take(token)
        return self.reason(token, self.length)

    def reason(self, token: int, length: int) -> FinishReason | None:
        """Why the sequence would end with a token that makes it `length` long; None if it goes on."""
        if token in self.stop_ids:
            return "stop"
        return "length" if length >= self.limit else None

    def stop_reason(self, token: int) -> int | None:
        """The token, if it is one of the stop ids that the request itself named."""
        return token if token in self.request.params.stop_token_ids else None


def held(sequence: Sequence) -> SequenceBlocks:
    """The blocks of a running sequence."""
    if sequence.blocks is None:
        raise EngineError(f"Sequence {sequence.request.id} runs without blocks.")
    return sequence.blocks
