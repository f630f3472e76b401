"""Loops of products that also do other work."""

# pyright: reportInvalidTypeForm=false, reportUndefinedVariable=false, reportOperatorIssue=false
from __future__ import annotations

import tessera
import tessera.language as tl


@tessera.jit
def rescaled(
    a, b, c, T: tl.constexpr, N: tl.constexpr, K: tl.constexpr, STAGES: tl.constexpr, CUT: tl.constexpr
):  # fmt: skip
    m, n, k = tl.arange(0, 64), tl.arange(0, N), tl.arange(0, K)
    acc = tl.zeros((64, N), tl.float32)
    for i in tl.range(T, num_stages=STAGES):
        x = tl.load(a + m[:, None] * (T * K) + (i * K + k)[None, :])
        y = tl.load(b + (i * K + k)[:, None] * N + n[None, :])
        if CUT:
            acc = tl.where(acc > 3, acc, 0.0) + tl.dot(x, y)
        else:
            acc = tl.dot(x, y, acc * 2)
    tl.store(c + m[:, None] * N + n[None, :], acc)
