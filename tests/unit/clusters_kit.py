"""Kernels that are spread over clusters."""

# annotations of kernels name dtypes
# pyright: reportInvalidTypeForm=false, reportUndefinedVariable=false, reportOperatorIssue=false
from __future__ import annotations

import tessera
import tessera.language as tl


@tessera.jit
def scaled_rows(x, scale, out, n, M: tl.constexpr, N: tl.constexpr):
    """Rows and columns from one range; a hint; a transposition; a reduction of rows."""
    i = tl.arange(0, M)
    at = tl.multiple_of(i * N, (N,))[:, None] + i[None, :]
    v = tl.load(x + at, (i < n)[:, None] & (i < N)[None, :], 0.0)
    v = v * tl.load(scale + i, i < N, 1.0)[None, :]
    peak = tl.max(v, axis=1)
    turned = tl.trans(tl.trans(v) - peak[None, :])
    halves = tl.reshape(turned, (M // 2, 2 * N))
    tl.store(out + at, tl.reshape(halves, (M, N)), (i < n)[:, None])


@tessera.jit
def counted(x, out, total, N: tl.constexpr, WHAT: tl.constexpr):
    i = tl.arange(0, N)
    v = tl.load(x + i)
    if WHAT == "reduce":
        v -= tl.max(v, axis=0)
    if WHAT == "scan":
        v = tl.cumsum(v, 0)
    if WHAT == "barrier":
        tl.debug_barrier()
    if WHAT == "print":
        tl.device_print("x", v)
    if WHAT == "atomic":
        tl.atomic_add(total, 1.0)
    if WHAT == "assert":
        tl.device_assert(v >= 0)
    if WHAT == "elements":
        tl.atomic_add(total + i, v)
    if WHAT == "old":
        v += tl.atomic_add(total, 1.0)
    if WHAT == "own":
        tl.store(x + i, v + 1)
    if WHAT == "swapped":
        a, b = x + i, out + i
        for _ in range(2):
            tl.store(b, tl.load(a))
            a, b = b, a
    tl.store(out + i, v)
