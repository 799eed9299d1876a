"""What a warp multiplies for one row of x: pieces of words with the eight spans of a step's columns, kept apart.

A tensor core's product of m16n8k16 (PTX ISA) has eight columns, and one row of x would fill one. Here each takes
an eighth of a step's columns, a span, x being zero in it elsewhere: one accumulator keeps the sums of spans apart.
Each takes its own scale and minimum afterwards, however narrow the groups are. A span has 32 columns with 4 bits,
and 16 with 8.

Tensors hold four elements for each of a warp's threads, [warps * 128], as the fragments of the product lie: thread
4 g + t has of a piece's words those of row g and of row g + 8, of the result the columns 2 t and 2 t + 1 of both,
and of x span g, two neighbouring numbers an element. That each thread does hold these four is checked when the
kernel is compiled (export/kernels/compile.py); where not PACKED, the same is written in Triton's own operations.
"""

from __future__ import annotations

import triton
import triton.language as tl

_PRODUCT = "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {c0, c1, c2, c3}, "
_GIVE = "".join(f" mov.f32 ${i}, c{i};" for i in range(4)) + "}"


@triton.constexpr_function
def _span(pair: int, piece: int, bits: int) -> int:
    """The span of which a pair's 16 columns in a piece are."""
    return 2 * pair + piece // 2 if bits == 4 else 4 * pair + piece


@triton.constexpr_function
def _piece_ptx(piece: int, bits: int) -> str:
    """Words are $4 to $7, x $8 to $11, sums $12 to $15, and the spans' ones $16 to $23.

    Codes are masked out as in `ops.triton.quant_few`.
    """
    text = "{.reg .b32 a<4>, b<2>; .reg .f32 c<4>;"
    text += "".join(f" mov.f32 c{i}, ${12 + i};" for i in range(4))
    x = 8 + (2 * (piece % 2) if bits == 4 else 0)
    for pair in range(16 // bits):
        mask = "0x00ff00ff" if bits == 8 else "0x00f000f0" if pair % 2 else "0x000f000f"
        moved = 8 * (pair if bits == 8 else pair // 2)
        for i in range(4):
            text += f" shr.u32 a{i}, ${4 + i}, {moved}; and.b32 a{i}, a{i}, {mask};"
        own = 16 + (2 * pair + piece // 2 if bits == 4 else 4 * pair + piece)
        text += f" mul.rn.f16x2 b0, ${x}, ${own}; mul.rn.f16x2 b1, ${x + 1}, ${own};"
        text += f" {_PRODUCT}{{a0, a1, a2, a3}}, {{b0, b1}}, {{c0, c1, c2, c3}};"
    return text + _GIVE


@triton.constexpr_function
def _sums_ptx(bits: int) -> str:
    """Products of x, $4 to $7, with ones."""
    text = "{.reg .b32 o; .reg .f32 c<4>; mov.b32 o, 0x3C003C00;"
    text += "".join(f" mov.f32 c{i}, 0f00000000;" for i in range(4))
    for x in (4, 6) if bits == 4 else (4,):
        text += f" {_PRODUCT}{{o, o, o, o}}, {{${x}, ${x + 1}}}, {{c0, c1, c2, c3}};"
    return text + _GIVE


@triton.jit
def _halves(words):
    """The two float16 of each word, as float32."""
    low = (words & 0xFFFF).to(tl.int16).to(tl.float16, bitcast=True)
    return low.to(tl.float32), (words >> 16).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit
def _chosen(array, NUMBER: tl.constexpr, AXIS: tl.constexpr, SIZE: tl.constexpr):
    """array without the axis, at NUMBER of it."""
    shape: tl.constexpr = [SIZE if axis == AXIS else 1 for axis in range(len(array.shape))]
    there = tl.reshape(tl.arange(0, SIZE) == NUMBER, shape)
    return tl.sum(tl.where(there, array, 0), AXIS)


@triton.jit
def span_ones(element):
    """For each thread two float16 ones where the span is its own, else zeros: those of spans 0 to 3, of 4 to 7."""
    own, item = element % 128 // 16, element % 4
    return tl.where(own == item, 0x3C003C00, 0), tl.where(own == item + 4, 0x3C003C00, 0)


@triton.jit
def piece_products(words, x, sums, ones, PIECE: tl.constexpr, BITS: tl.constexpr, PACKED: tl.constexpr):
    """`sums` and what a piece adds to them, in units of 2^-24, and of 2^-20 for the upper codes of a byte."""
    if PACKED:
        sums = tl.inline_asm_elementwise(
            _piece_ptx(PIECE, BITS),
            "=f,=f,=f,=f,r,r,r,r,r,r,r,r,f,f,f,f,r,r,r,r,r,r,r,r",
            [words, x, sums, ones[0], ones[1]],
            dtype=tl.float32,
            is_pure=True,
            pack=4,
        )
    else:
        WARPS: tl.constexpr = words.shape[0] // 128
        MASK: tl.constexpr = (1 << BITS) - 1
        w = tl.reshape(words, [WARPS, 8, 4, 2, 2])
        column = 2 * (tl.arange(0, 128) // 4 % 4) + tl.arange(0, 128) % 2
        for pair in tl.static_range(16 // BITS):
            own = _chosen(tl.reshape(x, [WARPS, 8, 4, 2, 2]), _span(pair, PIECE, BITS), 1, 8)
            low, high = _halves(_chosen(own, PIECE % 2 if BITS == 4 else 0, 2, 2)[:, None, :, :, None])
            codes = ((w >> (BITS * pair)) & MASK) * low + ((w >> (BITS * pair + 16)) & MASK) * high
            rows = tl.sum(tl.sum(codes, 3), 2) * (2.0**-24 * (16 if BITS == 4 and pair % 2 == 1 else 1))
            all_of = tl.broadcast_to(rows[:, :, None, :, None], [WARPS, 8, 4, 2, 2])
            there = column == _span(pair, PIECE, BITS)
            sums += tl.reshape(tl.where(there[None, :], tl.reshape(all_of, [WARPS, 128]), 0.0), [WARPS * 128])
    return sums


@triton.jit
def span_sums(x, BITS: tl.constexpr, PACKED: tl.constexpr):
    """Each span's columns of x added up, for each row."""
    if PACKED:
        found = tl.inline_asm_elementwise(
            _sums_ptx(BITS), "=f,=f,=f,=f,r,r,r,r", [x], dtype=tl.float32, is_pure=True, pack=4
        )
    else:
        WARPS: tl.constexpr = x.shape[0] // 128
        low, high = _halves(tl.reshape(x, [WARPS, 8, 4, 2, 2]))
        pieces = tl.sum(tl.sum(low + high, 4), 2)
        spans = tl.sum(pieces, 2) if BITS == 4 else _chosen(pieces, 0, 2, 2)
        spans = tl.reshape(spans, [WARPS, 1, 4, 1, 2])
        found = tl.reshape(tl.broadcast_to(spans, [WARPS, 8, 4, 2, 2]), [WARPS * 128])
    return found
