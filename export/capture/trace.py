"""capture: a transformers configuration becomes a semantic graph, without weights and without a GPU.

The model is built on the meta device, its modules are swapped for single operators, torch.export traces it and
torch.onnx translates the trace. Attention goes through transformers' own attention interface; no mask function
is registered for it, so that no mask is built.
"""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
import torch
from onnx_ir.passes.common import ClearMetadataAndDocStringPass
from torch import nn
from transformers import AttentionInterface, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from export.capture import operators
from export.capture.quiet import quiet
from export.capture.schemas import register_schemas
from export.capture.swap import Swapper
from models.family import UNSOUND, malformed
from ops.errors import UnsupportedModel

INTERFACE = "ortolan"
OPSET = 23
#: The wrapper's attribute, hence the prefix of parameter names in a trace.
_ROOT = "causal"


class _Step(nn.Module):  # type: ignore[misc]
    """The model as a step calls it: token-packed, one row of T tokens, S rows through the head."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.causal = model

    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor, logit_rows: torch.Tensor) -> torch.Tensor:
        output = self.causal(
            input_ids=input_ids[None], position_ids=positions[None], use_cache=False, logits_to_keep=logit_rows
        )
        return output.logits[0]


def meta_model(config: PretrainedConfig) -> PreTrainedModel:
    """The model of a configuration on the meta device: shapes, no memory.

    Raises CheckpointError when the configuration's numbers do not make a model.
    """
    AttentionInterface.register(INTERFACE, _attention)
    try:
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config, attn_implementation=INTERFACE, dtype=torch.float32)
    except UNSOUND as error:
        raise malformed({"model_type": config.model_type}, error) from error
    return model.eval()


def trace(model: PreTrainedModel, swapper: Swapper) -> ir.Model:
    """The step graph of a swapped model: inputs input_ids [T], positions [T], logit_rows [S]; output logits.

    Weight initialisers are named by parameter (or buffer) name. Raises UnsupportedModel when the model does
    something that cannot be traced.
    """
    register_schemas()
    tokens, rows = torch.export.Dim("T", min=2, max=1 << 20), torch.export.Dim("S", min=2, max=1 << 20)
    inputs = {
        "input_ids": torch.zeros(8, dtype=torch.int64, device="meta"),
        "positions": torch.zeros(8, dtype=torch.int64, device="meta"),
        "logit_rows": torch.zeros(3, dtype=torch.int64, device="meta"),
    }
    shapes = {"input_ids": {0: tokens}, "positions": {0: tokens}, "logit_rows": {0: rows}}
    with torch.no_grad(), swapper.patched_rotary(), quiet():
        try:
            exported = torch.export.export(_Step(model), (), kwargs=inputs, dynamic_shapes=shapes, strict=False)
            program = torch.onnx.export(
                exported,
                (),
                kwargs=inputs,
                dynamo=True,
                dynamic_shapes=shapes,
                optimize=False,
                verbose=False,
                opset_version=OPSET,
                custom_translation_table=operators.translations(),
            )
        except (RuntimeError, TypeError, ValueError, torch.onnx.errors.OnnxExporterError) as error:
            raise UnsupportedModel(
                f"The model type {model.config.model_type!r} cannot be captured.",
                why=f"torch.export stopped: {str(error).strip().splitlines()[0][:300]}",
                remedy="Use a model of a supported family.",
            ) from error
    result = program.model
    ClearMetadataAndDocStringPass()(result)
    for name, value in list(result.graph.initializers.items()):
        if name.startswith(f"{_ROOT}."):
            value.name = name.removeprefix(f"{_ROOT}.")
    return result


def _attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    is_causal: bool | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """transformers' attention interface: query [1, heads, T, D] and so on -> [1, T, heads, Dv]."""
    if attention_mask is not None or is_causal is False or not getattr(module, "is_causal", True):
        raise UnsupportedModel(
            f"{type(module).__name__} attends with a mask of its own.",
            why="Only causal attention, with or without a sliding window, can be served from a paged cache.",
            remedy="Use a decoder-only model of a supported family.",
        )
    head_dim = query.shape[3]
    result = operators.attention(
        query,
        key,
        value,
        s_aux,
        module.layer_idx,
        query.shape[1],
        key.shape[1],
        head_dim,
        value.shape[3],
        float(head_dim**-0.5 if scaling is None else scaling),
        int(sliding_window or 0),
        float(softcap or 0.0),
    )
    return result, None
