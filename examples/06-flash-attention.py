"""Attention that never stores the matrix of scores, forward and backward, causal or not.

Arrays are [heads, length, dim], contiguous. The forward pass walks the keys tile by tile with a running maximum and sum
for each query, in powers of two, and keeps log2 of the sum; the backward pass makes the probabilities again from that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import common
import tessera
import tessera.language as tl


@tessera.jit
def place(heads, length, BLOCK_M: tl.constexpr, CAUSAL: tl.constexpr, GROUP: tl.constexpr):
    """(first row, head) of this program: GROUP heads at a time share the cache, and of these the tiles with the
    most work come first."""
    tiles = tl.cdiv(length, BLOCK_M)
    pid = tl.program_id(0)
    first = pid // (GROUP * tiles) * GROUP
    together = tl.minimum(heads - first, GROUP)
    within = pid % (GROUP * tiles)
    tile = within // together
    if CAUSAL:
        tile = tiles - 1 - tile
    return tile * BLOCK_M, (first + within % together).to(tl.int64)


@tessera.jit
def forward_kernel(
    q_ptr, k_ptr, v_ptr, out_ptr, lse_ptr, heads, length, scale,
    CAUSAL: tl.constexpr, EVEN: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    DIM: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """One tile of BLOCK_M queries of one head. `scale` includes log2(e). EVEN: tiles never reach past the end."""
    first_row, head = place(heads, length, BLOCK_M, CAUSAL, GROUP)
    base = head * length * DIM
    rows = first_row + tl.arange(0, BLOCK_M)
    dims = tl.arange(0, DIM)
    at = tl.arange(0, BLOCK_N)
    tile = rows[:, None] * DIM + dims[None, :]
    if EVEN:
        q = tl.load(q_ptr + base + tile)
    else:
        q = tl.load(q_ptr + base + tile, mask=rows[:, None] < length, other=0.0)
    acc = tl.zeros((BLOCK_M, DIM), tl.float32)
    total = tl.zeros((BLOCK_M,), tl.float32)
    peak = tl.full((BLOCK_M,), -float("inf"), tl.float32)
    last = length
    if CAUSAL:
        last = tl.minimum(first_row + BLOCK_M, length)
    # Keys before `whole` are seen by every row.
    whole = first_row if CAUSAL else length // BLOCK_N * BLOCK_N
    k_ptrs = k_ptr + base + at[None, :] * DIM + dims[:, None]
    v_ptrs = v_ptr + base + at[:, None] * DIM + dims[None, :]
    for start in range(0, last, BLOCK_N):
        keys = start + at
        if EVEN:
            k = tl.load(k_ptrs)
        else:
            k = tl.load(k_ptrs, mask=keys[None, :] < length, other=0.0)
        scores = tl.dot(q, k)
        if CAUSAL or not EVEN:
            if start + BLOCK_N > whole:
                visible = keys[None, :] <= rows[:, None] if CAUSAL else keys[None, :] < length
                scores = tl.where(visible, scores, -float("inf"))
        higher = tl.maximum(peak, tl.max(scores, axis=1) * scale)
        weights = tl.exp2(scores * scale - higher[:, None])
        shrink = tl.exp2(peak - higher)
        total = total * shrink + tl.sum(weights, axis=1)
        acc = acc * shrink[:, None]
        if EVEN:
            v = tl.load(v_ptrs)
        else:
            v = tl.load(v_ptrs, mask=keys[:, None] < length, other=0.0)
        acc = tl.dot(weights.to(v.dtype), v, acc)
        peak = higher
        k_ptrs += BLOCK_N * DIM
        v_ptrs += BLOCK_N * DIM
    out = (acc / total[:, None]).to(out_ptr.dtype.element_ty)
    if EVEN:
        tl.store(out_ptr + base + tile, out)
    else:
        tl.store(out_ptr + base + tile, out, mask=rows[:, None] < length)
    tl.store(lse_ptr + head * length + rows, peak + tl.log2(total), mask=rows < length)


@tessera.jit
def delta_kernel(out_ptr, dout_ptr, delta_ptr, count, BLOCK_M: tl.constexpr, DIM: tl.constexpr):
    """The inner product of each row of the result with its gradient."""
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    tile = rows[:, None].to(tl.int64) * DIM + tl.arange(0, DIM)[None, :]
    inside = rows[:, None] < count
    out = tl.load(out_ptr + tile, mask=inside, other=0.0).to(tl.float32)
    dout = tl.load(dout_ptr + tile, mask=inside, other=0.0).to(tl.float32)
    tl.store(delta_ptr + rows, tl.sum(out * dout, axis=1), mask=rows < count)


@tessera.jit
def key_gradient_kernel(
    q_ptr, k_ptr, v_ptr, dout_ptr, lse_ptr, delta_ptr, dk_ptr, dv_ptr, heads, length, scale,
    log2_scale, CAUSAL: tl.constexpr, EVEN: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, DIM: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """Gradients of one tile of BLOCK_N keys and values: walks the queries, scores transposed.

    Rows past the end read zeros, which contribute nothing.
    """
    first_key, head = place(
        heads, length, BLOCK_N, False, GROUP
    )  # the first tiles have the most work
    base = head * length * DIM
    dims = tl.arange(0, DIM)
    keys = first_key + tl.arange(0, BLOCK_N)
    tile = keys[:, None] * DIM + dims[None, :]
    inside = keys[:, None] < length
    k = tl.load(k_ptr + base + tile, mask=inside, other=0.0)
    v = tl.load(v_ptr + base + tile, mask=inside, other=0.0)
    dk = tl.zeros((BLOCK_N, DIM), tl.float32)
    dv = tl.zeros((BLOCK_N, DIM), tl.float32)
    first_row = 0
    if CAUSAL:
        first_row = first_key // BLOCK_M * BLOCK_M  # earlier rows see none of these keys
    for start in range(first_row, length, BLOCK_M):
        rows = start + tl.arange(0, BLOCK_M)
        row_tile = rows[:, None] * DIM + dims[None, :]
        if EVEN:
            q = tl.load(q_ptr + base + row_tile)
            dout = tl.load(dout_ptr + base + row_tile)
            lse = tl.load(lse_ptr + head * length + rows)
            delta = tl.load(delta_ptr + head * length + rows)
        else:
            q = tl.load(q_ptr + base + row_tile, mask=rows[:, None] < length, other=0.0)
            dout = tl.load(dout_ptr + base + row_tile, mask=rows[:, None] < length, other=0.0)
            lse = tl.load(lse_ptr + head * length + rows, mask=rows < length, other=0.0)
            delta = tl.load(delta_ptr + head * length + rows, mask=rows < length, other=0.0)
        weights = tl.exp2(tl.dot(k, tl.trans(q)) * log2_scale - lse[None, :])
        if CAUSAL:
            if start < first_key + BLOCK_N:
                weights = tl.where(keys[:, None] <= rows[None, :], weights, 0.0)
        dv = tl.dot(weights.to(dout.dtype), dout, dv)
        dscores = weights * (tl.dot(v, tl.trans(dout)) - delta[None, :])
        dk = tl.dot(dscores.to(q.dtype), q, dk)
    tl.store(dk_ptr + base + tile, (dk * scale).to(dk_ptr.dtype.element_ty), mask=inside)
    tl.store(dv_ptr + base + tile, dv.to(dv_ptr.dtype.element_ty), mask=inside)


@tessera.jit
def query_gradient_kernel(
    q_ptr, k_ptr, v_ptr, dout_ptr, lse_ptr, delta_ptr, dq_ptr, heads, length, scale, log2_scale,
    CAUSAL: tl.constexpr, EVEN: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    DIM: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """Gradient of one tile of BLOCK_M queries: walks the keys. Keys past the end read zeros."""
    first_row, head = place(heads, length, BLOCK_M, CAUSAL, GROUP)
    base = head * length * DIM
    dims = tl.arange(0, DIM)
    rows = first_row + tl.arange(0, BLOCK_M)
    tile = rows[:, None] * DIM + dims[None, :]
    inside = rows[:, None] < length
    q = tl.load(q_ptr + base + tile, mask=inside, other=0.0)
    dout = tl.load(dout_ptr + base + tile, mask=inside, other=0.0)
    lse = tl.load(lse_ptr + head * length + rows, mask=rows < length, other=0.0)
    delta = tl.load(delta_ptr + head * length + rows, mask=rows < length, other=0.0)
    dq = tl.zeros((BLOCK_M, DIM), tl.float32)
    last = length
    if CAUSAL:
        last = tl.minimum(first_row + BLOCK_M, length)
    for start in range(0, last, BLOCK_N):
        keys = start + tl.arange(0, BLOCK_N)
        key_tile = keys[:, None] * DIM + dims[None, :]
        if EVEN:
            k = tl.load(k_ptr + base + key_tile)
            v = tl.load(v_ptr + base + key_tile)
        else:
            k = tl.load(k_ptr + base + key_tile, mask=keys[:, None] < length, other=0.0)
            v = tl.load(v_ptr + base + key_tile, mask=keys[:, None] < length, other=0.0)
        weights = tl.exp2(tl.dot(q, tl.trans(k)) * log2_scale - lse[:, None])
        if CAUSAL:
            if start + BLOCK_N > first_row:
                weights = tl.where(keys[None, :] <= rows[:, None], weights, 0.0)
        dscores = weights * (tl.dot(dout, tl.trans(v)) - delta[:, None])
        dq = tl.dot(dscores.to(k.dtype), k, dq)
    tl.store(dq_ptr + base + tile, (dq * scale).to(dq_ptr.dtype.element_ty), mask=inside)


LOG2_E = 1.4426950408889634


# (BLOCK_M, BLOCK_N, num_warps, num_stages), the usually fastest first, for dims up to 64 and beyond.
FORWARD = (
    [(64, 128, 4, 2), (64, 64, 4, 3), (128, 64, 8, 3), (64, 128, 4, 3)],
    [(128, 128, 8, 3), (128, 64, 4, 2), (128, 64, 8, 3)],
)
KEYS = (
    [(64, 64, 4, 3), (64, 64, 4, 2), (64, 128, 8, 3)],
    [(64, 64, 4, 2), (64, 128, 8, 2), (64, 128, 8, 3)],
)
QUERIES = (
    [(64, 64, 4, 2), (128, 64, 8, 2), (128, 64, 8, 3)],
    [(64, 64, 4, 2), (128, 64, 8, 2), (128, 64, 8, 3)],
)


class Attention:
    """Buffers and launches for one shape."""

    def __init__(self, device: common.Device, heads: int, length: int, dim: int, causal: bool):
        self.heads, self.length, self.dim, self.causal = heads, length, dim, causal
        self.scale = dim**-0.5
        dtype = device.pick("float32", "float16")
        shape = (heads, length, dim)
        self.out = device.empty(*shape, dtype=dtype)
        self.dq, self.dk, self.dv = (device.empty(*shape, dtype=dtype) for _ in range(3))
        self.lse, self.delta = device.empty(heads, length), device.empty(heads, length)
        self.choices = [table[dim > 64] for table in (FORWARD, KEYS, QUERIES)]
        self.configs = [choices[0] for choices in self.choices]
        if not device.is_gpu:
            self.configs[0] = (128, 64, 4, 3)

    def options(self, config: tuple[int, int, int, int]) -> dict[str, Any]:
        block_m, block_n, warps, stages = config
        return {
            "CAUSAL": self.causal, "EVEN": self.length % max(block_m, block_n) == 0,
            "BLOCK_M": block_m, "BLOCK_N": block_n, "DIM": self.dim,
            "GROUP": (8 if self.dim > 64 else 16) if self.causal else 1, "num_warps": warps, "num_stages": stages,
        }  # fmt: skip

    def forward(self, q: Any, k: Any, v: Any) -> None:
        config = self.configs[0]
        forward_kernel[(tessera.cdiv(self.length, config[0]) * self.heads,)](
            q, k, v, self.out, self.lse, self.heads, self.length, self.scale * LOG2_E,
            **self.options(config),
        )  # fmt: skip

    def backward(self, q: Any, k: Any, v: Any, dout: Any) -> None:
        count = self.heads * self.length
        delta_kernel[(tessera.cdiv(count, 64),)](
            self.out, dout, self.delta, count, BLOCK_M=64, DIM=self.dim
        )
        scales = (self.heads, self.length, self.scale, self.scale * LOG2_E)
        saved = (dout, self.lse, self.delta)
        _, keys, queries = self.configs
        key_gradient_kernel[(tessera.cdiv(self.length, keys[1]) * self.heads,)](
            q, k, v, *saved, self.dk, self.dv, *scales, **self.options(keys)
        )
        query_gradient_kernel[(tessera.cdiv(self.length, queries[0]) * self.heads,)](
            q, k, v, *saved, self.dq, *scales, **self.options(queries)
        )

    def tune(self, q: Any, k: Any, v: Any, dout: Any, time: Callable[[Any], float]) -> None:
        """Choose the fastest configuration of each kernel; `time` measures a call."""
        self.forward(q, k, v)
        for kernel, choices in enumerate(self.choices):
            timed: list[tuple[float, Any]] = []
            for config in choices:
                self.configs[kernel] = config
                if kernel == 0:
                    timed.append((time(lambda: self.forward(q, k, v)), config))
                else:
                    timed.append((time(lambda: self.backward(q, k, v, dout)), config))
            self.configs[kernel] = min(timed)[1]


if __name__ == "__main__":
    device = common.choose_device("auto")  # tensors on a GPU if there is one, else arrays of NumPy
    q, k, v, dout = (
        device.normal(4, 256, 64, dtype=device.pick("float32", "float16")) for _ in range(4)
    )
    attention = Attention(device, heads=4, length=256, dim=64, causal=False)
    attention.forward(q, k, v)
    attention.backward(q, k, v, dout)
    scores = device.numpy(q) @ device.numpy(k).swapaxes(1, 2) / 8
    powers = np.exp(scores - scores.max(axis=2, keepdims=True))
    print(
        "largest error:",
        common.relative_error(
            device.numpy(attention.out),
            powers / powers.sum(axis=2, keepdims=True) @ device.numpy(v),
        ),
    )
