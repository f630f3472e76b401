"""Kernels for which this compiler was never tuned, beside Triton (same source) and libraries, in one process.

    python benchmarks/untuned.py [--only "attention;softmax"] [--rep MS] [--jobs N] [--json FILE]
    TESSERA_DEVICE=simt python benchmarks/untuned.py --check [--only NAMES]

The kernels of `untuned_cases/` are written as users write them. Each has a handful of configurations; both compilers
try all of them, and the fastest of each counts. Results are compared with torch's in fp32. Times are medians of single
calls with a cold L2, in random turn, as in `gpu.py`. Kernels are compiled beforehand by `--jobs` processes.

`--check` needs no GPU: every configuration is compiled for an H200 and launched on small arrays in the simulator, its
registers, spills and shared memory are printed, and the exit status is 1 if a result is wrong. With
TESSERA_CHECK_SYNCHRONIZATION=1 the compiler also proves each kernel's synchronisation.
"""

from __future__ import annotations

import argparse
import datetime
import importlib
import importlib.util
import multiprocessing
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import record
import sources
import torch
from cases import in_turn, last_line
from record import Row
from untuned_cases.kit import DEVICE, Call, Config, Problem

from tessera.testing import do_bench, print_table

FOLDER = Path(__file__).with_name("untuned_cases")
FAMILIES = ("attention", "gradients", "products", "quantised", "chunks", "rows")


def kernels(family: str, compiler: str = "tessera") -> Any:
    return sources.load(FOLDER / f"{family}.py", compiler)


def chosen(only: str, small: bool) -> Iterator[tuple[str, str, Any]]:
    """Family, name and builder of the cases with one of these words in their names."""
    words = [word for word in only.split(";") if word]
    for family in FAMILIES:
        if (FOLDER / f"{family}.py").exists():
            for name, build in kernels(family).problems(small):
                if not words or any(word in name for word in words):
                    yield family, name, build


def deviation(problem: Problem, call: Call, wanted: Any) -> float:
    """The largest error of what a call leaves, as a part of the largest element."""
    for array in problem.checked:
        array.fill_(float("nan") if array.dtype.is_floating_point else -77)
    call()
    errors = [
        (found.float() - w.float()).abs().max() / w.float().abs().max()
        for found, w in zip(problem.checked, wanted, strict=True)
    ]
    return max(float("inf") if e != e else float(e) for e in errors)


def built(problem: Problem, family: str, compiler: str, wanted: Any) -> tuple[Call, float, Config]:
    """The fastest call of those configurations that run, with its deviation; raises the last error if none does."""
    module, timed, last = kernels(family, compiler), list[tuple[float, int]](), Exception("none")
    calls = [problem.launch(module, config) for config in problem.configs]
    for number, call in enumerate(calls):
        try:
            call()
            timed.append((do_bench(call, warmup=3, rep=10, return_mode="median"), number))
        except Exception as error:
            last = error
            if "OutOfResources" not in type(error).__name__:
                print(f"{problem.name}, {problem.configs[number]} by {compiler}: "
                      f"{type(error).__name__}: {last_line(error)}")  # fmt: skip
    if not timed:
        raise last
    best = min(timed)[1]
    return calls[best], deviation(problem, calls[best], wanted), problem.configs[best]


def measure(problem: Problem, family: str, compilers: list[str], rep: float) -> tuple[Row, str]:
    calls, errors, configs, wanted = dict[str, Call](), {}, [], problem.wanted()
    for compiler in compilers:
        try:
            calls[compiler], errors[compiler], config = built(problem, family, compiler, wanted)
            configs.append("/".join(map(str, config.values())))
        except Exception as error:
            print(f"{problem.name} by {compiler}: {type(error).__name__}: {last_line(error)}")
    for name, call in problem.library.items():
        try:
            call()
            calls[name] = call
        except Exception as error:
            print(f"{problem.name} by {name}: {type(error).__name__}: {last_line(error)}")
    times = in_turn(calls, rep)
    per = 1e-6 if problem.unit == "GB/s" else 1e-9
    own = times.get("tessera", float("nan"))
    return Row(
        problem.name, problem.shape, problem.dtype, "ms", times, problem.unit,
        {who: problem.work / ms * per for who, ms in times.items()},
        {who: ms / own for who, ms in times.items() if who != "tessera"}, errors,
    ), " ".join(configs)  # fmt: skip


def shown(row: Row, configs: str, tolerance: float) -> list[str]:
    cells = [row.name, f"{row.shape} {row.dtype}", f"{row.times.get('tessera', float('nan')):.4f}"]
    library = next((who for who in row.times if who not in ("tessera", "triton")), "")
    for who in ("tessera", "triton"):
        wrong = row.deviations.get(who, 0.0) > tolerance
        cells.append(
            f"{row.rates.get(who, float('nan')):,.0f}"
            + f" WRONG {row.deviations.get(who, 0.0):.1e}" * wrong
        )
    ratios = [f"{row.ratios.get(who, float('nan')):.3f}" for who in ("triton", library)]
    return [*cells, ratios[0], f"{library} {ratios[1]}" if library else "", configs]


def precompile(task: tuple[str, int, int, list[str]]) -> None:
    """Fill the disk caches with every configuration of the cases number, number + step, … (in a process of its own)."""
    only, number, step, compilers = task
    torch.manual_seed(0)
    for family, _, build in list(chosen(only, False))[number::step]:
        problem = build()
        for compiler in compilers:
            for config in problem.configs:
                try:
                    problem.launch(kernels(family, compiler), config)()
                except Exception:  # the run itself tells
                    continue
        del problem
        torch.cuda.empty_cache()


def check(only: str) -> int:
    """Compile and simulate each configuration; return how many are wrong."""
    from untuned_cases.offline import facts  # needs ptxas

    bad = 0
    for family, name, build in chosen(only, True):
        problem = build()
        wanted = problem.wanted()
        for config in problem.configs:
            module = kernels(family)
            label = f"{name}, {'/'.join(map(str, config.values()))}"
            try:
                call = problem.launch(module, config)
                error = deviation(problem, call, wanted)
                told = facts(call())
            except Exception as failure:
                if "OutOfResources" in type(failure).__name__:
                    print(label, "| out of resources", flush=True)
                    continue
                error, told = float("inf"), f"{type(failure).__name__}: {last_line(failure)}"
            bad += error > problem.tolerance
            print(
                label,
                f"{error:.1e}{' WRONG' * (error > problem.tolerance)}",
                told,
                sep=" | ",
                flush=True,
            )
    print(f"{bad} wrong")
    return bad


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="", help="parts of case names, separated by ;")
    parser.add_argument("--rep", type=float, default=40.0, help="ms for timing each kernel")
    parser.add_argument("--jobs", type=int, default=0, help="processes that compile beforehand")
    parser.add_argument("--check", action="store_true", help="simulate small arrays instead")
    record.add_arguments(parser)
    args = parser.parse_args()
    torch.manual_seed(0)
    if args.check:
        return int(check(args.only) > 0)
    compilers = ["tessera"] + ["triton"] * (importlib.util.find_spec("triton") is not None)
    if "triton" in compilers:  # it keeps the maps of descriptors that kernels make in such memory
        scratch = importlib.import_module("triton").set_allocator
        scratch(lambda size, align, stream: torch.empty(size, dtype=torch.int8, device=DEVICE))
    if args.jobs:
        tasks = [(args.only, n, args.jobs, compilers) for n in range(args.jobs)]
        with multiprocessing.get_context("spawn").Pool(args.jobs) as pool:
            pool.map(precompile, tasks, chunksize=1)
    rows: list[Row] = []
    table: list[list[str]] = []
    for family, _, build in chosen(args.only, False):
        problem = build()
        row, configs = measure(problem, family, compilers, args.rep)
        rows.append(row)
        table.append(shown(row, configs, problem.tolerance))
        print(*table[-1], sep=" | ", flush=True)
        record.write(args, "untuned", rows, torch.cuda.get_device_name())
        del problem
        torch.cuda.empty_cache()
    title = f"{datetime.date.today()} {torch.cuda.get_device_name()}, torch {torch.__version__}"
    columns = ["kernel", "shape", "ms", *compilers, "vs triton", "vs library", "configurations"]
    print_table(title, columns, table)
    return 0


if __name__ == "__main__":
    assert DEVICE == "cuda" or "--check" in sys.argv, "no GPU: --check simulates one"
    sys.exit(main())
