"""CPU speeds beside torch: eager, and compiled where asked for; and beside numba.

    python benchmarks/cpu.py [--threads N] [--rep MS] [--only PATTERN] [--compile] [--numba] [--json FILE]

Kernels are those of the GPU; of a few tile sizes the fastest is taken. Each row is the median of rounds that time every
program in turn, and a speed-up is the median of the rounds' ratios, so that a busy machine slows all of them. Set
OMP_WAIT_POLICY=passive and GOMP_SPINCOUNT=0 to keep torch's idle threads from spinning on the cores that ours need.
"""

from __future__ import annotations

import argparse
import ctypes
import datetime
import importlib
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import median
from typing import Any

import record
import sources
from record import Row

import tessera
from tessera.config import knobs
from tessera.runtime.benchmark import device_name
from tessera.runtime.driver import driver
from tessera.testing import print_table

ROUNDS = 7
M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # numbers of mallopt
# Rows, columns and depth of a product's tile, and how many tiles of rows a group has (their A stays in the caches).
TILES = (
    (64, 64, 64, 8),
    (128, 128, 64, 8),
    (128, 128, 64, 2),
    (256, 128, 64, 2),
    (256, 256, 64, 2),
    (512, 256, 64, 1),
    (512, 512, 64, 1),
)
Call = Callable[[], Any]


@dataclass
class Case:
    """`ours`: one call for each choice of tile sizes; `torch`: the same by torch, also what is compiled. `result` and
    the value of `torch` are compared. `numba`: a function of `numba_rivals` and its arguments, the result last."""

    name: str
    shape: str
    dtype: str
    work: float  # bytes or operations
    unit: str
    ours: list[Call]
    torch: Call
    result: Any
    compiled: bool = False  # whether torch.compile is a rival
    numba: tuple[Any, ...] = ()


def keep_freed_memory() -> None:
    """Let freed memory serve the next allocation: torch's results are new each time, and the system would clear every
    page of them again."""
    mallopt = ctypes.CDLL(None).mallopt
    mallopt(M_MMAP_MAX, 0)
    mallopt(M_TRIM_THRESHOLD, 1 << 30)


def short(dtype: str) -> str:
    """fp32 of float32, bf16 of bfloat16, int8 of int8."""
    return dtype.replace("bfloat", "bf").replace("float", "fp")


def bytes_of(*tensors: Any) -> float:
    return float(sum(t.nbytes for t in tensors))


class Cases:
    """All rows of the table, as generators of cases."""

    def __init__(self, torch: Any) -> None:
        self.torch, self.kernels = torch, sources.kernels()
        torch.manual_seed(0)

    def normal(self, *shape: int, dtype: str = "float32") -> Any:
        return self.torch.randn(*shape).to(getattr(self.torch, dtype))

    def empty(self, *shape: int, dtype: str = "float32") -> Any:
        return self.torch.empty(*shape, dtype=getattr(self.torch, dtype))

    def streams(self) -> Iterator[Case]:
        torch, kernels = self.torch, self.kernels
        add = sources.example("01").add_kernel
        for n in (1 << 24, 1 << 20):
            x, y, out = (self.normal(n) for _ in range(3))
            blocks = (1024, 4096, 16384)
            ours = [
                lambda b=b, x=x, y=y, o=out, n=n: add[(tessera.cdiv(n, b),)](x, y, o, n, BLOCK=b)
                for b in blocks
            ]
            theirs = lambda x=x, y=y, o=out: torch.add(x, y, out=o)  # noqa: E731
            yield Case(
                "add", f"2^{n.bit_length() - 1}", "fp32", 12.0 * n, "GB/s", ours, theirs, out,
                numba=("add", x, y, out),
            )  # fmt: skip
        n = 1 << 24
        x, out = (self.normal(n) for _ in range(2))
        ours = [
            lambda b=b: kernels.copy[(tessera.cdiv(n, b),)](x, out, n, BLOCK=b)
            for b in (1024, 4096, 16384)
        ]
        yield Case(
            "copy", "2^24", "fp32", 8.0 * n, "GB/s", ours, lambda: out.copy_(x), out,
            numba=("copy", x, out),
        )  # fmt: skip
        n = 1 << 22
        x, out = self.normal(n), self.empty(n)
        dropout = sources.example("04").dropout_kernel
        ours = [
            lambda b=b: dropout[(tessera.cdiv(n, b),)](x, out, n, 0.5, 7, BLOCK=b)
            for b in (1024, 4096)
        ]
        theirs = lambda: torch.nn.functional.dropout(x, 0.5)  # noqa: E731
        yield Case("dropout", "2^22", "fp32", 8.0 * n, "GB/s", ours, theirs, None)

    def softmax(self) -> Iterator[Case]:
        run = sources.example("02").softmax
        for cols, dtype in (
            (256, "float32"), (1000, "float32"), (1024, "float32"), (4096, "float32"),
            (8192, "float32"), (8100, "float32"), (4096, "bfloat16"),
        ):  # fmt: skip
            x, out = self.normal(4096, cols, dtype=dtype), self.empty(4096, cols, dtype=dtype)
            theirs = lambda x=x: self.torch.softmax(x, 1)  # noqa: E731
            ours = [lambda x=x, out=out: run(x, out)]
            yield self.rows("softmax", x, out, ours, theirs, "softmax")

    def rows(
        self, name: str, x: Any, out: Any, ours: list[Call], theirs: Call, rival: str, *others: Any
    ) -> Case:
        """`rival` of numba takes x, `others` and out."""
        shape, dtype = f"{x.shape[0]}x{x.shape[1]}", short(str(x.dtype)[6:])
        numba = () if x.dtype == self.torch.bfloat16 else (rival, x, *others, out)
        return Case(name, shape, dtype, bytes_of(x, out), "GB/s", ours, theirs, out, True, numba)

    def norms(self) -> Iterator[Case]:
        functional = self.torch.nn.functional
        layer_norm, rms = sources.example("05").forward_kernel, sources.example("07").rms_norm
        for cols in (1024, 4096):
            x, w, b = self.normal(4096, cols), self.normal(cols), self.normal(cols)
            y, mean, rstd = self.empty(4096, cols), self.empty(4096), self.empty(4096)
            ours = [
                lambda x=x, w=w, b=b, y=y, m=mean, r=rstd, c=cols: layer_norm[(4096,)](
                    x, w, b, y, m, r, c, 1e-5, BLOCK=c
                )
            ]
            theirs = lambda x=x, w=w, b=b, c=cols: functional.layer_norm(x, (c,), w, b)  # noqa: E731
            yield self.rows("layer norm", x, y, ours, theirs, "layer_norm", w, b)
        for dtype in ("float32", "bfloat16"):
            x, w = self.normal(4096, 4096, dtype=dtype), self.normal(4096, dtype=dtype)
            y = self.empty(4096, 4096, dtype=dtype)
            ours = [lambda x=x, w=w, y=y: rms(x, w, y)]
            theirs = lambda x=x, w=w: functional.rms_norm(x, (4096,), w, 1e-6)  # noqa: E731
            yield self.rows("RMS norm", x, y, ours, theirs, "rms_norm", w)

    def losses(self) -> Iterator[Case]:
        functional, gelu = self.torch.nn.functional, self.kernels.gelu_bias
        x, bias, y = self.normal(4096, 4096), self.normal(4096), self.empty(4096, 4096)
        for form in ("none", "tanh"):
            ours = [lambda f=form: gelu[(4096,)](x, bias, y, 4096, TANH=f == "tanh", BLOCK=4096)]
            theirs = lambda f=form: functional.gelu(x + bias, approximate=f)  # noqa: E731
            form = "tanh" if form == "tanh" else "erf"
            yield self.rows(f"gelu+bias, {form}", x, y, ours, theirs, f"gelu_{form}", bias)
        logits = self.normal(2048, 32000)
        targets = self.torch.randint(0, 32000, (2048,))
        loss, lse = self.empty(2048), self.empty(2048)
        kernel = sources.example("08").loss_kernel
        ours = [
            lambda r=r, b=b: kernel[(2048,)](logits, targets, loss, lse, 32000, ROWS=r, BLOCK=b)
            for r, b in ((1, 512), (1, 1024), (1, 4096), (4, 256), (4, 512), (4, 2048))
        ]
        theirs = lambda: functional.cross_entropy(logits, targets, reduction="none")  # noqa: E731
        yield Case(
            "cross entropy", "2048x32000", "fp32", bytes_of(logits), "GB/s", ours, theirs, loss, True,
            ("cross_entropy", logits, targets, loss),
        )  # fmt: skip

    def matmuls(self) -> Iterator[Case]:
        kernel = sources.example("03").matmul_kernel.fn.fn
        for dtype in ("float32", "bfloat16", "float16"):
            for n in (512, 1024, 2048):
                a, b = self.normal(n, n, dtype=dtype), self.normal(n, n, dtype=dtype)
                c = self.empty(n, n, dtype=dtype)
                ours = [
                    lambda t=t, a=a, b=b, c=c, n=n: kernel[(n // t[0] * (n // t[1]),)](
                        a, b, c, n, n, n, n, 1, n, 1, n, 1, BLOCK_M=t[0], BLOCK_N=t[1], BLOCK_K=t[2],
                        GROUP_M=t[3], EVEN_K=True, ACTIVATION="",
                    )
                    for t in TILES
                ]  # fmt: skip
                theirs = lambda a=a, b=b: a @ b  # noqa: E731
                yield self.matmul(dtype, n, ours, theirs, c)
        for n in (512, 1024, 2048):
            a, b = (self.torch.randint(-128, 128, (n, n), dtype=self.torch.int8) for _ in range(2))
            c = self.empty(n, n, dtype="int32")
            ours = [
                lambda t=t, a=a, b=b, c=c, n=n: self.kernels.int_matmul[(n // t[0] * (n // t[1]),)](
                    a, b, c, n, n, n, BM=t[0], BN=t[1], BK=2 * t[2], GROUP=t[3]
                )
                for t in TILES
            ]
            theirs = lambda a=a, b=b: self.torch._int_mm(a, b)  # noqa: E731
            yield self.matmul("int8", n, ours, theirs, c)

    def matmul(self, dtype: str, n: int, ours: list[Call], torch: Call, c: Any) -> Case:
        work = 2.0 * n**3
        return Case("matmul", f"{n}^3", short(dtype), work, "GFLOP/s", ours, torch, c)

    def gemv(self) -> Iterator[Case]:
        n = 4096
        for dtype in ("float32", "bfloat16"):
            a, x = self.normal(n, n, dtype=dtype), self.normal(n, dtype=dtype)
            out = self.empty(n, dtype=dtype)
            ours = [
                lambda t=t, a=a, x=x, out=out: self.kernels.gemv[(n // t[0],)](
                    a, x, out, n, n, n, BM=t[0], BN=t[1]
                )
                for t in ((4, 1024), (8, 256), (16, 128), (1, 4096))
            ]
            theirs = lambda a=a, x=x: a @ x  # noqa: E731
            work = bytes_of(a)
            yield Case("gemv", "4096x4096", short(dtype), work, "GB/s", ours, theirs, out)

    def attention(self) -> Iterator[Case]:
        example = sources.example("06")
        heads, n, dim = 8, 1024, 64
        scale = dim**-0.5 * example.LOG2_E
        for dtype in ("float32", "bfloat16"):
            for causal in (False, True):
                q, k, v = (self.normal(heads, n, dim, dtype=dtype) for _ in range(3))
                out, lse = self.empty(heads, n, dim, dtype=dtype), self.empty(heads, n)
                ours = [
                    lambda t=t, q=q, k=k, v=v, out=out, lse=lse, causal=causal: example.forward_kernel[
                        (n // t[0] * heads,)
                    ](
                        q, k, v, out, lse, heads, n, scale, CAUSAL=causal, EVEN=True, BLOCK_M=t[0],
                        BLOCK_N=t[1], DIM=dim, GROUP=1,
                    )
                    for t in ((64, 64), (128, 64), (64, 128), (128, 128))
                ]  # fmt: skip
                theirs = lambda q=q, k=k, v=v, causal=causal: (  # noqa: E731
                    self.torch.nn.functional.scaled_dot_product_attention(
                        q[None], k[None], v[None], is_causal=causal
                    )[0]
                )
                work = 4.0 * heads * n * n * dim / (2 if causal else 1)
                name = "attention, causal" if causal else "attention"
                shape, kind = f"{heads}x{n}x{dim}", short(dtype)
                yield Case(name, shape, kind, work, "GFLOP/s", ours, theirs, out)


def timed(fn: Call, ms: float) -> float:
    """Median time of a call in ms, of about `ms` in all."""
    times: list[float] = []
    end = time.perf_counter() + ms / 1e3
    while not times or time.perf_counter() < end:
        start = time.perf_counter()
        fn()
        times.append((time.perf_counter() - start) * 1e3)
    return median(times)


def fastest(calls: list[Call], ms: float) -> Call:
    for call in calls:
        call()
    if len(calls) == 1:
        return calls[0]
    return min(calls, key=lambda call: timed(call, ms))


@dataclass
class Rivals:
    """Who runs beside torch: a compiler of its functions, a module of functions for numba."""

    torch: Any
    compiler: Any
    numba: Any

    def names(self) -> list[str]:
        others = {"compiled": self.compiler, "numba": self.numba}
        return ["torch", *(name for name, there in others.items() if there is not None)]

    def calls(self, case: Case) -> list[Call | None]:
        found: list[Call | None] = [case.torch]
        if self.compiler is not None:
            self.torch.compiler.reset()
            found.append(self.compiler(case.torch) if case.compiled else None)
        if self.numba is not None:
            found.append(self.numba.call(*case.numba) if case.numba else None)
        return found


def measure(case: Case, rep: float, rivals: Rivals) -> Row:
    ours = fastest(case.ours, rep / 4)
    ours()
    found = None if case.result is None else case.result.double().clone()
    expected = case.torch()  # perhaps into the same memory: its place in the caches' sets matters
    deviations: dict[str, float] = {}
    if found is not None:
        error = (found - expected.double()).abs().max() / expected.double().abs().max()
        deviations["tessera"] = float(error)
    theirs = rivals.calls(case)
    programs = [ours, *(call for call in theirs if call is not None)]
    for fn in programs[1:]:
        timed(fn, rep / 10)
    rounds = [[timed(fn, rep / ROUNDS) for fn in programs] for _ in range(ROUNDS)]
    names = ["tessera", *(name for name, call in zip(rivals.names(), theirs) if call)]
    times = {name: median(column) for name, column in zip(names, zip(*rounds), strict=True)}
    rates = {name: case.work / ms * 1e-6 for name, ms in times.items()}
    ratios = {name: median(r[i] / r[0] for r in rounds) for i, name in enumerate(names) if i}
    return Row(
        case.name, case.shape, case.dtype, "ms", times, case.unit, rates, ratios, deviations
    )  # fmt: skip


def shown(row: Row, rivals: list[str]) -> list[str]:
    rates = [f"{row.rates[who]:,.1f}" if who in row.rates else "" for who in ("tessera", *rivals)]
    ratios = [f"{row.ratios[who]:.2f}" if who in row.ratios else "" for who in rivals]
    error = f"{row.deviations['tessera']:.0e}" if row.deviations else "-"
    return [row.name, f"{row.shape} {row.dtype}", error, row.unit, *rates, *ratios]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rep", type=float, default=200.0, help="ms for timing each function")
    parser.add_argument("--only", default="", help="rows whose name and shape match this")
    parser.add_argument("--compile", action="store_true", help="torch.compile as a second rival")
    parser.add_argument("--numba", action="store_true", help="numba as a rival")
    record.add_arguments(parser)
    args = parser.parse_args()
    keep_freed_memory()
    import torch

    knobs.runtime.num_threads = args.threads
    torch.set_num_threads(args.threads)
    driver.set_active("cpu")
    numba = None
    if args.numba:
        os.environ["NUMBA_NUM_THREADS"] = str(args.threads)
        numba = importlib.import_module("numba_rivals")
    rivals = Rivals(torch, torch.compile if args.compile else None, numba)
    cases = Cases(torch)
    groups = (
        cases.streams, cases.softmax, cases.norms, cases.losses, cases.matmuls, cases.gemv, cases.attention,
    )  # fmt: skip
    policy = "passive" if os.environ.get("OMP_WAIT_POLICY", "").lower() == "passive" else "spinning"
    settings = {"threads": args.threads, "idle threads of torch": policy}
    names = rivals.names()
    rows: list[Row] = []
    for group in groups:
        for case in group():
            if re.search(args.only, f"{case.name} {case.shape} {case.dtype}"):
                rows.append(measure(case, args.rep, rivals))
                print(*shown(rows[-1], names), sep="  ", file=sys.stderr, flush=True)
                record.write(args, "cpu", rows, **settings)
    title = f"{datetime.date.today()} {device_name()}, {args.threads} threads, torch's idle threads {policy}"
    titles = ["kernel", "shape", "error", "unit", "tessera", *names, *(f"vs {n}" for n in names)]
    print_table(title, titles, [shown(row, names) for row in rows])


if __name__ == "__main__":
    main()
