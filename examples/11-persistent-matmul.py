"""Matrix product by programs that stay: as many as the GPU has processors, each working through its share of the tiles.

Operands come through tensor descriptors, which the copy engine of a Hopper GPU serves: the compiler gives the loads
to a warp of their own, which is ahead in the next tile while the last one is still being stored.
"""

from __future__ import annotations

from typing import Any

import common
import tessera
import tessera.language as tl
from tessera.tools.tensor_descriptor import TensorDescriptor


def set_blocks(args: dict[str, Any]) -> None:
    """Descriptors move the tiles of the config that is tried."""
    m, n, k = args["BLOCK_M"], args["BLOCK_N"], args["BLOCK_K"]
    args["a_desc"].block_shape = [m, k]
    args["b_desc"].block_shape = [n, k]
    args["c_desc"].block_shape = [m, n]


def config(m: int, n: int, k: int, warps: int, stages: int) -> tessera.Config:
    tile = {"BLOCK_M": m, "BLOCK_N": n, "BLOCK_K": k, "GROUP_M": 8}
    return tessera.Config(tile, num_warps=warps, num_stages=stages, pre_hook=set_blocks)


CONFIGS = [
    config(128, 256, 64, warps=8, stages=4),
    config(128, 128, 64, warps=8, stages=4),
    config(128, 128, 64, warps=4, stages=4),
    config(64, 128, 64, warps=4, stages=4),
]


@tessera.jit
def tile_at(number, tiles_m, tiles_n, GROUP_M: tl.constexpr):
    """Row and column of a tile: bands of GROUP_M rows, each walked column by column."""
    band = number // (GROUP_M * tiles_n)
    height = tl.minimum(tiles_m - band * GROUP_M, GROUP_M)
    within = number - band * GROUP_M * tiles_n
    return band * GROUP_M + within % height, within // height


@tessera.autotune(configs=CONFIGS, key=["M", "N", "K"])
@tessera.jit
def persistent_kernel(
    a_desc, b_desc, c_desc, M, N, K,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
):  # fmt: skip
    tiles_m, tiles_n = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
    for number in tl.range(
        tl.program_id(0), tiles_m * tiles_n, tl.num_programs(0), flatten=True, warp_specialize=True
    ):
        tile_m, tile_n = tile_at(number, tiles_m, tiles_n, GROUP_M)
        row, col = tile_m * BLOCK_M, tile_n * BLOCK_N
        acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        for k in range(0, K, BLOCK_K):
            a = a_desc.load([row, k])
            b = b_desc.load([col, k])
            acc = tl.dot(a, b.T, acc)
        c_desc.store([row, col], acc.to(c_desc.dtype))


def matmul(a: Any, b: Any, c: Any, programs: int) -> None:
    """c = a @ b.T; rows of all three start at multiples of 16 bytes."""
    (m, k), n = a.shape, b.shape[0]
    descriptors = [TensorDescriptor.from_tensor(x, [1, 1]) for x in (a, b, c)]

    def grid(meta: dict[str, Any]) -> tuple[int]:
        tiles = tessera.cdiv(m, meta["BLOCK_M"]) * tessera.cdiv(n, meta["BLOCK_N"])
        return (min(programs, tiles),)

    persistent_kernel[grid](*descriptors, m, n, k)


def processors(device: common.Device) -> int:
    if not device.is_gpu:
        return 8
    properties = tessera.runtime.driver.active.utils.get_device_properties(0)
    return properties["multiprocessor_count"]


if __name__ == "__main__":
    device = common.choose_device("auto")  # tensors on a GPU if there is one, else arrays of NumPy
    dtype = device.pick("float32", "float16")
    a, b = device.normal(512, 256, dtype=dtype), device.normal(384, 256, dtype=dtype)
    c = device.empty(512, 384, dtype=dtype)
    matmul(a, b, c, processors(device))  # b is stored by columns
    print(
        "largest error:",
        common.relative_error(device.numpy(c), device.numpy(a) @ device.numpy(b).T),
    )
