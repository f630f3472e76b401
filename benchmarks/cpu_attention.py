"""Attention on a CPU beside torch's scaled_dot_product_attention: forward, backward and of one new token.

    python benchmarks/cpu_attention.py [--threads N] [--rep MS] [--only PATTERN] [--processor-time] [--json FILE]

Heads of 64, 96 and 128 numbers, lengths from 128 to 4096, causal or not, heads of queries that share a head of keys.
The kernels are those of examples 06 and 14, and one below for shared heads and for heads whose size is no power of two;
of a few tiles the fastest is taken. Figures as in cpu_plain.py, whose options these are.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import sources
from cpu_products import Call, Case, compare

import tessera
import tessera.language as tl

LOG2_E = 1.4426950408889634
TILES = ((32, 64), (64, 64), (128, 64), (64, 128), (128, 128))
# Heads, heads of keys, length, size of a head.
FORWARD = (
    (16, 16, 128, 64), (8, 8, 512, 64), (8, 8, 1024, 64), (4, 4, 4096, 64), (8, 8, 1000, 64), (8, 8, 512, 96),
    (4, 4, 2048, 96), (8, 8, 512, 128), (4, 4, 2048, 128), (16, 4, 512, 64), (16, 2, 1024, 128),
)  # fmt: skip
BACKWARD = ((16, 16, 128, 64), (8, 8, 512, 64), (4, 4, 2048, 64), (4, 4, 1024, 128))
# Heads of keys, queries that share one, length, size of a head.
DECODE = (
    (8, 1, 1024, 64), (8, 1, 4096, 128), (8, 4, 1024, 64), (8, 4, 4096, 128), (2, 8, 4096, 128), (32, 1, 512, 128),
)  # fmt: skip


@tessera.jit
def shared_heads(
    q_ptr, k_ptr, v_ptr, out_ptr, length, scale, SHARED: tl.constexpr, CAUSAL: tl.constexpr,
    DIM: tl.constexpr, PADDED: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """One tile of queries of head program_id(1), SHARED of which read the same keys. Heads have DIM numbers."""
    head = tl.program_id(1).to(tl.int64)
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    dims, at = tl.arange(0, PADDED), tl.arange(0, BLOCK_N)
    real = dims[None, :] < DIM
    tile = (head * length + rows[:, None]) * DIM + dims[None, :]
    inside = (rows[:, None] < length) & real
    q = tl.load(q_ptr + tile, mask=inside, other=0.0)
    k_ptr += head // SHARED * length * DIM
    v_ptr += head // SHARED * length * DIM
    peak = tl.full((BLOCK_M,), -float("inf"), tl.float32)
    total = tl.zeros((BLOCK_M,), tl.float32)
    acc = tl.zeros((BLOCK_M, PADDED), tl.float32)
    last = tl.minimum(tl.program_id(0) * BLOCK_M + BLOCK_M, length) if CAUSAL else length
    for start in range(0, last, BLOCK_N):
        keys = start + at
        there = (keys[:, None] < length) & real
        k = tl.load(k_ptr + keys[:, None] * DIM + dims[None, :], mask=there, other=0.0)
        scores = tl.dot(q, k.T)
        visible = keys[None, :] < length
        if CAUSAL:
            visible &= keys[None, :] <= rows[:, None]
        scores = tl.where(visible, scores, -float("inf"))
        higher = tl.maximum(peak, tl.max(scores, axis=1) * scale)
        weights = tl.exp2(scores * scale - higher[:, None])
        shrink = tl.exp2(peak - higher)
        total = total * shrink + tl.sum(weights, axis=1)
        v = tl.load(v_ptr + keys[:, None] * DIM + dims[None, :], mask=there, other=0.0)
        acc = tl.dot(weights.to(v.dtype), v, acc * shrink[:, None])
        peak = higher
    out = (acc / total[:, None]).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + tile, out, mask=inside)


class Cases:
    """Rows of the table. Each type has the same shapes."""

    def __init__(self, torch: Any) -> None:
        self.torch = torch
        self.theirs = torch.nn.functional.scaled_dot_product_attention
        self.dense, self.decoding = sources.example("06"), sources.example("14")

    def normal(self, dtype: str, *shape: int) -> Any:
        kind = self.torch.float32 if dtype == "fp32" else self.torch.bfloat16
        return self.torch.randn(shape).to(kind)

    def all(self) -> Iterator[Case]:
        for dtype in ("fp32", "bf16"):
            for causal in (False, True):
                for shape in FORWARD:
                    yield self.forward(dtype, causal, *shape)
                for heads, _, n, dim in BACKWARD:
                    yield self.backward(dtype, causal, heads, n, dim)
            for shape in DECODE:
                yield self.decode(dtype, *shape)

    def forward(self, dtype: str, causal: bool, heads: int, kv: int, n: int, dim: int) -> Case:
        q, out = self.normal(dtype, heads, n, dim), self.normal(dtype, heads, n, dim)
        k, v = self.normal(dtype, kv, n, dim), self.normal(dtype, kv, n, dim)
        padded = tessera.next_power_of_2(dim)
        lse = self.torch.empty(heads, n)

        def shared(m: int, keys: int) -> Any:
            return shared_heads[(tessera.cdiv(n, m), heads)](
                q, k, v, out, n, dim**-0.5 * LOG2_E, SHARED=heads // kv, CAUSAL=causal, DIM=dim,
                PADDED=padded, BLOCK_M=m, BLOCK_N=keys,
            )  # fmt: skip

        def dense(m: int, keys: int) -> Any:
            return self.dense.forward_kernel[(tessera.cdiv(n, m) * heads,)](
                q, k, v, out, lse, heads, n, dim**-0.5 * LOG2_E, CAUSAL=causal,
                EVEN=n % max(m, keys) == 0, BLOCK_M=m, BLOCK_N=keys, DIM=dim, GROUP=1,
            )  # fmt: skip

        ours: list[Call] = [
            lambda t=t, f=f: f(*t)
            for f in ((dense,) if kv == heads and dim == padded else (shared,))
            for t in TILES
        ]
        theirs: Call = lambda: self.theirs(  # noqa: E731
            q[None], k[None], v[None], is_causal=causal, enable_gqa=kv != heads
        )[0]
        name = "forward, causal" if causal else "forward"
        what = f"{heads}x{n}x{dim}" + (f", {kv} of keys" if kv != heads else "")
        return name, what, dtype, ours, theirs, out

    def backward(self, dtype: str, causal: bool, heads: int, n: int, dim: int) -> Case:
        torch = self.torch
        q, k, v, dout, out, dq, dk, dv = (self.normal(dtype, heads, n, dim) for _ in range(8))
        lse, delta = torch.empty(heads, n), torch.empty(heads, n)
        scale, tiles = dim**-0.5, [(m, keys) for m, keys in TILES if max(m, keys) <= n]
        common = {"CAUSAL": causal, "EVEN": True, "DIM": dim, "GROUP": 1}
        scales = (heads, n, scale, scale * LOG2_E)
        self.dense.forward_kernel[(n // 64 * heads,)](
            q, k, v, out, lse, heads, n, scale * LOG2_E, BLOCK_M=64, BLOCK_N=64, **common
        )

        def ours(m: int, keys: int) -> None:
            saved, sizes = (dout, lse, delta), {**common, "BLOCK_M": m, "BLOCK_N": keys}
            count = heads * n
            self.dense.delta_kernel[(tessera.cdiv(count, 64),)](
                out, dout, delta, count, BLOCK_M=64, DIM=dim
            )
            self.dense.key_gradient_kernel[(n // keys * heads,)](
                q, k, v, *saved, dk, dv, *scales, **sizes
            )
            self.dense.query_gradient_kernel[(n // m * heads,)](
                q, k, v, *saved, dq, *scales, **sizes
            )

        leaves = [x[None].clone().requires_grad_() for x in (q, k, v)]
        result = self.theirs(*leaves, is_causal=causal)

        def theirs() -> Any:
            found = torch.autograd.grad(result, leaves, dout[None], retain_graph=True)
            return found[1][0]

        calls: list[Call] = [lambda t=t: ours(*t) for t in tiles]
        name = "backward, causal" if causal else "backward"
        return name, f"{heads}x{n}x{dim}", dtype, calls, theirs, dk

    def decode(self, dtype: str, heads: int, group: int, n: int, dim: int) -> Case:
        q, out = self.normal(dtype, heads * group, dim), self.normal(dtype, heads * group, dim)
        k, v = self.normal(dtype, heads, n, dim), self.normal(dtype, heads, n, dim)
        rows = tessera.next_power_of_2(group)

        def ours(splits: int, block: int) -> None:
            part = n // splits
            parts = self.torch.empty(heads * group, splits, dim)
            lse = self.torch.empty(heads * group, splits)
            self.decoding.partial_kernel[(heads, splits)](
                q, k, v, parts, lse, n, part, splits, dim**-0.5 * LOG2_E, G=group, BLOCK_G=rows,
                BLOCK_N=block, DIM=dim,
            )  # fmt: skip
            self.decoding.combine_kernel[(heads * group,)](
                parts, lse, out, splits, SPLITS=splits, DIM=dim
            )

        def theirs() -> Any:
            new = q.view(1, heads * group, 1, dim)
            found = self.theirs(new, k[None], v[None], enable_gqa=group > 1)
            return found.view(heads * group, dim)

        calls: list[Call] = [lambda s=s, b=b: ours(s, b) for s in (1, 2) for b in (32, 64, 128)]
        return "one new token", f"{heads}x{n}x{dim}, {group} queries", dtype, calls, theirs, out


if __name__ == "__main__":
    compare("cpu_attention", lambda torch: Cases(torch).all(), (17, 24))
