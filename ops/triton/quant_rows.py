"""What the kernels over quantised weights share: how codes come out of the words of the layout cuda-planes.

`ops.cuda_layout` says how a row is stored. Word i of a superblock of four holds in plane p the code of column
4 p + i; with 4 bits plane p lies at bit 4 (p / 2) + 16 (p % 2), with 8 bits at bit 8 p.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def plane_codes(words, PLANE: tl.constexpr, BITS: tl.constexpr):
    """The codes of one plane, int32 in the shape of `words`."""
    SHIFT: tl.constexpr = 4 * (PLANE // 2) + 16 * (PLANE % 2) if BITS == 4 else 8 * PLANE
    return (words >> SHIFT) & ((1 << BITS) - 1)


@triton.jit
def plane_columns(words, PLANE: tl.constexpr, PLANES: tl.constexpr):
    """The column of a plane's code in each word, by the word's number in its row."""
    return (words // 4) * (4 * PLANES) + 4 * PLANE + words % 4


@triton.jit
def packed_pair(low, high):
    """Two float16 in one int32, `low` in the lower half."""
    lower = low.to(tl.int16, bitcast=True).to(tl.int32) & 0xFFFF
    upper = high.to(tl.int16, bitcast=True).to(tl.int32) << 16
    return lower | upper


@triton.jit
def dot4(words, x0, x1, x2, x3, MINIMA: tl.constexpr):
    """float32: the sum of a word's eight 4-bit codes / 64 times activations in pairs of planes (PTX).

    (word >> 4 j) & 0x000f000f | 0x64006400 is a pair of float16 1024 + code; one fused operation makes it
    (code - zero) / 64, exactly. At most four products are added in float16, and 1 / 64 keeps any activation from
    overflowing there.
    """
    if MINIMA:
        total = tl.inline_asm_elementwise(
            """{
            .reg .b32 a, s, t, f, g; .reg .b16 l, h; .reg .f32 p, q;
            mov.b32 s, 0x24002400; mov.b32 f, 0xCC00CC00;
            lop3.b32 a, $1, 0x000f000f, 0x64006400, 0xEA; fma.rn.f16x2 a, a, s, f; mul.rn.f16x2 t, a, $2;
            shr.u32 g, $1, 4; lop3.b32 a, g, 0x000f000f, 0x64006400, 0xEA; fma.rn.f16x2 a, a, s, f;
            fma.rn.f16x2 t, a, $3, t;
            shr.u32 g, $1, 8; lop3.b32 a, g, 0x000f000f, 0x64006400, 0xEA; fma.rn.f16x2 a, a, s, f;
            fma.rn.f16x2 t, a, $4, t;
            shr.u32 g, $1, 12; lop3.b32 a, g, 0x000f000f, 0x64006400, 0xEA; fma.rn.f16x2 a, a, s, f;
            fma.rn.f16x2 t, a, $5, t;
            mov.b32 {l, h}, t; cvt.f32.f16 p, l; cvt.f32.f16 q, h; add.f32 $0, p, q;
            }""",
            "=f,r,r,r,r,r",
            [words, x0, x1, x2, x3],
            dtype=tl.float32,
            is_pure=True,
            pack=1,
        )
    else:
        total = tl.inline_asm_elementwise(
            """{
            .reg .b32 a, s, t, f, g; .reg .b16 l, h; .reg .f32 p, q;
            mov.b32 s, 0x24002400; mov.b32 f, 0xCC08CC08;
            lop3.b32 a, $1, 0x000f000f, 0x64006400, 0xEA; fma.rn.f16x2 a, a, s, f; mul.rn.f16x2 t, a, $2;
            shr.u32 g, $1, 4; lop3.b32 a, g, 0x000f000f, 0x64006400, 0xEA; fma.rn.f16x2 a, a, s, f;
            fma.rn.f16x2 t, a, $3, t;
            shr.u32 g, $1, 8; lop3.b32 a, g, 0x000f000f, 0x64006400, 0xEA; fma.rn.f16x2 a, a, s, f;
            fma.rn.f16x2 t, a, $4, t;
            shr.u32 g, $1, 12; lop3.b32 a, g, 0x000f000f, 0x64006400, 0xEA; fma.rn.f16x2 a, a, s, f;
            fma.rn.f16x2 t, a, $5, t;
            mov.b32 {l, h}, t; cvt.f32.f16 p, l; cvt.f32.f16 q, h; add.f32 $0, p, q;
            }""",
            "=f,r,r,r,r,r",
            [words, x0, x1, x2, x3],
            dtype=tl.float32,
            is_pure=True,
            pack=1,
        )
    return total


@triton.jit
def dot2(words, x0, x1, MINIMA: tl.constexpr):
    """float32: the sum of a word's four 8-bit codes / 256 times activations in pairs of planes (PTX); see dot4."""
    if MINIMA:
        total = tl.inline_asm_elementwise(
            """{
            .reg .b32 a, s, t, f; .reg .b16 l, h; .reg .f32 p, q;
            mov.b32 s, 0x1C001C00; mov.b32 f, 0xC400C400;
            prmt.b32 a, $1, 0x64646464, 0x4140; fma.rn.f16x2 a, a, s, f; mul.rn.f16x2 t, a, $2;
            prmt.b32 a, $1, 0x64646464, 0x4342; fma.rn.f16x2 a, a, s, f; fma.rn.f16x2 t, a, $3, t;
            mov.b32 {l, h}, t; cvt.f32.f16 p, l; cvt.f32.f16 q, h; add.f32 $0, p, q;
            }""",
            "=f,r,r,r",
            [words, x0, x1],
            dtype=tl.float32,
            is_pure=True,
            pack=1,
        )
    else:
        total = tl.inline_asm_elementwise(
            """{
            .reg .b32 a, s, t, f; .reg .b16 l, h; .reg .f32 p, q;
            mov.b32 s, 0x1C001C00; mov.b32 f, 0xC480C480;
            prmt.b32 a, $1, 0x64646464, 0x4140; fma.rn.f16x2 a, a, s, f; mul.rn.f16x2 t, a, $2;
            prmt.b32 a, $1, 0x64646464, 0x4342; fma.rn.f16x2 a, a, s, f; fma.rn.f16x2 t, a, $3, t;
            mov.b32 {l, h}, t; cvt.f32.f16 p, l; cvt.f32.f16 q, h; add.f32 $0, p, q;
            }""",
            "=f,r,r,r",
            [words, x0, x1],
            dtype=tl.float32,
            is_pure=True,
            pack=1,
        )
    return total
