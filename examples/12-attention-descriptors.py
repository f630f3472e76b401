"""Attention forward through tensor descriptors, causal or not.

Arrays are [heads, length, dim]. Blocks of keys and values come through descriptors of three dimensions, so that rows
past the end of a head are zeros, and not rows of the next one. On a Hopper GPU the copy engine moves them: the compiler
gives the copies to a warp of their own, and lets the product with the values run while the next scores are worked on.
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


LOG2_E = 1.4426950408889634
Config = tuple[int, int, int, int]  # BLOCK_M, BLOCK_N, num_warps, num_stages

# The usually fastest first, for dims up to 64 and beyond.
CONFIGS: tuple[list[Config], list[Config]] = (
    [(256, 64, 16, 2), (64, 128, 4, 2), (128, 64, 4, 3), (128, 64, 8, 3)],
    [(128, 128, 8, 2), (128, 128, 8, 3), (128, 64, 4, 2), (128, 64, 8, 3)],
)


class Attention:
    """Buffers, descriptors and launches for one shape."""

    def __init__(self, device: common.Device, heads: int, length: int, dim: int, causal: bool):
        self.heads, self.length, self.dim, self.causal = heads, length, dim, causal
        dtype = device.pick("float32", "float16")
        self.out = device.empty(heads, length, dim, dtype=dtype)
        self.lse = device.empty(heads, length)
        self.configs = CONFIGS[dim > 64] if device.is_gpu else [(128, 64, 4, 2)]
        self.config = self.configs[0]

    def options(self) -> dict[str, Any]:
        block_m, block_n, warps, stages = self.config
        return {
            "CAUSAL": self.causal, "EVEN": self.length % block_n == 0, "BLOCK_M": block_m, "BLOCK_N": block_n,
            "DIM": self.dim, "GROUP": 8 if self.causal else 1, "num_warps": warps, "num_stages": stages,
        }  # fmt: skip

    def forward(self, q: Any, k: Any, v: Any) -> None:
        block_m, block_n, *_ = self.config
        rows = (block_m, block_n, block_n, block_m)
        descriptors = [
            TensorDescriptor.from_tensor(x, [1, n, self.dim])
            for x, n in zip((q, k, v, self.out), rows, strict=True)
        ]
        forward_kernel[(tessera.cdiv(self.length, block_m) * self.heads,)](
            *descriptors, self.lse, self.heads, self.length, self.dim**-0.5 * LOG2_E, **self.options()
        )  # fmt: skip

    def tune(self, q: Any, k: Any, v: Any, time: Callable[[Any], float]) -> None:
        """Choose the fastest configuration that the GPU can run; `time` measures a call."""
        timed: list[tuple[float, Config]] = []
        for config in self.configs:
            self.config = config
            try:
                timed.append((time(lambda: self.forward(q, k, v)), config))
            except tessera.OutOfResources:
                continue
        self.config = min(timed)[1]


def specimens() -> list[common.Specimen]:
    found: list[common.Specimen] = []
    for dim, configs in ((64, CONFIGS[0][:2]), (128, CONFIGS[1][:1])):
        for causal in (False, True):
            for block_m, block_n, warps, stages in configs:
                rows = {
                    "q_desc": block_m,
                    "k_desc": block_n,
                    "v_desc": block_n,
                    "out_desc": block_m,
                }
                signature = {
                    **{name: f"tensordesc<fp16[1, {n}, {dim}]>" for name, n in rows.items()},
                    "lse_ptr": "*fp32", "heads": "i32", "length": "i32", "scale": "fp32",
                }  # fmt: skip
                tile = {
                    "CAUSAL": causal, "EVEN": True, "BLOCK_M": block_m, "BLOCK_N": block_n, "DIM": dim, "GROUP": 8,
                }  # fmt: skip
                options = {"num_warps": warps, "num_stages": stages}
                found.append(common.Specimen(forward_kernel, signature, tile, options, (90,)))
    return found


def numpy_attention(q: np.ndarray, k: np.ndarray, v: np.ndarray, causal: bool) -> np.ndarray:
    scores = q @ k.swapaxes(-1, -2) * q.shape[-1] ** -0.5
    if causal:
        scores = np.where(np.tri(q.shape[-2], dtype=bool), scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True) @ v


def reference(device: common.Device, q: Any, k: Any, v: Any, causal: bool) -> Callable[[], Any]:
    if not device.is_gpu:
        return lambda: numpy_attention(q, k, v, causal)
    import torch

    batch = [x[None] for x in (q, k, v)]
    return lambda: torch.nn.functional.scaled_dot_product_attention(*batch, is_causal=causal)


def measure(device: common.Device, heads: int, length: int, dim: int, causal: bool) -> common.Row:
    dtype = device.pick("float32", "float16")
    q, k, v = (device.normal(heads, length, dim, dtype=dtype) for _ in range(3))
    attention = Attention(device, heads, length, dim, causal)
    attention.forward(q, k, v)
    checked = [0, heads - 1]  # NumPy would take minutes for all heads of a large problem
    q64, k64, v64 = (device.numpy(x[checked]).astype(np.float64) for x in (q, k, v))
    error = common.relative_error(
        device.numpy(attention.out[checked]), numpy_attention(q64, k64, v64, causal)
    )
    work = 4.0 * heads * length * length * dim / (2 if causal else 1)
    return common.Row(
        f"{'causal attention' if causal else 'attention'} with descriptors", f"{heads}x{length}x{dim} {dtype}",
        error, device.pick(1e-5, 2e-3), work, "GFLOP/s",
        device.time(lambda: attention.forward(q, k, v)), device.time(reference(device, q, k, v, causal)),
    )  # fmt: skip


def main(device: common.Device) -> list[common.Row]:
    heads, length = device.pick((3, 300), (64, 4096))
    sizes = [(length, 64), (length - 56, device.pick(64, 128))]
    return [measure(device, heads, n, dim, causal) for n, dim in sizes for causal in (False, True)]


if __name__ == "__main__":
    common.run(main)
