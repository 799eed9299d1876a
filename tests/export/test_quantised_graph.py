"""Graphs in int8 and int4 against transformers with the same dequantised weights, within a derived bound."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("onnx_ir")

from export.capture import capture
from export.checkpoint.gguf import GGUFCheckpoint
from export.lowering import LoweredModel, lower
from export.recipe import Recipe, recipe_for
from export.reference import Reference
from export.verify import golden
from ops.errors import ConfigError
from rtcore.golden import compare
from tests.export.cases import case
from tests.export.gguf_files import write_family
from tests.export.paged_run import PagedRun, two_sequences
from tests.export.tiny_families import VOCABULARY, ModelCheckpoint, random_model

pytestmark = pytest.mark.export

_RANDOM = np.random.default_rng(23)
FIRST = [int(token) for token in _RANDOM.integers(3, VOCABULARY, 21)]
SECOND = [int(token) for token in _RANDOM.integers(3, VOCABULARY, 17)]

#: A tied head, widths that no group divides, weights that are transposed, rows that are moved, experts.
NAMES = ["llama", "llama_odd_width", "gpt2", "gpt_neox", "qwen2_moe", "mixtral"]
TIED = "model.embed_tokens.weight.int8"
FORMS = [("int8", 32, True), ("int8", 128, False), ("int4", 32, False), ("int4", 64, True)]


def lowered_case(name: str, recipe: Recipe) -> tuple[LoweredModel, Reference]:
    chosen = case(name)
    lowered = chosen.lower(recipe)
    return lowered, Reference(chosen.config, chosen.captured, lowered, chosen.captured.reader(chosen.checkpoint))


@pytest.mark.parametrize(("precision", "group", "symmetric"), FORMS)
@pytest.mark.parametrize("name", NAMES)
def test_logits_are_within_the_bound_of_rounded_activations(
    name: str, precision: str, group: int, symmetric: bool, tmp_path: Path
) -> None:
    lowered, reference = lowered_case(name, recipe_for(precision, group=group, symmetric=symmetric))
    found = two_sequences(PagedRun(lowered, tmp_path / "step.onnx"), FIRST, SECOND)
    for key, tokens in (("first", FIRST), ("second", SECOND)):
        positions = list(range(len(tokens)))
        plain = reference.logits(tokens, positions)
        rounded = reference.rounded_logits(tokens, positions)
        bound = 2 * float(np.abs(plain - rounded).max())
        assert 0 < float(np.abs(found[key] - plain).max()) <= bound
        # The simulation rounds where the kernels round, so they are closer to it than to the reference.
        assert np.abs(found[key] - rounded).mean() < np.abs(found[key] - plain).mean()


def test_wrong_codes_leave_the_bound(tmp_path: Path) -> None:
    """One weight quantised in int4 where the reference has int8: the comparison must tell."""
    lowered, _ = lowered_case("llama", recipe_for("int4"))
    _, reference = lowered_case("llama", recipe_for("int8"))
    found = two_sequences(PagedRun(lowered, tmp_path / "step.onnx"), FIRST, SECOND)["first"]
    positions = list(range(len(FIRST)))
    plain = reference.logits(FIRST, positions)
    bound = 2 * float(np.abs(plain - reference.rounded_logits(FIRST, positions)).max())
    assert float(np.abs(found - plain).max()) > bound


def test_a_tied_head_and_its_embedding_share_their_bytes() -> None:
    lowered, _ = lowered_case("llama", recipe_for("int8"))
    graph = lowered.step.graph
    readers = [node.op_type for node in graph for value in node.inputs if value and value.name == TIED]
    assert sorted(readers) == ["QuantGather", "QuantMatMul"]
    assert [name for name in lowered.tensors if name.startswith("model.embed_tokens")] == [TIED]


def test_sensitive_weights_stay_higher() -> None:
    lowered, _ = lowered_case("llama", recipe_for("int4", sensitive=["model.layers.0.mlp.down_proj.*"]))
    bits = {weight.name: weight.quantised.form.bits for weight in lowered.quantised if weight.role == "linear"}
    assert bits.pop("model.layers.0.mlp.down_proj.weight") == 8
    assert set(bits.values()) == {4}
    assert "model.layers.0.mlp.down_proj.weight" in lowered.recipe["kept_higher"]


def test_head_and_embedding_in_the_bits_asked_for() -> None:
    lowered, _ = lowered_case("llama", recipe_for("int4", head_bits=4))
    assert {weight.quantised.form.bits for weight in lowered.quantised} == {4}
    assert lowered.recipe["head_bits"] == lowered.recipe["embedding_bits"] == 4


def test_a_layer_is_four_products_and_attention() -> None:
    """Norms, residuals and the gated activation are fused; the head's rows are chosen before its norm."""
    lowered, _ = lowered_case("llama", recipe_for("int8"))
    layers = len(lowered.cache_tensors) // 2
    counts = Counter(node.op_type for node in lowered.step.graph)
    assert counts == {"QuantMatMul": 4 * layers + 1, "PagedAttention": layers, "QuantGather": 1, "Gather": 1}


def test_linear_bytes_are_what_a_step_reads() -> None:
    """Every weight but the embedding's, which a tied head shares."""
    lowered, _ = lowered_case("llama", recipe_for("int8"))
    products = {
        str(node.inputs[1].name) for node in lowered.step.graph if node.op_type == "QuantMatMul" and node.inputs[1]
    }
    assert TIED in products
    assert lowered.linear_bytes == sum(lowered.tensors[name].nbytes for name in products)


def test_native_keeps_the_codes_of_a_gguf_file(tmp_path: Path) -> None:
    """All its kinds of blocks, the parts of one merged weight among them in different ones."""
    path = write_family(tmp_path / "small.gguf", "llama", "Q4_1", kinds={"attn_v": "Q8_0", "token_embd": "Q8_0"})
    checkpoint = GGUFCheckpoint(path)
    captured = capture(checkpoint.config)
    lowered = lower(captured, recipe_for("native"), captured.reader(checkpoint))
    reference = Reference(checkpoint.config, captured, lowered, captured.reader(checkpoint))
    for weight in lowered.quantised:
        assert weight.quantised.passes_through
        source = weight.quantised.source
        assert np.array_equal(weight.quantised.dequantised_rows(0, source.shape[0]), source.all())
    assert {weight.quantised.form.bits for weight in lowered.quantised} == {4, 8}
    small = lower(captured, recipe_for("native", head_bits=4, symmetric=False), captured.reader(checkpoint))
    rounded = {weight.role for weight in small.quantised if not weight.quantised.passes_through}
    assert rounded == {"head", "embedding"} and small.recipe["head_bits"] == 4
    tokens, others = list(range(3, 24)), list(range(5, 22))
    found = two_sequences(PagedRun(lowered, tmp_path / "step.onnx"), tokens, others)["first"]
    positions = list(range(len(tokens)))
    plain = reference.logits(tokens, positions)
    assert np.abs(found - plain).max() <= 2 * np.abs(plain - reference.rounded_logits(tokens, positions)).max()


def test_native_keeps_the_codes_of_experts(tmp_path: Path) -> None:
    """Gate and up of all experts, which the file keeps apart, in one kind of blocks and down in another."""
    path = write_family(tmp_path / "small.gguf", "qwen2moe", "Q4_1", kinds={"down_exps": "Q8_0", "gate_inp": "F32"})
    checkpoint = GGUFCheckpoint(path)
    captured = capture(checkpoint.config)
    lowered = lower(captured, recipe_for("native"), captured.reader(checkpoint))
    assert all(weight.quantised.passes_through for weight in lowered.quantised)
    bits = {weight.name.rpartition(".")[2]: weight.quantised.form.bits for weight in lowered.quantised}
    assert (bits["gate_up_proj"], bits["down_proj"]) == (4, 8)
    routers = [name for name in lowered.tensors if "mlp.gate" in name]
    assert routers and all(lowered.tensors[name].dtype == np.float32 for name in routers)
    reference = Reference(checkpoint.config, captured, lowered, captured.reader(checkpoint))
    tokens, others = list(range(3, 24)), list(range(5, 22))
    found = two_sequences(PagedRun(lowered, tmp_path / "step.onnx"), tokens, others)["first"]
    positions = list(range(len(tokens)))
    plain = reference.logits(tokens, positions)
    assert np.abs(found - plain).max() <= 2 * np.abs(plain - reference.rounded_logits(tokens, positions)).max()


def test_experts_that_are_no_whole_tiles_stay_as_they_are() -> None:
    """48 rows of gate and up, 24 of each: half a tile more than one."""
    config = case("qwen3_moe").config | {"moe_intermediate_size": 24}
    captured = capture(config)
    lowered = lower(captured, recipe_for("int4"), captured.reader(ModelCheckpoint(random_model(config))))
    kept = {name.rpartition(".")[2] for name in lowered.recipe["kept_higher"] if "experts" in name}
    assert kept == {"gate_up_proj"}
    (node,) = (node for node in lowered.step.graph if node.op_type == "Experts")
    assert [value.dtype.name for value in node.inputs[2:]] == ["FLOAT", "UINT8"]


def test_a_step_of_one_sequence_reads_the_experts_of_one_token() -> None:
    lowered = case("mixtral").lower(recipe_for("int8"))
    experts = [name for name in lowered.tensors if ".experts." in name]
    others = {str(node.inputs[1].name) for node in lowered.step.graph if node.op_type in ("QuantMatMul", "Gemm")}
    whole = sum(lowered.tensors[name].nbytes for name in others)
    # Two of four experts.
    assert lowered.expert_bytes == sum(lowered.tensors[name].nbytes for name in experts) // 2
    assert lowered.linear_bytes == whole + lowered.expert_bytes


def test_native_needs_a_quantised_checkpoint() -> None:
    with pytest.raises(ConfigError, match="not quantised"):
        lowered_case("llama", recipe_for("native"))


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_golden_holds_for_the_graph_and_not_for_another(precision: str, tmp_path: Path) -> None:
    chosen, recipe = case("llama"), recipe_for(precision)
    lowered = chosen.lower(recipe)
    records = golden(chosen.captured, [lowered], chosen.checkpoint, chosen.config, tmp_path).precisions
    record = records[precision]
    assert {len(prompt.greedy) for prompt in record.prompts} == {16 if precision == "fp32" else 0}
    run = PagedRun(lowered, tmp_path / "step.onnx")
    other = replace(chosen, model=random_model(chosen.config, seed=4))
    wrong = PagedRun(other.lower(recipe), tmp_path / "wrong.onnx")
    for prompt in record.prompts:
        logits = run.step([(prompt.name, prompt.token_ids)])[prompt.positions]
        assert compare(prompt, logits, record.bound).within(record.bound)
        logits = wrong.step([(prompt.name, prompt.token_ids)])[prompt.positions]
        assert not compare(prompt, logits, record.bound).within(record.bound)


def test_the_exact_bound_is_for_exact_activations_alone(tmp_path: Path) -> None:
    chosen = case("llama")
    lowered = chosen.lower(recipe_for("int8"))
    record = golden(chosen.captured, [lowered], chosen.checkpoint, chosen.config, tmp_path).precisions["int8"]
    assert record.exact_bound is not None and 0 < record.exact_bound < record.bound / 4
    exact = PagedRun(lowered, tmp_path / "exact.onnx", activations="float32")
    rounded = PagedRun(lowered, tmp_path / "rounded.onnx")
    beyond = []
    for prompt in record.prompts:
        logits = exact.step([(prompt.name, prompt.token_ids)])[prompt.positions]
        assert compare(prompt, logits, record.exact_bound).within(record.exact_bound)
        logits = rounded.step([(prompt.name, prompt.token_ids)])[prompt.positions]
        beyond.append(not compare(prompt, logits, record.exact_bound).within(record.exact_bound))
    assert any(beyond)
