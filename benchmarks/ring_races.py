"""Products of all tile sizes, launched many times: their results are exact, so that a race shows as a difference.

    python benchmarks/ring_races.py [--launches 500] [--jobs 16] [--types fp16,fp8] [--quick]

Tiles of 16x16x16 to 128x128x64, 1 to 8 warps, 2 to 5 stages, fp16, bf16 and fp8 (B by rows and by columns), compiled in
several processes, then launched one after the other; differences are counted on the device. Prints each case that was
wrong or was not compiled, and a summary; exit status 1 if anything was wrong. Needs a GPU and torch.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

os.environ.setdefault("TESSERA_STRICT", "1")  # what is launched has all optimisations

import tessera
import tessera.language as tl

M, N, K = 1024, 512, 512
BATCH = 100  # launches between two looks at their results
LARGEST = 2  # of the operands: sums stay below 2048, up to where fp16 holds all integers
SIZES, DEPTHS, WARPS, STAGES = (16, 32, 64, 128), (16, 32, 64), (1, 2, 4, 8), (2, 3, 4, 5)
TYPES = {"fp16": "float16", "bf16": "bfloat16", "fp8": "float8_e4m3fn"}
LEAST_DEPTHS = {"fp8": 32}  # of a product
QUICK = (
    (16, 32, 32, 8, 2), (16, 32, 32, 8, 4), (32, 32, 32, 8, 2), (32, 32, 32, 8, 4), (64, 32, 64, 8, 2),
    (16, 16, 16, 4, 3), (16, 16, 64, 8, 2), (32, 16, 32, 4, 2), (64, 16, 32, 8, 3), (16, 128, 32, 8, 2),
)  # fmt: skip


@tessera.jit
def product(
    a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    B_COLUMNS: tl.constexpr, HALVES: tl.constexpr,
):  # fmt: skip
    """Pointers that run through the loop; with HALVES the result is stored in two parts."""
    rows, cols, ks = (
        tl.program_id(0) * BM + tl.arange(0, BM),
        tl.program_id(1) * BN + tl.arange(0, BN),
        tl.arange(0, BK),
    )
    x = a + (rows % M)[:, None] * K + ks[None, :]
    if B_COLUMNS:
        y = b + ks[:, None] + (cols % N)[None, :] * K
    else:
        y = b + ks[:, None] * N + (cols % N)[None, :]
    acc = tl.zeros((BM, BN), tl.float32)
    for _ in range(0, K, BK):
        acc = tl.dot(tl.load(x), tl.load(y), acc)
        x += BK
        y += BK if B_COLUMNS else BK * N
    if HALVES:
        parts = tl.permute(tl.reshape(acc, (BM, 2, BN // 2)), (0, 2, 1))
        left, right = tl.split(parts)
        half = tl.program_id(1) * BN + tl.arange(0, BN // 2)
        inside = (rows[:, None] < M) & (half[None, :] < N)
        to = c + rows[:, None] * N + half[None, :]
        tl.store(to, left.to(c.dtype.element_ty), mask=inside)
        tl.store(to + BN // 2, right.to(c.dtype.element_ty), mask=inside)
    else:
        inside = (rows[:, None] < M) & (cols[None, :] < N)
        to = c + rows[:, None] * N + cols[None, :]
        tl.store(to, acc.to(c.dtype.element_ty), mask=inside)


@dataclass(frozen=True, slots=True)
class Case:
    """A product: type of the operands, whether B lies column by column, tile, warps, stages; the result's type, and
    whether it is stored in halves, change from case to case."""

    type: str
    b_columns: bool
    tile: tuple[int, int, int]
    warps: int
    stages: int

    @property
    def number(self) -> int:
        bm, bn, bk = self.tile
        return (bm + bn + bk) // 16 + self.stages + self.warps

    @property
    def halves(self) -> bool:
        return self.number % 3 == 0

    @property
    def result(self) -> str:
        return "float32" if self.number % 2 else "float16"

    def __str__(self) -> str:
        tile = "x".join(map(str, self.tile))
        how = " b by columns" * self.b_columns + " in halves" * self.halves
        return f"{self.type} to {self.result} {tile} {self.warps} warps {self.stages} stages{how}"


def cases(types: Sequence[str], quick: bool) -> Iterator[Case]:
    for type in types:
        orders = (False, True) if type == "fp8" else (False,)
        if quick:
            sizes: Any = QUICK
        else:
            sizes = itertools.product(SIZES, SIZES, DEPTHS, WARPS, STAGES)
        for (bm, bn, bk, warps, stages), columns in itertools.product(sizes, orders):
            if bk >= LEAST_DEPTHS.get(type, 16):
                yield Case(type, columns, (bm, bn, bk), warps, stages)


class Bench:
    """The operands, by type and order, and room for results."""

    def __init__(self) -> None:
        import torch

        self.torch: Any = torch
        generator = torch.Generator().manual_seed(0)
        draw = lambda *shape: torch.randint(-LARGEST, LARGEST + 1, shape, generator=generator)  # noqa: E731
        a, b = draw(M, K).cuda().float(), draw(K, N).cuda().float()
        self.want = (a.double() @ b.double()).float()
        self.operands: dict[Any, Any] = {}
        for name, kind in TYPES.items():
            kind = getattr(torch, kind)
            for columns in (False, True):
                right = (b.T if columns else b).contiguous().to(kind)
                self.operands[name, columns] = a.to(kind), right
        self.room = {
            name: torch.empty(BATCH, M, N, device="cuda", dtype=getattr(torch, name))
            for name in ("float16", "float32")
        }

    def arguments(self, case: Case) -> tuple[tuple[Any, ...], dict[str, Any]]:
        a, b = self.operands[case.type, case.b_columns]
        options = {"num_warps": case.warps, "num_stages": case.stages}
        constants = (*case.tile, case.b_columns, case.halves)
        return (a, b, self.room[case.result][0], M, N, K, *constants), options

    def warm(self, case: Case) -> str:
        """Compile it; what went wrong."""
        args, options = self.arguments(case)
        try:
            product.warmup(*args, grid=(1, 1), **options)
        except tessera.TesseraError as error:
            return f"{type(error).__name__}: {error}".splitlines()[0]
        return ""

    def run(self, case: Case, launches: int) -> tuple[int, int]:
        """(launches with a wrong element, the most wrong elements of one)."""
        (a, b, _, *rest), options = self.arguments(case)
        room = self.room[case.result]
        kernel = product[-(-M // case.tile[0]), -(-N // case.tile[1])]
        places = list(room)
        counts = self.torch.zeros(launches, device="cuda", dtype=self.torch.int64)
        for start in range(0, launches, BATCH):
            chosen = places[: min(BATCH, launches - start)]
            room.fill_(float("nan"))
            for c in chosen:
                kernel(a, b, c, *rest, **options)
            wrong = room[: len(chosen)] != self.want.to(room.dtype)
            counts[start : start + len(chosen)] = wrong.sum(dim=(1, 2))
        return int((counts > 0).sum()), int(counts.max())


_bench: list[Bench] = []


def _begin() -> None:
    _bench.append(Bench())


def _warm(case: Case) -> str:
    return _bench[0].warm(case)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--launches", type=int, default=500)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--types", default=",".join(TYPES))
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    chosen = list(cases(options.types.split(","), options.quick))
    start = time.time()
    with multiprocessing.get_context("spawn").Pool(options.jobs, _begin) as pool:
        reasons = pool.map(_warm, chosen, chunksize=4)
    print(f"{len(chosen)} kernels compiled in {time.time() - start:.0f} s", flush=True)
    bench, start, bad, left_out = Bench(), time.time(), 0, 0
    for case, reason in zip(chosen, reasons, strict=True):
        if reason:
            left_out += 1
            print(f"not compiled: {case}: {reason}", flush=True)
            continue
        wrong, most = bench.run(case, options.launches)
        if wrong:
            bad += 1
            print(f"WRONG: {case}: {wrong} launches, up to {most} elements", flush=True)
    ran = len(chosen) - left_out
    spent = f"{ran} kernels, {options.launches} launches each, in {time.time() - start:.0f} s"
    print(f"{spent}: {bad} wrong; {left_out} not compiled")
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
