"""Products on a CPU beside torch: square ones from 64 to 2048, transposed, skinny and batched, of four types.

    python benchmarks/cpu_products.py [--threads N] [--rep MS] [--only PATTERN] [--processor-time] [--json FILE]

Of a few tiles the fastest is taken. The kernel is that of products.py, by pointers, and one with a dimension more for
batches. Figures as in cpu_plain.py, whose options these are.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from statistics import geometric_mean
from typing import Any

import cpu_plain
import products
import record
from record import Row

import tessera
import tessera.language as tl

Call = Callable[[], Any]
Case = tuple[str, str, str, list[Call], Call, Any]  # name, shape, type, ours, torch's, our result
TILES = ((32, 32, 32), (64, 64, 64), (128, 128, 64), (256, 128, 64), (256, 256, 64), (512, 256, 64))
SKINNY = (
    (16, 64, 128),
    (16, 128, 256),
    (16, 256, 64),
    (64, 16, 128),
    (128, 16, 256),
    (256, 16, 64),
)
TYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16", "int8": "int8"}
SIZES = (64, 128, 256, 512, 1024, 2048)


@tessera.jit
def batched(a, b, c, K, N, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, ACC: tl.constexpr):
    """c[z] = a[z] @ b[z] of row-major matrices, whose extents are multiples of the tile's."""
    z, rows = tl.program_id(2), tl.program_id(0) * BM + tl.arange(0, BM)
    cols, ks = tl.program_id(1) * BN + tl.arange(0, BN), tl.arange(0, BK)
    M = tl.num_programs(0) * BM
    total = tl.zeros((BM, BN), ACC)
    for k in range(0, K, BK):
        x = tl.load(a + (z * M + rows)[:, None] * K + (k + ks)[None, :])
        y = tl.load(b + (z * K + k + ks)[:, None] * N + cols[None, :])
        total = tl.dot(x, y, total, out_dtype=ACC)
    tl.store(c + (z * M + rows)[:, None] * N + cols[None, :], total.to(c.dtype.element_ty))


class Cases:
    """Name, shape, type, our calls, torch's, our result."""

    def __init__(self, torch: Any) -> None:
        self.torch = torch

    def made(self, dtype: str, *shape: int) -> Any:
        if dtype == "int8":
            return self.torch.randint(-128, 128, shape, dtype=self.torch.int8)
        return self.torch.randn(shape).to(getattr(self.torch, TYPES[dtype]))

    def product(self, name: str, dtype: str, a: Any, b: Any, tiles: Any) -> Any:
        (m, k), n = a.shape, b.shape[1]
        kind = self.torch.int32 if dtype == "int8" else a.dtype
        c = self.torch.empty(m, n, dtype=kind)
        ours = [
            products.pointer_call(a, b, c, (*t, 4, 3))
            for t in tiles
            if t[0] < 2 * m and t[1] < 2 * n
        ]
        theirs: Call = (lambda: self.torch._int_mm(a, b)) if dtype == "int8" else (lambda: a @ b)
        return name, f"{m}x{n}x{k}", dtype, ours, theirs, c

    def all(self) -> Iterator[Any]:
        for dtype in TYPES:
            # Without AVX512-FP16 torch takes two seconds for 1024^3 of fp16.
            sizes = [n for n in SIZES if dtype != "fp16" or n <= 256]
            for n in sizes:
                a, b = self.made(dtype, n, n), self.made(dtype, n, n)
                yield self.product("square", dtype, a, b, TILES)
            for n in (256, sizes[-1] // 2) if dtype != "fp16" else ():
                a, b = self.made(dtype, n, n), self.made(dtype, n, n)
                yield self.product("a transposed", dtype, a.t(), b, TILES)
                yield self.product("b transposed", dtype, a, b.t(), TILES)
            if dtype in ("fp32", "bf16"):  # torch has no such product of bytes
                yield from self.skinny(dtype)

    def skinny(self, dtype: str) -> Iterator[Any]:
        a, b = self.made(dtype, 16, 2048), self.made(dtype, 2048, 2048)
        yield self.product("few rows", dtype, a, b, SKINNY)
        yield self.product("few columns", dtype, b, a.t().contiguous(), SKINNY)
        x, y = self.made(dtype, 32, 128, 64), self.made(dtype, 32, 64, 128)
        c = self.torch.empty(32, 128, 128, dtype=x.dtype)
        ours = [
            lambda t=t: batched[(128 // t[0], 128 // t[1], 32)](
                x, y, c, 64, 128, BM=t[0], BN=t[1], BK=t[2], ACC=tl.float32
            )
            for t in TILES[:3]
        ]
        yield "batched", "32 of 128x128x64", dtype, ours, lambda: self.torch.bmm(x, y), c


def fastest(calls: list[Call], clock: Callable[[], float]) -> Call:
    def once(call: Call) -> float:
        start = clock()
        call()
        return clock() - start

    for call in calls:
        call()
    return min(calls, key=lambda call: min(once(call) for _ in range(3)))


def compare(
    benchmark: str, cases: Callable[[Any], Iterable[Case]], widths: tuple[int, int]
) -> None:
    """Measure what `cases` makes of torch, and print and record rows; `widths`: of names and shapes."""
    args, torch, clock, settings = cpu_plain.prepared()
    found: list[Row] = []
    for name, shape, dtype, ours, theirs, result in cases(torch):
        if not re.search(args.only, f"{name} {shape} {dtype}"):
            continue
        case = (name, shape, fastest(ours, clock), theirs, result)
        row = replace(cpu_plain.measure(case, args.rep, clock), dtype=dtype)
        found.append(row)
        cpu_plain.show(row, f"{name:{widths[0]}}{shape:{widths[1]}}{dtype}")
        record.write(args, benchmark, found, **settings)
    ratios = [row.ratios["torch"] for row in found]
    print(f"{len(ratios)} rows: {geometric_mean(ratios):.2f} of torch, {min(ratios):.2f} at least")


if __name__ == "__main__":
    compare("cpu_products", lambda torch: Cases(torch).all(), (13, 18))
