"""A small bundle made by hand: two layers in two cache groups, with a dense numpy model of the same weights."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from export.sample_graph import sample_graph
from rtcore import golden, seal
from rtcore.manifest import (
    GOLDEN_FILE,
    MANIFEST_FILE,
    CacheGroup,
    CacheTensor,
    Dimensions,
    FileEntry,
    Manifest,
    Source,
    TextInfo,
    Variant,
)

VOCABULARY, WIDTH, HEADS, KV_HEADS, HEAD = 32, 16, 2, 1, 8
WINDOWS = (0, 8)
CONTEXT = 96
WEIGHTS = "weights/fp32/plain/00000.bin"
GRAPH = "graphs/fp32.cpu.step.onnx"
SAMPLE_GRAPH = "graphs/cpu.sample.onnx"
PAGE = 4096
# How far two float32 runs may differ: sums of at most CONTEXT products of a magnitude below 4.
TOLERANCE = CONTEXT * 2.0**-24 * 4

Array = NDArray[np.float32]


def weights(seed: int = 3) -> dict[str, Array]:
    """The tensors of the model by name."""
    random = np.random.default_rng(seed)
    shapes: dict[str, tuple[int, ...]] = {"embed": (VOCABULARY, WIDTH), "head": (WIDTH, VOCABULARY)}
    for layer in range(len(WINDOWS)):
        shapes[f"qkv.{layer}"] = (WIDTH, (HEADS + 2 * KV_HEADS) * HEAD)
        shapes[f"out.{layer}"] = (HEADS * HEAD, WIDTH)
    return {name: (random.standard_normal(shape) * 0.3).astype(np.float32) for name, shape in shapes.items()}


def dense_logits(tokens: list[int], tensors: dict[str, Array] | None = None) -> Array:
    """Logits float32 [N, VOCABULARY] after each token, by plain attention over the whole sequence."""
    tensors = tensors or weights()
    x = tensors["embed"][tokens].astype(np.float64)
    position = np.arange(len(tokens))
    for layer, window in enumerate(WINDOWS):
        qkv = x @ tensors[f"qkv.{layer}"]
        q = qkv[:, : HEADS * HEAD].reshape(-1, HEADS, HEAD)
        k, v = np.split(qkv[:, HEADS * HEAD :], 2, axis=1)
        scores = np.einsum("qhd,kd->hqk", q, k) * HEAD**-0.5
        hidden = position[None, :] > position[:, None]
        if window:
            hidden |= position[None, :] <= position[:, None] - window
        scores[:, hidden] = -np.inf
        p = np.exp(scores - scores.max(axis=-1, keepdims=True))
        p /= p.sum(axis=-1, keepdims=True)
        x = x + np.einsum("hqk,kd->qhd", p, v).reshape(len(tokens), -1) @ tensors[f"out.{layer}"]
    return (x @ tensors["head"]).astype(np.float32)


def step_graph(tensors: dict[str, Array], places: dict[str, tuple[int, int]], location: str = WEIGHTS) -> bytes:
    """The step graph as bytes; its initialisers lie in `location` at (offset, length)."""
    from onnx import TensorProto, helper

    def value(name: str, kind: int, *shape: int | str) -> Any:
        return helper.make_tensor_value_info(name, kind, shape)

    initialisers = []
    for name, tensor in tensors.items():
        proto = TensorProto(name=name, dims=tensor.shape, data_type=TensorProto.FLOAT)
        proto.data_location = TensorProto.EXTERNAL
        offset, length = places[name]
        for key, content in (("location", location), ("offset", str(offset)), ("length", str(length))):
            entry = proto.external_data.add()
            entry.key, entry.value = key, content
        initialisers.append(proto)
    inputs = [
        value("input_ids", TensorProto.INT64, "T"),
        value("positions", TensorProto.INT64, "T"),
        value("query_start", TensorProto.INT32, "R1"),
        value("seq_lens", TensorProto.INT32, "R"),
        value("logit_rows", TensorProto.INT64, "S"),
        value("plan", TensorProto.INT32, 6),
    ]
    outputs = [value("logits", TensorProto.FLOAT, "S", VOCABULARY)]
    common = ("query_start", "seq_lens", "positions", "plan")
    nodes = [helper.make_node("Gather", ["embed", "input_ids"], ["x.0"])]
    for layer, window in enumerate(WINDOWS):
        inputs += [
            value(f"block_tables.{layer}", TensorProto.INT32, "R", f"M{layer}"),
            value(f"slot_mapping.{layer}", TensorProto.INT32, "T"),
        ]
        caches = [f"k_cache.{layer}", f"v_cache.{layer}"]
        for name in caches:
            shape = ("B", "block", KV_HEADS, HEAD)
            inputs.append(value(name, TensorProto.FLOAT, *shape))
            outputs.append(value(f"{name}.out", TensorProto.FLOAT, *shape))
        nodes += [
            helper.make_node("MatMul", [f"x.{layer}", f"qkv.{layer}"], [f"qkv.{layer}.y"]),
            helper.make_node(
                "PagedAttention",
                [f"qkv.{layer}.y", "", "", *caches, f"block_tables.{layer}", f"slot_mapping.{layer}", *common],
                [f"attention.{layer}", *(f"{name}.out" for name in caches)],
                domain="ai.ortolan",
                heads=HEADS,
                kv_heads=KV_HEADS,
                scale=HEAD**-0.5,
                window=window,
            ),
            helper.make_node("MatMul", [f"attention.{layer}", f"out.{layer}"], [f"out.{layer}.y"]),
            helper.make_node("Add", [f"x.{layer}", f"out.{layer}.y"], [f"x.{layer + 1}"]),
        ]
    last = f"x.{len(WINDOWS)}"
    nodes += [
        helper.make_node("Gather", [last, "logit_rows"], ["rows"]),
        helper.make_node("MatMul", ["rows", "head"], ["logits"]),
    ]
    graph = helper.make_graph(nodes, "step", inputs, outputs, initialisers)
    domains = [helper.make_opsetid("", 21), helper.make_opsetid("ai.ortolan", 1)]
    model: bytes = helper.make_model(graph, opset_imports=domains, ir_version=10).SerializeToString()
    return model


def golden_record(bound: float = TOLERANCE) -> bytes:
    """golden.json of the dense model: one short and one long prompt."""
    prompts = []
    for name, length in (("short", 5), ("long", 80)):
        tokens = np.random.default_rng(length).integers(0, VOCABULARY, length).tolist()
        positions = sorted({0, length // 2, length - 1})
        logits = dense_logits(tokens)[positions]
        ids = np.argsort(-logits, axis=1)[:, :8]
        answer: list[int] = []
        for _ in range(4):
            answer.append(int(dense_logits(tokens + answer)[-1].argmax()))
        prompts.append(
            golden.GoldenPrompt(
                name, tokens, positions, ids.tolist(), np.take_along_axis(logits, ids, 1).tolist(), answer
            )
        )
    return golden.encode(golden.Golden({"fp32": golden.GoldenPrecision(bound, "by hand", prompts)}))


def write_bundle(folder: Path, *, with_graph: bool = True) -> Path:
    """Write the bundle into a new folder; without the graph's content no onnx package is needed."""
    tensors = weights()
    places, blob = {}, b""
    for name, tensor in tensors.items():
        places[name] = (len(blob), tensor.nbytes)
        blob += tensor.tobytes()
        blob += bytes(-len(blob) % PAGE)
    contents = {
        GRAPH: step_graph(tensors, places) if with_graph else b"",
        SAMPLE_GRAPH: sample_graph(VOCABULARY) if with_graph else b"",
        WEIGHTS: blob,
        GOLDEN_FILE: golden_record(),
        "tokenizer/tokenizer.json": b"{}",
    }
    for name, content in contents.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    caches = [
        CacheTensor(
            f"{kind}_cache.{layer}", f"{kind}_cache.{layer}.out", layer, layer, kind, (KV_HEADS, HEAD), "float32"
        )
        for layer in range(len(WINDOWS))
        for kind in ("k", "v")
    ]
    variant = Variant(
        "fp32", "cpu", GRAPH, (WEIGHTS,), tuple(map(CacheGroup, WINDOWS)), tuple(caches), SAMPLE_GRAPH
    )
    manifest = Manifest(
        name="handmade",
        family="handmade",
        version="1" * 64,
        source=Source("random", "handmade"),
        dimensions=Dimensions(VOCABULARY, WIDTH, len(WINDOWS), HEADS, KV_HEADS, HEAD, CONTEXT, 3584),
        variants=(variant,),
        default_precision="fp32",
        text=TextInfo(stop_ids=(0,)),
        files=tuple(entry(folder, name) for name in contents),
        golden=True,
        tools={"by": "hand"},
        created="2026-01-01T00:00:00Z",
    )
    (folder / MANIFEST_FILE).write_bytes(seal.encode(manifest))
    return folder


def entry(folder: Path, name: str) -> FileEntry:
    """The manifest's entry of a file as it lies on disk."""
    content = (folder / name).read_bytes()
    return FileEntry(name, len(content), hashlib.sha256(content).hexdigest())


def manifest_of(folder: Path) -> Manifest:
    return msgspec.json.decode((folder / MANIFEST_FILE).read_bytes(), type=Manifest)


def rewrite(folder: Path, **changes: object) -> None:
    """Change fields of a bundle's manifest and seal it again, as a careful forger would."""
    changed = msgspec.structs.replace(manifest_of(folder), **changes)
    (folder / MANIFEST_FILE).write_bytes(seal.encode(changed))


def replace_file(folder: Path, name: str, content: bytes) -> None:
    """Change a file and its entry in the manifest, so that sizes and hashes are right again."""
    (folder / name).write_bytes(content)
    files = tuple(entry(folder, name) if old.path == name else old for old in manifest_of(folder).files)
    rewrite(folder, files=files)
