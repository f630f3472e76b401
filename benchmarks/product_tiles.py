"""Times matrix products in bf16 on a GPU by eager and by kernels of this backend with each of some tiles.

    python benchmarks/product_tiles.py [--jobs 14] [--json FILE]

The times are those of single calls with nothing in the L2 cache. `tessera` has the tiles that are estimated to be the
fastest (tessera/graph/emit/product_time.py, whose constants `python -m tools.fit.products` fits to these times).
`--jobs` processes compile everything first, so that the run itself finds it in the cache of kernels.
"""

# pyright: basic, reportMissingImports=false
from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import astuple
from functools import partial
from pathlib import Path
from typing import Any

import torch

HERE = Path(__file__).resolve().parent
for folder in (HERE.parent, HERE):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

import record  # noqa: E402
from record import Row  # noqa: E402

from tessera.dtypes import float32  # noqa: E402
from tessera.graph.emit.product_time import TILES, Blocks, Shape, fastest  # noqa: E402
from tessera.graph.ir.types import TensorType  # noqa: E402
from tessera.graph.torch import tune  # noqa: E402
from tessera.graph.torch.host import target_of  # noqa: E402
from tessera.graph.torch.types import element_of  # noqa: E402

SIZES = (
    (128, 512, 512), (512, 512, 2048), (512, 2048, 512), (2048, 512, 512), (2048, 2048, 512), (2048, 512, 2048),
    (2048, 3072, 768), (2048, 768, 3072), (8192, 512, 2048), (8192, 1024, 1024), (4096, 4096, 1024),
    (4096, 1024, 4096), (4096, 4096, 4096), (1024, 1024, 1024), (256, 4096, 1024), (640, 768, 2304),
    (3000, 1536, 384), (64, 1024, 4096), (2048, 512, 32000), (32000, 2048, 512),
)  # fmt: skip
ORDERS = ("rc", "rr", "cr")  # whether rows or columns of a and of b are contiguous


def cases() -> Iterator[tuple[Shape, str]]:
    """Each size in two of the orders."""
    for number, size in enumerate(SIZES):
        for order in range(number, number + 2):
            yield Shape(1, *size), ORDERS[order % len(ORDERS)]


def product(s: Shape, order: str) -> tune.TimedProduct:
    half = element_of(torch.bfloat16)
    a = TensorType((s.m, s.k), half, (s.k, 1) if order[0] == "r" else (1, s.m), "cuda")
    b = TensorType((s.k, s.n), half, (s.n, 1) if order[1] == "r" else (1, s.k), "cuda")
    return tune.TimedProduct(a, b, float32, half, "ieee")


def tiles_of(s: Shape) -> list[Blocks]:
    return [b for b in TILES if b.m < 2 * s.m and b.n < 2 * s.n]


def name_of(b: Blocks) -> str:
    return "x".join(map(str, astuple(b)))


def timed(s: Shape, order: str) -> Row:
    """Microseconds by eager and by each of the tiles; kernels that do not run, or are wrong, are left out."""
    made, target = product(s, order), target_of("cuda")
    given = [tune._numbers(t, seed) for seed, t in enumerate((made.a, made.b))]
    eager = partial(torch.matmul, *given)
    wanted = eager()
    times: dict[str, float] = {"torch": 1e3 * tune.time_of(eager, "cuda")}
    for b in tiles_of(s):
        kernel = tune._kernel(made, astuple(b), target)
        if kernel is not None and tune._agrees(kernel, given, wanted):
            run: Any = partial(tune._run, kernel, given)
            times[name_of(b)] = 1e3 * tune.time_of(run, "cuda")
    times = {"tessera": times[name_of(fastest(s, tuple(tiles_of(s))))], **times}
    ratio = times["torch"] / times["tessera"]
    return Row("product", f"{s.m}x{s.k}x{s.n} {order}", "bf16", "us", times, ratios={"torch": ratio})  # fmt: skip


def compile_share(first: int, step: int) -> None:
    every = [(s, order, b) for s, order in cases() for b in tiles_of(s)]
    for s, order, b in every[first::step]:
        tune._kernel(product(s, order), astuple(b), target_of("cuda"))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--jobs", type=int, default=0)
    parser.add_argument("--share", help="compile these cases alone, as 0/8")
    record.add_arguments(parser)
    args = parser.parse_args()
    if args.share:
        compile_share(*map(int, args.share.split("/")))
        return
    shares = [f"--share={j}/{args.jobs}" for j in range(args.jobs)]
    for job in [subprocess.Popen([sys.executable, __file__, share]) for share in shares]:
        job.wait()
    rows: list[Row] = []
    for s, order in cases():
        rows.append(timed(s, order))
        told = ", ".join(f"{k} {t:.1f}" for k, t in rows[-1].times.items())
        print(f"{rows[-1].shape:20} {told} us", flush=True)
    record.write(args, "product_tiles", rows, device=torch.cuda.get_device_name())


if __name__ == "__main__":
    main()
