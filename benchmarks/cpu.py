"""CPU speeds beside NumPy and, where it is installed, torch eager on as many threads.

    python benchmarks/cpu.py [--threads N] [--rep MS]

Times are medians in ms and speed-ups medians of the ratios of rounds that time each in turn, so that a busy machine
slows all of them. NumPy takes the threads that its BLAS takes by default. Also times the cold compile of the
vector-add kernel for sm_90a and `import tessera`.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np
import sources

import common
from tessera.config import knobs
from tessera.runtime.benchmark import device_name
from tessera.testing import do_bench, print_table

ROUNDS = 9
DEVICE = common.Device("cpu")
Case = tuple[str, str, float, str, Callable[[], Any], Callable[[], Any], Callable[[], Any] | None]


def torch_or_none(threads: int) -> Any:
    if importlib.util.find_spec("torch") is None:
        return None
    import torch

    torch.set_num_threads(threads)
    return torch


def softmax_case(torch: Any, rows: int, cols: int) -> Case:
    example = sources.example("02")
    x, out = DEVICE.normal(rows, cols), DEVICE.empty(rows, cols)
    other = None
    if torch:
        tensor = torch.from_numpy(x)
        other = lambda: tensor.softmax(1)  # noqa: E731
    return (
        "fused softmax", f"{rows}x{cols} fp32", 8.0 * rows * cols, "GB/s",
        lambda: example.softmax(x, out), lambda: example.numpy_softmax(x), other,
    )  # fmt: skip


def add_case(torch: Any, n: int) -> Case:
    example = sources.example("01")
    x, y, out = DEVICE.normal(n), DEVICE.normal(n), DEVICE.empty(n)
    sum_ = np.empty_like(x)
    other = None
    if torch:
        tensors = [torch.from_numpy(t) for t in (x, y, sum_)]
        other = lambda: torch.add(tensors[0], tensors[1], out=tensors[2])  # noqa: E731
    return (
        "vector add", f"{n} fp32", 12.0 * n, "GB/s",
        lambda: example.add(x, y, out), lambda: np.add(x, y, out=sum_), other,
    )  # fmt: skip


def matmul_case(torch: Any, size: int) -> Case:
    example = sources.example("03")
    a, b, c = DEVICE.normal(size, size), DEVICE.normal(size, size), DEVICE.empty(size, size)
    other = None
    if torch:
        tensors = [torch.from_numpy(t) for t in (a, b)]
        other = lambda: tensors[0] @ tensors[1]  # noqa: E731
    return (
        "matmul", f"{size}^3 fp32", 2.0 * size**3, "GFLOP/s",
        lambda: example.matmul(a, b, c), lambda: a @ b, other,
    )  # fmt: skip


def rms_norm_case(torch: Any, rows: int, cols: int) -> Case:
    example = sources.example("07")
    x, w, y = DEVICE.normal(rows, cols), DEVICE.normal(cols), DEVICE.empty(rows, cols)
    other = None
    if torch:
        tensors = [torch.from_numpy(t) for t in (x, w)]
        other = lambda: torch.nn.functional.rms_norm(tensors[0], (cols,), tensors[1], 1e-6)  # noqa: E731
    return (
        "RMS norm", f"{rows}x{cols} fp32", 8.0 * rows * cols, "GB/s",
        lambda: example.rms_norm(x, w, y), lambda: example.numpy_rms_norm(x, w), other,
    )  # fmt: skip


def attention_case(torch: Any, heads: int, length: int, dim: int) -> Case:
    example = sources.example("06")
    q, k, v = (DEVICE.normal(heads, length, dim) for _ in range(3))
    ours = example.Attention(DEVICE, heads, length, dim, False)
    other = None
    if torch:
        tensors = [torch.from_numpy(t)[None] for t in (q, k, v)]
        other = lambda: torch.nn.functional.scaled_dot_product_attention(*tensors)  # noqa: E731
    return (
        "attention forward", f"{heads}x{length}x{dim} fp32", 4.0 * heads * length**2 * dim, "GFLOP/s",
        lambda: ours.forward(q, k, v), lambda: example.numpy_probabilities(q, k, False) @ v, other,
    )  # fmt: skip


def row(case: Case, rep: float) -> list[str]:
    name, shape, work, unit, ours, numpy, torch = case
    rounds = [
        [
            do_bench(fn, warmup=rep / 20, rep=rep / ROUNDS, return_mode="median")
            for fn in (ours, numpy, torch)
            if fn
        ]
        for _ in range(ROUNDS)
    ]
    times = [median(column) for column in zip(*rounds)]
    rates = [f"{work / ms * 1e-6:,.1f} {unit}" for ms in times]
    speedups = zip(*([ms / r[0] for ms in r[1:]] for r in rounds))
    ratios = [f"{median(column):.2f}x" for column in speedups]
    return [name, shape, f"{times[0]:.3f}", *rates, *ratios]


COMPILE = """
import time, sys
sys.path[:0] = {paths!r}
start = time.perf_counter()
import tessera
imported = time.perf_counter()
import sources
from tessera.backends.compiler import GPUTarget
from tessera.compiler import ASTSource
specimen = sources.example("01").specimens()[0]
signature = dict(specimen.signature, **dict.fromkeys(specimen.constants, "constexpr"))
names = list(signature)
attrs = {{(i,): [["tt.divisibility", 16]] for i, n in enumerate(names) if signature[n] != "constexpr"}}
source = ASTSource(specimen.kernel, signature, specimen.constants, attrs)
begin = time.perf_counter()
tessera.compile(source, target=GPUTarget("cuda", 90, 32))
print((imported - start) * 1e3, (time.perf_counter() - begin) * 1e3)
"""


def compile_times() -> tuple[float, float]:
    """(import tessera, cold compile of vector add for sm_90a) in ms: best of three new processes, no cache."""
    paths = [str(sources.ROOT), str(sources.ROOT / "benchmarks")]
    environment = {**os.environ, "TESSERA_ALWAYS_COMPILE": "1"}
    found: list[list[float]] = []
    for _ in range(3):
        answer = subprocess.check_output(
            [sys.executable, "-c", COMPILE.format(paths=paths)], env=environment, text=True
        )
        found.append([float(ms) for ms in answer.split()])
    return min(f[0] for f in found), min(f[1] for f in found)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rep", type=float, default=200.0, help="ms for timing each function")
    args = parser.parse_args()
    knobs.runtime.num_threads = args.threads
    torch = torch_or_none(args.threads)
    cases = [
        add_case(torch, 1 << 24),
        softmax_case(torch, 4096, 1024),
        rms_norm_case(torch, 4096, 1024),
        matmul_case(torch, 1024),
        attention_case(torch, 8, 1024, 64),
    ]
    rows = [row(case, args.rep) for case in cases]
    others = ["NumPy", *(["torch"] if torch else [])]
    title = f"{datetime.date.today()} {device_name()}, {args.threads} threads"
    titles = ["kernel", "shape", "ms", "tessera", *others, *(f"vs {who}" for who in others)]
    print_table(title, titles, rows)
    imported, compiled = compile_times()
    print(
        f"import tessera: {imported:.0f} ms; cold compile of vector add for sm_90a: {compiled:.0f} ms"
    )


if __name__ == "__main__":
    main()
