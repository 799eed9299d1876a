"""The likelihood of a text under the precisions of a bundle, teacher-forced through the executor."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from ops.errors import ConfigError
from rtcore.bundle import Bundle
from rtcore.config import EngineConfig
from rtcore.executor.registry import load_executor
from rtcore.manifest import TOKENIZER_FOLDER
from rtcore.text.tokenizer import TOKENIZER_FILE, Tokenizer
from rtcore.verify import TeacherForced

_REFERENCE = "fp32"
_SHOWN_KEYS = ("bits", "group", "symmetric")


class Likelihood(msgspec.Struct, frozen=True):
    """One precision of one bundle on one text. window_nll: mean negative log-likelihood of a token, in nats, of
    each window; every window of `context` tokens has context - 1 scored ones."""

    bundle: str
    precision: str
    recipe: dict[str, Any]
    context: int
    scored: int
    window_nll: list[float]
    nll: float
    perplexity: float


def measure(
    path: Path, text: str, precisions: list[str] | None, context: int, windows: int, config: EngineConfig
) -> list[Likelihood]:
    """The likelihood of `text` under `precisions` of the bundle at `path`, or under all of them for the target.

    The text is cut into windows of `context` tokens, each predicted from its own beginning. Raises ConfigError
    where the text is shorter than one window or the model's context shorter than `context`.
    """
    with Bundle.open(path, check=config.check) as bundle:
        manifest = bundle.manifest
        if context > manifest.dimensions.context_length:
            raise ConfigError(
                f"--context is {context}; the model's context is {manifest.dimensions.context_length}.",
                param="context",
            )
        tokenizer = Tokenizer.open(bundle.file(f"{TOKENIZER_FOLDER}/{TOKENIZER_FILE}"), manifest.text)
        parts = _windows(tokenizer, text, context, windows, add_bos=manifest.text.add_bos)
        wanted = precisions or [item.precision for item in manifest.variants if item.target == config.target]
        found = []
        for precision in wanted:
            variant = bundle.variant(precision, config.target)
            executor = load_executor(bundle, msgspec.structs.replace(config, precision=precision))
            try:
                replay = TeacherForced(executor, context)
                losses = [_window_nll(replay, ids) for ids in parts]
            finally:
                executor.close()
            mean = sum(losses) / len(losses)
            found.append(
                Likelihood(
                    bundle=path.name,
                    precision=precision,
                    recipe=variant.recipe,
                    context=context,
                    scored=len(parts) * (context - 1),
                    window_nll=losses,
                    nll=mean,
                    perplexity=math.exp(mean),
                )
            )
    return found


def _windows(tokenizer: Tokenizer, text: str, context: int, windows: int, *, add_bos: bool) -> list[list[int]]:
    """Consecutive windows of `context` tokens; where prompts begin with BOS, so does each window."""
    start = [tokenizer.bos_id] if add_bos and tokenizer.bos_id is not None else []
    size = context - len(start)
    ids = tokenizer.encode(text, add_special_tokens=False)[: windows * size]
    if len(ids) < size:
        raise ConfigError(
            f"The text has {len(ids)} tokens, and one window has {size}.",
            remedy="Give a longer text or a shorter --context.",
        )
    return [start + ids[first : first + size] for first in range(0, len(ids) - size + 1, size)]


def _window_nll(replay: TeacherForced, ids: list[int]) -> float:
    """Mean negative log-likelihood of ids[1:], each given those before it, in nats."""
    targets = np.asarray(ids[1:])
    total = 0.0
    for inside, logits in replay.parts(ids, list(range(len(ids) - 1))):
        total += float(_losses(logits, targets[inside]).sum())
    return total / len(targets)


def _losses(logits: NDArray[np.float32], targets: NDArray[np.int64]) -> NDArray[np.float64]:
    """-log softmax(logits)[target] of each row: logits float32 [S, vocabulary], targets [S]."""
    highest = logits.max(axis=1)
    sums = np.exp(logits - highest[:, None]).sum(axis=1, dtype=np.float64)
    chosen = logits[np.arange(len(targets)), targets].astype(np.float64)
    losses: NDArray[np.float64] = np.log(sums) + highest - chosen
    return losses


def table(found: list[Likelihood]) -> str:
    """The likelihoods as a table, each against the first of fp32."""
    reference = next((item for item in found if item.precision == _REFERENCE), None)
    width = max(len(item.bundle) for item in found)
    lines = []
    for item in found:
        against = "" if reference is None else f"{item.perplexity / reference.perplexity - 1:+9.2%}"
        recipe = ", ".join(f"{key} {item.recipe[key]}" for key in _SHOWN_KEYS if key in item.recipe)
        lines.append(
            f"{item.bundle:{width}}  {item.precision:8} {item.perplexity:9.4f} {against}  {recipe}".rstrip()
        )
    shown = "" if reference is None else ", change against fp32"
    return f"Perplexity of {found[0].scored} tokens in windows of {found[0].context}{shown}\n" + "\n".join(lines)
