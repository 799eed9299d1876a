"""Tiny random models of every family: the step graph over a paged cache gives transformers' logits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("onnx_ir")

import onnx_ir as ir
import torch

from export.capture import CapturedModel
from export.recipe import recipe_for
from models.registry import FAMILIES
from ops.schema import DOMAIN
from tests.export.cases import case
from tests.export.paged_run import PagedRun, two_sequences
from tests.export.tiny_families import CONFIGS, VARIANTS, VOCABULARY

pytestmark = pytest.mark.export

TOLERANCE = 1e-4
_RANDOM = np.random.default_rng(11)
FIRST = [int(token) for token in _RANDOM.integers(3, VOCABULARY, 29)]
SECOND = [int(token) for token in _RANDOM.integers(3, VOCABULARY, 23)]


def deviation(name: str, folder: Path, captured: CapturedModel | None = None) -> float:
    """The largest |logit - transformers'| of both sequences, with the case's graph or another."""
    chosen = case(name)
    found = two_sequences(PagedRun(chosen.lower(recipe_for("fp32"), captured), folder / "step.onnx"), FIRST, SECOND)
    return max(
        float(np.abs(found[key] - reference(name, tokens)).max())
        for key, tokens in (("first", FIRST), ("second", SECOND))
    )


def reference(name: str, tokens: list[int]) -> np.ndarray:
    with torch.no_grad():
        return case(name).model(torch.tensor([tokens]), use_cache=False).logits[0].numpy()


def test_every_family_has_a_tiny_model() -> None:
    tested = {config["model_type"] for config in CONFIGS.values()}
    assert {model_type for family in FAMILIES for model_type in family.model_types} == tested


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in VARIANTS else ()) for name in CONFIGS]
)
def test_logits_equal_transformers(name: str, tmp_path: Path) -> None:
    assert float(reference(name, FIRST).std()) > 0.1, "the reference's logits are too flat to tell anything"
    assert deviation(name, tmp_path) < TOLERANCE


def _attentions(captured: CapturedModel) -> list[ir.Node]:
    return [node for node in captured.graph if node.op_type == "PagedAttention"]


def _spoil_scale(captured: CapturedModel) -> None:
    node = _attentions(captured)[0]
    node.attributes["scale"] = ir.AttrFloat32("scale", node.attributes["scale"].as_float() * 1.05)


def _spoil_window(captured: CapturedModel) -> None:
    node = next(node for node in _attentions(captured) if node.attributes["window"].as_int())
    node.attributes["window"] = ir.AttrInt64("window", node.attributes["window"].as_int() + 1)


def _spoil_softcap(captured: CapturedModel) -> None:
    node = _attentions(captured)[0]
    node.attributes["softcap"] = ir.AttrFloat32("softcap", node.attributes["softcap"].as_float() * 1.5)


def _spoil_position(captured: CapturedModel) -> None:
    """Odd positions get the angles of their predecessors."""
    table = captured.tables["rope.model.rotary_emb"].copy()
    table[1::2] = table[0::2]
    _attentions(captured)[0].replace_input_with(11, captured.add_constant("rope.spoilt", table))


@pytest.mark.parametrize(
    ("name", "spoil"),
    [
        ("llama", _spoil_scale),
        ("llama", _spoil_position),
        ("mistral", _spoil_window),
        ("gemma2", _spoil_window),
        ("gemma2", _spoil_softcap),
    ],
)
def test_a_wrong_graph_fails_the_same_comparison(
    name: str, spoil: Callable[[CapturedModel], None], tmp_path: Path
) -> None:
    captured = case(name).captured.copy()
    spoil(captured)
    assert deviation(name, tmp_path, captured) > 100 * TOLERANCE


def test_a_layer_of_llama_is_eight_nodes() -> None:
    kinds = [node.op_type for node in case("llama").captured.graph]
    layer = [
        "Linear",
        "PagedAttention",
        "Linear",
        "AddRMSNorm",
        "Linear",
        "GatedActivation",
        "Linear",
        "AddRMSNorm",
    ]
    assert kinds == ["Gather", "RMSNorm", *layer, *layer, "Gather", "Linear"]


@pytest.mark.parametrize(
    ("name", "groups"), [("gemma3", [8, 0]), ("qwen2", [0, 8]), ("mistral", [8]), ("llama", [0])]
)
def test_layers_of_one_window_form_a_group(name: str, groups: list[int]) -> None:
    assert [group.window for group in case(name).captured.cache_groups] == groups


@pytest.mark.parametrize("name", ["qwen3_yarn_rope", "gemma3", "phi3", "gpt_neox", "gpt2"])
def test_packed_heads_go_straight_into_attention(name: str) -> None:
    """Nothing lies between the linear of q, k, v and attention: no k and v inputs, no norms, no reshapes."""
    for node in _attentions(case(name).captured):
        source = node.inputs[0].producer()
        assert (source.op_type, source.domain) == ("Linear", DOMAIN)
        assert node.inputs[1] is None and node.inputs[2] is None
