# pyright: reportMissingParameterType=false, reportUnknownParameterType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false
"""Contains the kernels that measure what the CPU at hand can do."""

from tessera import language as tl
from tessera.runtime.decorators import jit


@jit
def copy_blocks(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, at < n), at < n)


@jit
def multiply_adds(out, n, BLOCK: tl.constexpr):
    """A chain of multiplications and additions for each of many vectors, which the clock alone bounds."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = at.to(tl.float32)
    for _ in range(n):
        v = v * 0.5 + 1.0
    tl.store(out + at, v)
