"""Matrix products whose tiles do not divide evenly among the processors: steps of K are dealt out, not tiles.

All tiles' steps along K form one long row, of which each program takes an equal stretch. A stretch may begin or end
within a tile: a program that does not reach a tile's end leaves its sums in a workspace, and the one that does waits
for them. Programs begin with their last tile, the one they may not finish, so that nobody waits for long, and wait only
for programs of lower numbers, which began before them.
"""

from __future__ import annotations

from typing import Any

import common
import tessera
import tessera.language as tl


@tessera.jit
def partial_tile(
    a_ptr, b_ptr, rows, cols, M, N, K, stride_am, stride_bk, first, last, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, EVEN_K: tl.constexpr,
):  # fmt: skip
    """Steps [first, last) of one tile."""
    ks = first * BLOCK_K + tl.arange(0, BLOCK_K)
    a_ptrs = a_ptr + rows[:, None] * stride_am + ks[None, :]
    b_ptrs = b_ptr + ks[:, None] * stride_bk + cols[None, :]
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for step in range(first, last):
        if EVEN_K:
            a = tl.load(a_ptrs, mask=rows[:, None] < M, other=0.0)
            b = tl.load(b_ptrs, mask=cols[None, :] < N, other=0.0)
        else:
            inside = tl.arange(0, BLOCK_K) < K - step * BLOCK_K
            a = tl.load(a_ptrs, mask=(rows[:, None] < M) & inside[None, :], other=0.0)
            b = tl.load(b_ptrs, mask=inside[:, None] & (cols[None, :] < N), other=0.0)
        acc = tl.dot(a, b, acc)
        a_ptrs += BLOCK_K
        b_ptrs += BLOCK_K * stride_bk
    return acc


@tessera.jit
def stream_kernel(
    a_ptr, b_ptr, c_ptr, work_ptr, ready_ptr, M, N, K, stride_am, stride_bk, stretch,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, EVEN_K: tl.constexpr,
):  # fmt: skip
    """Steps [stretch * program_id, + stretch) of all tiles. `ready_ptr` holds zeros, before and after."""
    pid = tl.program_id(0)
    tiles_n = tl.cdiv(N, BLOCK_N)
    steps = tl.cdiv(K, BLOCK_K)
    start = pid * stretch
    end = tl.minimum(start + stretch, tl.cdiv(M, BLOCK_M) * tiles_n * steps)
    slot = tl.arange(0, BLOCK_M)[:, None] * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    while start < end:
        tile = (end - 1) // steps
        first = tl.maximum(start - tile * steps, 0)
        last = end - tile * steps
        rows = tile // tiles_n * BLOCK_M + tl.arange(0, BLOCK_M)
        cols = tile % tiles_n * BLOCK_N + tl.arange(0, BLOCK_N)
        acc = partial_tile(
            a_ptr, b_ptr, rows, cols, M, N, K, stride_am, stride_bk, first, last,
            BLOCK_M, BLOCK_N, BLOCK_K, EVEN_K,
        )  # fmt: skip
        if last < steps:
            tl.store(work_ptr + pid * BLOCK_M * BLOCK_N + slot, acc)
            tl.debug_barrier()  # every thread's sums must be in memory before the flag is up
            tl.atomic_xchg(ready_ptr + pid, 1)
        else:
            other, missing = pid, first
            while missing > 0:  # the steps before ours are those of the programs before us
                other -= 1
                while tl.atomic_cas(ready_ptr + other, 1, 0) == 0:
                    pass
                tl.debug_barrier()
                acc += tl.load(work_ptr + other * BLOCK_M * BLOCK_N + slot)
                missing -= stretch
            c_ptrs = c_ptr + rows[:, None] * N + cols[None, :]
            inside = (rows[:, None] < M) & (cols[None, :] < N)
            tl.store(c_ptrs, acc.to(c_ptr.dtype.element_ty), mask=inside)
        end = tile * steps + first


class StreamMatmul:
    """Buffers and launches of c = a @ b, rows contiguous."""

    def __init__(self, device: common.Device, m: int, n: int, k: int) -> None:
        self.size = (m, n, k)
        self.block = (128, 128, 64)
        block_m, block_n, block_k = self.block
        steps = tessera.cdiv(m, block_m) * tessera.cdiv(n, block_n) * tessera.cdiv(k, block_k)
        self.stretch = tessera.cdiv(steps, min(processors(device), steps))
        self.programs = tessera.cdiv(steps, self.stretch)
        self.c = device.empty(m, n, dtype=device.pick("float32", "float16"))
        self.work = device.empty(self.programs, block_m, block_n)
        self.ready = device.zeros(self.programs, dtype="int32")

    def run(self, a: Any, b: Any) -> None:
        m, n, k = self.size
        block_m, block_n, block_k = self.block
        stream_kernel[(self.programs,)](
            a, b, self.c, self.work, self.ready, m, n, k, common.strides(a)[0],
            common.strides(b)[0], self.stretch, BLOCK_M=block_m, BLOCK_N=block_n, BLOCK_K=block_k,
            EVEN_K=k % block_k == 0, num_warps=8, num_stages=4,
        )  # fmt: skip


def processors(device: common.Device) -> int:
    """As many programs as run at the same time: they wait for each other."""
    if not device.is_gpu:
        return 8
    properties = tessera.runtime.driver.active.utils.get_device_properties(0)
    return properties["multiprocessor_count"]


if __name__ == "__main__":
    device = common.choose_device("auto")  # tensors on a GPU if there is one, else arrays of NumPy
    dtype = device.pick("float32", "float16")
    a, b = device.normal(512, 256, dtype=dtype), device.normal(256, 384, dtype=dtype)
    product = StreamMatmul(device, 512, 384, 256)
    product.run(a, b)
    print(
        "largest error:",
        common.relative_error(device.numpy(product.c), device.numpy(a) @ device.numpy(b)),
    )
