"""Matrix product with a fused activation, tile sizes chosen by measurement.

Programs are numbered so that neighbours share operands in cache: the output tiles of GROUP_M rows are walked column by
column before the next group begins.
"""

from __future__ import annotations

from typing import Any

import common
import tessera
import tessera.language as tl


def config(m: int, n: int, k: int, warps: int, stages: int) -> tessera.Config:
    tile = {"BLOCK_M": m, "BLOCK_N": n, "BLOCK_K": k, "GROUP_M": 8}
    return tessera.Config(tile, num_warps=warps, num_stages=stages)


CONFIGS = [
    config(128, 128, 32, warps=4, stages=4),
    config(128, 256, 32, warps=8, stages=3),
    config(128, 128, 64, warps=8, stages=3),
    config(64, 128, 32, warps=4, stages=4),
    config(64, 64, 64, warps=4, stages=3),
    config(128, 256, 64, warps=8, stages=3),
    config(128, 128, 64, warps=4, stages=3),
]


@tessera.jit
def leaky_relu(x):
    return tl.where(x >= 0, x, 0.01 * x)


@tessera.jit
def grouped_tile(pid, tiles_m, tiles_n, GROUP_M: tl.constexpr):
    """Row and column of output tile number `pid`."""
    per_group = GROUP_M * tiles_n
    first = pid // per_group * GROUP_M
    height = tl.minimum(tiles_m - first, GROUP_M)  # the last group may be lower
    within = pid % per_group
    return first + within % height, within // height


@tessera.autotune(configs=CONFIGS, key=["M", "N", "K"])
@tessera.heuristics({"EVEN_K": lambda args: args["K"] % args["BLOCK_K"] == 0})
@tessera.jit
def matmul_kernel(
    a_ptr, b_ptr, c_ptr, M, N, K,
    stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    EVEN_K: tl.constexpr, ACTIVATION: tl.constexpr,
):  # fmt: skip
    tile_m, tile_n = grouped_tile(
        tl.program_id(0), tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N), GROUP_M
    )
    rows = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
    cols = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    ks = tl.arange(0, BLOCK_K)
    # Rows and columns past the edge wrap around: they read something valid, and their results are not stored.
    a_ptrs = a_ptr + (rows % M)[:, None] * stride_am + ks[None, :] * stride_ak
    b_ptrs = b_ptr + ks[:, None] * stride_bk + (cols % N)[None, :] * stride_bn
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for k in range(0, K, BLOCK_K):
        if EVEN_K:
            a = tl.load(a_ptrs)
            b = tl.load(b_ptrs)
        else:
            a = tl.load(a_ptrs, mask=ks[None, :] < K - k, other=0.0)
            b = tl.load(b_ptrs, mask=ks[:, None] < K - k, other=0.0)
        acc = tl.dot(a, b, acc)
        a_ptrs += BLOCK_K * stride_ak
        b_ptrs += BLOCK_K * stride_bk
    if ACTIVATION == "leaky_relu":
        acc = leaky_relu(acc)
    c_ptrs = c_ptr + rows[:, None] * stride_cm + cols[None, :] * stride_cn
    inside = (rows[:, None] < M) & (cols[None, :] < N)
    tl.store(c_ptrs, acc.to(c_ptr.dtype.element_ty), mask=inside)


def matmul(a: Any, b: Any, c: Any, activation: str = "") -> None:
    (m, k), n = a.shape, b.shape[1]
    matmul_kernel[
        lambda meta: (tessera.cdiv(m, meta["BLOCK_M"]) * tessera.cdiv(n, meta["BLOCK_N"]),)
    ](
        a, b, c, m, n, k, *common.strides(a), *common.strides(b), *common.strides(c),
        ACTIVATION=activation,
    )  # fmt: skip


if __name__ == "__main__":
    device = common.choose_device("auto")  # tensors on a GPU if there is one, else arrays of NumPy
    a, b, c = device.normal(300, 200), device.normal(200, 500), device.empty(300, 500)
    matmul(a, b, c)
    print(
        "largest error:", common.relative_error(device.numpy(c), device.numpy(a) @ device.numpy(b))
    )
