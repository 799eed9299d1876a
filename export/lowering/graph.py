"""What lowerings share: replacing nodes, choosing and storing a weight's form, and the cache that a graph needs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec
import onnx_ir as ir

from export.capture.captured import CapturedModel, of_a_token
from export.lowering.base import IntegerWeight
from export.lowering.weights import WeightStore
from export.quantise import QuantisedWeight
from export.recipe import Recipe, Role
from ops.layout import QuantForm
from ops.schema import DOMAIN
from rtcore.manifest import CacheTensor


class StepWriter:
    """Replaces the nodes of one graph and remembers what became of its weights."""

    #: Bytes of a weight that is no integer.
    item_bytes = 4

    def __init__(self, graph: ir.Graph, store: WeightStore, recipe: Recipe) -> None:
        self.graph = graph
        self.store = store
        self.recipe = recipe
        self.kept_higher: set[str] = set()
        self.quantised: list[IntegerWeight] = []
        self.linear_bytes = self.expert_bytes = 0

    def embedding(self, node: ir.Node) -> None:
        """An embedding whose weight is kept in integers becomes QuantGather."""
        name = str(node.inputs[0].name)
        form = self.form(name, "embedding")
        if form is None:
            return
        quantised = self.quantise(name, "embedding", form)
        inputs = [self.store.packed(name, quantised), node.inputs[1]]
        self.replace(node, ir.Node(DOMAIN, "QuantGather", inputs, quantised_attributes(quantised)))

    def record(self) -> dict[str, Any]:
        """What a manifest says of single weights: those kept in more bits, or with the precision native how many
        are in which form."""
        if not self.recipe.native:
            return {"kept_higher": sorted(self.kept_higher)}
        forms = Counter(_form_name(weight.quantised.form) for weight in self.quantised)
        return {"forms": [f"{count} {name}" for name, count in sorted(forms.items())]}

    def quantise(self, name: str, role: Role, form: QuantForm) -> QuantisedWeight:
        """The weight in integers, remembered for the reference."""
        quantised = self.store.quantised(name, form)
        self.quantised.append(IntegerWeight(name, role, self.store.parameters(name), quantised))
        return quantised

    def form(self, name: str, role: Role) -> QuantForm | None:
        """The form that the recipe gives a weight; None keeps it as it is."""
        form = self.recipe.form_of(name, role, self.store.source(name))
        if self.recipe.bits is not None and (form is None or form.bits > self.recipe.bits):
            self.kept_higher.add(name)
        return form

    def form_if(self, fits: bool, name: str, role: Role) -> QuantForm | None:
        """The same where integers fit a weight; where they cannot be, or are not to be, it is kept as it is."""
        if fits:
            return self.form(name, role)
        if self.recipe.bits is not None:
            self.kept_higher.add(name)
        return None

    def plain_bytes(self, name: str) -> int:
        """Bytes of a weight that is kept as it is."""
        size = self.item_bytes
        for dim in self.store.source(name).shape:
            size *= dim
        return size

    def count_experts(self, node: ir.Node, size: int) -> None:
        """Of `size` bytes of weights of a node Experts, those of the experts of one token are read with it."""
        read = of_a_token(node, size)
        self.linear_bytes += read
        self.expert_bytes += read

    def replace(self, old: ir.Node, new: ir.Node) -> None:
        """Put `new` (one output) in the place of `old`; the output keeps name, type and shape."""
        output, source = new.outputs[0], old.outputs[0]
        output.type, output.shape = source.type, source.shape
        name = source.name
        ir.convenience.replace_nodes_and_values(self.graph, old, [old], [new], [source], [output])
        output.name = name


def _form_name(form: QuantForm) -> str:
    return f"int{form.bits} in groups of {form.group}{' with minima' if form.minima else ''}"


def quantised_attributes(weight: QuantisedWeight, prefix: str = "") -> list[ir.Attr]:
    """A quantised weight's attributes for a node; prefix: how their names begin on nodes with several weights."""
    return [
        ir.AttrInt64(prefix + key, value) if isinstance(value, int) else ir.AttrString(prefix + key, value)
        for key, value in weight.attributes().items()
    ]


def cache_tensors(captured: CapturedModel, recipe: Recipe) -> tuple[CacheTensor, ...]:
    """The cache tensors of a graph, as a manifest lists them; those of int8 each with its scales behind it."""
    kinds: Sequence[tuple[str, str]] = (("k", "head_dim"), ("v", "v_dim"))
    found = []
    coded = recipe.cache_dtype == "int8"
    for cache in captured.caches:
        for name, output, (kind, width) in zip(cache.inputs, cache.outputs, kinds, strict=True):
            scale, scale_output = scale_names(name, output)
            tensor = CacheTensor(
                name=name,
                output=output,
                layer=cache.layer,
                group=cache.group,
                kind=kind,  # type: ignore[arg-type]
                shape=(cache.kv_heads, getattr(cache, width)),
                dtype=recipe.cache_dtype,
                scale=scale if coded else None,
            )
            found.append(tensor)
            if coded:
                changed = {"name": scale, "output": scale_output, "kind": "scale", "shape": (cache.kv_heads,)}
                found.append(msgspec.structs.replace(tensor, **changed, dtype="float32", scale=None))
    return tuple(found)


def scale_names(name: str, output: str) -> tuple[str, str]:
    """The graph's input and output of the scales of a cache tensor of int8."""
    return f"{name}.scale", f"{output}.scale"
