"""Every quantised form of GGUF, kept as it is: exported, run, and held against the dequantised weights."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("onnx_ir")
pytest.importorskip("gguf")

from export.capture import capture
from export.capture.captured import CapturedModel
from export.checkpoint.gguf import GGUFCheckpoint
from export.lowering import lower
from export.recipe import recipe_for
from export.reference import Reference
from rtcore import LLM, SamplingParams
from server.cli import main
from tests.export.gguf_files import VOCAB, sizes, write_gguf
from tests.export.paged_run import PagedRun, two_sequences

pytestmark = pytest.mark.export

HIDDEN, HEADS, KV_HEADS, WIDTH, INNER = 256, 4, 2, 64, 512
SHAPES = {
    "token_embd.weight": (VOCAB, HIDDEN),
    "blk.0.attn_q.weight": (HEADS * WIDTH, HIDDEN),
    "blk.0.attn_k.weight": (KV_HEADS * WIDTH, HIDDEN),
    "blk.0.attn_v.weight": (KV_HEADS * WIDTH, HIDDEN),
    "blk.0.attn_output.weight": (HIDDEN, HEADS * WIDTH),
    "blk.0.ffn_gate.weight": (INNER, HIDDEN),
    "blk.0.ffn_up.weight": (INNER, HIDDEN),
    "blk.0.ffn_down.weight": (HIDDEN, INNER),
}
NORMS = ("output_norm.weight", "blk.0.attn_norm.weight", "blk.0.ffn_norm.weight")

#: What the gguf package quantises to, and the super-blocks of 256 that it only reads.
SIMPLE = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0")
SUPER = ("Q4_K", "Q5_K", "Q6_K")
#: Bytes of a super-block, where its float16 scales lie, and factors that centre its weights near zero.
LAYOUTS = {"Q4_K": (144, {0: 3.5e-4, 2: 2.6e-3}), "Q5_K": (176, {0: 1.7e-4, 2: 2.6e-3}), "Q6_K": (210, {208: 4e-5})}

FIRST, SECOND = list(range(3, 24)), list(range(5, 22))


def stored(kind: str, shape: tuple[int, int], random: np.random.Generator) -> Any:
    """A random matrix, as floats or, for a type that the package does not quantise to, as its bytes."""
    if kind in SIMPLE:
        return random.standard_normal(shape, dtype=np.float32) * np.float32(0.06)
    size, scales = LAYOUTS[kind]
    blocks = random.integers(0, 256, (shape[0], shape[1] // 256, size), dtype=np.uint8)
    for at, scale in scales.items():
        values = (scale * random.uniform(0.8, 1.2, blocks.shape[:2])).astype("<f2")
        blocks[:, :, at : at + 2] = values[:, :, None].view(np.uint8)
    return blocks.reshape(shape[0], -1)


def write(path: Path, kind: str) -> Path:
    """A Llama of one layer with all its matrices in one form."""
    random = np.random.default_rng(len(kind) + ord(kind[1]) + ord(kind[-1]))
    tensors = {name: (stored(kind, shape, random), kind) for name, shape in SHAPES.items()}
    tensors |= {name: (random.uniform(0.5, 1.5, HIDDEN).astype(np.float32), "F32") for name in NORMS}
    changes = {
        "block_count": 1, "embedding_length": HIDDEN, "feed_forward_length": INNER, "rope.dimension_count": WIDTH,
    }  # fmt: skip
    return write_gguf(path, "llama", sizes(**changes), tensors)


@cache
def captured_of(path: Path) -> CapturedModel:
    """The capture, which is the same for all files: they differ in weights alone."""
    return capture(GGUFCheckpoint(path).config)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> CapturedModel:
    return captured_of(write(tmp_path_factory.mktemp("shared") / "small.gguf", "Q8_0"))


@pytest.mark.parametrize("kind", SIMPLE + SUPER)
def test_logits_are_those_of_the_dequantised_weights(kind: str, shared: CapturedModel, tmp_path: Path) -> None:
    """Exactly with activations in float32; within twice what rounding activations does with int8."""
    checkpoint = GGUFCheckpoint(write(tmp_path / "small.gguf", kind))
    recipe = replace(recipe_for("native"), cache_dtype="float32")
    lowered = lower(shared, recipe, shared.reader(checkpoint))
    assert lowered.quantised and all(weight.quantised.passes_through for weight in lowered.quantised)
    reference = Reference(checkpoint.config, shared, lowered, shared.reader(checkpoint))
    positions = list(range(len(FIRST)))
    plain = reference.logits(FIRST, positions)
    exact, rounded = (
        two_sequences(PagedRun(lowered, tmp_path / f"{mode}.onnx", mode), FIRST, SECOND)["first"]
        for mode in ("float32", "int8")
    )
    # Some ten sums of at most 512 terms follow one another, each off by about sqrt(512) * 2^-24 of its own terms.
    bound = 10 * 6 * np.sqrt(512) * 2.0**-24 * np.abs(plain).max()
    assert np.abs(exact - plain).max() <= bound
    effect = np.abs(plain - reference.rounded_logits(FIRST, positions)).max()
    assert bound < np.abs(rounded - plain).max() <= 2 * effect


@pytest.mark.slow
@pytest.mark.parametrize("kind", SIMPLE + SUPER)
def test_the_engine_says_what_the_dequantised_weights_say(kind: str, tmp_path: Path) -> None:
    """Exported by the command; greedy tokens of the exact mode against those of the precision fp32."""
    source, bundle = write(tmp_path / "small.gguf", kind), tmp_path / "bundle"
    options = ["--precision", "native,fp32", "--cache-dtype", "float32"]
    assert main(["export", str(source), "--out", str(bundle), *options]) == 0
    params = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
    answers = []
    for settings in ({"precision": "fp32"}, {"precision": "native", "activations": "float32"}):
        with LLM(bundle, threads=1, cache_bytes=1 << 22, **settings) as llm:
            found = llm.generate(["hello world", "12"], params)
            answers.append([output.outputs[0].token_ids for output in found])
    assert answers[0] == answers[1]
