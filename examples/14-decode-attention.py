"""Attention of one new token: a few queries walk a long cache of keys and values.

Query heads in groups of G share a head of keys and values, so that one pass over the cache serves G queries. One
program for each cache head would leave a GPU idle: the length is cut into SPLITS parts, each program keeps a running
maximum and sum of its part, and a second kernel combines the parts. Bound by the memory that holds the cache.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import common
import tessera
import tessera.language as tl

LOG2_E = 1.4426950408889634
PROGRAMS = 264  # two for each processor of a large GPU


@tessera.jit
def partial_kernel(
    q_ptr, k_ptr, v_ptr, out_ptr, lse_ptr, length, part, splits, scale,
    G: tl.constexpr, BLOCK_G: tl.constexpr, BLOCK_N: tl.constexpr, DIM: tl.constexpr,
):  # fmt: skip
    """The G queries of cache head program_id(0) over the keys of part program_id(1)."""
    head = tl.program_id(0).to(tl.int64)
    split = tl.program_id(1)
    group = tl.arange(0, BLOCK_G)  # padded to what a tensor core multiplies at least
    dims = tl.arange(0, DIM)
    queries = head * G + group
    real = group < G
    q = tl.load(q_ptr + queries[:, None] * DIM + dims[None, :], mask=real[:, None], other=0.0)
    k_ptr += head * length * DIM
    v_ptr += head * length * DIM
    peak = tl.full((BLOCK_G,), -float("inf"), tl.float32)
    total = tl.zeros((BLOCK_G,), tl.float32)
    acc = tl.zeros((BLOCK_G, DIM), tl.float32)
    first = split * part
    last = tl.minimum(first + part, length)
    for start in range(first, last, BLOCK_N):
        keys = start + tl.arange(0, BLOCK_N)
        tile = keys[:, None] * DIM + dims[None, :]
        k = tl.load(k_ptr + tile, mask=keys[:, None] < last, other=0.0)
        v = tl.load(v_ptr + tile, mask=keys[:, None] < last, other=0.0)
        scores = tl.dot(q, tl.trans(k)) * scale
        scores = tl.where(keys[None, :] < last, scores, -float("inf"))
        higher = tl.maximum(peak, tl.max(scores, axis=1))
        weights = tl.exp2(scores - higher[:, None])
        shrink = tl.exp2(peak - higher)
        total = total * shrink + tl.sum(weights, axis=1)
        acc = tl.dot(weights.to(v.dtype), v, acc * shrink[:, None])
        peak = higher
    at = queries * splits + split
    tl.store(out_ptr + at[:, None] * DIM + dims[None, :], acc / total[:, None], mask=real[:, None])
    tl.store(lse_ptr + at, peak + tl.log2(total), mask=real)


@tessera.jit
def combine_kernel(parts_ptr, lse_ptr, out_ptr, splits, SPLITS: tl.constexpr, DIM: tl.constexpr):
    """The result of one query: its parts, weighted by the sums that they were divided by."""
    query = tl.program_id(0).to(tl.int64)
    at = query * splits + tl.arange(0, SPLITS)
    dims = tl.arange(0, DIM)
    inside = tl.arange(0, SPLITS) < splits
    lse = tl.load(lse_ptr + at, mask=inside, other=-float("inf"))
    weights = tl.exp2(lse - tl.max(lse, axis=0))
    weights /= tl.sum(weights, axis=0)
    tile = at[:, None] * DIM + dims[None, :]
    parts = tl.load(parts_ptr + tile, mask=inside[:, None], other=0.0)
    out = tl.sum(parts * weights[:, None], axis=0)
    tl.store(out_ptr + query * DIM + dims, out.to(out_ptr.dtype.element_ty))


class Decoding:
    """Buffers and launches for a cache of `heads` heads, each read by `group` queries."""

    def __init__(self, device: common.Device, heads: int, group: int, length: int, dim: int):
        self.heads, self.group, self.length, self.dim = heads, group, length, dim
        self.block = 64
        # A tensor core multiplies 16 rows at least.
        self.rows = max(device.pick(1, 16), tessera.next_power_of_2(group))
        most = tessera.cdiv(length, 4 * self.block)
        splits = max(1, min(device.pick(8, PROGRAMS) // heads, most))
        self.part = tessera.cdiv(tessera.cdiv(length, splits), self.block) * self.block
        self.splits = tessera.cdiv(length, self.part)
        queries = heads * group
        self.parts = device.empty(queries, self.splits, dim)
        self.lse = device.empty(queries, self.splits)
        self.out = device.empty(queries, dim, dtype=device.pick("float32", "float16"))

    def run(self, q: Any, k: Any, v: Any) -> None:
        partial_kernel[(self.heads, self.splits)](
            q, k, v, self.parts, self.lse, self.length, self.part, self.splits,
            self.dim**-0.5 * LOG2_E, G=self.group, BLOCK_G=self.rows, BLOCK_N=self.block,
            DIM=self.dim, num_warps=4, num_stages=3,
        )  # fmt: skip
        combine_kernel[(self.heads * self.group,)](
            self.parts, self.lse, self.out, self.splits,
            SPLITS=tessera.next_power_of_2(self.splits), DIM=self.dim,
        )  # fmt: skip


if __name__ == "__main__":
    device = common.choose_device("auto")  # tensors on a GPU if there is one, else arrays of NumPy
    dtype = device.pick("float32", "float16")
    q = device.normal(8 * 4, 64, dtype=dtype)  # 8 heads, each read by 4 queries
    k, v = device.normal(8, 1000, 64, dtype=dtype), device.normal(8, 1000, 64, dtype=dtype)
    decoding = Decoding(device, heads=8, group=4, length=1000, dim=64)
    decoding.run(q, k, v)
    scores = device.numpy(q).reshape(8, 4, 64) @ device.numpy(k).swapaxes(1, 2) / 8
    powers = np.exp(scores - scores.max(axis=2, keepdims=True))
    out = powers / powers.sum(axis=2, keepdims=True) @ device.numpy(v)
    print("largest error:", common.relative_error(device.numpy(decoding.out), out.reshape(32, 64)))
