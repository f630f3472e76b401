"""Times matrix products with what follows them under torch.compile on a GPU: eager's product and ours, Inductor, eager.

    python benchmarks/graph_products.py [--only gelu] [--dtype bfloat16] [--rounds 7] [--jobs 8]

`extern` is this backend with eager's product, `kernel` with a kernel of ours, `tessera` what it chooses by itself. The
time is that of a CUDA graph of 20 calls, divided by 20, as in graph_fused.py; all run in random turn, medians count.
`--jobs` processes compile everything first, so that the run itself finds it in the caches.
"""

# pyright: basic, reportMissingImports=false
from __future__ import annotations

import argparse
import random
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as F

HERE = Path(__file__).resolve().parent
for folder in (HERE.parent, HERE):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

import record  # noqa: E402
from graph_fused import microseconds, recorded  # noqa: E402
from record import Row  # noqa: E402

import tessera.torch  # noqa: E402, F401  registers the backend

# Tokens, inputs, outputs of a layer.
SIZES = (
    (64, 64, 64), (128, 512, 512), (512, 512, 2048), (512, 2048, 512), (2048, 512, 512), (2048, 512, 2048),
    (2048, 2048, 512), (2048, 768, 3072), (2048, 3072, 768), (8192, 512, 2048), (8192, 1024, 1024),
    (4096, 1024, 4096), (4096, 4096, 1024), (4096, 4096, 4096), (16, 4096, 4096), (1000, 1000, 1000),
)  # fmt: skip
FOLLOWED: dict[str, Callable[..., Any]] = {
    "linear": lambda x, w, b, r: F.linear(x, w, b),
    "product": lambda x, w, b, r: x @ w.t(),
    "gelu": lambda x, w, b, r: F.gelu(F.linear(x, w, b), approximate="tanh"),
    "kept gelu": lambda x, w, b, r: (y := F.linear(x, w, b), F.gelu(y, approximate="tanh")),
    "residual": lambda x, w, b, r: F.linear(x, w, b) + r,
    "input's gradient": lambda x, w, b, r: torch.where(x > 0, r @ w, 0.0),
    "weights' gradient": lambda x, w, b, r: (r.t() @ x).float() * 0.5,
}
WAYS: dict[str, dict[str, Any] | None] = {
    "extern": {"backend": "tessera", "options": {"matmul": "extern"}},
    "kernel": {"backend": "tessera", "options": {"matmul": "kernel"}},
    "tessera": {"backend": "tessera"},
    "compiled": {"backend": "inductor"},
    "torch": None,
}


def compiled(f: Callable[..., Any], way: dict[str, Any] | None) -> Callable[..., Any]:
    torch._dynamo.reset()
    return f if way is None else torch.compile(f, dynamic=False, **way)


def measured(f: Callable[..., Any], inputs: list[Any], rounds: int) -> dict[str, float]:
    graphs: dict[str, Any] = {}
    for who, way in WAYS.items():
        call = compiled(f, way)
        if rounds:
            graphs[who] = recorded(lambda call=call: call(*inputs))
        else:
            call(*inputs)
    times: dict[str, list[float]] = {who: [] for who in graphs}
    for _ in range(rounds):
        for who in random.sample(list(graphs), len(graphs)):
            times[who].append(microseconds(graphs[who]))
    return {who: statistics.median(t) for who, t in times.items()}


def inputs_of(m: int, k: int, n: int, dtype: Any) -> list[Any]:
    """x (m, k), w (n, k), a bias, and what has the result's shape."""
    shapes = ((m, k), (n, k), (n,), (m, n))
    return [torch.randn(s, device="cuda", dtype=dtype) / s[-1] ** 0.5 for s in shapes]


def cases(only: str, share: tuple[int, int]) -> Iterator[tuple[str, tuple[int, int, int]]]:
    every = [(name, size) for name in FOLLOWED if only in name for size in SIZES]
    return iter(every[share[0] :: share[1]])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", default="")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--jobs", type=int, default=0)
    parser.add_argument("--share", default="0/1", help="of the cases, for processes that compile")
    record.add_arguments(parser)
    args = parser.parse_args()
    same = [f"--only={args.only}", f"--dtype={args.dtype}"]
    jobs = [
        subprocess.Popen(
            [sys.executable, __file__, *same, "--rounds=0", f"--share={j}/{args.jobs}"]
        )
        for j in range(args.jobs)
    ]
    for job in jobs:
        job.wait()
    first, step = map(int, args.share.split("/"))
    rows: list[Row] = []
    for name, size in cases(args.only, (first, step)):
        inputs = inputs_of(*size, getattr(torch, args.dtype))
        times = measured(FOLLOWED[name], inputs, args.rounds)
        if not args.rounds:
            continue
        ratios = {k: t / times["tessera"] for k, t in times.items() if k != "tessera"}
        row = Row(name, "x".join(map(str, size)), args.dtype, "us", times, ratios=ratios)
        rows.append(row)
        shown = ", ".join(f"{k} {t:.1f}" for k, t in times.items())
        print(f"{name:18} {row.shape:15} {shown} us", flush=True)
    if args.rounds:
        record.write(args, "graph_products", rows, device=torch.cuda.get_device_name())


if __name__ == "__main__":
    main()
