"""Programmatic dependent launch: a kernel starts while the one before it ends, and waits where it needs its
results.

From compute capability 9.0 on (CUDA C++ Programming Guide, programmatic dependent launch). A kernel that is
launched so must wait before it reads what any kernel wrote and before it writes anything: those before it may
be waiting themselves. What may come earlier is only the reading of weights and of a step's inputs that the
host gave. A program that does nothing else may end without having waited, as long as another of its launch
waits: that a kernel has ended is to say that all before it have. Where DEPENDENT is 0 a launch begins when
the one before has ended.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def let_next_start(DEPENDENT: tl.constexpr):
    """The next kernel may take what room is left. Products say so at once, for the next one's weights are what
    takes time; where the next one's reading would hold up what this one still reads, it comes after that.
    """
    if DEPENDENT:
        gdc_launch_dependents()


@triton.jit
def wait_for_previous(DEPENDENT: tl.constexpr):
    """What the kernels before wrote is there, and they have read what this one overwrites."""
    if DEPENDENT:
        gdc_wait()


@triton.jit
def fetch(pointers, DEPENDENT: tl.constexpr):
    """Ask for the cache lines of constant data, one a pointer, while waiting."""
    if DEPENDENT:
        tl.inline_asm_elementwise(
            "prefetch.global.L2 [$1]; mov.u32 $0, 0;",
            "=r,l",
            [pointers],
            dtype=tl.int32,
            is_pure=False,
            pack=1,
        )
