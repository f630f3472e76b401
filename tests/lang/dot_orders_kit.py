"""Products of operands in every order of memory."""

from __future__ import annotations

import tessera
import tessera.language as tl


@tessera.jit
def pointer_product(
    a, b, c, M, N, K, sam, sak, sbk, sbn,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    cols = tl.program_id(1) * BN + tl.arange(0, BN)
    ks = tl.arange(0, BK)
    a_ptrs = a + rows[:, None] * sam + ks[None, :] * sak
    b_ptrs = b + ks[:, None] * sbk + cols[None, :] * sbn
    acc = tl.zeros((BM, BN), ACC)
    for k in range(0, K, BK):
        x = tl.load(a_ptrs, mask=(rows[:, None] < M) & (ks[None, :] < K - k), other=0)
        y = tl.load(b_ptrs, mask=(ks[:, None] < K - k) & (cols[None, :] < N), other=0)
        acc = tl.dot(x, y, acc)
        a_ptrs += BK * sak
        b_ptrs += BK * sbk
    inside = (rows[:, None] < M) & (cols[None, :] < N)
    tl.store(c + rows[:, None] * N + cols[None, :], acc, mask=inside)


@tessera.jit
def descriptor_product(
    a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, ACC: tl.constexpr,
    A_TURNED: tl.constexpr, B_TURNED: tl.constexpr,
):  # fmt: skip
    if A_TURNED:
        x_desc = tl.make_tensor_descriptor(a, [K, M], [M, 1], [BK, BM])
    else:
        x_desc = tl.make_tensor_descriptor(a, [M, K], [K, 1], [BM, BK])
    if B_TURNED:
        y_desc = tl.make_tensor_descriptor(b, [N, K], [K, 1], [BN, BK])
    else:
        y_desc = tl.make_tensor_descriptor(b, [K, N], [N, 1], [BK, BN])
    row, col = tl.program_id(0) * BM, tl.program_id(1) * BN
    acc = tl.zeros((BM, BN), ACC)
    for k in range(0, K, BK):
        if A_TURNED:
            x = x_desc.load([k, row]).T
        else:
            x = x_desc.load([row, k])
        if B_TURNED:
            y = y_desc.load([col, k]).T
        else:
            y = y_desc.load([k, col])
        acc = tl.dot(x, y, acc)
    out = tl.make_tensor_descriptor(c, [M, N], [N, 1], [BM, BN])
    out.store([row, col], acc)
