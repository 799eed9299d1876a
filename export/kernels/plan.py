"""Which kernel variants a step graph needs. The keys are those that the library's launcher makes from the nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import onnx_ir as ir

from export.kernels.plan_sample import sample_variants
from export.kernels.variant import ANY_ROWS, TRITON_TYPES, Variant
from ops.schema import DOMAIN
from ops.triton import (
    attention_decode,
    attention_prefill,
    attention_prepare,
    experts,
    experts_quant,
    experts_route,
    gated_activation,
    gather,
    linear,
    quant_matmul,
    rms_norm,
)
from ops.triton.activation import ACTIVATIONS
from ops.triton.few_rows import ADDED, PLAIN, ROOM, SCALED

#: Slots of a cache block that attention is compiled for.
BLOCK_SIZE = 16
_ALIGNMENT = 16
_LOGITS = ("Logits", "QuantLogits")
#: A product that a norm follows, and its place for a bias; where other quantised products have squares.
_ADDED, _ADDED_BIAS, _SQUARES = "QuantMatMulAddRMSNorm", 5, 5
#: Numbers of rows for which norms are left to the products around them.
FEW = (1, ROOM.value)
#: Where programs that split a product leave their parts, and count them.
_PARTS = {"partial": "*fp32", "counters": "*i32"}


def variants_of(graph: ir.Graph, dtype: str) -> list[Variant]:
    """The variants for a graph whose activations are float16 or bfloat16, each once."""
    plan = _Plan(dtype)
    for node in graph:
        handler = plan.handlers.get(node.op_type) if node.domain == DOMAIN else None
        if handler is not None:
            handler(node)
    return [*plan.found.values(), *sample_variants()]


def dims(value: ir.Value | None) -> tuple[int | str | None, ...]:
    """The shape as plain integers and dimension names."""
    if value is None or value.shape is None:
        raise ValueError("a value of a lowered graph has no shape")
    return tuple(dim if isinstance(dim, int) else dim.value for dim in value.shape)


def _power(number: int) -> int:
    return max(16, 1 << (number - 1).bit_length())


def _gated(kernel: str, activation: str) -> str:
    """The name in the tuning table: with an activation two products run side by side."""
    return kernel if activation == "none" else f"{kernel}_gated"


def _quant_tile(form: dict[str, int]) -> str:
    """The name in the tuning table: sums are scaled, of wide groups, or weights; or few rows have no way either."""
    if form["GROUP"] >= 64 and not form["MINIMA"]:
        return "quant_tile"
    return "quant_tile_scaled" if form["GROUP"] >= 32 else "quant_tile_narrow"


def _around(node: ir.Node, result: str) -> Iterator[tuple[str, int, tuple[int, int]]]:
    """What a quantised product does about the norms around it, and for how many rows: its name in a key, NORM."""
    if node.op_type == _ADDED or _given(node, _SQUARES):
        yield ("added", ADDED.value, FEW) if node.op_type == _ADDED else ("scaled", SCALED.value, FEW)
        yield result, PLAIN.value, (FEW[1] + 1, ANY_ROWS[1])
    else:
        yield result, PLAIN.value, ANY_ROWS


def _given(node: ir.Node, index: int) -> bool:
    return len(node.inputs) > index and node.inputs[index] is not None


class _Plan:
    """Collects variants, one a key; the first node of a key decides what is known to be aligned."""

    def __init__(self, dtype: str) -> None:
        self.dtype = dtype
        self.t = TRITON_TYPES[dtype]
        self.found: dict[str, Variant] = {}
        self.handlers: dict[str, Callable[[ir.Node], None]] = {
            "RMSNorm": self._norm,
            "AddRMSNorm": self._norm,
            "GatedActivation": lambda node: self._gated(node.attributes["activation"].as_string()),
            "Linear": self._linear,
            "Logits": self._linear,
            "QuantMatMul": self._quant_matmul,
            "QuantLogits": self._quant_matmul,
            _ADDED: self._quant_matmul,
            "QuantGather": self._quant_gather,
            "PagedAttention": self._attention,
            "Experts": self._experts,
        }

    def _add(
        self,
        kernel: str,
        rest: Iterable[str],
        function: object,
        types: dict[str, str],
        constants: dict[str, int],
        aligned: dict[str, int],
        tuned: str | None = None,
        rows: tuple[int, int] = ANY_ROWS,
    ) -> None:
        """aligned: values of integer arguments; those that are multiples of 16 are compiled as such. tuned: its
        name in the tuning table, where that is not the kernel's. rows: the fewest and the most of a launch."""
        key = "/".join((kernel, self.dtype, *rest))
        known = {name for name, kind in types.items() if kind.startswith("*")}
        known |= {name for name, value in aligned.items() if name in types and value % _ALIGNMENT == 0}
        variant = Variant(key, tuned or kernel, function, types, frozenset(known), constants, rows)
        before = self.found.get(key)
        self.found[key] = variant if before is None else before.joined(variant)

    def _norm(self, node: ir.Node) -> None:
        columns = int(dims(node.inputs[-1])[0])  # type: ignore[arg-type]
        if node.op_type == "AddRMSNorm":
            self._add_norm(columns)
            return
        types = dict.fromkeys(("x", "weight", "y"), f"*{self.t}") | {"columns": "i32", "epsilon": "fp32"}
        constants = {"BLOCK": _power(columns)}
        self._add("rms_norm", (), rms_norm.rms_norm_kernel, types, constants, {"columns": columns})

    def _add_norm(self, columns: int) -> None:
        types = dict.fromkeys(("x", "residual", "weight", "y", "total"), f"*{self.t}")
        types |= {"columns": "i32", "epsilon": "fp32"}
        constants = {"BLOCK": _power(columns)}
        self._add("add_rms_norm", (), rms_norm.add_rms_norm_kernel, types, constants, {"columns": columns})

    def _gated(self, activation: str) -> None:
        types = {"x": f"*{self.t}", "y": f"*{self.t}", "columns": "i32"}
        constants = {"ACTIVATION": ACTIVATIONS[activation]}
        self._add("gated_activation", (activation,), gated_activation.gated_activation_kernel, types, constants, {})

    def _product(self, node: ir.Node, bias: bool) -> tuple[str, str, tuple[str, ...], dict[str, int]]:
        """Triton's type of the result, the activation, the rest of the key, and the constants of both."""
        given = node.attributes.get("activation")
        activation = given.as_string() if given is not None else "none"
        logits = node.op_type in _LOGITS
        rest = ("float32" if logits else "same", "bias" if bias else "plain", activation)
        if activation != "none":
            self._gated(activation)
        if bias:
            out = "*fp32" if logits else f"*{self.t}"
            types = {"bias": f"*{self.t}", "y": out, "width": "i32"}
            self._add("bias_rows", (rest[0],), linear.bias_rows_kernel, types, {}, {})
        constants = {"HAS_BIAS": int(bias), "ACTIVATION": ACTIVATIONS[activation]}
        return ("*fp32" if logits else f"*{self.t}"), activation, rest, constants

    def _linear(self, node: ir.Node) -> None:
        height, columns = (int(dim) for dim in dims(node.inputs[1]))  # type: ignore[arg-type]
        bias = _given(node, 2)
        out, activation, rest, constants = self._product(node, bias)
        pointers = {"x": f"*{self.t}", "w": f"*{self.t}", "bias": f"*{self.t}", "y": out}
        width = height if activation == "none" else height // 2
        sizes = {"width": width, "columns": columns}
        types = pointers | {"width": "i32", "columns": "i32"}
        self._add(
            "linear_row", rest, linear.linear_row_kernel, types, constants, sizes, _gated("linear_row", activation)
        )
        types = pointers | _PARTS | {"rows": "i32", "width": "i32", "columns": "i32"}
        self._add(
            "linear_tile",
            rest,
            linear.linear_tile_kernel,
            types,
            constants,
            sizes,
            _gated("linear_tile", activation),
        )

    def _form(self, node: ir.Node, prefix: str = "") -> tuple[str, dict[str, int]]:
        bits, group = node.attributes[f"{prefix}bits"].as_int(), node.attributes[f"{prefix}group"].as_int()
        given = node.attributes.get(f"{prefix}minima")
        minima = given is not None and given.as_int() == 1
        return f"{bits}.{group}{'.minima' if minima else ''}", {"BITS": bits, "GROUP": group, "MINIMA": int(minima)}

    def _quant_matmul(self, node: ir.Node) -> None:
        columns, height = node.attributes["columns"].as_int(), node.attributes["rows"].as_int()
        added = node.op_type == _ADDED
        bias = _given(node, _ADDED_BIAS if added else 3)
        out, activation, (result, *rest), constants = self._product(node, bias)
        form, numbers = self._form(node)
        sizes = {"width": height if activation == "none" else height // 2, "columns": columns, "block_bytes": 16}
        pointer, packed = f"*{self.t}", {"words": "*i32", "scales": "*fp16"}
        types = {"x": pointer} | packed | {"bias": pointer, "y": out} | _PARTS
        types |= {"squares": "*fp32", "tiles": "i32", "residual": pointer, "gain": pointer, "unit": "*fp32"}
        types |= {"total": pointer, "epsilon": "fp32"}
        types |= {"rows": "i32", "width": "i32", "columns": "i32", "block_bytes": "i32"}
        # Whether columns are known to come in whole spans (ops/triton/span_products.py).
        numbers["WHOLE"] = int(columns % 32 == 0)
        tuned = _gated(_quant_tile(numbers), activation)
        for kind, norm, rows in _around(node, result):
            flags = {**numbers, **constants, "NORM": norm, "PACKED": 1}
            function = quant_matmul.quant_tile_kernel
            self._add("quant_tile", (form, kind, *rest), function, types, flags, sizes, tuned, rows)
        if added:
            self._add_norm(height)
        types = packed | {"out": pointer, "height": "i32", "columns": "i32", "block_bytes": "i32"}
        self._add("dequantise", (form,), quant_matmul.dequantise_kernel, types, {**numbers, "PACKED": 1}, sizes)

    def _quant_gather(self, node: ir.Node) -> None:
        form, numbers = self._form(node)
        types = {"words": "*i32", "scales": "*fp16", "ids": "*i64", "y": f"*{self.t}", "rows": "i32"}
        types |= {"columns": "i32", "block_bytes": "i32"}
        sizes = {"columns": node.attributes["columns"].as_int(), "block_bytes": 16}
        self._add("quant_gather", (form,), gather.quant_gather_kernel, types, numbers, sizes)

    def _experts(self, node: ir.Node) -> None:
        count = node.attributes["experts"].as_int()
        hidden, inner = (node.attributes[f"{name}_columns"].as_int() for name in ("gate_up", "down"))
        activation = node.attributes["activation"].as_string()
        room = {"BLOCK_E": _power(count)}
        size = str(room["BLOCK_E"])
        pointer, aligned = f"*{self.t}", {"experts": count}
        types = {"logits": "*fp32", "chosen": "*i32", "shares": "*fp32", "experts": "i32", "top_k": "i32"}
        types |= {"normalise": "i32", "scale": "fp32"}
        self._add("experts_route", (size,), experts_route.experts_route_kernel, types, room, aligned)
        types = dict.fromkeys(("chosen", "order", "ends"), "*i32")
        types |= dict.fromkeys(("pairs", "experts", "block"), "i32")
        sizes = {**aligned, "block": 16}
        self._add("experts_group", (size,), experts_route.experts_group_kernel, types, room, sizes)
        types = {"parts": "*fp32", "shares": "*fp32", "y": pointer, "top_k": "i32", "width": "i32"}
        self._add("experts_sum", (), experts.experts_sum_kernel, types, {}, {"width": hidden})
        weight = node.inputs[2]
        quantised = weight is not None and weight.dtype == ir.DataType.UINT8
        where = {"order": "*i32", "ends": "*i32"} | dict.fromkeys(("experts", "share", "width", "columns"), "i32")
        for prefix, width, columns, result, act in (
            ("gate_up_", inner, hidden, pointer, activation),
            ("down_", hidden, inner, "*fp32", "none"),
        ):
            constants = {**room, "ACTIVATION": ACTIVATIONS[act]}
            sizes = {**aligned, "width": width, "columns": columns, "block_bytes": 16}
            rest = ["same" if result == pointer else "float32", act]
            kernel, function = "experts_tile", experts.experts_tile_kernel
            types = {"x": pointer, "w": pointer, "y": result, **where}
            if quantised:
                form, numbers = self._form(node, prefix)
                rest.insert(0, form)
                constants |= {**numbers, "PACKED": 1}
                kernel, function = "experts_quant_tile", experts_quant.experts_quant_tile_kernel
                types = {"x": pointer, "words": "*i32", "scales": "*fp16", "y": result, **where}
                types |= {"block_bytes": "i32"}
            self._add(kernel, (size, *rest), function, types, constants, sizes, _gated(kernel, act))

    def _attention(self, node: ir.Node) -> None:
        def integer(name: str) -> int:
            given = node.attributes.get(name)
            return given.as_int() if given is not None else 0

        heads, kv_heads, rotary = integer("heads"), integer("kv_heads"), integer("rotary_dims")
        head_dim, value_dim = (int(dims(node.inputs[index])[3]) for index in (3, 4))  # type: ignore[arg-type]
        softcap = node.attributes.get("softcap")
        capped = softcap is not None and softcap.as_float() > 0
        window, sinks = integer("window") > 0, _given(node, 14)
        pointer = f"*{self.t}"
        shape = {"HEAD_DIM": head_dim, "VALUE_DIM": value_dim}

        turning = f".{rotary}" + (".interleaved" if integer("interleaved") else "")
        turning += (".q_norm" if _given(node, 12) else "") + (".k_norm" if _given(node, 13) else "")
        turned = {"ROTARY": rotary, "INTERLEAVED": integer("interleaved")}
        turned |= {"HAS_Q_NORM": int(_given(node, 12)), "HAS_K_NORM": int(_given(node, 13))}
        inputs = dict.fromkeys(("q", "k", "v"), pointer)
        rope = dict.fromkeys(("rope_table", "q_norm", "k_norm"), "*fp32")
        strides = dict.fromkeys(("q_stride", "k_stride", "v_stride"), "i32")
        widths = [heads * head_dim, kv_heads * head_dim, kv_heads * value_dim]
        if not _given(node, 1):
            widths = [sum(widths)] * 3
        aligned = dict(zip(strides, widths, strict=True))
        cache = node.inputs[3]
        coded = cache is not None and cache.dtype == ir.DataType.INT8
        caches = dict.fromkeys(("k_cache", "v_cache"), "*i8" if coded else pointer)
        caches |= dict.fromkeys(("k_scale", "v_scale"), "*fp32")
        types = (
            inputs | {"turned": pointer} | caches | {"slot_mapping": "*i32", "positions": "*i64"} | rope | strides
        )
        types |= {"norm_epsilon": "fp32", "first": "i32"}
        constants = {"HEADS": heads, "KV_HEADS": kv_heads, **shape, **turned}
        constants["BLOCK_D"] = _power(max(head_dim, value_dim))
        names = f"{heads}.{kv_heads}.{head_dim}.{value_dim}"
        kind = ".int8" if coded else ""
        prepare = attention_prepare.attention_prepare_kernel
        self._add("attention_prepare", (names + kind + turning,), prepare, types, constants, aligned)

        names += f".{BLOCK_SIZE}" + (".window" if window else "") + (".softcap" if capped else "")
        names += (".sinks" if sinks else "") + kind
        scores = {"HAS_SINKS": int(sinks), "HAS_WINDOW": int(window), "HAS_SOFTCAP": int(capped)}
        scores |= {"BLOCK_SIZE": BLOCK_SIZE, "BLOCK_D": _power(head_dim), "BLOCK_V": _power(value_dim)}
        floats = {"scale": "fp32", "softcap": "fp32", "window": "i32", "table_width": "i32"}
        types = inputs | caches | {"block_tables": "*i32", "slot_mapping": "*i32", "seq_lens": "*i32"}
        types |= {"positions": "*i64"} | rope | {"sinks": "*fp32", "out": pointer, "partial": "*fp32"}
        types |= {"partial_stats": "*fp32", "counters": "*i32"} | strides | {"norm_epsilon": "fp32"} | floats
        types |= {"pieces": "i32"}
        group = heads // kv_heads
        constants = {"KV_HEADS": kv_heads, "GROUP": group, **shape, **turned, **scores}
        constants["BLOCK_H"] = _power(group)  # one program has all query heads of its kv head
        decode = attention_decode.attention_decode_kernel
        self._add("attention_decode", (names + turning,), decode, types, constants, aligned)

        types = {"q": pointer} | caches | {"block_tables": "*i32", "query_start": "*i32", "seq_lens": "*i32"}
        parts = dict.fromkeys(("partial", "partial_stats"), "*fp32")
        types |= {"sinks": "*fp32", "out": pointer} | parts | floats | {"first": "i32", "pieces": "i32"}
        constants = {"KV_HEADS": kv_heads, "GROUP": group, **shape, **scores}
        prefill = attention_prefill.attention_prefill_kernel
        # Wide heads fill the registers of a thread.
        tuned = "attention_prefill_wide" if max(head_dim, value_dim) > 128 else "attention_prefill"
        self._add("attention_prefill", (names,), prefill, types, {**constants, "SPLIT": 0}, {}, tuned)
        tuned = "attention_prefill_split"
        self._add("attention_prefill", (names + ".split",), prefill, types, {**constants, "SPLIT": 1}, {}, tuned)
        types = parts | {"sinks": "*fp32", "out": pointer, "pieces": "i32", "first": "i32"}
        constants = {"HEADS": heads, "VALUE_DIM": value_dim, "BLOCK_V": _power(value_dim), "HAS_SINKS": int(sinks)}
        names = f"{heads}.{value_dim}" + (".sinks" if sinks else "")
        self._add("attention_merge", (names,), attention_prefill.attention_merge_kernel, types, constants, {})
