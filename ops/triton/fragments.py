"""How codes come out of the layout cuda-fragments (`ops.cuda_layout`): steps of words, pairs of columns, scales."""

from __future__ import annotations

import triton
import triton.language as tl

#: Rows of a block, words of a row in a step, and words of a block's step.
ROWS = tl.constexpr(64)
WORDS = tl.constexpr(32)
STEP = tl.constexpr(2048)


@triton.jit
def turned_words(found, BLOCKS: tl.constexpr):
    """int32 [64 * BLOCKS, 32] from a step's words [BLOCKS, 2048] as they lie.

    To turn them moves nothing: each thread has read its fragment.
    """
    found = tl.reshape(found, [BLOCKS, 4, 4, 8, 4, 2, 2])
    return tl.reshape(tl.permute(found, (0, 2, 6, 3, 1, 5, 4)), [BLOCKS * ROWS, WORDS])


@triton.jit
def step_words(words, step, block_bytes, block, inside, BLOCKS: tl.constexpr):
    """int32 [64 * BLOCKS, 32]: the words of one step of the blocks `block` [BLOCKS], zero outside."""
    start = words + block.to(tl.int64)[:, None] * (block_bytes // 4) + step * STEP
    return turned_words(tl.load(start + tl.arange(0, STEP)[None, :], mask=inside[:, None], other=0), BLOCKS)


@triton.jit
def word_place(row, word):
    """Where a block's step holds a word of a row: piece, warp, row, word, step of 8 columns, half."""
    piece, middle, inner = word // 8, word % 8 // 4, word % 4
    warp, half, low = row // 16, row % 16 // 8, row % 8
    return ((((piece * 4 + warp) * 8 + low) * 4 + inner) * 2 + middle) * 2 + half


@triton.jit
def scales_at(scales, steps, block_bytes, rows):
    """Pointers to the scales of rows [n] in group 0; those of the next group lie ROWS further."""
    return scales + (rows // ROWS).to(tl.int64) * (block_bytes // 2) + steps * (2 * STEP) + rows % ROWS


@triton.constexpr_function
def _pair_ptx(pair: int, bits: int, zero: int) -> str:
    """(word >> s) & 0x000f000f | 0x64006400 are two float16 1024 + code, from which 1024 + zero is taken; with the
    mask 0x00f000f0 they are 1024 + 16 code, and one fused operation divides them as well."""
    moved = 8 * (pair if bits == 8 else pair // 2)
    upper = bits == 4 and pair % 2 == 1
    mask = "0x00ff00ff" if bits == 8 else "0x00f000f0" if upper else "0x000f000f"
    less = (0xD400 + 16 * zero if upper else 0xE400 + zero) * 0x10001
    source = "$2"
    text = "{.reg .b32 a, f, s; "
    if moved:
        text += f"shr.u32 a, $2, {moved}; "
        source = "a"
    text += f"lop3.b32 a, {source}, {mask}, 0x64006400, 0xEA; mov.b32 f, {less:#x}; "
    text += "mov.b32 s, 0x2C002C00; fma.rn.f16x2 a, a, s, f; " if upper else "add.rn.f16x2 a, a, f; "
    return text + "mov.b32 {$0, $1}, a;}"


@triton.jit
def pair_codes(words, PAIR: tl.constexpr, BITS: tl.constexpr, ZERO: tl.constexpr, PACKED: tl.constexpr):
    """Codes - ZERO of a pair's two columns, float16 in the shape of `words`, exactly. PACKED: both at once, in
    PTX.
    """
    if PACKED:
        low, high = tl.inline_asm_elementwise(
            _pair_ptx(PAIR, BITS, ZERO), "=h,=h,r", [words], dtype=(tl.float16, tl.float16), is_pure=True, pack=1
        )
    else:
        low = ((words >> (BITS * PAIR)) & ((1 << BITS) - 1)).to(tl.float16) - ZERO
        high = ((words >> (BITS * PAIR + 16)) & ((1 << BITS) - 1)).to(tl.float16) - ZERO
    return low, high


@triton.jit
def pair_weights(words, PAIR: tl.constexpr, BITS: tl.constexpr, ZERO: tl.constexpr, PACKED: tl.constexpr):
    """`pair_codes` in the order of columns: float16 [rows, 64] from words [rows, 32]."""
    low, high = pair_codes(words, PAIR, BITS, ZERO, PACKED)
    return tl.reshape(tl.join(low, high), [words.shape[0], 2 * WORDS])
