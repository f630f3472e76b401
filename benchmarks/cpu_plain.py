"""Plain kernels of many sizes on a CPU beside torch eager: functions, rows, columns, sorts, gathers, windows.

    python benchmarks/cpu_plain.py [--threads N] [--rep MS] [--only PATTERN] [--processor-time] [--json FILE]

benchmarks/plain_kernels.py has the kernels, which were written without a look at what the compiler makes of them, with
one tile size each. Tessera and torch take turns, in another order each round; a ratio is that of the medians.
`--processor-time` (with one thread) counts what the process computed, for a machine on which others run.
"""

from __future__ import annotations

import argparse
import os
import re
import time
from collections.abc import Callable, Iterator
from statistics import geometric_mean, median
from typing import Any

import plain_kernels as kernels
import record
from cpu import keep_freed_memory
from record import Row

import tessera
from tessera.config import knobs
from tessera.runtime.driver import driver

Call = Callable[[], Any]
Case = tuple[str, str, Call, Call, Any]  # name, shape, ours, torch's, our result
ROWS = (
    (1000, 100), (1000, 257), (4096, 256), (1000, 1000), (4096, 1024), (1000, 3000), (64, 5000), (200, 50000),
)  # fmt: skip
SIZES = (1 << 8, 1 << 12, 1 << 16, 1 << 20, 1 << 23)
ROUNDS = 15
AVX2_RIVAL = {
    "ATEN_CPU_CAPABILITY": "avx2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "MKL_ENABLE_INSTRUCTIONS": "AVX2",
}


def functions(torch: Any) -> Iterator[Case]:
    positive = {"log", "rsqrt", "log1p"}
    theirs = {
        "sigmoid": torch.sigmoid, "tanh": torch.tanh, "gelu": torch.nn.functional.gelu, "exp": torch.exp,
        "log": torch.log, "sin": torch.sin, "rsqrt": torch.rsqrt, "relu": torch.relu, "log1p": torch.log1p,
        "expm1": torch.expm1,
    }  # fmt: skip
    for n in SIZES:
        grid = (tessera.cdiv(n, 4096),)
        for name, fn in theirs.items():
            x = torch.randn(n).abs() if name in positive else torch.randn(n)
            out = torch.empty_like(x)
            ours = lambda x=x, o=out, f=name, g=grid, n=n: kernels.pointwise[g](x, o, n, f, B=4096)  # noqa: E731
            yield name, f"2^{n.bit_length() - 1}", ours, lambda fn=fn, x=x: fn(x), out


def rows(torch: Any) -> Iterator[Case]:
    for m, n in ROWS:
        yield from rows_of(torch, m, n)


def rows_of(torch: Any, m: int, n: int) -> list[Case]:
    functional = torch.nn.functional
    shape, block, grid = f"{m}x{n}", tessera.next_power_of_2(n), (m,)
    x, out, w, b = torch.randn(m, n), torch.empty(m, n), torch.randn(n), torch.randn(n)
    each, index = torch.empty(m), torch.empty(m, dtype=torch.int64)
    targets, column, turned = torch.randint(0, n, (m,)), torch.empty(n), torch.empty(n, m)
    tiles, parts = (tessera.cdiv(m, 64), tessera.cdiv(n, 64)), (tessera.cdiv(n, 128),)
    found: list[tuple[str, Call, Call, Any]] = [
        ("softmax", lambda: kernels.softmax[grid](x, out, n, B=block), lambda: torch.softmax(x, 1), out),
        ("layer norm", lambda: kernels.layer_norm[grid](x, w, b, out, n, 1e-5, B=block),
         lambda: torch.layer_norm(x, (n,), w, b), out),
        ("cross entropy", lambda: kernels.cross_entropy[grid](x, targets, each, n, B=block),
         lambda: functional.cross_entropy(x, targets, reduction="none"), each),
        ("row sums", lambda: kernels.row_sum[grid](x, each, n, B=block), lambda: x.sum(1), each),
        ("argmax", lambda: kernels.row_argmax[grid](x, index, n, B=block), lambda: x.argmax(1), index),
        ("cumulative sum", lambda: kernels.cumulative_sum[grid](x, out, n, B=block), lambda: x.cumsum(1), out),
        ("column sums", lambda: kernels.column_sum[parts](x, column, m, n, BM=32, BN=128),
         lambda: x.sum(0), column),
        ("cumulative max", lambda: kernels.cumulative_maximum[grid](x, out, n, B=block),
         lambda: x.cummax(1)[0], out),
        ("transposed copy", lambda: kernels.transpose[tiles](x, turned, m, n, BM=64, BN=64),
         lambda: x.t().contiguous(), turned),
    ]  # fmt: skip
    return [(name, shape, ours, theirs, result) for name, ours, theirs, result in found]


def orders(torch: Any) -> Iterator[Case]:
    for n in (64, 256, 1024, 4096):
        x, out, few = torch.randn(512, n), torch.empty(512, n), torch.empty(512, 16)
        ours = lambda x=x, o=out, n=n: kernels.sort_rows[(512,)](x, o, n)  # noqa: E731
        yield "sort", f"512x{n}", ours, lambda x=x: x.sort(1)[0], out
        ours = lambda x=x, o=few, n=n: kernels.largest_of_rows[(512,)](x, o, n, K=16)  # noqa: E731
        yield "top 16", f"512x{n}", ours, lambda x=x: x.topk(16, 1)[0], few


def places(torch: Any) -> Iterator[Case]:
    x = torch.randint(0, 256, (1 << 20,), dtype=torch.int32)
    counts = torch.zeros(256, dtype=torch.int32)
    ours: Call = lambda: kernels.histogram[(256,)](x, counts.zero_(), B=4096, BINS=256)  # noqa: E731
    yield "histogram", "2^20", ours, lambda: torch.bincount(x, minlength=256), counts
    for n in (16, 64, 256, 1000):
        yield from rows_at_places(torch, n)
    for cells in (100, 100_000):
        yield from elements_at_places(torch, 1 << 18, cells)


def elements_at_places(torch: Any, n: int, cells: int) -> Iterator[Case]:
    x, index = torch.randn(n), torch.randint(0, cells, (n,))
    sums, more = torch.zeros(cells), torch.zeros(cells)
    ours: Call = lambda: kernels.scatter[(tessera.cdiv(n, 1024),)](x, index, sums, n, B=1024)  # noqa: E731
    yield (
        "scattered elements",
        f"{n} to {cells}",
        ours,
        lambda: more.scatter_add_(0, index, x),
        None,
    )


def rows_at_places(torch: Any, n: int) -> Iterator[Case]:
    table, index, block = (
        torch.randn(5000, n),
        torch.randint(0, 5000, (4096,)),
        tessera.next_power_of_2(n),
    )
    out, sums, more, values = (
        torch.empty(4096, n),
        torch.zeros(5000, n),
        torch.zeros(5000, n),
        torch.randn(4096, n),
    )

    def gathered() -> Any:
        return kernels.gather_rows[(4096,)](table, index, out, n, B=block)

    def scattered() -> Any:
        return kernels.scatter_rows[(4096,)](values, index, sums, n, B=block)

    shape = f"4096x{n}"
    yield "gathered rows", shape, gathered, lambda: torch.nn.functional.embedding(index, table), out
    yield "scattered sums", shape, scattered, lambda: more.index_add_(0, index, values), None


def windows(torch: Any) -> Iterator[Case]:
    n = 1 << 18
    x, w, out = torch.randn(n), torch.randn(9), torch.empty(n - 8)
    ours: Call = lambda: kernels.convolve[(n // 4096,)](x, w, out, n, K=9, B=4096)  # noqa: E731
    yield (
        "convolution of 9",
        "2^18",
        ours,
        lambda: torch.nn.functional.conv1d(x[None, None], w[None, None])[0, 0],
        out,
    )
    planes, small = torch.randn(64, 112, 112), torch.empty(64, 56, 56)
    ours = lambda: kernels.max_pool[(64, 56)](planes, small, 112, 112, B=64)  # noqa: E731
    yield (
        "max pooling",
        "64x112x112",
        ours,
        lambda: torch.nn.functional.max_pool2d(planes, 2),
        small,
    )


def planes(torch: Any) -> Iterator[Case]:
    """Pooling and convolutions of images."""
    functional = torch.nn.functional
    x, out = torch.randn(64, 112, 112), torch.empty(64, 110, 110)
    ours: Call = lambda: kernels.average_pool[(64, 110)](x, out, 112, 112, B=128)  # noqa: E731
    yield "average pooling", "64x112x112", ours, lambda: functional.avg_pool2d(x, 3, 1), out
    for images, c, m, size in ((4, 32, 32, 58), (4, 64, 64, 30), (1, 16, 64, 114)):
        y, w = torch.randn(images, c, size, size), torch.randn(m, c, 3, 3)
        found = torch.empty(images, m, size - 2, size - 2)
        block = tessera.next_power_of_2(size - 2)

        def convolved(y: Any = y, w: Any = w, found: Any = found, block: int = block) -> Any:
            grid = (found.shape[0], found.shape[2])
            return kernels.convolve_planes[grid](
                y, w, found, y.shape[1], y.shape[2], y.shape[3], found.shape[1], B=block
            )

        theirs = lambda y=y, w=w: functional.conv2d(y, w)  # noqa: E731
        yield "convolution of 3x3", f"{images}x{c}x{size}x{size} to {m}", convolved, theirs, found


def measure(case: Case, rep: float, clock: Callable[[], float]) -> Row:
    name, shape, *programs, result = case

    def timed(fn: Call, calls: int) -> float:
        start = clock()
        for _ in range(calls):
            fn()
        return (clock() - start) / calls * 1e3

    programs[0]()
    expected = programs[1]()
    deviations: dict[str, float] = {}
    if result is not None:
        error = (result.double() - expected.double()).abs().max() / expected.double().abs().max()
        deviations["tessera"] = float(error)
    calls = [max(1, int(rep / ROUNDS / max(timed(fn, 3), 1e-4))) for fn in programs]
    times: list[list[float]] = []
    for i in range(ROUNDS):
        order = (0, 1) if i % 2 else (1, 0)
        found = {k: timed(programs[k], calls[k]) for k in order}
        times.append([found[0], found[1]])
    ours, theirs = (median(column) for column in zip(*times, strict=True))
    ratio = theirs / ours
    return Row(name, shape, "fp32", "ms", {"tessera": ours, "torch": theirs}, ratios={"torch": ratio},
               deviations=deviations)  # fmt: skip


def prepared() -> tuple[Any, Any, Callable[[], float], dict[str, Any]]:
    """Return the arguments, torch with the threads and instructions that we have, the clock, the results' settings."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rep", type=float, default=60.0, help="ms for timing each program")
    parser.add_argument("--only", default="", help="rows whose name, shape and type match this")
    parser.add_argument("--processor-time", action="store_true")
    record.add_arguments(parser)
    args = parser.parse_args()
    if args.processor_time and args.threads > 1:
        parser.error("--processor-time adds up what threads compute: give --threads 1")
    keep_freed_memory()
    level = os.environ.get("TESSERA_CPU", "native")
    if level == "avx2":
        os.environ |= AVX2_RIVAL
    import torch

    torch.manual_seed(0)
    torch.set_num_threads(args.threads)
    clock = time.process_time if args.processor_time else time.perf_counter
    knobs.runtime.num_threads = args.threads
    driver.set_active("cpu")
    return args, torch, clock, {"threads": args.threads, "clock": clock.__name__, "level": level}


def show(row: Row, name: str) -> None:
    error = f"{row.deviations['tessera']:.0e}" if row.deviations else "-"
    times = (f"{row.times[who] * 1e3:10.1f}" for who in ("tessera", "torch"))
    print(f"{name:39}{error:>7}", *times, f"{row.ratios['torch']:7.2f}", flush=True)


def main() -> None:
    args, torch, clock, settings = prepared()
    found: list[Row] = []
    for group in (functions, rows, orders, places, windows, planes):
        for case in group(torch):
            if re.search(args.only, f"{case[0]} {case[1]}"):
                found.append(measure(case, args.rep, clock))
                row = found[-1]
                show(row, f"{row.name:19}{row.shape}")
                record.write(args, "cpu_plain", found, **settings)
    ratios = [row.ratios["torch"] for row in found]
    slower = sum(r < 0.97 for r in ratios)
    print(
        f"{len(ratios)} rows: {geometric_mean(ratios):.2f} of torch, {min(ratios):.2f} at least, {slower} below 0.97"
    )


if __name__ == "__main__":
    main()
