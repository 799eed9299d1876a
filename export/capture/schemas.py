"""Registration of operator schemas with onnx, from `ops/schema.py`, and the schemas that only a capture uses.

The capture's own domain holds what a traced model says before passes put it into an operator that serving
knows: rotary embedding, a lookup of its table, attention without a cache, experts chosen outside.
"""

from __future__ import annotations

import threading

import onnx

from ops.schema import DOMAIN, SCHEMAS, VERSION, Attribute, Input, Schema

CAPTURE_DOMAIN = "ai.ortolan.capture"

ROPE_LOOKUP = Schema(
    name="RopeLookup",
    meaning="Rows of a rotary table: cos and sin, each repeated over both halves as transformers passes them.",
    inputs=(Input("positions", "I64", "[1, T]", "rows of the table"),),
    outputs=(
        Input("cos", "T", "[1, T, rotary_dims]", "cosines times the attention scaling"),
        Input("sin", "T", "[1, T, rotary_dims]", "sines times the attention scaling"),
    ),
    attributes=(
        Attribute("table", "string", "name of the table"),
        Attribute("rotary_dims", "int", "columns of cos and of sin"),
    ),
)

ROTARY = Schema(
    name="Rotary",
    meaning="Rotary embedding of the leading dims of each query and key head.",
    inputs=(
        Input("q", "T", "[1, heads, T, head_dim]", "queries"),
        Input("k", "T", "[1, kv_heads, T, head_dim]", "keys"),
        Input("cos", "T", "[1, T, rotary_dims]", "from RopeLookup"),
        Input("sin", "T", "[1, T, rotary_dims]", "from RopeLookup"),
    ),
    outputs=(Input("q_out", "T", "as q", "turned"), Input("k_out", "T", "as k", "turned")),
    attributes=(Attribute("interleaved", "int", "as in PagedAttention", 0),),
)

ATTENTION = Schema(
    name="Attention",
    meaning="Causal attention of one layer, without a word on where keys and values are kept.",
    inputs=(
        Input("q", "T", "[1, heads, T, head_dim]", "queries"),
        Input("k", "T", "[1, kv_heads, T, head_dim]", "keys"),
        Input("v", "T", "[1, kv_heads, T, v_dim]", "values"),
        Input("sinks", "T", "[heads]", "attention sink logits", optional=True),
    ),
    outputs=(Input("out", "T", "[1, T, heads, v_dim]", "result"),),
    attributes=(
        Attribute("layer", "int", "index of the layer"),
        Attribute("heads", "int", "query heads"),
        Attribute("kv_heads", "int", "key and value heads"),
        Attribute("head_dim", "int", "dims of a query and key head"),
        Attribute("v_dim", "int", "dims of a value head"),
        Attribute("scale", "float", "factor on q . k"),
        Attribute("window", "int", "sliding window in tokens, 0 for none", 0),
        Attribute("softcap", "float", "soft-cap of scores, 0 for none", 0.0),
    ),
)

ROUTE = Schema(
    name="Route",
    meaning="The experts of each row and their weights, as Experts chooses them.",
    inputs=(Input("logits", "T", "[T, experts]", "of the router"),),
    outputs=(
        Input("chosen", "I64", "[T, top_k]", "experts, the best first"),
        Input("weights", "T", "[T, top_k]", "theirs"),
    ),
    attributes=(
        Attribute("top_k", "int", "experts of a row"),
        Attribute("normalise", "int", "as in Experts"),
        Attribute("scale", "float", "as in Experts"),
    ),
)

CHOSEN_EXPERTS = Schema(
    name="ChosenExperts",
    meaning="The weighted sum of what chosen experts give.",
    inputs=(
        Input("x", "T", "[T, H]", "input"),
        Input("chosen", "I64", "[T, top_k]", "from Route"),
        Input("weights", "T", "[T, top_k]", "from Route"),
        Input("gate_up", "T", "[experts, 2 * I, H]", "gate, then up, of each expert"),
        Input("down", "T", "[experts, H, I]", "down of each expert"),
    ),
    outputs=(Input("y", "T", "[T, H]", "result"),),
    attributes=(Attribute("activation", "string", "one of GatedActivation"),),
)

CAPTURE_SCHEMAS = {schema.name: schema for schema in (ROPE_LOOKUP, ROTARY, ATTENTION, ROUTE, CHOSEN_EXPERTS)}

_FLOATS = ["tensor(float)", "tensor(float16)", "tensor(bfloat16)"]
_TYPES = {
    "T": _FLOATS,
    "C": ["tensor(float)", "tensor(float16)", "tensor(bfloat16)", "tensor(int8)", "tensor(float8e4m3fn)"],
    "G": [*_FLOATS, "tensor(uint8)"],
    "D": [*_FLOATS, "tensor(uint8)"],
    "U8": ["tensor(uint8)"],
    "U32": ["tensor(uint32)"],
    "I32": ["tensor(int32)"],
    "I64": ["tensor(int64)"],
    "float32": ["tensor(float)"],
}
_KINDS = {
    "int": onnx.defs.OpSchema.AttrType.INT,
    "float": onnx.defs.OpSchema.AttrType.FLOAT,
    "string": onnx.defs.OpSchema.AttrType.STRING,
}
_LOCK = threading.Lock()


def register_schemas() -> None:
    """Make onnx know the operators of both domains. Safe to call again."""
    with _LOCK:
        for domain, schemas in ((DOMAIN, SCHEMAS), (CAPTURE_DOMAIN, CAPTURE_SCHEMAS)):
            for schema in schemas.values():
                if not onnx.defs.has(schema.name, domain):
                    onnx.defs.register_schema(_onnx_schema(domain, schema))


def _onnx_schema(domain: str, schema: Schema) -> onnx.defs.OpSchema:
    letters = {value.type for value in (*schema.inputs, *schema.outputs)}
    return onnx.defs.OpSchema(
        schema.name,
        domain,
        VERSION,
        doc=schema.meaning,
        inputs=[_parameter(value) for value in schema.inputs],
        outputs=[_parameter(value) for value in schema.outputs],
        type_constraints=[(letter, _TYPES[letter], "") for letter in sorted(letters) if letter != "float32"],
        attributes=[_attribute(attribute) for attribute in schema.attributes],
    )


def _parameter(value: Input) -> onnx.defs.OpSchema.FormalParameter:
    option = onnx.defs.OpSchema.FormalParameterOption
    return onnx.defs.OpSchema.FormalParameter(
        value.name,
        "tensor(float)" if value.type == "float32" else value.type,
        f"{value.shape}: {value.meaning}",
        param_option=option.Optional if value.optional else option.Single,
    )


def _attribute(attribute: Attribute) -> onnx.defs.OpSchema.Attribute:
    if attribute.default is None:
        return onnx.defs.OpSchema.Attribute(attribute.name, _KINDS[attribute.kind], attribute.meaning)
    default = onnx.helper.make_attribute(attribute.name, attribute.default)
    return onnx.defs.OpSchema.Attribute(attribute.name, default, attribute.meaning)
