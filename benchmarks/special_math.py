"""Element-wise functions of `tl.math` and `libdevice`, by tessera beside Triton and beside a copy.

    python benchmarks/special_math.py time FOLDER [--only PATTERN] [--seconds 100] [--json FILE]
    python benchmarks/special_math.py count FOLDER [--only PATTERN] [--triton PYTHON]    # needs no GPU

`time` compiles the same kernel by both compilers for tiles of 512 and 1024 elements, and times the binaries in
random turn over 2^27 elements of fp32 and 2^28 of bf16 (computed in fp32); a compiler's time is that of its fastest
tile. A copy reads and writes as many bytes. Errors are those of 2^22 elements beside Triton's function of fp64, in ulp
of the result's type; where every bit is defined, the part of elements that differ from Triton's. `count` tells machine
instructions for an element, and what share of a copy's time (of an H200) a scheduler needs for them.
"""

# pyright: basic, reportMissingImports=false
from __future__ import annotations

import argparse
import os
import re
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parent))

import record
from generated.pool import Pool
from record import Row
from special import sass
from special.functions import BLOCKS, ELEMENTS, FUNCTIONS, dtypes_of, types_of

from tessera.testing import print_table

HERE = Path(__file__).resolve().parent
SIDES = ("tessera", "triton")
BYTES = {"fp32": 4, "bf16": 2, "fp64": 8, "i32": 4, "i64": 8}
# Of an H200: schedulers, clock rate in Hz, bytes a second of a copy.
SCHEDULERS, CLOCK, BANDWIDTH = 132 * 4, 1.7e9, 4.2e12

Task = tuple[int, str, int]  # function, dtype, elements of a program


def copy_of(index: int) -> int:
    """The function that reads as many operands and does next to nothing."""
    return len(FUNCTIONS[index].kinds) - 1


def bytes_of(index: int, dtype: str) -> int:
    """Read and written for an element."""
    operands, result = types_of(FUNCTIONS[index], dtype)
    return sum(BYTES[t] for t in (*operands, result))


def chosen(pattern: str) -> list[tuple[int, str]]:
    return [
        (i, dtype) for i, f in enumerate(FUNCTIONS) for dtype in dtypes_of(f) if re.search(pattern, f"{f.name} {dtype}")
    ]  # fmt: skip


def build(
    folder: Path, tasks: dict[str, list[Task]], jobs: int, python: str
) -> dict[tuple[str, Task], dict[str, Any]]:
    """Compile all; the answers by side and task."""
    folder.mkdir(parents=True, exist_ok=True)
    caches = {"TRITON_CACHE_DIR": str(folder / "triton"), "TESSERA_CACHE_DIR": str(folder / "tessera")}  # fmt: skip
    interpreters = {"tessera": sys.executable, "triton": python}
    share = max(1, jobs // 3)
    pools = {
        side: Pool(
            [interpreters[side], "-W", "ignore", str(HERE / "special/builder.py"), side, str(folder)],
            share if side == "tessera" else max(1, jobs - share), 60, caches,
        )
        for side in SIDES
    }  # fmt: skip
    for side, found in tasks.items():
        for task in found:
            pools[side].submit(list(task))
    answers: dict[tuple[str, Task], dict[str, Any]] = {}
    for side, found in tasks.items():
        for _ in found:
            task, answer = pools[side].answers.get()
            answers[side, (task[0], task[1], task[2])] = answer
        pools[side].stop()
    return answers


def counted(args: argparse.Namespace) -> None:
    pairs = chosen(args.only)
    block = BLOCKS[1]
    tasks = [(i, dtype, block) for i, dtype in pairs]
    answers = build(args.folder, dict.fromkeys(SIDES, tasks), args.jobs, args.triton)
    elements = block // 128
    lines: list[list[str]] = []
    for i, dtype in pairs:
        line = [FUNCTIONS[i].name, dtype]
        budget = bytes_of(i, dtype) / BANDWIDTH * SCHEDULERS * CLOCK * 32
        for side in SIDES:
            answer = answers[side, (i, dtype, block)]
            if "error" in answer:
                line += [answer["error"][:30], ""]
                continue
            found = sass.instructions(args.nvdisasm, answer["path"])
            share = sass.cycles(found) / elements / budget
            line += [f"{sum(found.values()) / elements:.1f}", f"{share:.2f}"]
        lines.append(line)
    columns = ["function", "dtype", *(f"{s}{what}" for s in SIDES for what in ("", ", of a copy"))]
    print_table("instructions for an element", columns, lines)


def timed(args: argparse.Namespace) -> None:
    from special.timer import Timer

    end = time.monotonic() + args.seconds
    pairs = chosen(args.only)
    copies = sorted({(copy_of(i), d) for i, d in pairs if d in ("fp32", "bf16")})
    pairs = [*copies, *(p for p in pairs if p not in copies)]
    tasks = [(i, dtype, block) for i, dtype in pairs for block in BLOCKS]
    wide = [(i, "fp64", BLOCKS[0]) for i in dict.fromkeys(i for i, _ in pairs) if not FUNCTIONS[i].exact]  # fmt: skip
    answers = build(args.folder, {"tessera": tasks, "triton": [*tasks, *wide]}, args.jobs, args.triton)  # fmt: skip
    timer, rows = Timer(), list[Row]()
    for i, dtype in pairs:
        if time.monotonic() > end:
            print("the time is over")
            break
        binaries = {
            (side, block): answers[side, (i, dtype, block)] for side in SIDES for block in BLOCKS
        }
        failed = {f"{s}: {a['error']}" for (s, _), a in binaries.items() if "error" in a}
        if failed:
            print(f"{FUNCTIONS[i].name} {dtype}: {'; '.join(failed)}", flush=True)
            continue
        times = timer.times(FUNCTIONS[i], dtype, binaries)
        row = Row(FUNCTIONS[i].name, f"2^{ELEMENTS[dtype].bit_length() - 1}", dtype, times=times)
        row.ratios["triton"] = times["triton"] / times["tessera"]
        size = bytes_of(i, dtype) * ELEMENTS[dtype]
        row.unit, row.rates = "GB/s", {s: size / times[s] / 1e6 for s in SIDES}
        reference = answers.get(("triton", (i, "fp64", BLOCKS[0])), {"error": ""})
        exact = None if "error" in reference else reference
        row.deviations = timer.errors(FUNCTIONS[i], dtype, binaries, exact)
        rows.append(row)
        record.write(args, "special_math", with_copies(rows), timer.device)
    shown(with_copies(rows))


def with_copies(rows: list[Row]) -> list[Row]:
    """The rows with the ratio to a copy: of as many bytes, at the highest rate of a kernel that does next to nothing
    with as many operands."""
    counts = {f.name: len(f.kinds) for f in FUNCTIONS}
    best: dict[tuple[int, str], float] = {}
    for row in rows:
        if row.name.startswith("copy"):
            best[counts[row.name], row.dtype] = max(row.rates.values())
    for row in rows:
        rate = best.get((counts[row.name], row.dtype)) or max(best.values(), default=0.0)
        if rate:
            row.ratios["copy"] = row.rates["tessera"] / rate
    return rows


def is_slow(row: Row) -> bool:
    return row.ratios.get("copy", 1.0) < 0.95 or row.ratios["triton"] < 0.97


def shown(rows: list[Row]) -> None:
    """Functions that are slower than a copy or than Triton, and how many there are."""
    lines = [
        [r.name, r.dtype, *(f"{r.times[s]:.3f}" for s in SIDES)]
        + [f"{r.ratios.get(rival, 0):.2f}" for rival in ("triton", "copy")]
        + [f"{r.deviations[s]:.2f}" if s in r.deviations else "" for s in SIDES]
        for r in sorted(rows, key=lambda r: r.ratios.get("copy", 0)) if is_slow(r)
    ]  # fmt: skip
    columns = ["function", "dtype", "ms", "Triton", "vs Triton", "vs copy", "error", "Triton's"]
    print_table("slower than a copy or than Triton", columns, lines)
    for dtype in dict.fromkeys(r.dtype for r in rows):
        some = [r for r in rows if r.dtype == dtype]
        slow = sum(r.ratios.get("copy", 1.0) < 0.95 for r in some)
        behind = sum(r.ratios["triton"] < 0.97 for r in some)
        print(f"{dtype}: {len(some)} functions, {slow} below 0.95 of a copy, {behind} of Triton")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("count", "time"):
        command = commands.add_parser(name)
        command.add_argument("folder", type=Path, help="for the binaries")
        command.add_argument("--only", default="", help="pattern of functions and dtypes")
        command.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
        command.add_argument("--triton", default=sys.executable, help="a Python that has Triton")
        command.add_argument("--nvdisasm", default="nvdisasm")
        command.add_argument("--seconds", type=float, default=100, help="for all of it")
        record.add_arguments(command)
    args = parser.parse_args()
    {"count": counted, "time": timed}[args.command](args)


if __name__ == "__main__":
    main()
