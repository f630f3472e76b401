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
def read_blocks(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + tl.program_id(0), tl.sum(tl.load(x + at, at < n, other=0.0), axis=0))


@jit
def update_blocks(x, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + at, tl.load(x + at, at < n) + 1.0, at < n)


@jit
def multiply_adds(out, n, BLOCK: tl.constexpr):
    """A chain of multiplications and additions for each of many vectors, which the clock alone bounds."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = at.to(tl.float32)
    for _ in range(n):
        v = v * 0.5 + 1.0
    tl.store(out + at, v)


@jit
def product(a, b, c, N, K, BLOCK: tl.constexpr, STEP: tl.constexpr, ACC: tl.constexpr):
    """Square tiles of a @ b for row-major matrices."""
    across = tl.cdiv(N, BLOCK)
    rows = tl.program_id(0) // across * BLOCK + tl.arange(0, BLOCK)
    cols = tl.program_id(0) % across * BLOCK + tl.arange(0, BLOCK)
    ks = tl.arange(0, STEP)
    a_ptrs, b_ptrs = a + rows[:, None] * K + ks[None, :], b + ks[:, None] * N + cols[None, :]
    acc = tl.zeros((BLOCK, BLOCK), ACC)
    for _ in range(0, K, STEP):
        acc = tl.dot(tl.load(a_ptrs), tl.load(b_ptrs), acc)
        a_ptrs += STEP
        b_ptrs += STEP * N
    tl.store(c + rows[:, None] * N + cols[None, :], acc)
