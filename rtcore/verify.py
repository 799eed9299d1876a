"""verify: hash a bundle and replay its golden logits on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from ops.errors import BundleDamaged, CacheTooSmall, VerificationFailed
from rtcore.bundle import Bundle
from rtcore.config import EngineConfig
from rtcore.decoding.params import SamplingParams
from rtcore.executor.base import Executor
from rtcore.executor.registry import load_executor
from rtcore.golden import Golden, GoldenPrecision, GoldenPrompt, PromptDeviation, compare, decode
from rtcore.kvcache.block_manager import BlockManager
from rtcore.kvcache.hash_chain import CacheKey
from rtcore.kvcache.match import Match
from rtcore.kvcache.policy import CachePolicy
from rtcore.manifest import GOLDEN_FILE, Variant
from rtcore.request import EngineRequest
from rtcore.scheduler.base import Work
from rtcore.scheduler.batch import BatchBuilder
from rtcore.sequence import Sequence

_CHUNK = 64
_DECODED = 4


class PrecisionReport(msgspec.Struct, frozen=True):
    """The replay of one precision for one target. exact: whether it was the replay that keeps activations in
    float32 where they are rounded to int8 otherwise. greedy_wrong: names of the prompts whose greedy tokens are
    not among the best here, by more than twice the bound."""

    precision: str
    target: str
    exact: bool
    bound: float
    prompts: list[PromptDeviation]
    greedy_wrong: list[str]

    @property
    def title(self) -> str:
        """What was replayed, in words."""
        return f"{self.precision} for {self.target}{' with exact activations' if self.exact else ''}"

    @property
    def ok(self) -> bool:
        return not self.greedy_wrong and all(prompt.within(self.bound) for prompt in self.prompts)

    @property
    def deviation(self) -> float:
        """The largest deviation of all prompts."""
        return max((prompt.deviation for prompt in self.prompts), default=0.0)


class VerifyReport(msgspec.Struct, frozen=True):
    """What was verified. replay_absent_because: why nothing was replayed, empty when something was."""

    bundle: str
    version: str
    files: int
    bytes: int
    replays: list[PrecisionReport]
    replay_absent_because: str = ""

    @property
    def ok(self) -> bool:
        return all(replay.ok for replay in self.replays)

    def require(self) -> None:
        """Raise VerificationFailed, with the numbers, when a replay left its bound."""
        for replay in self.replays:
            if not replay.ok:
                raise VerificationFailed(
                    f"{replay.title} does not reproduce its golden logits here.",
                    why=_cause(replay),
                    remedy="The files are as exported, so the kernels or ONNX Runtime compute differently on this "
                    "machine: try --kernels portable, and report it.",
                )


def verify(path: str | Path, config: EngineConfig) -> VerifyReport:
    """Check the bundle at `path` whole, then replay the precision that `config` names, or all for its target.

    Raises what Bundle.open and loading raise, and WrongTarget where the bundle has no such variant; a replay out of
    bounds is in the report.
    """
    with Bundle.open(path, check="full") as bundle:
        for variant in bundle.manifest.variants:
            bundle.read_graph(variant)
            if variant.sample is not None:
                bundle.read_graph(variant, variant.sample)
        replays, absent = _replays(bundle, config)
        return VerifyReport(
            bundle=str(bundle.path),
            version=bundle.manifest.version,
            files=len(bundle.manifest.files),
            bytes=sum(entry.size for entry in bundle.manifest.files),
            replays=replays,
            replay_absent_because=absent,
        )


def _replays(bundle: Bundle, config: EngineConfig) -> tuple[list[PrecisionReport], str]:
    """The replays, or none and why."""
    manifest = bundle.manifest
    if config.precision or config.target not in {variant.target for variant in manifest.variants}:
        bundle.variant(config.precision, config.target)
    if manifest.skeleton:
        return [], "The bundle is a skeleton without weights."
    if not manifest.golden:
        return [], manifest.golden_absent_because or "The bundle was exported without a reference run."
    golden = _read_golden(bundle)
    wanted = [
        variant
        for variant in manifest.variants
        if variant.target == config.target and config.precision in (None, variant.precision)
    ]
    records = [(variant, golden.record(variant.precision, variant.target)) for variant in wanted]
    recorded = [(variant, record) for variant, record in records if record is not None]
    if not recorded:
        names = ", ".join(variant.precision for variant in wanted)
        return [], f"{GOLDEN_FILE} has no record of {names}."
    return [replay for variant, record in recorded for replay in _replays_of(bundle, variant, record, config)], ""


def _read_golden(bundle: Bundle) -> Golden:
    try:
        return decode(bundle.file(GOLDEN_FILE).read_bytes())
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BundleDamaged(
            f"{GOLDEN_FILE} is damaged.", why=f"{error}.", remedy="Export the model anew.", param=GOLDEN_FILE
        ) from error


def _replays_of(
    bundle: Bundle, variant: Variant, record: GoldenPrecision, config: EngineConfig
) -> Iterator[PrecisionReport]:
    """One precision as it is served and, where its record has a bound for that, with exact activations."""
    if record.exact_bound is None or config.activations == "int8":
        yield _replay(bundle, variant, record, config)
    if record.exact_bound is not None:
        served_exactly = msgspec.structs.replace(config, activations="float32")
        yield _replay(bundle, variant, record, served_exactly, record.exact_bound)


def _replay(
    bundle: Bundle,
    variant: Variant,
    record: GoldenPrecision,
    config: EngineConfig,
    exact_bound: float | None = None,
) -> PrecisionReport:
    """Replay all prompts of one precision, one by one; exact_bound: given where `config` makes it exact."""
    bound = record.bound if exact_bound is None else exact_bound
    longest = max((len(prompt.token_ids) + len(prompt.greedy) for prompt in record.prompts), default=1)
    vocabulary = bundle.manifest.dimensions.vocab_size
    for prompt in record.prompts:
        ids = [*prompt.token_ids, *prompt.greedy, *(token for row in prompt.top_ids for token in row)]
        if not 0 <= min(ids) <= max(ids) < vocabulary:
            raise BundleDamaged(
                f"{GOLDEN_FILE} names a token outside the vocabulary of {vocabulary}.",
                remedy="Export the model anew.",
                param=GOLDEN_FILE,
            )
    config = msgspec.structs.replace(config, precision=variant.precision, max_sequences=1)
    executor = load_executor(bundle, config)
    try:
        replay = TeacherForced(executor, longest)
        deviations, wrong = [], []
        for prompt in record.prompts:
            positions = [
                *prompt.positions,
                *range(len(prompt.token_ids) - 1, len(prompt.token_ids) - 1 + len(prompt.greedy)),
            ]
            logits = replay.run(prompt.token_ids + prompt.greedy, positions)
            deviations.append(compare(prompt, logits[: len(prompt.positions)], bound))
            if not _greedy_holds(prompt, logits[len(prompt.positions) :], bound):
                wrong.append(prompt.name)
    finally:
        executor.close()
    return PrecisionReport(variant.precision, variant.target, exact_bound is not None, bound, deviations, wrong)


def _greedy_holds(prompt: GoldenPrompt, logits: NDArray[np.float32], bound: float) -> bool:
    """Whether each greedy token is the best here, or behind it by no more than both runs may be off together.

    The reference preferred its token; if both runs are within `bound`, no other can lead it by over 2 * bound.
    """
    chosen = logits[np.arange(len(prompt.greedy)), prompt.greedy]
    return bool((logits.max(axis=1, initial=-np.inf) - chosen <= 2 * bound).all())


def _cause(replay: PrecisionReport) -> str:
    """The worst prompt in words."""
    worst = max(replay.prompts, key=lambda prompt: (not prompt.within(replay.bound), prompt.deviation))
    if not worst.within(replay.bound):
        return (
            f"Prompt {worst.name!r}: logits differ by {worst.deviation:.3g}, {replay.bound:.3g} is allowed; the "
            f"arg-max differs at {len(worst.flipped)} of {worst.decisive} decisive positions."
        )
    return f"Greedy tokens differ for {', '.join(replay.greedy_wrong)}."


class TeacherForced:
    """Runs given tokens through an executor as the engine would: prefill in chunks, then token by token."""

    def __init__(self, executor: Executor, longest: int) -> None:
        """longest: tokens of the longest run. Raises CacheTooSmall when the cache cannot hold them."""
        self._executor = executor
        self._blocks = BlockManager(
            executor.num_blocks,
            executor.block_size,
            max_sequences=1,
            max_length=longest,
            policy=CachePolicy(enabled=False),
        )
        if longest > self._blocks.capacity:
            raise CacheTooSmall(
                f"The cache holds {self._blocks.capacity} tokens, the longest golden prompt has {longest}.",
                remedy="Give the cache more memory (cache_bytes).",
                param="cache_bytes",
            )
        self._batch = BatchBuilder(max_tokens=_CHUNK, block_size=executor.block_size, tables=self._blocks.tables)

    def run(self, token_ids: list[int], positions: list[int]) -> NDArray[np.float32]:
        """Logits float32 [len(positions), vocabulary] after each of `positions`, which may come in any order."""
        logits = np.empty((len(positions), self._executor.vocab_size), np.float32)
        for inside, found in self.parts(token_ids, positions):
            logits[inside] = found
        return logits

    def parts(
        self, token_ids: list[int], positions: list[int]
    ) -> Iterator[tuple[NDArray[np.intp], NDArray[np.float32]]]:
        """The same step by step: indices into `positions`, and logits of them that the next step overwrites."""
        request = EngineRequest("replay", token_ids, SamplingParams(temperature=0.0, max_tokens=1))
        chain = self._blocks.new_chain(CacheKey(""))
        sequence = Sequence.create(request, chain, 0, 0, frozenset())
        sequence.blocks = self._blocks.open(chain, Match([]))
        self._blocks.append(sequence.blocks, sequence.length, 0)
        wanted = np.asarray(positions, np.int64)
        while sequence.pending:
            tokens = max(1, min(_CHUNK, sequence.pending - _DECODED))
            inputs = self._batch.build([Work(sequence, tokens, 0, tokens == sequence.pending)])
            inside = np.flatnonzero((wanted >= sequence.computed) & (wanted < sequence.computed + tokens))
            if len(inside):
                inputs = replace(inputs, logit_rows=wanted[inside] - sequence.computed)
            self._executor.run(inputs)
            if len(inside):
                yield inside, self._executor.logits()
            sequence.computed += tokens
        self._blocks.close(sequence.blocks)
