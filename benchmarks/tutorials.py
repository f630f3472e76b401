"""Times the kernels of the tutorials (docs/tutorials/) on the CPU beside NumPy, for the plots of these pages.

    python benchmarks/tutorials.py --json benchmarks/results/tutorials.json
    python -m tools.site.figures

One thread each, processor time, so that other work on the machine counts little: a launch of each in turn, the median
of all rounds.
"""

from __future__ import annotations

import argparse
import os
import runpy
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

os.environ |= {"TESSERA_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]

import numpy as np  # noqa: E402
import record  # noqa: E402

import tessera  # noqa: E402
from tools.site.code import run_page  # noqa: E402

Case = tuple[
    str, str, dict[str, Callable[[], object]], float, str
]  # name, shape, programs, work, unit
ROUNDS = 15
FLOATS = np.random.default_rng(0)


def floats(*shape: int) -> np.ndarray:
    return FLOATS.standard_normal(shape, np.float32)


def vector_add(page: dict[str, Any], _folder: Path) -> Iterator[Case]:
    for exponent in range(12, 25, 2):
        n = 1 << exponent
        x, y, out = floats(n), floats(n), floats(n)
        grid = (tessera.cdiv(n, 1024),)
        launch = partial(page["add_kernel"][grid], x, y, out, n, BLOCK=1024)
        programs = {"tessera": launch, "numpy": partial(np.add, x, y, out)}
        yield "vector add", str(n), programs, 12.0 * n, "GB/s"


def softmax(page: dict[str, Any], _folder: Path) -> Iterator[Case]:
    for cols in (128, 512, 781, 2048, 8192):
        x = floats((1 << 21) // cols, cols)
        programs = {
            "tessera": lambda x=x: page["softmax"](x),
            "numpy": lambda x=x: page["naive_softmax"](x),
        }
        yield "softmax", str(cols), programs, 8.0 * x.size, "GB/s"


def matmul(page: dict[str, Any], _folder: Path) -> Iterator[Case]:
    for n in (64, 128, 256, 512, 1024):
        a, b = floats(n, n), floats(n, n)
        programs = {
            "tessera": lambda a=a, b=b: page["matmul"](a, b),
            "numpy": lambda a=a, b=b: a @ b,
        }
        yield "matmul", str(n), programs, 2.0 * n**3, "GFLOP/s"


def attention(page: dict[str, Any], _folder: Path) -> Iterator[Case]:
    for n in (128, 256, 512, 1024, 2048):
        q, k, v = floats(3, 4, n, 64)
        programs = {
            "tessera": lambda q=q, k=k, v=v: page["attention"](q, k, v),
            "numpy": lambda q=q, k=k, v=v: page["reference"](q, k, v, False),
        }
        yield "attention", str(n), programs, 4.0 * q.shape[0] * n * n * 64, "GFLOP/s"


def quantised(page: dict[str, Any], _folder: Path) -> Iterator[Case]:
    for n in (256, 512, 1024):
        a, b = floats(n, n), floats(n, n)
        qa, qb = page["quantise"](a), page["quantise"](b)
        programs = {
            "tessera": lambda qa=qa, qb=qb: page["int8_matmul"](qa, qb),
            "numpy, fp32": lambda a=a, b=b: a @ b.T,
        }
        yield "int8 matmul", str(n), programs, 2.0 * n**3, "GOP/s"


def fast(_page: dict[str, Any], folder: Path) -> Iterator[Case]:
    slow, quick = (
        runpy.run_path(str(folder / name))["column_sums"] for name in ("slow.py", "fast.py")
    )
    x, out = floats(8192, 1000), np.empty(1000, np.float32)

    def tiled(rows: int, cols: int) -> Callable[[], object]:
        grid = (tessera.cdiv(1000, cols),)
        return lambda: quick[grid](x, out, 8192, 1000, ROWS=rows, COLS=cols)

    programs: dict[str, Callable[[], object]] = {
        "numpy": lambda: x.sum(axis=0),
        "slow.py": lambda: slow[(1000,)](x, out, 8192, 1000, BLOCK=256),
        "tessera": tiled(4, 128),
    }
    programs |= {f"{r}x{c}": tiled(r, c) for r, c in ((1, 1024), (4, 64), (4, 256), (8, 128))}
    yield "column sums", "8192x1000", programs, x.nbytes, "GB/s"


PAGES: dict[str, Callable[[dict[str, Any], Path], Iterator[Case]]] = {
    "01-vector-add": vector_add, "02-fused-softmax": softmax, "03-matmul": matmul, "06-attention": attention,
    "07-quantised-matmul": quantised, "10-fast": fast,
}  # fmt: skip


def measured(programs: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Median milliseconds of processor time of a call of each."""
    for program in programs.values():
        program()
    start = time.process_time()
    next(iter(programs.values()))()
    calls = max(
        1, int(0.005 / (time.process_time() - start + 1e-6))
    )  # the clock needs some milliseconds
    times: dict[str, list[float]] = {name: [] for name in programs}
    for _ in range(ROUNDS):
        for name, program in programs.items():
            start = time.process_time()
            for _ in range(calls):
                program()
            times[name].append((time.process_time() - start) / calls * 1e3)
    return {name: float(np.median(found)) for name, found in times.items()}


def rows() -> Iterator[record.Row]:
    for name, cases in PAGES.items():
        page: dict[str, Any] = {}
        with tempfile.TemporaryDirectory() as folder:
            run_page(ROOT / f"docs/tutorials/{name}.md", Path(folder), namespace=page)
            for case, shape, programs, work, unit in cases(page, Path(folder)):
                times = measured(programs)
                rates = {who: work / ms * 1e-6 for who, ms in times.items()}
                print(
                    case,
                    shape,
                    {who: f"{rate:.1f} {unit}" for who, rate in rates.items()},
                    flush=True,
                )
                ratios = {
                    who: ms / times["tessera"] for who, ms in times.items() if who != "tessera"
                }
                yield record.Row(case, shape, "fp32", "ms", times, unit, rates, ratios)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    record.add_arguments(parser)
    arguments = parser.parse_args()
    record.write(arguments, "tutorials", list(rows()), threads=1, clock="processor time")


if __name__ == "__main__":
    main()
