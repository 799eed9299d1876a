"""The reference: transformers in eager mode with weights as a bundle's kernels see them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from transformers import AutoModelForCausalLM, GenerationConfig, PreTrainedModel

from export.capture import CapturedModel
from export.capture import buffers as rebuilt_buffers
from export.lowering import LoweredModel
from export.parameters import TensorReader
from export.scatter import scatter
from export.simulate import code_cache, rounding
from export.sources import row_chunks
from export.tensors import matrix_shape
from models.registry import family_of
from ops.errors import CheckpointError

Float32 = NDArray[np.float32]


class Reference:
    """A transformers model in float32 that computes what one precision's graph computes, but for rounding.

    Its weights are those of the checkpoint, then, for a quantised precision, what the stored integers stand
    for. A tied head is untied, because head and embedding may be kept in different forms.
    """

    def __init__(
        self, config: Mapping[str, Any], captured: CapturedModel, lowered: LoweredModel, tensor: TensorReader
    ) -> None:
        self._lowered = lowered
        self._model = _empty_model(config)
        self._type = getattr(torch, lowered.float_type)
        _load(self._model, captured, tensor, self._type)
        _dequantise(self._model, captured, lowered)

    def logits(self, tokens: Sequence[int], positions: Sequence[int]) -> Float32:
        """Logits [positions, vocabulary] of one teacher-forced sequence."""
        with torch.no_grad():
            output = self._model(
                torch.tensor([list(tokens)]), use_cache=False, logits_to_keep=torch.tensor(list(positions))
            )
        found: Float32 = output.logits[0].to(torch.float32).numpy()
        return found

    def rounded_logits(
        self, tokens: Sequence[int], positions: Sequence[int], *, activations: bool = True
    ) -> Float32:
        """The same with the rounding of the graph's kernels: keys and values to the cache's type and, unless the
        kernels keep them exact, activations to int8 by row and group before each quantised linear."""
        with rounding(self._model, self._lowered, activations=activations):
            return self.logits(tokens, positions)

    def greedy(self, tokens: Sequence[int], count: int) -> list[int]:
        """The `count` tokens that greedy decoding gives, whatever they are: no token ends it."""
        if count < 1:
            return []
        self._model.generation_config = GenerationConfig(do_sample=False, max_new_tokens=count, pad_token_id=0)
        prompt = torch.tensor([list(tokens)])
        found: list[int] = self._model.generate(prompt, attention_mask=torch.ones_like(prompt))[0].tolist()
        return found[len(tokens) :]

    def to_half(self) -> None:
        """Compute in the graph's 16-bit type from now on: the output of each operator is rounded to it, and keys
        and values as a cache of int8 keeps them, if the graph has one."""
        buffers = {name: buffer.clone() for name, buffer in self._model.named_buffers()}
        self._model.to(self._type)
        for name, buffer in self._model.named_buffers():
            # Inverse frequencies stay as exact as the graph's rotary table.
            buffer.data = buffers[name]
        if self._lowered.cache_tensors[0].dtype == "int8":
            code_cache(self._model)

    def to_float64(self) -> None:
        """Compute in float64 from now on."""
        self._model.double()


def _empty_model(config: Mapping[str, Any]) -> PreTrainedModel:
    """The model with storage for its weights and with its buffers as they should be."""
    parsed = family_of(config).parse(config)
    # Experts one by one: what transformers takes otherwise does not compute in float64.
    parsed._experts_implementation = "eager"
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(parsed, attn_implementation="eager", dtype=torch.float32).eval()
    values = rebuilt_buffers.values(model)
    model.to_empty(device="cpu")
    model.tie_weights()
    for path, buffer in model.named_buffers():
        buffer.copy_(values[path])
    head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
    if head.weight is embedding.weight:
        head.weight = nn.Parameter(torch.empty_like(head.weight), requires_grad=False)
    return model


def _load(model: PreTrainedModel, captured: CapturedModel, tensor: TensorReader, dtype: torch.dtype) -> None:
    """Fill every parameter from the checkpoint, chunk by chunk, rounded to the type in which it is stored."""
    canonical = {alias: name for name, group in captured.aliases.items() for alias in group}
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            source = tensor(canonical.get(name, name))
            matrix = parameter.view(source.shape)
            for start, stop in row_chunks(source):
                matrix[start:stop] = torch.from_numpy(np.ascontiguousarray(source.rows(start, stop))).to(dtype)


def _dequantise(model: PreTrainedModel, captured: CapturedModel, lowered: LoweredModel) -> None:
    """Replace the weights that are stored as integers by what those stand for."""
    for weight in lowered.quantised:
        arrays = parameter_arrays(model, captured, weight.role)
        recipe = captured.weights[weight.name].recipe()
        for start, stop in row_chunks(weight.quantised.source):
            scatter(recipe, np.arange(start, stop), weight.quantised.dequantised_rows(start, stop), arrays)


def parameter_arrays(model: PreTrainedModel, captured: CapturedModel, role: str) -> dict[str, NDArray[np.float32]]:
    """The model's parameters by the names that expressions use, as matrices where they have more axes. A tied
    name means the head's own copy for the role "head", else the embedding."""
    arrays = {
        name: parameter.detach().numpy().reshape(matrix_shape(tuple(parameter.shape)))
        for name, parameter in model.named_parameters()
    }
    head = model.get_output_embeddings().weight.detach().numpy()
    embedding = model.get_input_embeddings().weight.detach().numpy()
    for name, group in captured.aliases.items():
        if not {name, *group} & {"lm_head.weight", "embed_out.weight"}:
            raise CheckpointError(f"The tied parameters {', '.join(group)} are neither embedding nor head.")
        arrays[name] = head if role == "head" else embedding
    return arrays
