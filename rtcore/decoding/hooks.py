"""Hooks: logits processors and stop rules of the user's own, found by entry point.

docs/decoding.md shows one of each.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence as Rows
from dataclasses import dataclass, replace
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ops.errors import EngineError, InvalidRequest, OrtolanError
from ops.sample_columns import NO_LOGPROBS, Number
from rtcore.decoding.params import Hook
from rtcore.executor.base import Executor, Float32
from rtcore.executor.sample_arrays import SampleInputs, SampleOutputs

if TYPE_CHECKING:
    from rtcore.decoding.rows import Row
    from rtcore.decoding.stage import Drawn
    from rtcore.sequence import Sequence

logger = logging.getLogger(__name__)

PROCESSORS = "ortolan.logits_processors"
STOP_RULES = "ortolan.stop_rules"


@dataclass(slots=True)
class HookRow:
    """One sequence as a hook sees it.

    state: what the hook's `begin` returned for its request; the hook may change it. It stays with the request
    through preemptions. tokens: ids int64 [n] of prompt and answer so far, not to be changed. prompt_length: how
    many of them are the prompt's.
    """

    state: Any
    tokens: NDArray[np.int64]
    prompt_length: int


class LogitsProcessor(Protocol):
    """Changes logits before a token is chosen. One object serves all requests of an engine."""

    def begin(self, options: dict[str, Any], prompt: NDArray[np.int64], vocab_size: int) -> Any:
        """The state of a new request; InvalidRequest refuses it."""

    def apply(self, logits: Float32, rows: Rows[HookRow]) -> None:
        """Change logits float32 [n, V] in place, one row for each of `rows`."""


class StopRule(Protocol):
    """Ends sequences. One object serves all requests of an engine."""

    def begin(self, options: dict[str, Any], prompt: NDArray[np.int64], vocab_size: int) -> Any:
        """The state of a new request; InvalidRequest refuses it."""

    def check(self, rows: Rows[HookRow]) -> Rows[str | None]:
        """For each row, whose newest token is its last, why the sequence ends with it; None where it goes on."""


class Hooks:
    """The hooks that are installed here, loaded when a request first names them."""

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._loaded: dict[tuple[str, str], Any] = {}

    def attach(self, sequence: Sequence) -> None:
        """Begin the hooks that a sequence's request names. Raises InvalidRequest where there is none of a name."""
        params = sequence.request.params
        if not (params.logits_processors or params.stop_rules):
            return
        prompt = sequence.tokens[: sequence.prompt_length]
        state = sequence.decoding
        state.processors = [self._begin(PROCESSORS, hook, prompt) for hook in params.logits_processors]
        state.stop_rules = [self._begin(STOP_RULES, hook, prompt) for hook in params.stop_rules]

    def _begin(self, group: str, hook: Hook, prompt: NDArray[np.int64]) -> tuple[Any, Any]:
        loaded = self._load(group, hook.name)
        try:
            return loaded, loaded.begin(hook.options, prompt, self._vocab_size)
        except OrtolanError:
            raise
        except Exception as error:
            logger.exception("%s %s refused a request with an error without a type", group, hook.name)
            raise InvalidRequest(
                f"{hook.name} cannot take this request.",
                why=f"{type(error).__name__}: {error}",
                param=_field(group),
            ) from error

    def _load(self, group: str, name: str) -> Any:
        """The hook of a name. Other code's errors of any kind become typed ones here."""
        if (group, name) in self._loaded:
            return self._loaded[group, name]
        found = {entry.name: entry for entry in entry_points(group=group)}
        if name not in found:
            raise InvalidRequest(
                f"There is no {name!r} among the {_field(group)} of this engine.",
                why=f"It has {', '.join(sorted(found)) or 'none'}.",
                param=_field(group),
            )
        try:
            made = found[name].load()()
        except Exception as error:
            logger.exception("%s %s cannot be loaded", group, name)
            raise InvalidRequest(
                f"{name} cannot be loaded by this engine.",
                why=f"{type(error).__name__}: {error}",
                param=_field(group),
            ) from error
        self._loaded[group, name] = made
        return made

    def sample(
        self, executor: Executor, rows: list[Row], inputs: SampleInputs
    ) -> tuple[SampleOutputs, dict[int, OrtolanError]]:
        """Apply the rows' processors, then sample. Also what failed, by row; the outputs of those mean nothing.

        Log-probabilities stay those of the model: where rows with processors ask for them, the chosen tokens are
        scored again by the logits as they were.
        """
        chosen = np.array([number for number, row in enumerate(rows) if row.processed])
        raw = executor.logits()[chosen]
        edited = raw.copy()
        failures = self._apply([rows[number] for number in chosen.tolist()], edited)
        executor.put_logits(chosen, edited)
        outputs = executor.sample(inputs)
        failed = {int(chosen[number]): error for number, error in failures.items()}
        if (inputs.numbers[chosen, Number.LOGPROBS] != NO_LOGPROBS).any():
            outputs = _rescored(executor, inputs, outputs, chosen, raw)
        return outputs, failed

    def _apply(self, rows: list[Row], logits: Float32) -> dict[int, OrtolanError]:
        """Change logits float32 [n, V] of rows that all have processors; the errors of those where one failed."""
        failures: dict[int, OrtolanError] = {}
        for level in range(max(len(row.sequence.decoding.processors) for row in rows)):
            users: dict[int, tuple[Any, list[int]]] = {}  # by identity: a hook need not be hashable
            for number, row in enumerate(rows):
                processors = row.sequence.decoding.processors
                if level < len(processors) and number not in failures:
                    hook = processors[level][0]
                    users.setdefault(id(hook), (hook, []))[1].append(number)
            for processor, numbers in users.values():
                part = logits[numbers]
                views = [_view(rows[number].sequence, "processors", level) for number in numbers]
                try:
                    processor.apply(part, views)
                except Exception as error:
                    # Code of the user's own may raise anything; it ends the requests that use it and no others.
                    failures.update(dict.fromkeys(numbers, _broken(processor, error)))
                    continue
                logits[numbers] = part
        return failures

    def stop(self, drawn: list[Drawn]) -> None:
        """Ask the stop rules of sequences that got a token, and note in each what they say."""
        asked = [one for one in drawn if one.tokens and one.sequence.decoding.stop_rules]
        if not asked:
            return
        for level in range(max(len(one.sequence.decoding.stop_rules) for one in asked)):
            users: dict[int, tuple[Any, list[Drawn]]] = {}
            for one in asked:
                rules = one.sequence.decoding.stop_rules
                if level < len(rules) and one.stop is None and one.failure is None:
                    users.setdefault(id(rules[level][0]), (rules[level][0], []))[1].append(one)
            for rule, some in users.values():
                views = [_view(one.sequence, "stop_rules", level, one.tokens) for one in some]
                try:
                    said = [None if reason is None else str(reason) for reason in rule.check(views)]
                    for one, reason in zip(some, said, strict=True):
                        one.stop = reason
                except Exception as error:
                    # As above.
                    for one in some:
                        one.failure = _broken(rule, error)


def _view(sequence: Sequence, kind: str, level: int, new: Rows[int] = ()) -> HookRow:
    """A sequence, and tokens that it is about to get, as the hook at a level of its list sees it."""
    tokens = sequence.tokens[: sequence.length]
    if new:
        tokens = np.concatenate([tokens, np.array(new, np.int64)])
    tokens.flags.writeable = False
    return HookRow(getattr(sequence.decoding, kind)[level][1], tokens, sequence.prompt_length)


def _rescored(
    executor: Executor, inputs: SampleInputs, outputs: SampleOutputs, rows: NDArray[np.int64], raw: Float32
) -> SampleOutputs:
    """The same ids with log-probabilities by `raw`, the logits of `rows` as they were.

    No row chooses again: one whose newest token the step before chose would count another in its place.
    """
    ids, status = outputs.ids.copy(), outputs.status.copy()
    executor.put_logits(rows, raw)
    numbers = inputs.numbers.copy()
    numbers[:, Number.FORCED] = ids
    scored = executor.sample(replace(inputs, numbers=numbers))
    return replace(scored, ids=ids, status=status)


def _broken(hook: Any, error: Exception) -> EngineError:
    name = type(hook).__name__
    logger.error("%s failed", name, exc_info=error)
    return EngineError(f"{name}, which the request names, failed.", why=f"{type(error).__name__}: {error}")


def _field(group: str) -> str:
    return group.rpartition(".")[2]
