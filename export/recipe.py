"""Recipe: which weight of a model is kept in which form for one precision."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any, Literal

from ops.errors import ConfigError

Role = Literal["linear", "head", "embedding"]
GROUPS = (32, 64, 128)


@dataclass(frozen=True)
class WeightFormat:
    """Integers of `bits` in groups of `group` columns with one scale each; asymmetric ones with a zero point."""

    bits: int
    group: int
    symmetric: bool


@dataclass(frozen=True)
class Recipe:
    """How a precision keeps its weights. None for bits means float32.

    bits: of the linears inside layers. head_bits, embedding_bits: of the head and the embedding, which decide
    every token and stay higher. sensitive: patterns of weight names (as in "model.layers.0.*") that are kept in
    sensitive_bits instead of bits. cache_dtype: type of the KV cache.
    """

    precision: str
    bits: int | None
    head_bits: int | None
    embedding_bits: int | None
    group: int = 32
    symmetric: bool = True
    sensitive: tuple[str, ...] = ()
    sensitive_bits: int | None = 8
    cache_dtype: Literal["float32", "float16"] = "float16"

    def __post_init__(self) -> None:
        if self.group not in GROUPS:
            raise ConfigError(
                f"The quantisation group is {self.group}; it must be one of {', '.join(map(str, GROUPS))}.",
                param="group",
            )

    def format_of(self, name: str, role: Role) -> WeightFormat | None:
        """The form of one weight by its name in the graph; None keeps it in float32."""
        bits = {"linear": self.bits, "head": self.head_bits, "embedding": self.embedding_bits}[role]
        if self.bits is not None and any(fnmatchcase(name, pattern) for pattern in self.sensitive):
            bits = None if bits is None or self.sensitive_bits is None else max(bits, self.sensitive_bits)
        if bits is None:
            return None
        return WeightFormat(bits, self.group, self.symmetric)

    def record(self) -> dict[str, Any]:
        """What a manifest says about it."""
        if self.bits is None:
            return {"precision": self.precision, "bits": 32, "cache": self.cache_dtype}
        return {
            "precision": self.precision,
            "bits": self.bits,
            "group": self.group,
            "symmetric": self.symmetric,
            "head_bits": self.head_bits or 32,
            "embedding_bits": self.embedding_bits or 32,
            "sensitive": list(self.sensitive),
            "sensitive_bits": self.sensitive_bits or 32,
            "activations": "int8 per row and group",
            "cache": self.cache_dtype,
        }


_RECIPES = {
    "fp32": Recipe("fp32", None, None, None, cache_dtype="float32"),
    "int8": Recipe("int8", 8, 8, 8),
    "int4": Recipe("int4", 4, 8, 8),
}


def recipe_for(precision: str, *, group: int = 32, symmetric: bool = True, sensitive: Sequence[str] = ()) -> Recipe:
    """The recipe of a precision, with the user's choices. Raises ConfigError for an unknown one."""
    recipe = _RECIPES.get(precision)
    if recipe is None:
        raise ConfigError(
            f"There is no precision {precision!r}.",
            remedy=f"Choose from {', '.join(_RECIPES)}.",
            param="precision",
        )
    return replace(recipe, group=group, symmetric=symmetric, sensitive=tuple(sensitive))
