"""Compilation of single choices, and what is asked of the compiler's layouts."""

from __future__ import annotations

from dataclasses import replace

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("onnx_ir")
pytest.importorskip("triton")

from export.kernels.architecture import architecture
from export.kernels.compile import check_pairs, compile_choice
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


@pytest.mark.parametrize("activation", ["none", "silu"])
def test_products_of_few_rows_compile_with_their_codes_in_order(activation: str) -> None:
    chosen, recipe = case("llama"), recipe_for("int4").for_target("cuda")
    assert recipe is not None
    model = lower(chosen.captured, recipe, chosen.captured.reader(chosen.checkpoint), "cuda")
    found = {variant.key: variant for variant in variants_of(model.step.graph, model.float_type)}
    variant = found[f"quant_tile/float16/4.32/same/plain/{activation}"]
    wide = replace(variant, constants={**variant.constants, "GROUP": 128})
    few = tiles("quant_tile" if activation == "none" else "quant_tile_gated", "sm_90")[0]
    assert few.rows == 8 and few.constants["DEPTH"] > 0
    assert compile_choice(wide, few, architecture("90")).binary[:4] == b"\x7fELF"
