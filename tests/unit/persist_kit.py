"""Kernels whose blocks run several programs."""

# annotations of kernels name dtypes
# pyright: reportInvalidTypeForm=false, reportUndefinedVariable=false, reportOperatorIssue=false
# pyright: reportPrivateUsage=false
from __future__ import annotations

import tessera
import tessera.language as tl


@tessera.jit
def on_axes(
    a, b, c, bias, M, N, K, scz, MODE: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr
):  # fmt: skip
    """Tiles by two axes of the grid, a batch by the third; MODE says how the result is stored."""
    i, j, z = tl.program_id(1), tl.program_id(0), tl.program_id(2)
    rows, cols, ks = i * BM + tl.arange(0, BM), j * BN + tl.arange(0, BN), tl.arange(0, BK)
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K if MODE != "long" else K + i * BK, BK):
        p = tl.load(a + rows[:, None] * K + (k + ks)[None, :], mask=(rows < M)[:, None], other=0.0)
        q = tl.load(b + (k + ks)[:, None] * N + cols[None, :], mask=(cols < N)[None, :], other=0.0)
        acc = tl.dot(p, q, acc)
    acc += tl.load(bias + cols, mask=cols < N, other=0.0).to(tl.float32)[None, :]
    acc += tl.num_programs(0) + 10 * tl.num_programs(1)
    inside = (rows[:, None] < M) & (cols[None, :] < N)
    at = rows[:, None] * N + cols[None, :]
    if MODE == "turned":
        at = cols[None, :] * M + rows[:, None]
    if MODE == "batch":
        tl.store(c + z * scz + at, acc.to(tl.float16), mask=inside)
    elif MODE == "twice":
        tl.store(c + at, acc.to(tl.float16), mask=inside)
        tl.store(c + at, (2 * acc).to(tl.float16), mask=inside & (rows[:, None] > 0))
    elif MODE == "holes":
        tl.store(c + at, acc.to(tl.float16), mask=inside & (cols[None, :] % 2 == 0))
    elif MODE == "added":
        tl.atomic_add(c + at, acc.to(tl.float16), mask=inside)
    elif MODE == "maybe":
        if i < 100:
            tl.store(c + at, acc.to(tl.float16), mask=inside)
    else:
        tl.store(c + at, acc.to(tl.float16), mask=inside)
