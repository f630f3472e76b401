"""Attention through tensor descriptors, forward and backward, causal or not.

Arrays are [heads, length, dim]. Blocks come through descriptors of three dimensions, so that rows past the end of a
head are zeros, and not rows of the next one. On a Hopper GPU the copy engine moves them: the compiler gives the copies
to a warp of their own, and lets the product with the values run while the next scores are worked on.

The backward pass computes each block of probabilities once: a program keeps the gradients of its keys and values, and
adds its share to those of the queries, in fp32 and in any order. Lengths are multiples of 4 there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import common
import tessera
import tessera.language as tl
from tessera.tools.tensor_descriptor import TensorDescriptor


@tessera.jit
def place(heads, length, BLOCK_M: tl.constexpr, CAUSAL: tl.constexpr, GROUP: tl.constexpr):
    """(head, first row) of this program: GROUP heads at a time share the cache, and of these the tiles with the
    most work come first."""
    tiles = tl.cdiv(length, BLOCK_M)
    number = tl.program_id(0)
    first = number // (GROUP * tiles) * GROUP
    together = tl.minimum(heads - first, GROUP)
    within = number % (GROUP * tiles)
    tile = within // together
    if CAUSAL:
        tile = tiles - 1 - tile
    return first + within % together, tile * BLOCK_M


@tessera.jit
def forward_kernel(
    q_desc, k_desc, v_desc, out_desc, lse_ptr, heads, length, scale,
    CAUSAL: tl.constexpr, EVEN: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    DIM: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """BLOCK_M queries of one head. `scale` includes log2(e). EVEN: blocks of keys end with the head."""
    head, first_row = place(heads, length, BLOCK_M, CAUSAL, GROUP)
    rows = first_row + tl.arange(0, BLOCK_M)
    q = q_desc.load([head, first_row, 0]).reshape(BLOCK_M, DIM)
    acc = tl.zeros((BLOCK_M, DIM), tl.float32)
    total = tl.zeros((BLOCK_M,), tl.float32)
    peak = tl.full((BLOCK_M,), -float("inf"), tl.float32)
    last = length
    if CAUSAL:
        last = tl.minimum(first_row + BLOCK_M, length)
    # Keys before `whole` are seen by every row.
    whole = first_row if CAUSAL else length // BLOCK_N * BLOCK_N
    for start in range(0, last, BLOCK_N):
        k = k_desc.load([head, start, 0]).reshape(BLOCK_N, DIM)
        scores = tl.dot(q, k.T)
        if CAUSAL or not EVEN:
            if start + BLOCK_N > whole:
                keys = start + tl.arange(0, BLOCK_N)
                visible = keys[None, :] <= rows[:, None] if CAUSAL else keys[None, :] < length
                scores = tl.where(visible, scores, -float("inf"))
        higher = tl.maximum(peak, tl.max(scores, axis=1) * scale)
        weights = tl.exp2(scores * scale - higher[:, None])
        shrink = tl.exp2(peak - higher)
        total = total * shrink + tl.sum(weights, axis=1)
        acc = acc * shrink[:, None]
        v = v_desc.load([head, start, 0]).reshape(BLOCK_N, DIM)
        acc = tl.dot(weights.to(v.dtype), v, acc)
        peak = higher
    out = (acc * (1.0 / total)[:, None]).to(out_desc.dtype)
    out_desc.store([head, first_row, 0], out.reshape(1, BLOCK_M, DIM))
    lse = peak + tl.log2(total)
    tl.store(lse_ptr + head.to(tl.int64) * length + rows, lse, mask=rows < length)


@tessera.jit
def prepare_kernel(
    out_ptr, dout_ptr, delta_ptr, sum_ptr, count, BLOCK_M: tl.constexpr, DIM: tl.constexpr
):  # fmt: skip
    """The inner product of each row of the result with its gradient; and zeros for the sums of `backward_kernel`."""
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    tile = rows[:, None].to(tl.int64) * DIM + tl.arange(0, DIM)[None, :]
    inside = rows[:, None] < count
    out = tl.load(out_ptr + tile, mask=inside, other=0.0).to(tl.float32)
    dout = tl.load(dout_ptr + tile, mask=inside, other=0.0).to(tl.float32)
    tl.store(delta_ptr + rows, tl.sum(out * dout, axis=1), mask=rows < count)
    tl.store(sum_ptr + tile, tl.zeros((BLOCK_M, DIM), tl.float32), mask=inside)


@tessera.jit
def backward_kernel(
    q_desc, k_desc, v_desc, dout_desc, lse_desc, delta_desc, dk_desc, dv_desc, sum_desc, heads, length,
    scale, log2_scale, CAUSAL: tl.constexpr, EVEN: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, DIM: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """BLOCK_N keys and values of one head; walks the queries, scores transposed. Rows past the end contribute nothing,
    as their gradients are zeros. EVEN: blocks of keys end with the head."""
    head, first_key = place(heads, length, BLOCK_N, False, GROUP)  # the first have the most work
    keys = first_key + tl.arange(0, BLOCK_N)
    k = k_desc.load([head, first_key, 0]).reshape(BLOCK_N, DIM)
    v = v_desc.load([head, first_key, 0]).reshape(BLOCK_N, DIM)
    dk = tl.zeros((BLOCK_N, DIM), tl.float32)
    dv = tl.zeros((BLOCK_N, DIM), tl.float32)
    first_row = 0
    if CAUSAL:
        first_row = first_key // BLOCK_M * BLOCK_M  # earlier rows see none of these keys
    for start in range(first_row, length, BLOCK_M):
        q = q_desc.load([head, start, 0]).reshape(BLOCK_M, DIM)
        dout = dout_desc.load([head, start, 0]).reshape(BLOCK_M, DIM)
        lse = lse_desc.load([head, start]).reshape(BLOCK_M)
        scores = tl.dot(k, q.T)
        dweights = tl.dot(v, dout.T)
        weights = tl.exp2(scores * log2_scale - lse[None, :])
        if CAUSAL:
            if start < first_key + BLOCK_N:
                rows = start + tl.arange(0, BLOCK_M)
                weights = tl.where(keys[:, None] <= rows[None, :], weights, 0.0)
        elif not EVEN:
            weights = tl.where(keys[:, None] < length, weights, 0.0)
        weights = weights.to(dout.dtype)
        dv = tl.dot(weights, dout, dv)
        delta = delta_desc.load([head, start]).reshape(BLOCK_M)
        dscores = (weights.to(tl.float32) * (dweights - delta[None, :])).to(q.dtype)
        dq = tl.dot(dscores.T, k)
        dk = tl.dot(dscores, q, dk)
        sum_desc.atomic_add([head, start, 0], dq.reshape(1, BLOCK_M, DIM))
    dk_desc.store([head, first_key, 0], (dk * scale).to(dk_desc.dtype).reshape(1, BLOCK_N, DIM))
    dv_desc.store([head, first_key, 0], dv.to(dv_desc.dtype).reshape(1, BLOCK_N, DIM))


@tessera.jit
def finish_kernel(sum_ptr, dq_ptr, size, scale, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < size
    total = tl.load(sum_ptr + at, mask=inside)
    tl.store(dq_ptr + at, (total * scale).to(dq_ptr.dtype.element_ty), mask=inside)


LOG2_E = 1.4426950408889634


Config = tuple[int, int, int, int]  # BLOCK_M, BLOCK_N, num_warps, num_stages


# The usually fastest first, for dims up to 64 and beyond.
CONFIGS: tuple[list[Config], list[Config]] = (
    [(256, 64, 16, 2), (64, 128, 4, 2), (128, 64, 4, 3), (128, 64, 8, 3)],
    [(128, 128, 8, 2), (128, 128, 8, 3), (128, 64, 4, 2), (128, 64, 8, 3)],
)


# The first spills five words of a thread when it is causal, and is 3% faster than the second all the same (H200).
BACKWARD: tuple[list[Config], list[Config]] = (
    [(128, 128, 8, 2), (64, 64, 4, 2)],
    [(64, 128, 8, 3), (64, 128, 8, 2)],
)


class Attention:
    """Buffers, descriptors and launches for one shape."""

    def __init__(self, device: common.Device, heads: int, length: int, dim: int, causal: bool):
        self.heads, self.length, self.dim, self.causal = heads, length, dim, causal
        dtype = device.pick("float32", "float16")
        self.out = device.empty(heads, length, dim, dtype=dtype)
        self.lse, self.delta = device.empty(heads, length), device.empty(heads, length)
        self.dq, self.dk, self.dv = (
            device.empty(heads, length, dim, dtype=dtype) for _ in range(3)
        )
        self.sum = device.empty(heads, length, dim)
        self.configs = CONFIGS[dim > 64] if device.is_gpu else [(128, 64, 4, 2)]
        self.config = self.configs[0]
        self.backward_configs = BACKWARD[dim > 64]
        self.backward_config = self.backward_configs[0]

    def options(self, config: Config) -> dict[str, Any]:
        block_m, block_n, warps, stages = config
        return {
            "CAUSAL": self.causal, "EVEN": self.length % block_n == 0, "BLOCK_M": block_m, "BLOCK_N": block_n,
            "DIM": self.dim, "GROUP": 8 if self.causal else 1, "num_warps": warps, "num_stages": stages,
        }  # fmt: skip

    def described(self, rows: int, *arrays: Any) -> list[TensorDescriptor]:
        """Blocks of `rows` rows of a head."""
        return [TensorDescriptor.from_tensor(x, [1, rows, self.dim]) for x in arrays]

    def forward(self, q: Any, k: Any, v: Any) -> None:
        block_m, block_n, *_ = self.config
        q_desc, out_desc = self.described(block_m, q, self.out)
        k_desc, v_desc = self.described(block_n, k, v)
        forward_kernel[(tessera.cdiv(self.length, block_m) * self.heads,)](
            q_desc, k_desc, v_desc, out_desc, self.lse, self.heads, self.length, self.dim**-0.5 * LOG2_E,
            **self.options(self.config),
        )  # fmt: skip

    def backward(self, q: Any, k: Any, v: Any, dout: Any) -> None:
        block_m, block_n, *_ = self.backward_config
        count, scale = self.heads * self.length, self.dim**-0.5
        prepare_kernel[(tessera.cdiv(count, 32),)](
            self.out, dout, self.delta, self.sum, count, BLOCK_M=32, DIM=self.dim
        )
        q_desc, dout_desc, sum_desc = self.described(block_m, q, dout, self.sum)
        rows = [TensorDescriptor.from_tensor(x, [1, block_m]) for x in (self.lse, self.delta)]
        backward_kernel[(tessera.cdiv(self.length, block_n) * self.heads,)](
            q_desc, *self.described(block_n, k, v), dout_desc, *rows,
            *self.described(block_n, self.dk, self.dv), sum_desc, self.heads, self.length,
            scale, scale * LOG2_E, **self.options(self.backward_config),
        )  # fmt: skip
        size = count * self.dim
        finish_kernel[(tessera.cdiv(size, 4096),)](self.sum, self.dq, size, scale, BLOCK=4096)

    def tune(self, q: Any, k: Any, v: Any, time: Callable[[Any], float]) -> None:
        """Choose the fastest configuration that the GPU can run; `time` measures a call."""

        def timed(config: Config) -> float:
            self.config = config
            return time(lambda: self.forward(q, k, v))

        self.config = fastest(self.configs, timed)

    def tune_backward(
        self, q: Any, k: Any, v: Any, dout: Any, time: Callable[[Any], float]
    ) -> None:
        def timed(config: Config) -> float:
            self.backward_config = config
            return time(lambda: self.backward(q, k, v, dout))

        self.backward_config = fastest(self.backward_configs, timed)


def fastest(configs: list[Config], time: Callable[[Config], float]) -> Config:
    """Of those that the GPU can run."""
    timed: list[tuple[float, Config]] = []
    for config in configs:
        try:
            timed.append((time(config), config))
        except tessera.OutOfResources:
            continue
    return min(timed)[1]


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
