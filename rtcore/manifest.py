"""The manifest of a bundle, format 1: everything that serving needs to know, as frozen structs.

The exporter fills these structs and `rtcore/bundle.py` reads them; nothing else describes a bundle.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import msgspec

FORMAT = 1
MANIFEST_FILE = "manifest.json"
GOLDEN_FILE = "golden.json"
TOKENIZER_FOLDER = "tokenizer"
MAX_ID = 2**31 - 1
"""Token ids, positions and sizes of a model are 32-bit integers where they are computed with."""


class FileEntry(msgspec.Struct, frozen=True):
    """One file of the bundle; `path` is relative, with forward slashes; `size` in bytes."""

    path: str
    size: int
    sha256: str


class Source(msgspec.Struct, frozen=True):
    """Where the weights came from: `kind` is huggingface, gguf, or random; `sha256` over its weight files."""

    kind: Literal["huggingface", "gguf", "random"]
    name: str
    sha256: str = ""


class Dimensions(msgspec.Struct, frozen=True):
    """Sizes of the model. `parameters` counts tied weights once. `linear_parameters` are the weights of the
    linears inside the layers, the head not among them: the multiply-adds of one token before the head. Where layers
    are mixtures, `experts` is how many a layer has and `experts_per_token` how many of them one token goes to, and
    `linear_parameters` counts those."""

    vocab_size: int
    hidden_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    context_length: int
    parameters: int
    linear_parameters: int = 0
    experts: int = 0
    experts_per_token: int = 0

    def __post_init__(self) -> None:
        for name in ("vocab_size", "hidden_size", "layers", "heads", "kv_heads", "head_dim", "context_length"):
            if not 1 <= getattr(self, name) <= MAX_ID:
                raise ValueError(f"{name} must be between 1 and {MAX_ID}")


class CacheGroup(msgspec.Struct, frozen=True):
    """Layers that share block tables; `window` in tokens (a query sees kv > q - window), 0 for all."""

    window: int = 0


ITEM_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "int8": 1, "float8e4m3fn": 1}


class CacheTensor(msgspec.Struct, frozen=True):
    """One cache tensor of shape [blocks, block_size, *shape]; `name` is the graph input, `output` the graph
    output that must be bound to the same memory. `scale` names the scale tensor of a quantised cache."""

    name: str
    output: str
    layer: int
    group: int
    kind: Literal["k", "v", "latent", "scale"]
    shape: tuple[int, ...]
    dtype: Literal["float32", "float16", "bfloat16", "int8", "float8e4m3fn"]
    scale: str | None = None

    def __post_init__(self) -> None:
        if not self.shape or min(self.shape) < 1:
            raise ValueError(f"the shape of {self.name} must hold positive numbers")

    @property
    def slot_bytes(self) -> int:
        """Bytes that one token takes."""
        return math.prod(self.shape) * ITEM_BYTES[self.dtype]


class Variant(msgspec.Struct, frozen=True):
    """One precision for one target: its graphs (`step`, from ids to logits, and `sample`, from logits to tokens),
    the weight files that they map, and its cache.

    `recipe` records how weights were quantised (bits, group, symmetric, what stayed higher); `linear_bytes`
    are the bytes of weights that one decode step of one sequence reads, the floor that benchmarks state, and
    `expert_bytes` those of experts among them.
    `architectures` are those that the bundle packs GPU kernels for, as in sm_90; empty for the CPU.
    """

    precision: str
    target: str
    step: str
    weights: tuple[str, ...]
    cache_groups: tuple[CacheGroup, ...]
    cache_tensors: tuple[CacheTensor, ...]
    sample: str | None = None
    recipe: dict[str, Any] = {}
    linear_bytes: int = 0
    architectures: tuple[str, ...] = ()
    expert_bytes: int = 0

    def __post_init__(self) -> None:
        for tensor in self.cache_tensors:
            if not 0 <= tensor.group < len(self.cache_groups):
                raise ValueError(
                    f"{tensor.name} names cache group {tensor.group}, there are {len(self.cache_groups)}"
                )


class TextInfo(msgspec.Struct, frozen=True):
    """What text in and text out need: special ids, how a prompt begins, sampling defaults of the model.

    `stop_ids` end a generation; `sampling` holds the checkpoint's own defaults by
    its names for them; of these, temperature, top_k, top_p, min_p and repetition_penalty are used.
    """

    bos_id: int | None = None
    stop_ids: tuple[int, ...] = ()
    pad_id: int | None = None
    add_bos: bool = False
    chat_template: str | None = None
    sampling: dict[str, float] = {}
    tool_format: str | None = None
    reasoning_format: str | None = None

    def __post_init__(self) -> None:
        for number in (self.bos_id, self.pad_id, *self.stop_ids):
            if number is not None and not 0 <= number <= MAX_ID:
                raise ValueError(f"{number} is no token id")


class Parallel(msgspec.Struct, frozen=True):
    size: int = 1
    rank: int = 0


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The whole manifest. `version` identifies the content; `chat_template` paths are within the bundle.

    A skeleton has graphs but no weight data; `ortolan fill` completes it. `seal` protects the file itself; it is
    set by `rtcore.seal.encode`, which writes the manifest.
    """

    format: int = FORMAT
    name: str
    family: str
    version: str
    source: Source
    dimensions: Dimensions
    variants: tuple[Variant, ...]
    default_precision: str
    text: TextInfo
    files: tuple[FileEntry, ...]
    golden: bool = False
    golden_absent_because: str = ""
    skeleton: bool = False
    parallel: Parallel = Parallel()
    tools: dict[str, str] = {}
    created: str = ""
    seal: str = ""

    def used(self, precision: str | None, target: str) -> list[FileEntry]:
        """The files that a run of a variant reads: all but golden.json and those that only other variants name.

        precision: the default one if None. All files where there is no such variant.
        """
        wanted = precision or self.default_precision
        named: dict[bool, set[str]] = {True: set(), False: {GOLDEN_FILE}}
        for variant in self.variants:
            chosen = variant.precision == wanted and variant.target == target
            named[chosen].update((variant.step, *variant.weights, *([variant.sample] if variant.sample else [])))
        skipped = named[False] - named[True] if named[True] else set()
        return [entry for entry in self.files if entry.path not in skipped]
