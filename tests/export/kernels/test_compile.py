"""Compilation of single choices, and what is asked of the compiler's layouts."""

from __future__ import annotations

from dataclasses import replace

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("onnx_ir")
pytest.importorskip("triton")

from export.kernels.architecture import architecture
from export.kernels.compile import check_pairs, check_spans, compile_choice
from export.kernels.plan import variants_of
from export.kernels.tuning import tiles
from export.lowering import lower
from export.recipe import recipe_for
from ops.errors import KernelError
from tests.export.cases import case

pytestmark = pytest.mark.export

ASSEMBLY = '%1 = tt.elementwise_inline_asm "and" {packed_element = 2 : i32} %0 : tensor<64x64xi32, L> -> '


def test_a_word_for_both_of_its_columns_is_accepted() -> None:
    operand = "#ttg.dot_op<{opIdx = 0, parent = #mma, kWidth = 2}>"
    check_pairs("k", f"{ASSEMBLY}tensor<64x64xf16, {operand}> loc(#loc)")
    layout = "#linear = #ttg.linear<{register = [[0, 1], [8, 0]], lane = []}>\n"
    check_pairs("k", f"{layout}{ASSEMBLY}tensor<64x64xf16, #linear> loc(#loc)")


@pytest.mark.parametrize(
    "text",
    [
        f"#linear = #ttg.linear<{{register = [[8, 0], [0, 1]]}}>\n{ASSEMBLY}tensor<64x64xf16, #linear>",
        f"{ASSEMBLY}tensor<64x64xf16, #ttg.dot_op<{{opIdx = 0, parent = #mma, kWidth = 4}}>>",
        f"{ASSEMBLY}tensor<64x64xf16, #blocked>",
        "no assembly at all",
    ],
)
def test_other_layouts_of_packed_codes_are_refused(text: str) -> None:
    with pytest.raises(KernelError, match="order"):
        check_pairs("k", text)


SPANS = '%1 = tt.elementwise_inline_asm "" {packed_element = 4 : i32} %0 : tensor<9xi32, #a> -> tensor<9xf32, #a>'


def test_four_neighbours_a_thread_are_accepted() -> None:
    layout = "#a = #ttg.blocked<{sizePerThread = [4], threadsPerWarp = [32], warpsPerCTA = [4], order = [0]}>\n"
    check_spans("k", layout + SPANS)


@pytest.mark.parametrize(
    "text",
    [
        f"#a = #ttg.blocked<{{sizePerThread = [1], threadsPerWarp = [32], warpsPerCTA = [4]}}>\n{SPANS}",
        f"#a = #ttg.linear<{{register = [[128], [1]]}}>\n{SPANS}",
        "no assembly at all",
    ],
)
def test_other_layouts_of_spans_are_refused(text: str) -> None:
    with pytest.raises(KernelError, match="order"):
        check_spans("k", text)


@pytest.mark.slow
@pytest.mark.parametrize("activation", ["none", "silu"])
def test_products_of_few_rows_compile_with_their_codes_in_order(activation: str) -> None:
    chosen, recipe = case("llama"), recipe_for("int4").for_target("cuda")
    assert recipe is not None
    model = lower(chosen.captured, recipe, chosen.captured.reader(chosen.checkpoint), "cuda")
    found = {variant.key: variant for variant in variants_of(model.step.graph, model.float_type)}
    variant = found[f"quant_tile/float16/4.32/same/plain/{activation}"]
    name = variant.kernel
    assert name == ("quant_tile_scaled" if activation == "none" else "quant_tile_scaled_gated")
    served = [choice for choice in tiles(name, "sm_90") if choice.rows <= 8]
    assert {choice.rows for choice in served} == {1, 8}
    for choice in (served[0], served[-1]):
        assert choice.constants["DEPTH"] > 0
        assert compile_choice(variant, choice, architecture("90")).binary[:4] == b"\x7fELF"
    wide = replace(variant, kernel=name.replace("_scaled", ""), constants={**variant.constants, "GROUP": 128})
    few = next(choice for choice in tiles(wide.kernel, "sm_90") if choice.rows == 8)
    assert compile_choice(wide, few, architecture("90")).binary[:4] == b"\x7fELF"
