"""Chains of products, compiled for Hopper with warp roles, and their results in NumPy."""

# annotations of kernels name dtypes
# pyright: reportInvalidTypeForm=false, reportUndefinedVariable=false
from __future__ import annotations

from typing import Any

import numpy as np

import tessera
import tessera.language as tl
from tessera.backends.nvidia.simulator import run_kernel
from tessera.compiler import CompiledKernel
from tessera.interp import run
from tessera.ir import parse_module
from tests.unit.tensor_maps_kit import built, flat


@tessera.jit
def softmax_chain(
    q, k, v, out, n, causal: tl.constexpr, M: tl.constexpr, N: tl.constexpr, D: tl.constexpr
):
    """Running maximum and sum; a branch for the mask."""
    first = tl.program_id(0) * M
    rows, at = first + tl.arange(0, M), tl.arange(0, N)
    x = q.load([first, 0])
    acc = tl.zeros((M, D), tl.float32)
    total = tl.zeros((M,), tl.float32)
    peak = tl.full((M,), -float("inf"), tl.float32)
    last = tl.minimum(first + M, n) if causal else n
    for start in range(0, last, N):
        s = tl.dot(x, k.load([start, 0]).T)
        if causal:
            if start + N > first:
                s = tl.where(start + at[None, :] <= rows[:, None], s, -float("inf"))
        higher = tl.maximum(peak, tl.max(s, axis=1))
        p = tl.exp2(s - higher[:, None])
        shrink = tl.exp2(peak - higher)
        total = total * shrink + tl.sum(p, axis=1)
        acc = acc * shrink[:, None]
        y = v.load([start, 0])
        acc = tl.dot(p.to(y.dtype), y, acc)
        peak = higher
    out.store([first, 0], (acc / total[:, None]).to(out.dtype))


@tessera.jit
def walk(
    x,
    k,
    v,
    acc,
    total,
    peak,
    first,
    begin,
    end,
    masked: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
):
    """The keys from `begin` to `end`."""
    rows, at = first + tl.arange(0, M), tl.arange(0, N)
    for start in range(begin, end, N):
        s = tl.dot(x, k.load([start, 0]).T)
        if masked:
            s = tl.where(start + at[None, :] <= rows[:, None], s, -float("inf"))
        higher = tl.maximum(peak, tl.max(s, axis=1))
        p = tl.exp2(s - higher[:, None])
        shrink = tl.exp2(peak - higher)
        total = total * shrink + tl.sum(p, axis=1)
        y = v.load([start, 0])
        acc = tl.dot(p.to(y.dtype), y, acc * shrink[:, None])
        peak = higher
    return acc, total, peak


@tessera.jit
def two_walks(
    q, k, v, out, n, causal: tl.constexpr, M: tl.constexpr, N: tl.constexpr, D: tl.constexpr
):
    """A loop before the diagonal, and one along it, in programs that stay."""
    for tile in range(tl.program_id(0), n // M, tl.num_programs(0)):
        first = tile * M
        x = q.load([first, 0])
        acc = tl.zeros((M, D), tl.float32)
        total = tl.zeros((M,), tl.float32)
        peak = tl.full((M,), -float("inf"), tl.float32)
        acc, total, peak = walk(x, k, v, acc, total, peak, first, 0, first, False, M, N)
        if causal:
            acc, total, peak = walk(x, k, v, acc, total, peak, first, first, first + M, True, M, N)
        out.store([first, 0], (acc / total[:, None]).to(out.dtype))


def softmax_reference(q: Any, k: Any, v: Any, n: int, causal: bool) -> Any:
    s = q @ k[:n].T * np.log(2)
    if causal:
        s = np.where(np.tri(*s.shape, dtype=bool), s, -np.inf)
    p = np.exp(s - s.max(1, keepdims=True))
    return p / p.sum(1, keepdims=True) @ v[:n]


@tessera.jit
def same_tile_twice(
    q, k, v, out, n, causal: tl.constexpr, M: tl.constexpr, N: tl.constexpr, D: tl.constexpr
):
    """Both products read the tile of one load, the second one an iteration late; a third adds to another sum."""
    first = tl.program_id(0) * M
    x = q.load([first, 0])
    acc = tl.zeros((M, D), tl.float32)
    other = tl.zeros((M, D), tl.float32)
    for start in range(0, n, N):
        y = k.load([start, 0])
        s = tl.dot(x, y.T)
        p = (s * 0.125).to(y.dtype)
        acc = tl.dot(p, y, acc)
        other = tl.dot(p, v.load([start, 0]), other * 0.5)
    out.store([first, 0], (acc - other).to(out.dtype))


def same_tile_reference(q: Any, k: Any, v: Any, n: int, step: int) -> Any:
    acc, other = np.zeros((len(q), k.shape[1])), np.zeros((len(q), v.shape[1]))
    for start in range(0, n, step):
        y = k[start : start + step]
        p = (q @ y.T * 0.125).astype(np.float16).astype(np.float64)
        acc += p @ y
        other = other * 0.5 + p @ v[start : start + step]
    return acc - other


@tessera.jit
def chains_of_tiles(
    q, k, v, out, n, causal: tl.constexpr, M: tl.constexpr, N: tl.constexpr, D: tl.constexpr
):
    """A chain in each tile of a program that stays; the first operand stays in a ring of the outer loop."""
    for tile in range(tl.program_id(0), tl.cdiv(n, M), tl.num_programs(0)):
        x = q.load([tile * M, 0])
        acc = tl.zeros((M, D), tl.float32)
        for start in range(0, (tile + 1) * M, N):
            s = tl.dot(x, k.load([start, 0]).T)
            y = v.load([start, 0])
            acc = tl.dot(tl.maximum(s, 0.0).to(y.dtype), y, acc)
        for start in range(0, tile * N, N):
            y = v.load([start, 0])
            acc = tl.dot(x, y, acc)
        out.store([tile * M, 0], (acc * 0.03125).to(out.dtype))


def tiles_reference(q: Any, k: Any, v: Any, n: int, m: int, step: int) -> Any:
    found = np.zeros((n, v.shape[1]))
    for tile in range(n // m):
        rows, end = slice(tile * m, tile * m + m), (tile + 1) * m
        s = np.maximum(q[rows] @ k[:end].T, 0).astype(np.float16).astype(np.float64)
        found[rows] = s @ v[:end]
        for start in range(0, tile * step, step):
            found[rows] += q[rows] @ v[start : start + step]
    return found * 0.03125


def chain(
    kernel: Any,
    m: int,
    n: int,
    d: int,
    causal: bool = False,
    backend: str = "simt",
    **options: Any,
) -> CompiledKernel:
    kind = "tensordesc<fp16[{}, {}]>".format
    signature = {"q": kind(m, d), "k": kind(n, d), "v": kind(n, d), "out": kind(m, d), "n": "i32"}
    constants = {"causal": causal, "M": m, "N": n, "D": d}
    return built(kernel, signature, constants, backend, **options)


def inputs(rows: int, keys: int, d: int) -> list[Any]:
    rng = np.random.default_rng(keys)
    q, k, v = (rng.standard_normal((x, d)).astype(np.float16) for x in (rows, keys, keys))
    return [q, k, v, np.zeros_like(q)]


def reference(kernel: Any, arrays: list[Any], n: int, m: int, step: int, causal: bool) -> Any:
    q, k, v = (x.astype(np.float64) for x in arrays[:3])
    if kernel is same_tile_twice:
        return same_tile_reference(q, k, v, n, step)
    if kernel is chains_of_tiles:
        return tiles_reference(q, k, v, n, m, step)
    return softmax_reference(q, k, v, n, causal)


def execute(compiled: CompiledKernel, arrays: list[Any], n: int, programs: int, lanes: bool) -> Any:
    args = [*flat(*arrays), n]
    if not lanes:
        run(parse_module(compiled.asm["gir"]), (programs,), args)
        return arrays[3]
    meta = compiled.metadata
    values = [x if isinstance(x, np.ndarray) else ("i64", x) for x in args]
    run_kernel(
        compiled.asm["llir"], compiled.name, values, 32 * meta.warps, meta.shared, (programs, 1, 1), meta.tensor_maps,
        cluster=meta.cluster_dims[0],
    )  # fmt: skip
    return arrays[3]


CASES = [
    (softmax_chain, False), (softmax_chain, True), (same_tile_twice, False), (chains_of_tiles, False),
    (two_walks, True),
]  # fmt: skip


STAYING = (chains_of_tiles, two_walks)
