"""Small kernels that between them let every optimisation happen, with arguments whose results are exact."""

# annotations of kernels name dtypes
# pyright: basic, reportInvalidTypeForm=false, reportUndefinedVariable=false, reportOperatorIssue=false
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import tessera
import tessera.language as tl
from tessera.tools.tensor_descriptor import TensorDescriptor


@tessera.jit
def product(
    a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, OUT: tl.constexpr = tl.float32
):  # fmt: skip
    i, j = tl.program_id(0) * BM, tl.program_id(1) * BN
    rows, cols, ks = i + tl.arange(0, BM), j + tl.arange(0, BN), tl.arange(0, BK)
    pa, pb = a + rows[:, None] * K + ks[None, :], b + ks[:, None] * N + cols[None, :]
    acc = tl.zeros((BM, BN), tl.float32)
    for _ in range(0, K, BK):
        acc = tl.dot(tl.load(pa), tl.load(pb), acc)
        pa += BK
        pb += BK * N
    tl.store(c + rows[:, None] * N + cols[None, :], acc.to(OUT))


@tessera.jit
def states(q, h, out, N, M: tl.constexpr, D: tl.constexpr, B: tl.constexpr):
    """Rows that are scaled before a loop, times states of fp32 that are narrowed for the product alone."""
    rows, ds, cols = tl.arange(0, M), tl.arange(0, D), tl.arange(0, B)
    x = tl.load(q + rows[:, None] * D + ds[None, :]) * 2
    acc = tl.zeros((M, B), tl.float32)
    for i in range(0, N):
        s = tl.load(h + (i * D + ds)[:, None] * B + cols[None, :])
        acc = tl.dot(x, s.to(x.dtype), acc)
    tl.store(out + rows[:, None] * B + cols[None, :], acc)


@tessera.jit
def gated(a, b, c, out, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """Two sums over one loop, as in the gated layers of language models."""
    rows, cols, ks = tl.arange(0, BM), tl.arange(0, BN), tl.arange(0, BK)
    pa, by_cols = a + rows[:, None] * K + ks[None, :], ks[:, None] * BN + cols[None, :]
    pb, pc = b + by_cols, c + by_cols
    first, second = tl.zeros((BM, BN), tl.float32), tl.zeros((BM, BN), tl.float32)
    for _ in range(0, K, BK):
        x = tl.load(pa)
        first = tl.dot(x, tl.load(pb), first)
        second = tl.dot(x, tl.load(pc), second)
        pa += BK
        pb += BK * BN
        pc += BK * BN
    tl.store(out + rows[:, None] * BN + cols[None, :], first * second)


@tessera.jit
def biased(a, b, biases, out, K, B: tl.constexpr):
    """A tile that comes with the operands and is added to each product."""
    acc = tl.zeros((B, B), tl.float32)
    for k in range(0, K, B):
        acc += tl.maximum(
            tl.dot(a.load([0, k]), b.load([k, 0])) + biases.load([0, k]).to(tl.float32), -3.0
        )
    out.store([0, 0], acc)


@tessera.jit
def exact(a, b, c, K, B: tl.constexpr):
    """A product of fp32 numbers that are not rounded to tf32."""
    rows, cols = tl.arange(0, B)[:, None], tl.arange(0, B)[None, :]
    acc = tl.zeros((B, B), tl.float32)
    for k in range(0, K, B):
        x, y = tl.load(a + rows * K + k + cols), tl.load(b + (k + rows) * B + cols)
        acc = tl.dot(x, y, acc, input_precision="ieee")
    tl.store(c + rows * B + cols, acc)


@tessera.jit
def decayed(q, k, decays, out, B: tl.constexpr, D: tl.constexpr):
    """Products of rows with earlier ones, which decay; rows are counted in 64 bits."""
    rows = tl.program_id(0).to(tl.int64) * B + tl.arange(0, B)
    ds = tl.arange(0, D)
    x = tl.load(q + rows[:, None] * D + ds)
    y = tl.load(k + rows[None, :] * D + ds[:, None]) * tl.load(decays + rows)[None, :]
    found = tl.where(rows[:, None] >= rows[None, :], tl.dot(x, y), 0.0)
    tl.store(out + rows[:, None] * B + tl.arange(0, B), found)


@tessera.jit
def scaled(a, b, scales, c, K, B: tl.constexpr):
    """A product with a scale for each step, which the loop loads."""
    rows, cols = tl.arange(0, B)[:, None], tl.arange(0, B)[None, :]
    acc = tl.zeros((B, B), tl.float32)
    for k in range(0, K, B):
        part = tl.dot(tl.load(a + rows * K + k + cols), tl.load(b + (k + rows) * B + cols))
        acc += part * tl.load(scales + k + cols)
    tl.store(c + rows * B + cols, acc)


@tessera.jit
def dequantised(a, b, scales, c, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """Weights of 8 bits, stored [N, K], that the loop widens; a scale for each of them and each block of K."""
    rows, cols, ks = tl.arange(0, BM), tl.arange(0, BN), tl.arange(0, BK)
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        x = tl.load(a + rows[:, None] * K + k + ks[None, :])
        y = tl.load(b + cols[None, :] * K + k + ks[:, None]).to(tl.float16)
        acc += tl.dot(x, y) * tl.load(scales + cols * (K // BK) + k // BK)[None, :]
    tl.store(c + rows[:, None] * BN + cols[None, :], acc)


@tessera.jit
def words(a, b, c, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """Weights of 4 bits, eight of a column in a word [K / 8, N]."""
    rows, cols, ks = tl.arange(0, BM), tl.arange(0, BN), tl.arange(0, BK)
    pa, pb = a + rows[:, None] * K + ks[None, :], b + ks[:, None] // 8 * BN + cols[None, :]
    acc = tl.zeros((BM, BN), tl.float32)
    for _ in range(0, K, BK):
        y = (tl.load(pb) >> (ks % 8 * 4)[:, None]) & 15
        acc = tl.dot(tl.load(pa), (y - 8).to(tl.float16), acc)
        pa += BK
        pb += BK // 8 * BN
    tl.store(c + rows[:, None] * BN + cols[None, :], acc)


@tessera.jit
def doubled_operand(a, b, c, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """An operand that the loop computes, beside sums that take most registers."""
    rows, cols, ks = tl.arange(0, BM)[:, None], tl.arange(0, BN)[None, :], tl.arange(0, BK)
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        x = tl.load(a + rows * K + k + ks[None, :]) * 2
        acc += tl.maximum(tl.dot(x, tl.load(b + (k + ks)[:, None] * BN + cols)), -9.0)
    tl.store(c + rows * BN + cols, acc)


@tessera.jit
def counted(a, b, c, K, B: tl.constexpr):
    """A `while` that counts, a loop to unroll, sums that are scaled."""
    rows, cols = tl.arange(0, B)[:, None], tl.arange(0, B)[None, :]
    acc = tl.zeros((B, B), tl.float32)
    k = 0
    while k < K:
        x = tl.load(a + rows * K + k + cols)
        acc = acc * 2.0 + tl.dot(x, tl.load(b + (k + rows) * B + cols))
        k += B
    total = tl.zeros((B,), tl.float32)
    for k in tl.range(0, K, B, loop_unroll_factor=2):
        total += tl.load(a + k + tl.arange(0, B)).to(tl.float32)
    tl.store(c + rows * B + cols, acc + tl.sum(total))


@tessera.jit
def means(x, out, K: tl.constexpr, B: tl.constexpr):
    """A mean that each block of rows changes, with masks that are always true and a first block that is different."""
    columns = tl.arange(0, B)[None, :]
    mean = tl.zeros((B, B), tl.float32)
    for k in tl.range(0, K, B):
        rows = k + tl.arange(0, B)[:, None]
        block = tl.load(x + rows * B + columns, rows < K, 0.0)
        if k == 0:
            new = block
        else:
            new = mean + (block - mean) / 2.0
        mean = tl.where(rows < K, new, mean)
    tl.store(out + tl.arange(0, B)[:, None] * B + columns, mean)


@tessera.jit
def links(a, b, c, K: tl.constexpr, B: tl.constexpr):
    """Dots that add to one accumulator, one after another."""
    rows, cols = tl.arange(0, B)[:, None], tl.arange(0, B)[None, :]
    acc = tl.zeros((B, B), tl.float32)
    for k in tl.static_range(0, K, B):
        acc = tl.dot(tl.load(a + rows * K + k + cols), tl.load(b + (k + rows) * B + cols), acc)
    tl.store(c + rows * B + cols, acc)


@tessera.jit
def chain(q, k, v, out, n, causal: tl.constexpr, M: tl.constexpr, N: tl.constexpr, D: tl.constexpr):
    """Products of products, with a branch that turns once."""
    first = tl.program_id(0) * M
    x = q.load([first, 0])
    rows, at = first + tl.arange(0, M), tl.arange(0, N)
    acc = tl.zeros((M, D), tl.float32)
    last = tl.minimum(first + M, n) if causal else n
    for start in range(0, last, N):
        s = tl.dot(x, k.load([start, 0]).T)
        if causal:
            if start + N > first:
                s = tl.where(start + at[None, :] <= rows[:, None], s, 0.0)
        y = v.load([start, 0])
        acc = tl.dot(tl.maximum(s, -3.0).to(y.dtype), y, acc)
    out.store([first, 0], acc)


@tessera.jit
def columns_by_rows(a, b, c, tiles, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    for tile in tl.range(tl.program_id(0), tiles, tl.num_programs(0)):
        acc = tl.zeros((BM, BN), tl.int32)
        for k in range(0, K, BK):
            acc = tl.dot(a.load([k, tile * BM]).T, b.load([k, 0]), acc)
        c.store([tile * BM, 0], acc)


@tessera.jit
def rows_of(x, out, total, n, B: tl.constexpr):
    """Walks a row twice: an expensive value that two loops need, a masked end."""
    row, cols = tl.program_id(0), tl.arange(0, B)
    y = tl.load(x + row * n + cols, cols < n, 0.0)
    e = tl.exp2(y) * tl.exp2(y + 1.0)
    tl.store(total + row, tl.sum(e) + tl.max(e))
    tl.store(out + row * n + cols, e + tl.sum(e), cols < n)


@tessera.jit
def sums_of_columns(x, out, R: tl.constexpr, N: tl.constexpr):
    i, j = tl.arange(0, R)[:, None], tl.arange(0, N)[None, :]
    tl.store(out + tl.arange(0, N), tl.sum(tl.load(x + i * N + j), axis=0))


@tessera.jit
def streamed(x, out, n, B: tl.constexpr):
    """Sums of long rows, block by block."""
    cols = tl.arange(0, B)
    total = tl.zeros((B,), tl.float32)
    for i in range(0, n, B):
        total += tl.load(x + tl.program_id(0) * n + i + cols)
    tl.store(out + tl.program_id(0), tl.sum(total))


@tessera.jit
def marked(labels, out, n, B: tl.constexpr):
    """Where the label of each row is."""
    row = tl.program_id(0)
    label = tl.load(labels + row)
    for start in range(0, n, B):
        columns = start + tl.arange(0, B)
        tl.store(out + row * n + columns, (columns == label).to(tl.float32), columns < n)


@tessera.jit
def folded(x, out, width, B: tl.constexpr):
    """Rows of another width, and where the greatest of all numbers is."""
    i = tl.arange(0, B)
    at = tl.program_id(0).to(tl.int64) * B + i
    v = tl.load(x + at // width * width + at % width)
    tl.store(out + at, v + tl.argmax(v, 0))


@tessera.jit
def turned(x, out, B: tl.constexpr):
    r, c = tl.arange(0, B)[:, None], tl.arange(0, B)[None, :]
    tl.store(out + r * B + c, tl.trans(tl.load(x + r * B + c)) + 1)


@tessera.jit
def padded(x, out):
    """40 numbers of a row in a tile of 128."""
    r, c = tl.arange(0, 32)[:, None], tl.arange(0, 128)[None, :]
    v = tl.load(x + r * 40 + c, c < 40, 0.0)
    tl.store(out + r * 32 + tl.arange(0, 32), tl.dot(v, v.T))


@tessera.jit
def masked_columns(x, out, n, R: tl.constexpr, B: tl.constexpr):
    """Sums of columns under a mask that holds for the whole tile."""
    r, c = tl.arange(0, R)[:, None], tl.arange(0, B)
    tl.store(out + c, tl.sum(tl.load(x + r * n + c[None, :], (c < n)[None, :], 0.0), axis=0))


@tessera.jit
def columns_one_by_one(x, out, m, n, B: tl.constexpr):
    """Sums of columns, a row after the other."""
    c, total = tl.arange(0, B), tl.zeros([B], tl.float32)
    for k in range(0, m):
        total += tl.load(x + k * n + c, c < n, 0.0)
    tl.store(out + c, total)


@tessera.jit
def found_extents(a, b, out, sizes, B: tl.constexpr):
    """A product of arrays whose extents are numbers in memory."""
    n = tl.load(sizes)
    left = tl.make_tensor_descriptor(a, [B, n], [128, 1], [B, B])
    right = tl.make_tensor_descriptor(b, [B, n], [128, 1], [B, B])
    acc = tl.zeros((B, B), tl.float32)
    for k in range(0, tl.cdiv(n, B)):
        acc = tl.dot(left.load([0, k * B]), right.load([0, k * B]).T, acc)
    at = tl.arange(0, B)
    tl.store(out + at[:, None] * B + at[None, :], acc)


@tessera.jit
def increased(x, n, B: tl.constexpr):
    at = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(x + at, tl.load(x + at, at < n) + 1, at < n)


@tessera.jit
def sums_so_far(x, out, n, B: tl.constexpr):
    at = tl.arange(0, B)
    here = tl.program_id(0) * n + at
    tl.store(out + here, tl.cumsum(tl.load(x + here, at < n, 0.0), 0) + 1, at < n)


@tessera.jit
def columns_so_far(x, out, BM: tl.constexpr, BN: tl.constexpr):
    at = tl.arange(0, BM)[:, None] * BN + tl.arange(0, BN)[None, :]
    tl.store(out + at, tl.cumsum(tl.load(x + at), 0))


@tessera.jit
def last_largest(a, i, b, j):
    first = (a > b) | ((a == b) & (i > j))
    return tl.where(first, a, b), tl.where(first, i, j)


@tessera.jit
def largest_so_far(x, out, B: tl.constexpr):
    at = tl.arange(0, B)
    _, place = tl.associative_scan((tl.load(x + at), at.to(tl.int64)), 0, last_largest)
    tl.store(out + at, place)


@tessera.jit
def ordered(x, out, N: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(out + at, tl.sort(tl.load(x + at)))


@tessera.jit
def summed(x, out, n, B: tl.constexpr):
    at = tl.arange(0, B)
    tl.atomic_add(out + at, tl.load(x + tl.program_id(0) * n + at, at < n), at < n)


@tessera.jit
def doubled(x, out, n, B: tl.constexpr):
    at = tl.program_id(0) * B + tl.arange(0, B)
    i = 0 * 2 + 1  # folded
    tl.store(out + at, tl.load(x + at, at < n) * 2 + i, at < n)


@tessera.jit
def tiles_of_rows(x, out, tiles, stride, B: tl.constexpr):
    """Blocks of rows by an id of 64 bits; elements that lie a stride apart."""
    tile = tl.program_id(0).to(tl.int64)
    row, column = tile // tiles, tile % tiles * B
    at = tl.arange(0, B)
    y = tl.load(x + row * tiles * B * stride + column * stride + at.to(tl.int64) * stride)
    tl.store(out + tile * B + at, y)


@dataclass(frozen=True)
class Sample:
    """`arrays`: makes the arrays; `wrap`: kernel arguments from them (all of them outputs, too)."""

    name: str
    devices: tuple[str, ...]
    kernel: Any
    arrays: Callable[[], list[np.ndarray]]
    wrap: Callable[[list[np.ndarray]], list[Any]]
    grid: tuple[int, ...]
    constants: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)

    def launch(self, **options: Any) -> tuple[Any, list[np.ndarray]]:
        """(the compiled kernel, the arrays after a launch on the active device). Compiled anew each time."""
        arrays = self.arrays()
        given = {**self.constants, **self.options, **options}
        kernel = tessera.jit(self.kernel.fn)[self.grid](*self.wrap(arrays), **given)
        return kernel, arrays

    def compile(self, **options: Any) -> Any:
        """The kernel, compiled anew for the active device."""
        given = {**self.constants, **self.options, **options}
        return tessera.jit(self.kernel.fn).warmup(
            *self.wrap(self.arrays()), grid=self.grid, **given
        )


@tessera.jit
def pixels(x, y, width, stride, plane):
    """Rows of pixels that end at unknown places, in planes that lie far apart."""
    i, c = tl.arange(0, 32)[:, None], tl.arange(0, 16)[None, :]
    tl.store(y + i * 16 + c, tl.load(x + i // width * stride + i % width + c * plane))


def small(*shapes: tuple[int, ...], dtype: Any = np.float16, low: int = -1) -> list[np.ndarray]:
    rng = np.random.default_rng(7)
    return [rng.integers(low, 2, shape).astype(dtype) for shape in shapes]


def _product(name: str, m: int, n: int, k: int, tile: tuple[int, int, int], dtype: Any = np.float16,
             devices: tuple[str, ...] = ("simt",), out: Any = tl.float32, **options: Any) -> Sample:  # fmt: skip
    bm, bn, bk = tile
    kind = np.float16 if out is tl.float16 else np.float32
    return Sample(
        name, devices, product,
        lambda: [*small((m, k), (k, n), dtype=dtype), np.zeros((m, n), kind)],
        lambda x: [*x, m, n, k], (m // bm, n // bn),
        {"BM": bm, "BN": bn, "BK": bk, "OUT": out}, options,
    )  # fmt: skip


def _gated(name: str, warps: int, m: int, **options: Any) -> Sample:
    n, k = 64, 320
    return Sample(
        name, ("simt",), gated,
        lambda: [*small((m, k), (k, n), (k, n)), np.zeros((m, n), np.float32)],
        lambda x: [*x, k], (1,), {"BM": m, "BN": n, "BK": 64},
        {"num_warps": warps, "num_stages": 3, **options},
    )  # fmt: skip


def _descriptors(arrays: list[np.ndarray], *blocks: list[int]) -> list[Any]:
    return [TensorDescriptor.from_tensor(x, b) for x, b in zip(arrays, blocks, strict=True)]


def _chain(name: str, causal: bool, **options: Any) -> Sample:
    n, d = 128, 64
    return Sample(
        name, ("simt",), chain, lambda: [*small((n, d), (n, d), (n, d)), np.zeros((n, d), np.float32)],
        lambda x: [*_descriptors(x, *[[64, d]] * 4), n], (n // 64,),
        {"causal": causal, "M": 64, "N": 64, "D": d}, {"num_warps": 4, "num_stages": 3, **options},
    )  # fmt: skip


def _columns(name: str, warps: int, m: int, n: int) -> Sample:
    k = 128
    return Sample(
        name, ("simt",), columns_by_rows,
        lambda: [*small((k, m), (k, n), dtype=np.int8), np.zeros((m, n), np.int32)],
        lambda x: [*_descriptors(x, [64, m], [64, n], [m, n]), 1, k], (1,),
        {"BM": m, "BN": n, "BK": 64}, {"num_warps": warps, "num_stages": 3},
    )  # fmt: skip


def _rows(name: str, devices: tuple[str, ...], n: int, block: int) -> Sample:
    return Sample(
        name, devices, rows_of,
        lambda: [*small((4, n), dtype=np.float32), np.zeros((4, n), np.float32), np.zeros(4, np.float32)],
        lambda x: [*x, n], (4,), {"B": block},
    )  # fmt: skip


BOTH = ("simt", "cpu")
SAMPLES = [
    _product("tma", 64, 64, 256, (64, 64, 64), num_warps=4, num_stages=3),
    _product("copies", 64, 64, 256, (64, 64, 64), num_warps=4, num_stages=3, pointer_maps=False),
    _gated("gated", 4, 64),
    _gated("gated copies", 8, 128, num_stages=4, pointer_maps=False),
    _product("fragments", 32, 32, 64, (32, 32, 32), num_warps=4, num_stages=2, out=tl.float16),
    _product("one warp", 16, 16, 256, (16, 16, 64), np.float32, num_warps=1, num_stages=2, pointer_maps=False),
    _product("persistent", 128, 256, 64, (128, 256, 64), num_warps=8, num_stages=3, out=tl.float16),
    _product("whole", 64, 64, 128, (64, 64, 32), np.float32, ("cpu",)),
    Sample(
        "links", ("cpu",), links,
        lambda: [*small((16, 64), (64, 16), dtype=np.float32), np.zeros((16, 16), np.float32)], list, (1,),
        {"K": 64, "B": 16},
    ),
    _product("few rows", 4, 64, 64, (4, 64, 64), np.float32, ("cpu",)),
    _product("halves", 64, 64, 64, (32, 32, 32), np.float16, ("cpu",)),
    Sample(
        "biased", ("simt",), biased,
        lambda: [*small((64, 256), (256, 64), (64, 256)), np.zeros((64, 64), np.float32)],
        lambda x: [*_descriptors(x, *[[64, 64]] * 4), 256], (1,), {"B": 64}, {"num_stages": 3},
    ),
    Sample(
        "states", ("simt",), states,
        lambda: [*small((32, 128), dtype=np.float16), *small((3, 128, 16), dtype=np.float32),
                 np.zeros((32, 16), np.float32)],
        lambda x: [*x, 3], (1,), {"M": 32, "D": 128, "B": 16}, {"num_warps": 1},
    ),
    Sample(
        "scaled", ("simt",), scaled, lambda: [*small((32, 128), (128, 32), (128,)), np.zeros((32, 32), np.float32)],
        lambda x: [*x[:3], x[3], 128], (1,), {"B": 32}, {"num_stages": 3, "pointer_maps": False},
    ),
    Sample(
        "decayed", BOTH, decayed,
        lambda: [*small((64, 16), (64, 16), (64,), dtype=np.float32), np.zeros((64, 32), np.float32)], list, (2,),
        {"B": 32, "D": 16}, {"num_warps": 2},
    ),
    Sample(
        "dequantised", ("simt",), dequantised,
        lambda: [*small((64, 256), dtype=np.float16), *small((64, 256), dtype=np.int8, low=-128),
                 *small((64, 4), dtype=np.float32), np.zeros((64, 64), np.float32)],
        lambda x: [*x, 256], (1,), {"BM": 64, "BN": 64, "BK": 64}, {"num_stages": 3},
    ),
    Sample(
        "words", ("simt",), words,
        lambda: [*small((64, 256), dtype=np.float16), *small((32, 64), dtype=np.int32, low=-(2**31)),
                 np.zeros((64, 64), np.float32)],
        lambda x: [*x, 256], (1,), {"BM": 64, "BN": 64, "BK": 64}, {"num_stages": 3},
    ),
    Sample(
        "exact", ("simt",), exact,
        lambda: [*small((32, 128), (128, 32), dtype=np.float32), np.zeros((32, 32), np.float32)],
        lambda x: [*x, 128], (1,), {"B": 32}, {"num_stages": 3, "pointer_maps": False},
    ),
    Sample(
        "doubled operand", ("simt",), doubled_operand,
        lambda: [*small((64, 128), (128, 256)), np.zeros((64, 256), np.float32)], lambda x: [*x, 128], (1,),
        {"BM": 64, "BN": 256, "BK": 64}, {"num_warps": 4, "num_stages": 2, "pointer_maps": False},
    ),
    Sample(
        "counted", BOTH, counted, lambda: [*small((16, 64), (64, 16)), np.zeros((16, 16), np.float32)],
        lambda x: [*x, 64], (1,), {"B": 16},
    ),
    Sample(
        "means", BOTH, means, lambda: [*small((64, 16), dtype=np.float32), np.zeros((16, 16), np.float32)], list, (1,),
        {"K": 64, "B": 16},
    ),
    _chain("chain", False),
    _chain("causal", True),
    Sample(
        "cluster", ("simt",), chain, lambda: [*small((128, 64), (128, 64), (128, 64)), np.zeros((128, 64), np.float32)],
        lambda x: [*_descriptors(x, [128, 64], [64, 64], [64, 64], [128, 64]), 128], (1,),
        {"causal": False, "M": 128, "N": 64, "D": 64}, {"num_warps": 4, "num_stages": 2, "num_ctas": 2},
    ),
    Sample(
        "columns", ("simt",), sums_of_columns,
        lambda: [*small((64, 64), dtype=np.float32), np.zeros(64, np.float32)], list, (1,), {"R": 64, "N": 64},
        {"num_warps": 8},
    ),
    _columns("rotated", 4, 64, 64),
    _columns("turning", 8, 128, 64),
    _rows("rows", ("cpu",), 1000, 1024),
    _rows("short rows", BOTH, 128, 128),
    Sample(
        "streamed", BOTH, streamed, lambda: [*small((2, 8192), dtype=np.float32), np.zeros(2, np.float32)],
        lambda x: [*x, 8192], (2,), {"B": 2048}, {"num_stages": 3},
    ),
    Sample(
        "tiles of rows", BOTH, tiles_of_rows, lambda: small((2, 128, 3), (2, 128), dtype=np.float32),
        lambda x: [*x, 2, 3], (4,), {"B": 64},
    ),
    Sample(
        "marked", ("simt",), marked, lambda: [np.array([3, 700, -1], np.int64), np.zeros((3, 1000), np.float32)],
        lambda x: [*x, 1000], (3,), {"B": 512},
    ),
    Sample(
        "folded", ("simt",), folded, lambda: small((512,), (512,), dtype=np.float32), lambda x: [*x, 24], (1,),
        {"B": 512},
    ),
    Sample(
        "turned", ("cpu",), turned, lambda: small((64, 64), (64, 64), dtype=np.float32), list, (1,), {"B": 64}
    ),
    Sample("padded", ("cpu",), padded, lambda: small((32, 40), (32, 32), dtype=np.float32), list, (1,)),
    Sample(
        "masked columns", ("cpu",), masked_columns, lambda: small((32, 64), (64,), dtype=np.float32),
        lambda x: [*x, 64], (1,), {"R": 32, "B": 64},
    ),
    Sample(
        "pixels", ("simt",), pixels, lambda: small((16, 64), (64, 16), dtype=np.float32), lambda x: [*x, 7, 8, 64], (1,)
    ),
    Sample(
        "increased", BOTH, increased, lambda: small((1000,), dtype=np.float32), lambda x: [*x, 1000], (2,), {"B": 512}
    ),
    Sample(
        "found extents", ("simt",), found_extents,
        lambda: [*small((16, 128), (16, 128)), np.zeros((16, 16), np.float32), np.array([104], np.int32)], list, (1,),
        {"B": 16},
    ),
    Sample(
        "columns one by one", ("cpu",), columns_one_by_one, lambda: small((20, 200), (256,), dtype=np.float32),
        lambda x: [*x, 20, 200], (1,), {"B": 256},
    ),
    Sample(
        "sums so far", ("cpu",), sums_so_far, lambda: small((3, 100), (3, 100), dtype=np.float32),
        lambda x: [*x, 100], (3,), {"B": 128},
    ),
    Sample(
        "columns so far", ("cpu",), columns_so_far, lambda: small((8, 128), (8, 128), dtype=np.float32), list, (1,),
        {"BM": 8, "BN": 128},
    ),
    Sample(
        "largest so far", ("cpu",), largest_so_far, lambda: small((64,), (64,), dtype=np.float32), list, (1,), {"B": 64}
    ),
    Sample(
        "ordered", ("cpu",), ordered, lambda: small((64,), (64,), dtype=np.float32), list, (1,), {"N": 64}
    ),
    Sample(
        "summed", ("cpu",), summed, lambda: small((4, 40), (40,), dtype=np.float32), lambda x: [*x, 40], (4,), {"B": 64}
    ),
    Sample(
        "doubled", ("cpu",), doubled, lambda: small((4096,), (4096,), dtype=np.float32), lambda x: [*x, 4096], (2,),
        {"B": 2048},
    ),
]  # fmt: skip
CASES = [(sample, device) for sample in SAMPLES for device in sample.devices]
