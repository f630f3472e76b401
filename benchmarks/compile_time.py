"""Cold compile times for sm_90a, front end to cubin, ours and Triton's where it can be imported; needs no GPU.

    python benchmarks/compile_time.py [--rounds 3] [--only matmul] [--stages] [--json FILE]

Nothing is read from a disk cache; the two compilers take turns and the median of the rounds counts. The first
compilation of the process, which also loads LLVM, is timed apart. Also, in fresh processes: `import`, and a warm start,
which is import and a kernel from the disk cache. --stages shows where our time goes.
"""

# pyright: basic
from __future__ import annotations

import argparse
import importlib
import importlib.util
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import record
import sources
from record import Row

import tessera
from tessera.backends.compiler import GPUTarget
from tessera.compiler import ASTSource
from tessera.compiler import compile as compile_kernel
from tessera.config import knobs
from tessera.testing import print_table

WIDE = {"BLOCK_M": 128, "BLOCK_N": 256, "BLOCK_K": 64, "GROUP_M": 8}
START = """
import {api}
import {api}.language as tl
from {api}.backends.compiler import GPUTarget
from {api}.compiler import ASTSource

@{api}.jit
def add(x, y, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i, i < n) + tl.load(y + i, i < n), i < n)

kinds = dict(x="*fp32", y="*fp32", out="*fp32", n="i32", BLOCK="constexpr")
{api}.compile(ASTSource(add, kinds, dict(BLOCK=1024)), target=GPUTarget("cuda", 90, 32))
"""
Case = tuple[Any, dict[str, str], dict[str, Any], dict[str, Any]]


def cases(compiler: str) -> dict[str, Case]:
    """Name → (kernel, signature of the run-time arguments, constants, options)."""
    found: dict[str, Case] = {}
    for name, number, index in (
        ("vector add", "01", 0), ("softmax", "02", 0), ("layer norm", "05", 0), ("matmul 128x256x64", "03", 0),
        ("attention", "06", 1),
    ):  # fmt: skip
        s = sources.specimens(number, compiler)[index]
        wide = number == "03"
        constants = {**s.constants, **(WIDE if wide else {})}
        options = {"num_warps": 8, "num_stages": 3} if wide else s.options
        found[name] = (s.kernel, s.signature, constants, options)
    signature = {
        "a": "tensordesc<fp16[128, 64]>", "b": "tensordesc<fp16[64, 256]>", "c": "tensordesc<fp16[128, 256]>",
        **dict.fromkeys(("M", "N", "K", "programs"), "i32"),
    }  # fmt: skip
    tiles = {"BM": 128, "BN": 256, "BK": 64, "GROUP": 8}
    options = {"num_warps": 8, "num_stages": 3}
    found["persistent matmul"] = (
        sources.kernels(compiler).persistent_matmul,
        signature,
        tiles,
        options,
    )
    return found


def attributes(kernel: Any, signature: dict[str, str]) -> dict[tuple[int], Any]:
    """As of launches with aligned arrays and sizes divisible by 16."""
    aligned = [n for n, k in signature.items() if k.startswith("*") or k == "i32"]
    return {(kernel.arg_names.index(n),): [["tt.divisibility", 16]] for n in aligned}


def ours(case: Case) -> Any:
    kernel, signature, constants, options = case
    source = ASTSource(kernel, signature, constants, attributes(kernel, signature))
    return compile_kernel(source, GPUTarget("cuda", 90, 32), options)


def tritons(case: Case) -> Any:
    triton = importlib.import_module("triton")
    target = importlib.import_module("triton.backends.compiler").GPUTarget("cuda", 90, 32)
    make = importlib.import_module("triton.compiler").ASTSource
    kernel, signature, constants, options = case
    full = {n: "constexpr" if n in constants else signature[n] for n in kernel.arg_names}
    source = make(kernel, full, constants, attributes(kernel, signature))
    return triton.compile(source, target=target, options=options)


def seconds(work: Any, case: Case) -> float:
    start = time.perf_counter()
    work(case)
    return time.perf_counter() - start


def warm_start_seconds(package: str, rounds: int) -> float:
    """Import and a kernel from the disk cache in a fresh process, less the start of Python."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "start.py"
        path.write_text(START.format(api=package))
        caches = {f"{name}_CACHE_DIR": folder for name in ("TESSERA", "TRITON")}
        return process_seconds([str(path)], rounds, {**caches, "TRITON_ALWAYS_COMPILE": "0"})


def import_seconds(package: str, rounds: int) -> float:
    """`import package` in a fresh process, less the start of Python."""
    return process_seconds(["-c", f"import {package}"], rounds, {})


def process_seconds(arguments: list[str], rounds: int, environment: dict[str, str]) -> float:
    """What Python takes for `arguments`, less its start; the first run does not count."""

    def run(arguments: list[str]) -> float:
        start = time.perf_counter()
        # With byte code on disk, as installers leave it.
        variables = {
            **os.environ,
            **environment,
            "PYTHONPATH": os.pathsep.join(sys.path),
            "PYTHONDONTWRITEBYTECODE": "",
        }
        subprocess.run([sys.executable, *arguments], check=True, env=variables)
        return time.perf_counter() - start

    run(arguments)
    return statistics.median(run(arguments) - run(["-c", "pass"]) for _ in range(rounds))


def row(name: str, us: list[float], them: list[float]) -> Row:
    times = {"tessera": statistics.median(us) * 1e3}
    if not them:
        return Row(name, times=times)
    times["triton"] = statistics.median(them) * 1e3
    return Row(name, times=times, ratios={"triton": times["triton"] / times["tessera"]})


def shown(row: Row) -> list[Any]:
    """Name, both times and ours divided by Triton's."""
    theirs = [row.times["triton"], 1 / row.ratios["triton"]] if row.ratios else []
    return [row.name, *(f"{x:.3g}" for x in (row.times["tessera"], *theirs)), "", ""][:4]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="", help="part of a kernel's name")
    parser.add_argument("--stages", action="store_true")
    record.add_arguments(parser)
    arguments = parser.parse_args()
    with_triton = importlib.util.find_spec("triton") is not None
    knobs.compilation.time = arguments.stages
    with tempfile.TemporaryDirectory() as folder:
        os.environ.update(TRITON_CACHE_DIR=folder, TRITON_ALWAYS_COMPILE="1")
        rows = measure(arguments.only, arguments.rounds, with_triton)
    kernels = [r for r in rows if r.name not in ("first compilation", "import", "warm start")]
    ratios = [1 / r.ratios["triton"] for r in kernels if r.ratios]
    print_table(
        f"cold compile, sm_90a, ms (tessera {tessera.__version__})",
        ["", "ours", "Triton", "ratio"],
        [shown(row) for row in rows],
    )
    if ratios:
        print(
            f"geometric mean of the ratios: {math.exp(statistics.fmean(map(math.log, ratios))):.2f}"
        )
    record.write(arguments, "compile_time", rows)


def measure(only: str, rounds: int, with_triton: bool) -> list[Row]:
    mine, theirs = cases("tessera"), cases("triton") if with_triton else {}
    first = "vector add"
    cold = [[seconds(ours, mine[first])], [seconds(tritons, theirs[first])] if theirs else []]
    rows = [row("first compilation", *cold)]
    for name in (n for n in mine if only in n):
        times: list[list[float]] = [[], []]
        for _ in range(rounds):
            times[0].append(seconds(ours, mine[name]))
            if theirs:
                times[1].append(seconds(tritons, theirs[name]))
        rows.append(row(name, *times))
    for name, measured in (("import", import_seconds), ("warm start", warm_start_seconds)):
        us, them = [measured("tessera", rounds)], [measured("triton", rounds)] if theirs else []
        rows.append(row(name, us, them))
    return rows


if __name__ == "__main__":
    main()
