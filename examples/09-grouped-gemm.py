"""Many matrix products of different sizes in one launch.

A fixed number of programs shares the output tiles of all products: program p computes tiles p, p + P, p + 2P, ... of
the list of all tiles. Addresses and sizes are read from memory, so one compiled kernel serves every list.
"""

from __future__ import annotations

import numpy as np

import common
import tessera
import tessera.language as tl


@tessera.jit
def grouped_matmul_kernel(
    a_addresses, b_addresses, c_addresses, sizes_ptr, groups,
    DTYPE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Row-major products. `sizes_ptr` holds M, N, K of each; N and K are multiples of 8."""
    tile = tl.program_id(0)
    first = 0  # number of the current product's first tile
    for group in range(groups):
        M = tl.load(sizes_ptr + 3 * group)
        N = tl.multiple_of(tl.load(sizes_ptr + 3 * group + 1), 8)
        K = tl.multiple_of(tl.load(sizes_ptr + 3 * group + 2), 8)
        tiles_n = tl.cdiv(N, BLOCK_N)
        after = first + tl.cdiv(M, BLOCK_M) * tiles_n
        a_ptr = tl.load(a_addresses + group).to(tl.pointer_type(DTYPE))
        b_ptr = tl.load(b_addresses + group).to(tl.pointer_type(DTYPE))
        c_ptr = tl.load(c_addresses + group).to(tl.pointer_type(DTYPE))
        a_ptr = tl.multiple_of(a_ptr, 16)
        b_ptr = tl.multiple_of(b_ptr, 16)
        c_ptr = tl.multiple_of(c_ptr, 16)
        while tile < after:
            within = tile - first
            rows = within // tiles_n * BLOCK_M + tl.arange(0, BLOCK_M)
            cols = within % tiles_n * BLOCK_N + tl.arange(0, BLOCK_N)
            ks = tl.arange(0, BLOCK_K)
            a_ptrs = a_ptr + rows[:, None] * K + ks[None, :]
            b_ptrs = b_ptr + ks[:, None] * N + cols[None, :]
            inside_a = rows[:, None] < M
            inside_b = cols[None, :] < N
            acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
            for k in range(0, K, BLOCK_K):
                a = tl.load(a_ptrs, mask=inside_a & (ks[None, :] < K - k), other=0.0)
                b = tl.load(b_ptrs, mask=inside_b & (ks[:, None] < K - k), other=0.0)
                acc = tl.dot(a, b, acc)
                a_ptrs += BLOCK_K
                b_ptrs += BLOCK_K * N
            c_ptrs = c_ptr + rows[:, None] * N + cols[None, :]
            tl.store(c_ptrs, acc.to(DTYPE), mask=inside_a & inside_b)
            tile += tl.num_programs(0)
        first = after


class GroupedMatmul:
    """One list of products: their arrays, and the tables of addresses and sizes on the device."""

    def __init__(self, device: common.Device, sizes: list[tuple[int, int, int]]) -> None:
        self.dtype = device.pick("float32", "float16")
        self.element = device.pick(tl.float32, tl.float16)
        self.sizes = sizes
        self.a = [device.normal(m, k, dtype=self.dtype) for m, _, k in sizes]
        self.b = [device.normal(k, n, dtype=self.dtype) for _, n, k in sizes]
        self.c = [device.empty(m, n, dtype=self.dtype) for m, n, _ in sizes]
        self.tables = [
            device.array(np.array([common.address(x) for x in arrays], np.int64))
            for arrays in (self.a, self.b, self.c)
        ]
        self.size_table = device.array(np.array(sizes, np.int32))
        self.programs = device.pick(64, 264)
        self.block = device.pick((64, 64, 64), (128, 128, 32))

    def run(self) -> None:
        m, n, k = self.block
        grouped_matmul_kernel[(self.programs,)](
            *self.tables, self.size_table, len(self.sizes), DTYPE=self.element,
            BLOCK_M=m, BLOCK_N=n, BLOCK_K=k, num_warps=4, num_stages=3,
        )  # fmt: skip


if __name__ == "__main__":
    device = common.choose_device("auto")  # tensors on a GPU if there is one, else arrays of NumPy
    grouped = GroupedMatmul(device, [(100, 64, 72), (30, 128, 200)])  # (M, N, K) of each product
    grouped.run()
    for a, b, c in zip(grouped.a, grouped.b, grouped.c):
        print(
            "largest error:",
            common.relative_error(device.numpy(c), device.numpy(a) @ device.numpy(b)),
        )
