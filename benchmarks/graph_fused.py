"""Times functions without matrix products under torch.compile on a GPU: this backend, Inductor and eager.

    python benchmarks/graph_fused.py [--only sums] [--rounds 9] [--tiling step=2048,part=1024] [--json FILE]

The time is that of a CUDA graph of 20 calls, divided by 20: no host time is in it, and inputs of less than 60 MB stay
in the L2. The three run in random turn, medians count; ratios above 1 mean that tessera is better. The last column is
the share of the memory's bandwidth for what must be read and written at least. `--tiling` tries other numbers than
those that `tessera/graph/calls/executable.py` has for GPUs.
"""

# pyright: basic, reportMissingImports=false
from __future__ import annotations

import argparse
import random
import statistics
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as F

HERE = Path(__file__).resolve().parent
for folder in (HERE.parent, HERE):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

import record  # noqa: E402
from record import Row  # noqa: E402

import tessera.torch  # noqa: E402, F401  registers the backend
from tessera.graph.calls import executable  # noqa: E402

BACKENDS = {"tessera": "tessera", "compiled": "inductor", "torch": None}
CALLS = 20
BANDWIDTH = 4.8e12  # bytes a second, of an H200


def norm_backward(x: Any, dy: Any) -> Any:
    """The gradients of a layer norm's weight and bias, and of its input."""
    mean, var = x.mean(-1, keepdim=True), x.var(-1, keepdim=True, correction=0)
    rstd = (var + 1e-5).rsqrt()
    y = (x - mean) * rstd
    inner = dy - dy.mean(-1, keepdim=True) - y * (dy * y).mean(-1, keepdim=True)
    return inner * rstd, (dy * y).sum(0), dy.sum(0)


FUNCTIONS: dict[str, tuple[Callable[..., Any], int, tuple[tuple[int, int], ...]]] = {
    "column sums": (
        lambda x, y: (x.sum(0), (x * y).sum(0)), 2,
        ((256, 256), (256, 768), (4096, 1024), (64, 4096), (100000, 32), (32768, 256), (1 << 20, 8)),
    ),
    "row sums": (lambda x: x.sum(1), 1, ((8, 1 << 20), (256, 4096), (32768, 256), (1 << 20, 8))),
    "sum": (lambda x: (x * x).sum(), 1, ((1 << 10, 1 << 10), (1 << 13, 1 << 13))),
    "softmax": (lambda x: x.softmax(-1), 1, ((4096, 512), (2048, 5000), (64, 50257))),
    "layer norm, gelu": (lambda x: F.gelu(F.layer_norm(x, x.shape[-1:])), 1, ((4096, 768), (8192, 4096))),
    "layer norm backward": (norm_backward, 2, ((256, 256), (4096, 768), (8192, 4096))),
    "cross entropy": (lambda x: F.cross_entropy(x, x[:, 0].long().clamp(0)), 1, ((512, 32000),)),
    "transposed sum": (lambda x, y: x + y.t(), 2, ((4096, 4096),)),
    "cumulative sum": (lambda x: x.cumsum(-1), 1, ((512, 2048), (64, 50000))),
}  # fmt: skip


def tile_by(fields: str) -> None:
    """Let kernels be tiled by these numbers ("step=2048,part=1024") from now on."""
    numbers = {name: int(n) for name, n in (f.split("=") for f in fields.split(",") if f)}
    given = executable.machine_of
    executable.machine_of = lambda target: replace(given(target), **numbers)


def recorded(call: Callable[[], Any]) -> Any:
    """A CUDA graph of some calls."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for _ in range(CALLS):
            call()
    return graph


def microseconds(graph: Any) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    graph.replay()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) * 1e3 / CALLS


def measured(function: Callable[..., Any], inputs: list[Any], rounds: int) -> dict[str, float]:
    graphs = {}
    for who, backend in BACKENDS.items():
        torch._dynamo.reset()
        f = torch.compile(function, backend=backend, dynamic=False) if backend else function
        graphs[who] = recorded(lambda f=f: f(*inputs))
    times: dict[str, list[float]] = {who: [] for who in graphs}
    for _ in range(rounds):
        for who in random.sample(list(graphs), len(graphs)):
            times[who].append(microseconds(graphs[who]))
    return {who: statistics.median(t) for who, t in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", default="")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--tiling", default="")
    record.add_arguments(parser)
    args = parser.parse_args()
    tile_by(args.tiling)
    rows: list[Row] = []
    for name, (function, count, shapes) in FUNCTIONS.items():
        for shape in shapes if args.only in name else ():
            inputs = [torch.randn(shape, device="cuda") for _ in range(count)]
            times = measured(function, inputs, args.rounds)
            out = function(*inputs)
            moved = sum(x.nbytes for x in (*inputs, *(out if isinstance(out, tuple) else (out,))))
            ratios = {k: t / times["tessera"] for k, t in times.items() if k != "tessera"}
            row = Row(name, "x".join(map(str, shape)), "float32", "us", times, ratios=ratios)
            rows.append(row)
            told = ", ".join(f"{k} {t:.1f}" for k, t in times.items())
            ratio = ", ".join(f"{v:.2f}x {k}" for k, v in ratios.items())
            share = moved / BANDWIDTH / times["tessera"] * 1e6
            print(
                f"{name:20} {row.shape:14} {told} us: {ratio}, {share:.2f} of bandwidth", flush=True
            )
    record.write(args, "graph_fused", rows, device=torch.cuda.get_device_name())


if __name__ == "__main__":
    main()
