"""Makes golden.json: what transformers answers with each precision's weights, and how far a replay may be off.

The bound of a precision is derived, not chosen. For float32 weights the same model runs in float64: how far
float32 is from it is the noise of the arithmetic. For weights in integers the reference runs once more with the
graph's other rounding simulated (activations to int8 by row and group, keys and values to the cache's type): how
far that run is from the plain one is what this rounding does to logits. A replay rounds the same way, but on
values that differ in their last bits, so single codes fall differently and its deviation is another draw of the
same kind; the bound is a stated multiple of the one that was measured. A model may amplify this rounding until
hardly a position is decided beyond it; therefore such a precision gets a second bound, for a replay that keeps
activations exact: it comes from a run that rounds keys and values alone, and from the noise of float32.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from export.capture import CapturedModel
from export.checkpoint.base import Checkpoint
from export.golden_prompts import golden_prompts
from export.lowering import LoweredModel
from export.reference import Reference
from rtcore.golden import Golden, GoldenPrecision, GoldenPrompt, golden_key
from rtcore.machine import available_memory

TOP = 16
POSITIONS = 12
GREEDY = 16
#: Multiples of the measured deviation. Rounding to int8 dominates its own deviation, so another draw of it stays
#: within twice; the noise of float32 also varies with the order in which kernels add, hence ten times.
ROUNDING_MULTIPLE = 2.0
NOISE_MULTIPLE = 10.0
#: No float32 computation of logits is trusted to better than this share of the largest.
NOISE_FLOOR = 2.0**-20

Float32 = NDArray[np.float32]


def obstacle(captured: CapturedModel, lowered: Sequence[LoweredModel]) -> str:
    """Why no reference run can be made on this machine; empty if one can."""
    width = 12 if any(not model.quantised for model in lowered) else 4
    head = captured.dimensions.vocab_size * captured.dimensions.hidden_size
    needed = width * (captured.dimensions.parameters + head)
    free = available_memory()
    if free is None or needed <= free:
        return ""
    return (
        f"The reference run needs {needed / 1e9:.1f} GB of memory for its weights; {free / 1e9:.1f} GB were free "
        "where the bundle was exported."
    )


def golden(
    captured: CapturedModel,
    lowered: Sequence[LoweredModel],
    checkpoint: Checkpoint,
    config: Mapping[str, Any],
    tokenizer: Path,
    report: Callable[[str], None] = lambda _: None,
) -> Golden:
    """The record of every precision; `tokenizer` is the folder with the bundle's tokenizer.json, if any.

    report is told of each precision before it runs. Raises CheckpointError when the checkpoint lacks a weight.
    """
    prompts = golden_prompts(tokenizer, captured.dimensions.vocab_size, captured.dimensions.context_length)
    precisions = {}
    for model in lowered:
        name = golden_key(str(model.recipe["precision"]), "cpu" if model.float_type == "float32" else "cuda")
        report(f"Running transformers with the weights of {name}")
        reference = Reference(config, captured, model, captured.reader(checkpoint))
        precisions[name] = _record(reference, model, prompts, captured.dimensions.context_length)
    return Golden(precisions)


def _record(
    reference: Reference, lowered: LoweredModel, prompts: Mapping[str, list[int]], context_length: int
) -> GoldenPrecision:
    positions = {name: _positions(tokens) for name, tokens in prompts.items()}
    logits = {name: reference.logits(tokens, positions[name]) for name, tokens in prompts.items()}
    best = {name: np.argsort(-rows, axis=1, kind="stable")[:, :TOP] for name, rows in logits.items()}
    largest = max(float(np.abs(rows).max()) for rows in logits.values())
    greedy: dict[str, list[int]] = {}
    exact: tuple[float, str] | None = None
    halved = lowered.float_type != "float32"
    if halved:
        reference.to_half()
        other = {name: reference.logits(tokens, positions[name]) for name, tokens in prompts.items()}
    elif lowered.quantised:
        other = {name: reference.rounded_logits(tokens, positions[name]) for name, tokens in prompts.items()}
        cached = {
            name: reference.rounded_logits(tokens, positions[name], activations=False)
            for name, tokens in prompts.items()
        }
        exact = _exact_bound(_largest_difference(logits, cached), largest)
    else:
        for name, tokens in prompts.items():
            greedy[name] = reference.greedy(tokens, min(GREEDY, context_length - len(tokens)))
        reference.to_float64()
        other = {name: reference.logits(tokens, positions[name]) for name, tokens in prompts.items()}
    measured = _largest_difference(logits, other)
    if halved:
        bound, derivation = _half_bound(measured, lowered.float_type)
    else:
        bound, derivation = _bound(bool(lowered.quantised), measured, largest)
    return GoldenPrecision(
        bound=bound,
        derivation=derivation,
        prompts=[
            GoldenPrompt(
                name=name,
                token_ids=tokens,
                positions=positions[name],
                top_ids=best[name].tolist(),
                top_logits=np.take_along_axis(logits[name], best[name], axis=1).tolist(),
                greedy=greedy.get(name, []),
            )
            for name, tokens in prompts.items()
        ],
        exact_bound=None if exact is None else exact[0],
        exact_derivation="" if exact is None else exact[1],
    )


def _largest_difference(left: Mapping[str, Float32], right: Mapping[str, Float32]) -> float:
    return max(float(np.abs(rows - right[name]).max()) for name, rows in left.items())


def _positions(tokens: Sequence[int]) -> list[int]:
    """Evenly spread positions of a sequence, the first and the last among them."""
    count = min(POSITIONS, len(tokens))
    return sorted({round(index) for index in np.linspace(0, len(tokens) - 1, count).tolist()})


def _half_bound(measured: float, float_type: str) -> tuple[float, str]:
    return ROUNDING_MULTIPLE * measured, (
        f"{ROUNDING_MULTIPLE:g} times {measured:.3g}: how far the reference moves when transformers computes in "
        f"{float_type}, rounding what each operator gives, over all recorded positions."
    )


def _exact_bound(measured: float, largest: float) -> tuple[float, str]:
    noise = NOISE_FLOOR * largest
    return ROUNDING_MULTIPLE * measured + NOISE_MULTIPLE * noise, (
        f"{ROUNDING_MULTIPLE:g} times {measured:.3g}: how far the reference moves when keys and values are rounded "
        f"to the cache's type, over all recorded positions; and {NOISE_MULTIPLE:g} times 2^-20 of the largest "
        f"logit ({largest:.3g}) for the noise of float32."
    )


def _bound(rounded: bool, measured: float, largest: float) -> tuple[float, str]:
    if rounded:
        return ROUNDING_MULTIPLE * measured, (
            f"{ROUNDING_MULTIPLE:g} times {measured:.3g}: how far the reference moves when activations are rounded "
            "to int8 by row and group and keys and values to the cache's type, over all recorded positions."
        )
    noise = max(measured, NOISE_FLOOR * largest)
    return NOISE_MULTIPLE * noise, (
        f"{NOISE_MULTIPLE:g} times {noise:.3g}: how far the reference in float32 is from itself in float64 "
        f"({measured:.3g}), but at least 2^-20 of the largest logit ({largest:.3g})."
    )
