"""The schemas of the operator domain: one definition each, the source of registration, checks and docs.

Type letters: T is float32, float16 or bfloat16 (activations), C is the cache's type, G and D are T or U8 (weights
of experts that are no integers, or quantised), U8, U32, I32 and I64 are integers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

DOMAIN = "ai.ortolan"
VERSION = 1

AttributeValue = int | float | str


@dataclass(frozen=True)
class Input:
    """One input or output: element type letter, shape in words, what it means; optional may be absent."""

    name: str
    type: str
    shape: str
    meaning: str
    optional: bool = False


@dataclass(frozen=True)
class Attribute:
    """One attribute; without a default it must be given."""

    name: str
    kind: Literal["int", "float", "string"]
    meaning: str
    default: AttributeValue | None = None


@dataclass(frozen=True)
class Schema:
    """An operator: inputs in order, outputs in order, attributes."""

    name: str
    meaning: str
    inputs: tuple[Input, ...]
    outputs: tuple[Input, ...]
    attributes: tuple[Attribute, ...] = ()


PAGED_ATTENTION = Schema(
    name="PagedAttention",
    meaning=(
        "Attention of packed queries over a paged cache, with RoPE, per-head q/k norm and the cache write "
        "inside. The order is: norm of q and k, RoPE, write of k and v to their slots in the cache's type, "
        "then attention to K and V as stored, also for this step's tokens. Without k and v, q holds q | k | v "
        "side by side. Query i of the n of a sequence of length L stands at cache position p = L - n + i and sees "
        "cache positions j with j <= p and, with a window W > 0, j > p - W; blocks wholly before the window are "
        "not read. The softmax has one more term exp(sink) per head where sinks are given. A cache of int8 holds "
        "codes, value / scale rounded to the nearest, with a scale for each token and head, its largest magnitude "
        "over 127."
    ),
    inputs=(
        Input("q", "T", "[T, heads * head_dim], or q | k | v side by side without k and v", "queries"),
        Input("k", "T", "[T, kv_heads * head_dim]", "keys", optional=True),
        Input("v", "T", "[T, kv_heads * v_dim]", "values", optional=True),
        Input("k_cache", "C", "[blocks, block_size, kv_heads, head_dim]", "updated in place"),
        Input("v_cache", "C", "[blocks, block_size, kv_heads, v_dim]", "updated in place"),
        Input("block_tables", "I32", "[R, M]", "blocks of each sequence in order"),
        Input("slot_mapping", "I32", "[T]", "block * block_size + offset; -1 writes nothing"),
        Input("query_start", "I32", "[R + 1]", "first row of each sequence; the last is the real T"),
        Input("seq_lens", "I32", "[R]", "length of each sequence after this step; 0 is padding"),
        Input("positions", "I64", "[T]", "rows of the RoPE table"),
        Input("plan", "I32", "[6]", "decode rows, prefill rows, longest query, longest context, T, R"),
        Input("rope_table", "float32", "[P, rotary_dims]", "cos in the first half, then sin", optional=True),
        Input("q_norm", "float32", "[head_dim]", "weight of the RMS norm of each query head", optional=True),
        Input("k_norm", "float32", "[head_dim]", "weight of the RMS norm of each key head", optional=True),
        Input("sinks", "float32", "[heads]", "attention sink logit of each head", optional=True),
        Input("k_scale", "float32", "[blocks, block_size, kv_heads]", "scales of a quantised cache", optional=True),
        Input("v_scale", "float32", "[blocks, block_size, kv_heads]", "scales of a quantised cache", optional=True),
    ),
    outputs=(
        Input("out", "T", "[T, heads * v_dim]", "attention result; rows past the real T are zero"),
        Input("k_cache_out", "C", "as k_cache", "the same buffer"),
        Input("v_cache_out", "C", "as v_cache", "the same buffer"),
        Input("k_scale_out", "float32", "as k_scale", "the same buffer", optional=True),
        Input("v_scale_out", "float32", "as v_scale", "the same buffer", optional=True),
    ),
    attributes=(
        Attribute("heads", "int", "query heads"),
        Attribute("kv_heads", "int", "key and value heads; divides heads"),
        Attribute("scale", "float", "factor on q . k"),
        Attribute("window", "int", "sliding window in tokens, 0 for none", 0),
        Attribute("softcap", "float", "c * tanh(score / c) on scaled scores, 0 for none", 0.0),
        Attribute("rotary_dims", "int", "leading dims of a head that RoPE turns; 0 for none", 0),
        Attribute("interleaved", "int", "1 pairs dims (2i, 2i + 1), 0 pairs (i, i + rotary_dims / 2)", 0),
        Attribute("norm_epsilon", "float", "epsilon of q_norm and k_norm", 1e-6),
    ),
)

RMS_NORM = Schema(
    name="RMSNorm",
    meaning="x / sqrt(mean(x^2) + epsilon) * weight over the last axis, computed in float32.",
    inputs=(
        Input("x", "T", "[T, H]", "input"),
        Input("weight", "T", "[H]", "gain; offsets such as 1 + w are folded in at export"),
    ),
    outputs=(Input("y", "T", "[T, H]", "normalised"),),
    attributes=(Attribute("epsilon", "float", "added to the mean square", 1e-6),),
)

ADD_RMS_NORM = Schema(
    name="AddRMSNorm",
    meaning="sum = x + residual; y = RMSNorm(sum).",
    inputs=(
        Input("x", "T", "[T, H]", "input"),
        Input("residual", "T", "[T, H]", "added to x"),
        Input("weight", "T", "[H]", "gain"),
    ),
    outputs=(Input("y", "T", "[T, H]", "normalised sum"), Input("sum", "T", "[T, H]", "x + residual")),
    attributes=(Attribute("epsilon", "float", "added to the mean square", 1e-6),),
)

GATED_ACTIVATION = Schema(
    name="GatedActivation",
    meaning="activation(gate) * up, where x holds gate | up side by side.",
    inputs=(Input("x", "T", "[T, 2 * I]", "gate in the first half of each row, up in the second"),),
    outputs=(Input("y", "T", "[T, I]", "result"),),
    attributes=(Attribute("activation", "string", "silu, gelu (erf) or gelu_tanh", "silu"),),
)

LINEAR = Schema(
    name="Linear",
    meaning=(
        "activation(x . weight^T + bias), summed in float32. With an activation the weight's rows are gate | up "
        "and y is half as wide. The CPU lowers it to other operators; on a GPU it has kernels of its own."
    ),
    inputs=(
        Input("x", "T", "[T, K]", "input"),
        Input("weight", "T", "[N, K]", "weight in the checkpoint's order"),
        Input("bias", "T", "[N]", "added to each row", optional=True),
    ),
    outputs=(Input("y", "T", "[T, N], or [T, N / 2] with an activation", "result"),),
    attributes=(Attribute("activation", "string", "none, or one of GatedActivation", "none"),),
)

LOGITS = replace(
    LINEAR,
    name="Logits",
    meaning="Linear without an activation whose result stays in float32: the head of a graph in 16 bits.",
    outputs=(Input("y", "float32", "[T, N]", "result"),),
    attributes=(),
)

_QUANTISED = (
    Attribute("rows", "int", "N, rows of W"),
    Attribute("columns", "int", "K, columns of W"),
    Attribute("bits", "int", "4 or 8"),
    Attribute("group", "int", "columns that share a scale: 32, 64 or 128, or 16 with 8 bits"),
    Attribute("minima", "int", "1 where groups have minima", 0),
    Attribute("scales", "string", "type of scales and minima: float16 or float32", "float16"),
    Attribute(
        "layout",
        "string",
        "order of the bytes in memory: cpu-vnni (ops.layout) or cuda-fragments (ops.cuda_layout)",
        "cpu-vnni",
    ),
)

QUANT_MATMUL = Schema(
    name="QuantMatMul",
    meaning=(
        "activation(norm(x) . W^T + bias) + residual with W in 4 or 8 bits: W[n, k] = code * scale + minimum of "
        "k's group, or (code - 2^(bits - 1)) * scale without minima; norm is RMSNorm where its weight is given. "
        "With an activation the rows of W are gate | up, each a multiple of 16, and y is half as wide. norm(x) is "
        "rounded to int8 by row and group (scale absmax / 127, ties to even), unless the session's entry "
        "ortolan.activations is float32; on a GPU x is float16 and is not rounded further, and "
        "with squares x . W^T is first divided, row by row, by the root of their sum. On the CPU a row's "
        "bits do not depend on the other rows nor on the number of threads."
    ),
    inputs=(
        Input("x", "T", "[T, K]", "input"),
        Input("weights", "U8", "as the layout says", "codes, scales and minima of W"),
        Input("norm", "T", "[K]", "weight of an RMS norm of x", optional=True),
        Input("bias", "T", "[N]", "added to each row", optional=True),
        Input("residual", "T", "[T, N], or [T, N / 2] with an activation", "added last", optional=True),
        Input("squares", "float32", "[P, 32]", "shares of the mean squares that x lacks; GPU only", optional=True),
    ),
    outputs=(Input("y", "T", "[T, N], or [T, N / 2] with an activation", "result"),),
    attributes=(
        *_QUANTISED,
        Attribute("activation", "string", "none, or one of GatedActivation", "none"),
        Attribute("norm_epsilon", "float", "epsilon of norm", 1e-6),
    ),
)

QUANT_MATMUL_ADD_RMS_NORM = Schema(
    name="QuantMatMulAddRMSNorm",
    meaning=(
        "sum = x . W^T + bias + residual with W as in QuantMatMul, rounded once; y = RMSNorm(sum). Of few rows the "
        "norm is left to products with squares: y = sum * gain * unit, and each row's shares add up to unit^2 * "
        "(mean(sum^2) + epsilon); P = 0 where y is the norm. GPU only."
    ),
    inputs=(
        *QUANT_MATMUL.inputs[:2],
        Input("residual", "T", "[T, N]", "added to the product"),
        Input("gain", "T", "[N]", "weight of the norm"),
        Input("unit", "float32", "[1]", "power of two by which no gain is 1 or more"),
        Input("bias", "T", "[N]", "added to each row", optional=True),
    ),
    outputs=(
        *ADD_RMS_NORM.outputs,
        Input("squares", "float32", "[P, 32]", "each row's shares of the mean square"),
    ),
    attributes=(*_QUANTISED, *ADD_RMS_NORM.attributes),
)

QUANT_LOGITS = replace(
    QUANT_MATMUL,
    name="QuantLogits",
    meaning="QuantMatMul without an activation whose result stays in float32: the head of a graph in 16 bits.",
    inputs=QUANT_MATMUL.inputs[:5],
    outputs=(Input("y", "float32", "[T, N]", "result"),),
    attributes=_QUANTISED,
)

QUANT_GATHER = Schema(
    name="QuantGather",
    meaning="Rows of a W kept as in QuantMatMul, dequantised: an embedding that shares a tied head's bytes.",
    inputs=(
        Input("weights", "U8", "as the layout says", "codes, scales and minima of W"),
        Input("ids", "I64", "[T]", "rows to take, each in [0, N)"),
    ),
    outputs=(Input("y", "T", "[T, K]", "the rows"),),
    attributes=_QUANTISED,
)


def _of_experts(weights: str, rows: str, columns: str) -> tuple[Attribute, ...]:
    """The attributes of one of the two weights of Experts."""
    changed = {
        "rows": Attribute("rows", "int", rows),
        "columns": Attribute("columns", "int", columns),
        "bits": Attribute("bits", "int", "4 or 8; 32 where the weights are no integers", 32),
        "group": Attribute("group", "int", "as in QuantMatMul, where the weights are integers", 32),
    }
    return tuple(
        replace(own, name=f"{weights}_{one.name}") for one in _QUANTISED for own in [changed.get(one.name, one)]
    )


EXPERTS = Schema(
    name="Experts",
    meaning=(
        "A layer of experts of which each row goes to the top_k with the largest logits (of equal ones the "
        "first): y = sum over them of p * down . (activation(gate . x) * (up . x)). p is the softmax of the "
        "logits over all experts, or with normalise over the chosen ones, which is also what dividing by their "
        "sum gives; times scale. Expert e has the rows [e * N, (e + 1) * N) of a weight of experts * N rows. "
        "Quantised weights are as in QuantMatMul, with a multiple of 16 rows for each of gate, up and down, and "
        "what they multiply is rounded alike; on a GPU both are quantised or none, and the rows a multiple of 64. "
        "Only the weights of experts that some row goes to are read. On the CPU a row's bits do not depend on the "
        "other rows nor on the number of threads."
    ),
    inputs=(
        Input("x", "T", "[T, H]", "input"),
        Input("logits", "float32", "[T, experts]", "how well each expert suits each row: the router's product"),
        Input(
            "gate_up_weights", "G", "[experts * 2 * I, H], or as the layout says", "gate, then up, of each expert"
        ),
        Input("down_weights", "D", "[experts * H, I], or as the layout says", "down of each expert"),
    ),
    outputs=(Input("y", "T", "[T, H]", "result"),),
    attributes=(
        Attribute("experts", "int", "number of experts"),
        Attribute("top_k", "int", "experts of a row"),
        Attribute("normalise", "int", "1 where the weights of a row's experts add up to 1", 0),
        Attribute("scale", "float", "factor on the weights of experts", 1.0),
        Attribute("activation", "string", "one of GatedActivation", "silu"),
        *_of_experts("gate_up", "experts * 2 * I", "H"),
        *_of_experts("down", "experts * H", "I"),
    ),
)

COPY_BLOCKS = Schema(
    name="CopyBlocks",
    meaning="Copies whole blocks of one cache tensor: cache[destination[i]] = cache[source[i]], in order.",
    inputs=(
        Input("cache", "C", "[blocks, block_size, ...]", "updated in place"),
        Input("source", "I32", "[n]", "block numbers"),
        Input("destination", "I32", "[n]", "block numbers"),
    ),
    outputs=(Input("cache_out", "C", "as cache", "the same buffer"),),
)

SAMPLE = Schema(
    name="Sample",
    meaning=(
        "Chooses one token for each of the first S rows of logits. In this order: the row's mask; bias is added; "
        "of the listed tokens positive scores are divided by the repetition penalty and negative ones multiplied, "
        "then frequency times count is taken, and presence where the count is above 0; temperature; min-p, top-k "
        "with ties, top-p with ties in the order of ids; a draw by inversion in that order, by the Philox4x32-10 "
        "number of seed (key) and position (counter). Temperature 0 takes the first of the best. Log-probabilities "
        "are of the raw logits. A row's results do not depend on the other rows nor on the number of threads."
    ),
    inputs=(
        Input("logits", "float32", "[S or more, V]", "not changed"),
        Input("settings", "float32", "[S, 6]", "temperature, top-p, min-p, repetition, presence, frequency"),
        Input("numbers", "I64", "[S, 6]", "seed, position, top-k, logprobs, forced token or -1, mask or -1"),
        Input("token_start", "I32", "[S + 1]", "where each row's tokens begin"),
        Input("token_ids", "I32", "[N]", "tokens that penalties count, each once a row"),
        Input("token_counts", "I32", "[N]", "how often each was generated; 0 where the prompt alone has it"),
        Input("bias_start", "I32", "[S + 1]", "where each row's bias begins"),
        Input("bias_ids", "I32", "[B]", "tokens whose logits are changed"),
        Input("bias_values", "float32", "[B]", "what is added to them; -inf bans"),
        Input("masks", "U32", "[M, ceil(V / 32)]", "bit i % 32 of word i / 32 allows token i"),
    ),
    outputs=(
        Input("ids", "I64", "[S]", "the chosen token, or the forced one"),
        Input("status", "I32", "[S]", "0; 1: the logits hold NaN or infinity or nothing; 2: no token is allowed"),
        Input("logprobs", "float32", "[S]", "of the ids, where logprobs is 0 or more"),
        Input("ranks", "I32", "[S]", "1, and one more for each likelier token, where logprobs is 0 or more"),
        Input(
            "top_ids", "I32", "[S, L]", "the likeliest tokens, logprobs of them; then -1. L is the most of a row"
        ),
        Input("top_logprobs", "float32", "[S, L]", "theirs; then 0"),
    ),
)

SCHEMAS: dict[str, Schema] = {
    schema.name: schema
    for schema in (
        PAGED_ATTENTION,
        RMS_NORM,
        ADD_RMS_NORM,
        GATED_ACTIVATION,
        LINEAR,
        LOGITS,
        QUANT_MATMUL,
        QUANT_MATMUL_ADD_RMS_NORM,
        QUANT_LOGITS,
        QUANT_GATHER,
        EXPERTS,
        COPY_BLOCKS,
        SAMPLE,
    )
}
