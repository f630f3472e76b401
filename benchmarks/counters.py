"""What `explain` counts beside the counters of the GPU, which NVIDIA Nsight Compute (ncu) reads.

    python benchmarks/counters.py [--only PATTERN] [--json FILE]

Each kernel is launched once under ncu. From layouts and addresses explain knows passes over the banks of shared memory
and those that are conflicts, requests of warps for global memory and the 32-byte sectors they touch; from SASS it knows
the instructions that spill. ncu has the same by counters of the hardware. Kernels of one straight line spill as often
as they have instructions that do, times warps. The last columns are what bounds a kernel: how long the tensor cores
and the memory were busy, in percent of what they can. Needs torch, a GPU, and ncu on PATH or with CUDA.
"""

# pyright: basic, reportMissingImports=false
from __future__ import annotations

import argparse
import csv
import io
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import products
import sources

import common
import tessera
import tessera.language as tl
from tessera.analysis.reports import Report
from tessera.compiler.kernel import LazyDict
from tessera.config import knobs
from tessera.explain import explain_compiled
from tessera.testing import print_table
from tessera.tools.tensor_descriptor import TensorDescriptor

Call = Callable[[], Any]
SUM = ".sum"
BUSY = ".avg.pct_of_peak_sustained_elapsed"
# What explain counts, and the counters whose sum it is.
SHARED = "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_{}"
CONFLICTS = "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_{}"
COUNTERS = {
    "passes": [SHARED.format("ld") + SUM, SHARED.format("st") + SUM],
    "conflicts": [CONFLICTS.format("ld") + SUM, CONFLICTS.format("st") + SUM],
    "requests": [f"l1tex__t_requests_pipe_lsu_mem_global_op_{x}{SUM}" for x in ("ld", "st")],
    "sectors": [f"l1tex__t_sectors_pipe_lsu_mem_global_op_{x}{SUM}" for x in ("ld", "st")],
    "spills": [f"smsp__inst_executed_op_local_{x}{SUM}" for x in ("ld", "st")],
    "tensor cores, %": ["sm__inst_executed_pipe_tensor" + BUSY, "sm__pipe_tensor_cycles_active" + BUSY],
    "memory, %": ["dram__throughput" + BUSY],
}  # fmt: skip
EQUAL = ("passes", "conflicts", "requests", "sectors", "spills")


@tessera.jit
def copy_spread(x_ptr, out_ptr, step, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + at, tl.load(x_ptr + at * step))


@tessera.jit
def turn(x_ptr, out_ptr, n, SIZE: tl.constexpr):
    r = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    c = tl.program_id(1) * SIZE + tl.arange(0, SIZE)
    x = tl.load(x_ptr + r[:, None] * n + c[None, :])
    tl.store(out_ptr + c[:, None] * n + r[None, :], x.T)


@tessera.jit
def small_product(a_ptr, b_ptr, c_ptr, SIZE: tl.constexpr):
    i = tl.arange(0, SIZE)
    at = tl.program_id(0) * SIZE * SIZE + i[:, None] * SIZE + i[None, :]
    product = tl.dot(tl.load(a_ptr + at), tl.load(b_ptr + at))
    tl.store(c_ptr + at, product)


@tessera.jit
def keep_many(x_ptr, out_ptr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    at = tl.arange(0, ROWS)[:, None] * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    x = tl.load(x_ptr + tl.program_id(0) * ROWS * COLUMNS + at)
    y = tl.exp(x) - tl.sum(x, 1)[:, None]
    tl.store(out_ptr + tl.program_id(0) * ROWS * COLUMNS + at, x * y)


@tessera.jit
def reorder(x_ptr, out_ptr, SIZE: tl.constexpr):
    i = tl.arange(0, SIZE)
    at = i[:, None, None] * SIZE * SIZE + i[None, :, None] * SIZE + i[None, None, :]
    x = tl.load(x_ptr + tl.program_id(0) * SIZE * SIZE * SIZE + at)
    flat = tl.program_id(0) * SIZE * SIZE * SIZE + tl.arange(0, SIZE * SIZE * SIZE)
    tl.store(out_ptr + flat, tl.reshape(tl.permute(x, (2, 1, 0)), (SIZE * SIZE * SIZE,)))


@tessera.jit
def copy_block(x_desc, out_desc, ROWS: tl.constexpr):
    at = tl.program_id(0) * ROWS
    out_desc.store([at, 0], x_desc.load([at, 0]))


@tessera.jit
def add_row(x_ptr, row_desc, out_ptr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    at = tl.program_id(0) * ROWS * COLUMNS
    at += tl.arange(0, ROWS)[:, None] * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    tl.store(out_ptr + at, tl.load(x_ptr + at) + row_desc.load([0])[None, :])


@dataclass
class Case:
    name: str
    call: Call


class Cases:
    """Kernels whose counts are known exactly, then those of the examples that a GPU bounds."""

    def __init__(self, device: common.Device) -> None:
        import torch

        self.device, self.torch = device, torch

    def spread(self) -> list[Case]:
        x, out = self.device.normal(1 << 24), self.device.empty(1 << 20)
        return [
            Case(f"copy, step {s}", lambda s=s: copy_spread[(1 << 10,)](x, out, s, BLOCK=1024))
            for s in (1, 2, 8)
        ]

    def turned(self) -> list[Case]:
        found: list[Case] = []
        for dtype in (self.torch.float32, self.torch.float16, self.torch.int8):
            x = self.torch.ones(1024, 1024, device="cuda", dtype=dtype)
            for size in (32, 64):
                found.append(
                    Case(
                        f"transpose {size}x{size} {str(dtype)[6:]}",
                        lambda x=x, s=size: turn[(1024 // s, 1024 // s)](
                            x, self.torch.empty_like(x), 1024, SIZE=s
                        ),
                    )
                )
        x = self.torch.ones(256 * 4096, device="cuda", dtype=self.torch.float16)
        found.append(
            Case(
                "permute 16x16x16 float16",
                lambda x=x: reorder[(256,)](x, self.torch.empty_like(x), SIZE=16),
            )
        )
        return found

    def small_products(self) -> list[Case]:
        found: list[Case] = []
        for size, warps in ((32, 2), (64, 2), (64, 1)):
            a = self.torch.ones(256 * size * size, device="cuda", dtype=self.torch.float16)
            c = self.torch.empty(256 * size * size, device="cuda")
            found.append(
                Case(
                    f"product {size}x{size}x{size}, {warps} warps",
                    lambda a=a, c=c, s=size, w=warps: small_product[(256,)](
                        a, a, c, SIZE=s, num_warps=w
                    ),
                )
            )
        return found

    def blocks(self) -> list[Case]:
        found: list[Case] = []
        for columns, dtype in ((64, self.torch.float16), (32, self.torch.float32)):
            x = self.torch.ones(256 * 128, columns, device="cuda", dtype=dtype)
            blocks = [TensorDescriptor.from_tensor(a, [128, columns]) for a in (x, x.clone())]
            found.append(
                Case(
                    f"block 128x{columns} {str(dtype)[6:]} through a descriptor",
                    lambda b=blocks: copy_block[(256,)](*b, ROWS=128),
                )
            )
        x, row = self.device.normal(256 * 32 * 128), self.device.normal(128)
        described, out = TensorDescriptor.from_tensor(row, [128]), self.device.empty(256 * 32 * 128)
        call = lambda: add_row[(256,)](x, described, out, ROWS=32, COLUMNS=128)  # noqa: E731
        return [*found, Case("row of 128 through a descriptor", call)]

    def spilled(self) -> list[Case]:
        x = self.device.normal(64 * 32 * 128)
        out = self.device.empty(64 * 32 * 128)
        return [
            Case(
                f"{limit} registers a thread",
                lambda m=limit: keep_many[(64,)](
                    x, out, ROWS=32, COLUMNS=128, num_warps=1, maxnreg=m
                ),
            )
            for limit in (168, 96, 64)
        ]

    def flagships(self) -> list[Case]:
        torch = self.torch
        a, b, c = (torch.randn(8192, 8192, device="cuda").half() for _ in range(3))
        found = [
            Case(
                "matmul 8192, pointers",
                products.pointer_call(a, b, c, (128, 256, 64, 8, 3)),
            ),
            Case(
                "matmul 8192, descriptors",
                products.descriptor_call(a, b.T, c, (128, 256, 64, 8, 4), 132),
            ),
        ]
        for dim in (64, 128):
            for causal in (False, True):
                heads = 4096 // dim
                q, k, v, dout = (
                    torch.randn(heads, 4096, dim, device="cuda").half() for _ in range(4)
                )
                for number in ("06", "12"):
                    call = sources.example(number).Attention(self.device, heads, 4096, dim, causal)
                    what = f"attention of example {number}, dimension {dim}{', causal' * causal}"
                    found.append(Case(what, lambda c=call, x=(q, k, v): c.forward(*x)))
                    call.forward(q, k, v)
                    found.append(
                        Case(f"{what}, backward", lambda c=call, x=(q, k, v, dout): c.backward(*x))
                    )
        return found

    def all(self) -> list[Case]:
        exact = [*self.spread(), *self.turned(), *self.small_products(), *self.blocks()]
        return [*exact, *self.spilled(), *self.flagships()]


def told(report: Report, warps: int) -> dict[str, float | None]:
    """What explain says of a launch, under the names of COUNTERS. Those of shared memory know nothing of cp.async."""
    accesses = [a for x in report.lines for a in x.accesses if "TMA" not in a.width]
    copies = any(a.what.startswith("copy") for a in accesses)
    programs = 1
    for n in report.grid:
        programs *= n
    return {
        "passes": None if copies else sum(x.bank_passes for x in report.lines),
        "conflicts": None if copies else sum(x.bank_conflicts for x in report.lines),
        "requests": sum(a.requests for a in accesses),
        "sectors": sum(a.sectors for a in accesses),
        "spills": float(sum(x.spills for x in report.lines) * warps * programs),
    }


def run(only: str, file: Path) -> None:
    """Launch each kernel once where ncu sees it; what explain says of them goes to `file`, in the order of launches."""
    import torch

    rows: list[dict[str, Any]] = []
    for case in Cases(common.Device("cuda")).all():
        if not re.search(only, case.name):
            continue
        seen: list[LazyDict] = []
        with knobs.runtime.scope():
            knobs.runtime.launch_enter_hook = seen.append
            case.call()  # compiles
        torch.cuda.synchronize()
        for metadata in seen:
            assert metadata.launch is not None
            kernel, grid, values = metadata.launch
            report = explain_compiled(kernel, list(kernel.arguments(values)), grid)
            counts = told(report, kernel.metadata.num_warps)
            rows.append({"case": case.name, "kernel": kernel.metadata.name, "explain": counts})
        torch.cuda.profiler.start()
        case.call()
        torch.cuda.synchronize()
        torch.cuda.profiler.stop()
    file.write_text(json.dumps({"device": torch.cuda.get_device_name(), "rows": rows}))


def profiler() -> str:
    found = shutil.which("ncu") or "/usr/local/cuda/bin/ncu"
    if not Path(found).exists():
        sys.exit("ncu was found neither on PATH nor in /usr/local/cuda/bin")
    return found


def known(ncu: str) -> set[str]:
    """The names of the counters that this GPU has, without .sum and the like."""
    text = subprocess.run(
        [ncu, "--query-metrics"], capture_output=True, text=True, check=False
    ).stdout
    return {line.split()[0] for line in text.splitlines() if "__" in line.partition(" ")[0]}


def counted(ncu: str, only: str, file: Path) -> list[dict[str, str]]:
    """ncu's row of each kernel that ran between start and stop of the profiler."""
    have = known(ncu)
    wanted = [c for cs in COUNTERS.values() for c in cs if c.partition(".")[0] in have]
    log = file.with_suffix(".csv")
    options = ["--profile-from-start", "off", "--clock-control", "none", "--csv", "--page", "raw"]
    options += ["--log-file", str(log), "--metrics", ",".join(wanted)]
    command = [ncu, *options, sys.executable, __file__, "--run", str(file), "--only", only]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{done.stdout[-2000:]}\n{done.stderr[-2000:]}\n{log.read_text()[-2000:]}")
    return parsed(log.read_text())


def parsed(text: str) -> list[dict[str, str]]:
    """The rows of what ncu writes: its own lines, names of columns, units, then a row a launch."""
    lines = [x for x in text.splitlines(keepends=True) if not x.startswith("==")]
    return [row for row in csv.DictReader(io.StringIO("".join(lines))) if row["ID"]]


def number(row: dict[str, str], counters: list[str]) -> float | None:
    """The sum of counts; of percentages, of which a GPU may not have each, the largest. None where there is none."""
    values = [float(row[c].replace(",", "")) for c in counters if row.get(c)]
    if not values:
        return None
    return max(values) if "pct" in counters[0] else sum(values)


def beside(rows: list[dict[str, Any]], counts: list[dict[str, str]]) -> None:
    ours = {row["kernel"] for row in rows}
    counts = [c for c in counts if any(name in c["Kernel Name"] for name in ours)]
    if len(rows) != len(counts):
        sys.exit(f"{len(rows)} launches were explained, ncu has {len(counts)}")
    for row, count in zip(rows, counts, strict=True):
        row["ncu"] = {what: number(count, names) for what, names in COUNTERS.items()}


def cells(row: dict[str, Any]) -> list[str]:
    def pair(what: str) -> str:
        said, seen = (
            "?" if x[what] is None else f"{x[what]:.0f}" for x in (row["explain"], row["ncu"])
        )
        return said if said == seen else f"{said} / {seen}"

    busy = [row["ncu"][x] for x in COUNTERS if x not in EQUAL]
    shown = ["" if b is None else f"{b:.1f}" for b in busy]
    return [row["case"], row["kernel"], *map(pair, EQUAL), *shown]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="", help="kernels whose names match this")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--run", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.run:
        run(args.only, args.run)
        return
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "launches.json"
        counts = counted(profiler(), args.only, file)
        found = json.loads(file.read_text())
    beside(found["rows"], counts)
    if args.json:
        args.json.write_text(json.dumps(found, indent=1))
    print_table(
        f"{found['device']}: explain, or explain / ncu where they differ",
        ["kernel", "function", *COUNTERS],
        [cells(row) for row in found["rows"]],
    )


if __name__ == "__main__":
    main()
