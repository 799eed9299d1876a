"""Recipe: which weight of a model is kept in which form for one precision."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any, Literal

from export.tensors import RowSource
from ops.errors import ConfigError
from ops.layout import QuantForm

Bits = Literal[4, 8]
Role = Literal["linear", "head", "embedding"]
GROUPS = (32, 64, 128)
ACTIVATIONS = "int8 per row and group"


@dataclass(frozen=True)
class Recipe:
    """How a precision keeps its weights. None for bits means numbers of float_type.

    bits: of the linears inside layers. head_bits, embedding_bits: of the head and the embedding, which decide
    every token and stay higher; with native, None keeps those of the checkpoint too. sensitive: patterns of weight
    names (as in "model.layers.0.*") that are kept in sensitive_bits instead of bits. cache_dtype: type of the KV
    cache. native: each weight as the checkpoint has it, codes unchanged where it is quantised, else in float32;
    bits then says nothing, and group and symmetric only something of a head or an embedding whose bits are given.
    float_type: of activations and of the weights that are not integers; on the CPU always float32.
    """

    precision: str
    bits: Bits | None
    head_bits: Bits | None
    embedding_bits: Bits | None
    group: int = 32
    symmetric: bool = True
    sensitive: tuple[str, ...] = ()
    sensitive_bits: Bits | None = 8
    cache_dtype: Literal["float32", "float16", "bfloat16", "int8"] = "float16"
    native: bool = False
    float_type: Literal["float32", "float16", "bfloat16"] = "float32"

    def __post_init__(self) -> None:
        if self.group not in GROUPS:
            raise ConfigError(
                f"The quantisation group is {self.group}; it must be one of {', '.join(map(str, GROUPS))}.",
                param="group",
            )

    def form_of(self, name: str, role: Role, source: RowSource) -> QuantForm | None:
        """The form of one weight, by its name in the graph and its content; None keeps it in float32."""
        bits = {"linear": self.bits, "head": self.head_bits, "embedding": self.embedding_bits}[role]
        if self.native and bits is None:
            stored = source.quantised
            return stored if stored is not None and source.shape[1] % stored.group == 0 else None
        if self.bits is not None and any(fnmatchcase(name, pattern) for pattern in self.sensitive):
            bits = None if bits is None or self.sensitive_bits is None else max(bits, self.sensitive_bits)
        if bits is None:
            return None
        return QuantForm(bits, self.group, minima=not self.symmetric)

    def record(self) -> dict[str, Any]:
        """What a manifest says about it."""
        if self.native:
            kept = {"precision": self.precision, "activations": ACTIVATIONS, "cache": self.cache_dtype}
            if self.head_bits is None:
                return kept
            return kept | {"head_bits": self.head_bits, "group": self.group, "symmetric": self.symmetric}
        if self.bits is None:
            bits = 32 if self.float_type == "float32" else 16
            return {"precision": self.precision, "bits": bits, "cache": self.cache_dtype}
        return {
            "precision": self.precision,
            "bits": self.bits,
            "group": self.group,
            "symmetric": self.symmetric,
            "head_bits": self.head_bits or 32,
            "embedding_bits": self.embedding_bits or 32,
            "sensitive": list(self.sensitive),
            "sensitive_bits": self.sensitive_bits or 32,
            "activations": ACTIVATIONS if self.float_type == "float32" else self.float_type,
            "cache": self.cache_dtype,
        }

    def for_target(self, target: str) -> Recipe | None:
        """The recipe as a target follows it; None where the target has nothing for this precision.

        On a GPU everything has 16 bits that is not an integer, and products with integers compute in float16.
        """
        if target == "cpu":
            return self if self.float_type == "float32" else None
        if self.bits is None:
            return None if self.float_type == "float32" or self.native else self
        return replace(self, float_type="float16", cache_dtype="float16")


_RECIPES = {
    "fp32": Recipe("fp32", None, None, None, cache_dtype="float32"),
    "int8": Recipe("int8", 8, 8, 8),
    "int4": Recipe("int4", 4, 8, 8),
    "bf16": Recipe("bf16", None, None, None, cache_dtype="bfloat16", float_type="bfloat16"),
    "fp16": Recipe("fp16", None, None, None, cache_dtype="float16", float_type="float16"),
    "native": Recipe("native", None, None, None, native=True),
}


def recipe_for(
    precision: str,
    *,
    group: int = 32,
    symmetric: bool = True,
    sensitive: Sequence[str] = (),
    head_bits: Bits | None = None,
) -> Recipe:
    """The recipe of a precision, with the user's choices. Raises ConfigError for an unknown one.

    head_bits: of head and embedding, which usually share their bytes; None leaves them as the precision has them.
    fp32 rounds nothing.
    """
    recipe = _RECIPES.get(precision)
    if recipe is None:
        raise ConfigError(
            f"There is no precision {precision!r}.",
            remedy=f"Choose from {', '.join(_RECIPES)}.",
            param="precision",
        )
    recipe = replace(recipe, group=group, symmetric=symmetric, sensitive=tuple(sensitive))
    if head_bits is None or precision == "fp32":
        return recipe
    return replace(recipe, head_bits=head_bits, embedding_bits=head_bits)
