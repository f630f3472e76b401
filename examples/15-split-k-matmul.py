"""Matrix products with few output tiles: the sum over K is cut into parts, each computed by a program of its own.

One tile of the result for each program would leave most of a GPU idle when M and N are small. The parts meet in memory,
either by atomic additions into a zeroed result, or in a workspace that a second kernel sums: more bytes, but the same
bits every time.
"""

from __future__ import annotations

from typing import Any

import common
import tessera
import tessera.language as tl

PROGRAMS = 264  # two for each processor of a large GPU


@tessera.jit
def split_kernel(
    a_ptr, b_ptr, c_ptr, M, N, K, stride_am, stride_bk, part,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, ATOMIC: tl.constexpr,
    EVEN_K: tl.constexpr,
):  # fmt: skip
    """Columns [part * program_id(1), + part) of a times the same rows of b, added to c or stored behind it."""
    tiles_n = tl.cdiv(N, BLOCK_N)
    rows = tl.program_id(0) // tiles_n * BLOCK_M + tl.arange(0, BLOCK_M)
    cols = tl.program_id(0) % tiles_n * BLOCK_N + tl.arange(0, BLOCK_N)
    ks = tl.arange(0, BLOCK_K)
    first = tl.program_id(1) * part
    last = tl.minimum(first + part, K)
    a_ptrs = a_ptr + rows[:, None] * stride_am + (first + ks)[None, :]
    b_ptrs = b_ptr + (first + ks)[:, None].to(tl.int64) * stride_bk + cols[None, :]
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for k in range(first, last, BLOCK_K):
        if EVEN_K:
            a = tl.load(a_ptrs, mask=rows[:, None] < M, other=0.0)
            b = tl.load(b_ptrs, mask=cols[None, :] < N, other=0.0)
        else:
            left = last - k
            a = tl.load(a_ptrs, mask=(rows[:, None] < M) & (ks[None, :] < left), other=0.0)
            b = tl.load(b_ptrs, mask=(ks[:, None] < left) & (cols[None, :] < N), other=0.0)
        acc = tl.dot(a, b, acc)
        a_ptrs += BLOCK_K
        b_ptrs += BLOCK_K * stride_bk
    at = rows[:, None] * N + cols[None, :]
    inside = (rows[:, None] < M) & (cols[None, :] < N)
    if ATOMIC:
        tl.atomic_add(c_ptr + at, acc, mask=inside)
    else:
        tl.store(c_ptr + tl.program_id(1).to(tl.int64) * M * N + at, acc, mask=inside)


@tessera.jit
def sum_kernel(parts_ptr, c_ptr, size, parts, PARTS: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    part = tl.arange(0, PARTS)
    inside = (part < parts)[:, None] & (at < size)[None, :]
    tile = part[:, None].to(tl.int64) * size + at[None, :]
    total = tl.sum(tl.load(parts_ptr + tile, mask=inside, other=0.0), axis=0)
    tl.store(c_ptr + at, total.to(c_ptr.dtype.element_ty), mask=at < size)


class SplitMatmul:
    """Buffers and launches of c = a @ b, rows contiguous; c is fp32 if its parts are added by atomics."""

    def __init__(self, device: common.Device, m: int, n: int, k: int, atomic: bool) -> None:
        self.size, self.atomic = (m, n, k), atomic
        self.block = (16, 128, 64) if m <= 16 else (64, 64, 64) if m <= 128 else (128, 128, 64)
        block_m, block_n, block_k = self.block
        self.tiles = tessera.cdiv(m, block_m) * tessera.cdiv(n, block_n)
        parts = max(1, min(device.pick(8, PROGRAMS) // self.tiles, k // (4 * block_k)))
        self.part = tessera.cdiv(tessera.cdiv(k, parts), block_k) * block_k
        self.parts = tessera.cdiv(k, self.part)
        dtype = "float32" if atomic else device.pick("float32", "float16")
        self.c = device.empty(m, n, dtype=dtype)
        self.workspace = self.c if atomic else device.empty(self.parts, m, n)

    def run(self, a: Any, b: Any) -> None:
        m, n, k = self.size
        block_m, block_n, block_k = self.block
        if self.atomic:
            self.c[...] = 0
        split_kernel[(self.tiles, self.parts)](
            a, b, self.workspace, m, n, k, common.strides(a)[0], common.strides(b)[0], self.part,
            BLOCK_M=block_m, BLOCK_N=block_n, BLOCK_K=block_k, ATOMIC=self.atomic,
            EVEN_K=k % block_k == 0, num_warps=8 if block_m == 128 else 4, num_stages=4,
        )  # fmt: skip
        if not self.atomic:
            slots = tessera.next_power_of_2(self.parts)
            block = max(128, 4096 // slots)
            sum_kernel[(tessera.cdiv(m * n, block),)](
                self.workspace, self.c, m * n, self.parts, PARTS=slots, BLOCK=block
            )


if __name__ == "__main__":
    device = common.choose_device("auto")  # tensors on a GPU if there is one, else arrays of NumPy
    dtype = device.pick("float32", "float16")
    a, b = device.normal(512, 256, dtype=dtype), device.normal(256, 384, dtype=dtype)
    product = SplitMatmul(device, 512, 384, 256, atomic=False)
    product.run(a, b)
    print(
        "largest error:",
        common.relative_error(device.numpy(product.c), device.numpy(a) @ device.numpy(b)),
    )
