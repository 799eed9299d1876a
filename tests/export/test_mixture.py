"""Mixtures of experts through the real commands, and what must not depend on the batch."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("onnx_ir")

import onnx_ir as ir
import torch
from torch import nn

from export.capture import capture
from export.capture.probe_experts import RouterForm, probe_experts, probe_router
from export.lowering import lower
from export.recipe import recipe_for
from export.tensors import matrix_shape
from ops.errors import UnsupportedModel
from rtcore.bundle import Bundle
from server.cli import main
from tests.export.cases import case
from tests.export.files import write_safetensors
from tests.export.paged_run import PagedRun
from tests.export.tiny_families import CONFIGS, VOCABULARY

pytestmark = pytest.mark.export

_RANDOM = np.random.default_rng(29)
FIRST = [int(token) for token in _RANDOM.integers(3, VOCABULARY, 40)]
SECOND = [int(token) for token in _RANDOM.integers(3, VOCABULARY, 9)]


def run(*arguments: object) -> int:
    return main([str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def mixtral(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tensor for each expert, as Mixtral's checkpoints are."""
    folder = tmp_path_factory.mktemp("source") / "tiny-mixtral"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIGS["mixtral"]))
    tensors = {}
    for name, parameter in case("mixtral").model.named_parameters():
        array = parameter.detach().numpy()
        base = name.replace(".mlp.", ".block_sparse_moe.")
        if name.endswith("gate_up_proj"):
            for expert, both in enumerate(array):
                gate, up = np.split(both, 2)
                tensors |= {base.replace("gate_up_proj", f"{expert}.w1.weight"): gate}
                tensors |= {base.replace("gate_up_proj", f"{expert}.w3.weight"): up}
        elif name.endswith("experts.down_proj"):
            tensors |= {base.replace("down_proj", f"{n}.w2.weight"): down for n, down in enumerate(array)}
        else:
            tensors[base] = array
    write_safetensors(folder / "model.safetensors", tensors)
    return folder


@pytest.fixture(scope="module")
def bundle(mixtral: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Verified: the replay of what transformers answered is part of the export."""
    target = tmp_path_factory.mktemp("bundles") / "mixtral"
    assert run("export", mixtral, "--out", target, "--precision", "fp32,int8", "--verify") == 0
    return target


def test_a_folder_becomes_a_bundle_that_says_how_many_experts_it_has(
    bundle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest = Bundle.open(bundle).manifest
    assert (manifest.family, manifest.golden) == ("Mixtral", True)
    assert (manifest.dimensions.experts, manifest.dimensions.experts_per_token) == (4, 2)
    assert run("verify", bundle) == 0
    assert run("inspect", bundle) == 0
    assert "4 experts, 2 for a token" in capsys.readouterr().out


@pytest.mark.slow
def test_a_filled_skeleton_equals_a_direct_export(mixtral: Path, bundle: Path, tmp_path: Path) -> None:
    skeleton = tmp_path / "skeleton"
    options = ("--precision", "fp32,int8", "--skeleton", "--name", "tiny-mixtral")
    assert run("export", mixtral, "--out", skeleton, *options) == 0
    assert run("fill", skeleton, "--weights", mixtral) == 0
    weights = {entry.path: entry.sha256 for entry in Bundle.open(bundle).manifest.files if "weights" in entry.path}
    filled = {entry.path: entry.sha256 for entry in Bundle.open(skeleton).manifest.files if "weights" in entry.path}
    assert weights and filled == weights


def test_a_gpus_router_stays_in_float32_and_all_else_has_16_bits() -> None:
    """With the gate of the expert for all tokens, which is multiplied together with the router."""
    recipe = recipe_for("bf16").for_target("cuda")
    assert recipe is not None
    chosen = case("qwen2_moe")
    graph = lower(chosen.captured, recipe, chosen.captured.reader(chosen.checkpoint), "cuda").step.graph
    (experts,) = (node for node in graph if node.op_type == "Experts")
    wide = {value.name for node in graph for value in node.outputs if value.dtype == ir.DataType.FLOAT}
    logits = experts.inputs[1]
    assert logits is not None and logits.dtype == ir.DataType.FLOAT
    router = logits.producer()
    assert router is not None
    between = {value.name for node in (router, *router.predecessors()) for value in node.outputs}
    assert wide <= between | {value.name for value in graph.outputs}
    assert experts.outputs[0].dtype == ir.DataType.BFLOAT16


@pytest.mark.parametrize("precision", ["fp32", "int8", "int4"])
@pytest.mark.parametrize("name", ["qwen2_moe", "olmoe"])
def test_a_sequences_bits_do_not_depend_on_its_batch(name: str, precision: str, tmp_path: Path) -> None:
    """Two prompts in one step, each in a step of its own, and one of them in chunks."""
    lowered = case(name).lower(recipe_for(precision))
    together = PagedRun(lowered, tmp_path / "together.onnx").step([("first", FIRST), ("second", SECOND)])
    apart = PagedRun(lowered, tmp_path / "apart.onnx")
    second = apart.step([("second", SECOND)])
    first = np.concatenate([apart.step([("first", FIRST[at : at + 7])]) for at in range(0, len(FIRST), 7)])
    assert np.array_equal(np.concatenate([first, second]), together)


@pytest.mark.parametrize("name", ["mixtral", "qwen2_moe", "qwen3_moe", "olmoe"])
def test_routers_and_experts_become_one_operator(name: str) -> None:
    """What transformers' configuration says of them is what the probes found."""
    config, captured = CONFIGS[name], case(name).captured
    nodes = [node for node in captured.graph if node.op_type == "Experts"]
    assert len(nodes) == config["num_hidden_layers"] - len(config.get("mlp_only_layers", []))
    for node in nodes:
        given = {key: attribute.value for key, attribute in node.attributes.items()}
        assert given["experts"] == config.get("num_experts", config.get("num_local_experts"))
        assert given["top_k"] == config["num_experts_per_tok"]
        assert given["normalise"] == int(config.get("norm_topk_prob", name == "mixtral"))
        assert (given["scale"], given["activation"]) == (1.0, config.get("hidden_act", "silu"))
    assert not [node for node in captured.graph if node.op_type in ("Reshape", "Squeeze", "Unsqueeze")]


def test_a_wrong_attribute_shows_in_the_logits(tmp_path: Path) -> None:
    spoilt = case("olmoe").captured.copy()
    node = next(node for node in spoilt.graph if node.op_type == "Experts")
    node.attributes["normalise"] = ir.AttrInt64("normalise", 1)
    recipe = recipe_for("fp32")
    right = PagedRun(case("olmoe").lower(recipe), tmp_path / "right.onnx").step([("first", FIRST)])
    wrong = PagedRun(case("olmoe").lower(recipe, spoilt), tmp_path / "wrong.onnx").step([("first", FIRST)])
    assert np.abs(right - wrong).max() > 0.05


class Router(nn.Module):
    """Routes as the families do, or with something more."""

    def __init__(self, normalise: bool = False, scale: float = 1.0, bias: float = 0.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(8, 12))
        self.top_k, self.normalise, self.scale, self.bias = 3, normalise, scale, bias

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        logits = x @ self.weight.T
        favoured = logits + self.bias * torch.arange(8.0)
        chosen = favoured.topk(self.top_k).indices
        weights = logits.softmax(-1).gather(-1, chosen)
        if self.normalise:
            weights = weights / weights.sum(-1, keepdim=True)
        return logits, weights * self.scale, chosen


@pytest.mark.parametrize(("normalise", "scale"), [(False, 1.0), (True, 1.0), (True, 2.5), (False, 0.5)])
def test_a_routers_form_is_found(normalise: bool, scale: float) -> None:
    form = probe_router(Router(normalise, scale))
    assert form is not None
    assert dataclasses.replace(form, scale=1.0) == RouterForm(3, normalise, 1.0)
    assert form.scale == pytest.approx(scale, rel=1e-5)


def test_routers_of_other_forms_are_none() -> None:
    assert probe_router(Router(bias=1.0)) is None, "it chooses by other numbers than it weighs with"
    assert probe_router(nn.Linear(4, 4, bias=False)) is None


class Experts(nn.Module):
    """Experts whose activation, or order of gate and up, is not one of ours."""

    def __init__(self, activation: Any, swapped: bool = False) -> None:
        super().__init__()
        self.gate_up_proj = nn.Parameter(torch.empty(2, 8, 6))
        self.down_proj = nn.Parameter(torch.empty(2, 6, 4))
        self.activation, self.swapped = activation, swapped

    def forward(self, x: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        both = torch.einsum("tknh,th->tkn", self.gate_up_proj[chosen], x)
        gate, up = both.chunk(2, dim=-1)[:: -1 if self.swapped else 1]
        inner = self.activation(gate) * up
        return (torch.einsum("tkhn,tkn->tkh", self.down_proj[chosen], inner) * weights[..., None]).sum(1)


def test_experts_are_known_by_what_they_compute() -> None:
    assert probe_experts(Experts(nn.functional.silu)) == "silu"
    assert probe_experts(Experts(nn.functional.gelu)) == "gelu"
    assert probe_experts(Experts(nn.functional.relu)) is None
    assert probe_experts(Experts(nn.functional.silu, swapped=True)) is None


@pytest.mark.slow
def test_experts_of_another_form_leave_the_model_uncaptured() -> None:
    with pytest.raises(UnsupportedModel, match="cannot be captured"):
        capture(CONFIGS["olmoe"] | {"hidden_act": "relu"})


def test_parameters_of_experts_are_seen_as_matrices() -> None:
    assert matrix_shape((3, 4, 5)) == (12, 5)
    assert [matrix_shape(shape) for shape in ((), (7,), (2, 3))] == [(), (7,), (2, 3)]
