"""Lowering for the GPU: types that agree, keys as the launcher makes them, compilation for every architecture."""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace

import msgspec
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("onnx")
pytest.importorskip("onnx_ir")
pytest.importorskip("triton")

import onnx
import onnx_ir as ir

from export.kernels.architecture import DEFAULT, architecture
from export.kernels.compile import compile_choice, compile_variant
from export.kernels.pack import pack
from export.kernels.plan import variants_of
from export.kernels.side_by_side import compile_all
from export.kernels.tuning import serving, tiles
from export.kernels.variant import ANY_ROWS, Variant
from export.lowering import LoweredModel, lower
from export.recipe import recipe_for
from ops.errors import ConfigError, KernelError
from rtcore.kernels import KernelSet
from rtcore.machine import available_cores
from tests.export.cases import case

pytestmark = pytest.mark.export

NAMES = ["llama", "qwen2", "gemma2", "gpt2", "gpt_neox", "olmo2", "mixtral", "qwen2_moe"]


def lowered(name: str, precision: str) -> LoweredModel:
    chosen = case(name)
    recipe = recipe_for(precision).for_target("cuda")
    assert recipe is not None
    return lower(chosen.captured, recipe, chosen.captured.reader(chosen.checkpoint), "cuda")


def variants(name: str, precision: str) -> dict[str, Variant]:
    model = lowered(name, precision)
    return {variant.key: variant for variant in variants_of(model.step.graph, model.float_type)}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("precision", ["bf16", "int8"])
def test_types_agree_in_every_node(name: str, precision: str) -> None:
    model = lowered(name, precision)
    graph = model.step.graph
    for key, value in list(graph.initializers.items()):
        if value.const_value is None:
            del graph.initializers[key]
            graph.inputs.append(value)
    onnx.shape_inference.infer_shapes(ir.serde.serialize_model(model.step), strict_mode=True, check_type=True)
    logits = next(value for value in graph.outputs if value.name == "logits")
    assert logits.dtype == ir.DataType.FLOAT
    wanted = {"bfloat16": ir.DataType.BFLOAT16, "float16": ir.DataType.FLOAT16}[model.float_type]
    assert {value.dtype for value in graph.inputs if value.name and "cache" in value.name} == {wanted}


def test_two_precisions_of_one_model_do_not_disturb_each_other() -> None:
    first, second = lowered("llama", "bf16"), lowered("llama", "fp16")
    for model, wanted in ((first, ir.DataType.BFLOAT16), (second, ir.DataType.FLOAT16)):
        types = {output.dtype for node in model.step.graph for output in node.outputs}
        assert types == {wanted, ir.DataType.FLOAT}


def test_a_llamas_kernels() -> None:
    found = variants("llama", "bf16")
    assert {key.split("/")[0] for key in found} == {
        *("rms_norm", "add_rms_norm", "gated_activation", "linear_row", "linear_tile"),
        *("attention_prepare", "attention_decode", "attention_prefill", "attention_merge"),
        *("sample_part", "sample_lists", "sample_weigh", "sample_gather", "sample_choose", "sample_rank"),
        *("sample_logprobs", "sample_feed"),
    }
    assert {"sample_part/read", "sample_part/copied"} <= set(found)
    assert "linear_row/bfloat16/same/plain/silu" in found
    assert "linear_tile/bfloat16/float32/plain/none" in found
    assert found["linear_row/bfloat16/same/plain/none"].letters() == "PPPPII"


def wide_groups(name: str, precision: str) -> dict[str, Variant]:
    """The variants where weights have groups of 64."""
    chosen = case(name)
    recipe = recipe_for(precision).for_target("cuda")
    assert recipe is not None
    model = lower(chosen.captured, replace(recipe, group=64), chosen.captured.reader(chosen.checkpoint), "cuda")
    return {variant.key: variant for variant in variants_of(model.step.graph, model.float_type)}


def test_products_around_norms_have_no_more_binaries_than_their_rows_ask_for() -> None:
    found = wide_groups("llama", "int4")
    keys = [
        f"quant_tile/float16/4.64/{rest}" for rest in ("added/plain/none", "scaled/plain/none", "scaled/plain/silu")
    ]
    assert [found[key].rows for key in keys] == [(1, 32)] * 3
    assert [found[key].constants["NORM"] for key in keys] == [2, 1, 1]
    # q | k | v of the first layer read what is normalised; all other products do so with more rows alone.
    alone, gated = (found[f"quant_tile/float16/4.64/same/plain/{activation}"] for activation in ("none", "silu"))
    assert (alone.rows, gated.rows) == (ANY_ROWS, (33, 2**31 - 1))
    assert {found[key].letters() for key in keys} == {alone.letters()} == {"PPPPPPPPiPPPPfiIII"}
    served = [
        [choice.rows for choice in serving(tiles(one.kernel, "sm_90"), one.rows)]
        for one in (*(found[key] for key in keys), alone, gated)
    ]
    few, by_columns = [8, 16, 32], [1, 1, 1]
    assert served == [by_columns + few, by_columns + few, [1, 1, *few], [*by_columns, *few, 64, 128], [128]]
    assert gated.joined(found[keys[2]]).rows == ANY_ROWS
    assert [choice.rows for choice in serving(tiles("quant_tile", "sm_80"), (1, 40))] == [16, 32, 128]
    assert [one.columns for one in serving(tiles("linear_row", "sm_90"), (1, 64))] == [2048, 0]
    assert not any("scaled" in key or "added" in key for key in variants("llama", "int4")), "groups of 32"


def test_one_variant_serves_columns_in_whole_spans_and_others() -> None:
    one = variants("llama", "int4")["quant_tile/float16/4.32/same/plain/none"]
    assert one.constants["WHOLE"] == 1
    other = replace(one, constants={**one.constants, "WHOLE": 0})
    assert one.joined(other).constants["WHOLE"] == other.joined(one).constants["WHOLE"] == 0
    assert one.joined(one).constants["WHOLE"] == 1


def test_quantised_kernels_name_their_form() -> None:
    found = variants("llama", "int4")
    assert "quant_tile/float16/4.32/same/plain/silu" in found
    assert found["quant_tile/float16/4.32/same/plain/silu"].kernel == "quant_tile_scaled_gated"
    assert "quant_tile/float16/8.32/float32/plain/none" in found
    assert {"dequantise/float16/4.32", "quant_gather/float16/8.32"} <= set(found)


def test_attention_of_prompts_has_a_kernel_for_a_context_in_pieces() -> None:
    found = variants("llama", "bf16")
    whole, split = (found[f"attention_prefill/bfloat16/4.2.16.16.16{name}"] for name in ("", ".split"))
    assert (whole.kernel, whole.constants["SPLIT"]) == ("attention_prefill", 0)
    assert (split.kernel, split.constants["SPLIT"]) == ("attention_prefill_split", 1)
    assert found["attention_merge/bfloat16/4.16"].letters() == "PPPPii"


def test_a_cache_of_int8_has_scales_and_kernels_of_its_own() -> None:
    chosen = case("llama")
    recipe = replace(recipe_for("bf16"), cache_dtype="int8")
    model = lower(chosen.captured, recipe, chosen.captured.reader(chosen.checkpoint), "cuda")
    found = {variant.key: variant for variant in variants_of(model.step.graph, model.float_type)}
    assert {
        "attention_prepare/bfloat16/4.2.16.16.int8.16",
        "attention_decode/bfloat16/4.2.16.16.16.int8.16",
    } <= set(found)
    assert found["attention_prefill/bfloat16/4.2.16.16.16.int8"].types["k_cache"] == "*i8"
    graph = model.step.graph
    inputs, outputs = ({value.name: value for value in values} for values in (graph.inputs, graph.outputs))
    assert len(model.cache_tensors) == 2 * 2 * len(chosen.captured.caches)
    for tensor in model.cache_tensors:
        kind = ir.DataType.FLOAT if tensor.kind == "scale" else ir.DataType.INT8
        assert inputs[tensor.name].dtype == outputs[tensor.output].dtype == kind
        assert tensor.dtype == ("float32" if tensor.kind == "scale" else "int8")
        assert (tensor.scale in inputs) == (tensor.kind != "scale")
        shape = list(inputs[tensor.name].shape or ())
        assert tuple(shape[2:]) == tensor.shape
    for key, value in list(graph.initializers.items()):
        if value.const_value is None:
            del graph.initializers[key]
            graph.inputs.append(value)
    onnx.shape_inference.infer_shapes(ir.serde.serialize_model(model.step), strict_mode=True, check_type=True)


def test_experts_kernels_are_of_one_weight_type() -> None:
    found = variants("mixtral", "bf16")
    assert {"experts_route/bfloat16/16", "experts_group/bfloat16/16", "experts_sum/bfloat16"} <= set(found)
    assert {"experts_tile/bfloat16/16/same/silu", "experts_tile/bfloat16/16/float32/none"} <= set(found)
    found = variants("qwen3_moe_whole_blocks", "int4")
    assert "experts_quant_tile/float16/16/4.32/same/silu" in found
    assert "experts_quant_tile/float16/16/4.32/float32/none" in found
    assert not any(key.startswith("experts_tile") for key in found)
    assert any(key.startswith("experts_tile") for key in variants("qwen3_moe", "int4")), "no whole blocks"


def test_a_width_that_is_no_multiple_of_16_is_not_compiled_as_one() -> None:
    letters = variants("llama_odd_width", "bf16")["add_rms_norm/bfloat16"].letters()
    assert letters == "PPPPPif"


def test_fp32_is_not_for_a_gpu() -> None:
    assert recipe_for("fp32").for_target("cuda") is None
    assert recipe_for("bf16").for_target("cpu") is None
    chosen = case("llama")
    with pytest.raises(ConfigError, match="fp32"):
        lower(chosen.captured, recipe_for("fp32"), chosen.captured.reader(chosen.checkpoint), "cuda")


def test_an_unknown_architecture_is_refused_with_those_there_are() -> None:
    with pytest.raises(ConfigError, match="75") as caught:
        architecture("sm_75")
    assert "gfx942" in caught.value.remedy


def test_packed_kernels_come_with_their_index() -> None:
    chosen = variants("llama", "bf16")
    sm_90 = architecture("90")
    kernels = [compile_variant(chosen[key], sm_90) for key in ("sample_feed", "rms_norm/bfloat16")]
    files = dict(pack(sm_90, kernels))
    index = msgspec.json.decode(files["kernels/sm_90/kernels.json"], type=KernelSet)
    assert [record.key for record in index.kernels] == ["sample_feed", "rms_norm/bfloat16"]
    for record in index.kernels:
        assert files[f"kernels/sm_90/{record.file}"][:4] == b"\x7fELF"
    assert index.kernels[1].arguments == "PPPIf"


def test_what_does_not_compile_is_named() -> None:
    variant = variants("llama", "bf16")["sample_feed"]
    broken = Variant(
        "broken", "sample_feed", variant.function, {**variant.types, "ids": "*nonsense"}, frozenset(), {}
    )
    with pytest.raises(KernelError, match="broken"):
        compile_variant(broken, architecture("90"))


def one_of_each() -> list[Variant]:
    """A variant of every kernel that a graph may ask for."""
    chosen = variants("llama", "int8") | variants("qwen2", "bf16") | variants("gemma2", "fp16")
    chosen |= variants("mixtral", "bf16") | variants("qwen3_moe_whole_blocks", "int4")
    kernels: dict[str, Variant] = {}
    for variant in chosen.values():
        kernels.setdefault(variant.kernel, variant)
    assert len(kernels) >= 22
    return list(kernels.values())


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_operator_compiles_for_every_architecture() -> None:
    """One size of tiles of each kernel, in processes: a minute and a half on two cores where nothing is kept."""
    kernels = one_of_each()
    tasks = [(one, architecture(target)) for target in [*map(str, DEFAULT), "gfx942"] for one in kernels]
    with ProcessPoolExecutor(available_cores(), multiprocessing.get_context("spawn")) as pool:
        futures = [
            pool.submit(compile_choice, one, tiles(one.kernel, where.name)[0], where) for one, where in tasks
        ]
        for (one, where), future in zip(tasks, futures, strict=True):
            found = future.result()
            assert found.binary and found.shared <= where.shared_memory, f"{one.key} for {where.name}"


@pytest.mark.slow
@pytest.mark.parametrize("target", [*map(str, DEFAULT), "gfx942"])
def test_every_size_of_tiles_compiles_for_every_architecture(target: str) -> None:
    for binaries in compile_all([(variant, architecture(target)) for variant in one_of_each()]):
        for compiled in binaries:
            assert compiled.binary
            assert compiled.shared <= architecture(target).shared_memory
