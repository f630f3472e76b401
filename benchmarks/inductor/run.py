"""Stock TorchInductor on a GPU, on tessera and on the Triton that is installed: training steps of twenty models.

python benchmarks/inductor/run.py FOLDER [--models NAME...] [--dtypes float32 bfloat16] [--jobs 8] [--json FILE]

For each model and dtype: how far gradients are from each other, relative to their norm; how far eager's in fp32 move
when weights change in their last place; how far each side is from eager's in fp32 (equal: no further apart than the
tolerance or than that move, or ours not further from fp32 than 1.2 times Triton's); the ratio of cold compile times
(first forward and backward, empty caches, both at the same time on as many cores); the geometric mean over launches of
generated kernels of the ratio of their times, and the ratio of the sums. Ratios below 1 mean that tessera is faster.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(HERE.parent))

import record  # noqa: E402
from record import Row  # noqa: E402

MODELS = (  # what takes longest to compile first
    "mobilenet", "densenet", "squeezenet", "convnext", "mamba", "resnet", "t5", "whisper", "vit", "bert", "qwen3",
    "albert", "gemma2", "gpt2", "opt", "llama", "bloom", "mlp", "olmo2", "gpt-neox",
)  # fmt: skip
SIDES = ("tessera", "triton")
TOLERANCE = {"float32": 1e-4, "bfloat16": 3e-2}


def start(folder: Path, side: str, part: int, until: float, cores: set[int]) -> Any:
    """A process that takes cases from its side's queue, on its own cores and with empty caches."""
    caches = folder / f"caches-{side}-{part}"
    shutil.rmtree(caches, ignore_errors=True)
    settings = {
        **os.environ, "TORCHINDUCTOR_CACHE_DIR": str(caches / "inductor"), "TRITON_CACHE_DIR": str(caches / "triton"),
        "TESSERA_CACHE_DIR": str(caches / "tessera"), "TORCHINDUCTOR_COMPILE_THREADS": str(max(2, len(cores))),
        "TRANSFORMERS_VERBOSITY": "error", "TESSERA_STRICT": "1",
    }  # fmt: skip
    settings.pop("PYTHONPATH", None)
    run = [
        str(HERE / "measure.py"), str(folder / side), "--queue", str(folder / f"{side}.queue"),
        "--lock", str(folder / "lock"), "--until", str(until),
    ]  # fmt: skip
    if side == "tessera":
        settings["PYTHONPATH"] = str(ROOT)
        run = ["-m", "tessera", "run", *run]
    with open(folder / f"{side}-{part}.log", "w") as log:
        return subprocess.Popen(
            [sys.executable, "-W", "ignore", *run], env=settings, stdout=log, stderr=subprocess.STDOUT,
            preexec_fn=lambda: os.sched_setaffinity(0, cores),
        )  # fmt: skip


def measure(folder: Path, names: list[str], dtypes: list[str], jobs: int, limit: float) -> None:
    """Both sides of everything, half of the processes each.

    No model is begun after six tenths of `limit` seconds, so that those that are compiled get timed; what has not ended
    after all of it is stopped.
    """
    cases = [f"{m}:{d}" for m in names for d in dtypes]
    parts = min(max(1, jobs // 2), len(cases))
    cores = sorted(os.sched_getaffinity(0))
    share = max(1, len(cores) // (2 * parts))
    for side in SIDES:
        shutil.rmtree(folder / side, ignore_errors=True)
        (folder / side).mkdir(parents=True)
        (folder / f"{side}.queue").write_text(" ".join(cases))
    processes: list[tuple[str, Any]] = []
    until, end = time.time() + 0.6 * limit, time.monotonic() + limit
    for part in range(parts):
        for i, side in enumerate(SIDES):
            at = (2 * part + i) * share % len(cores)
            mine = set(cores[at : at + share])
            processes.append((f"{side}-{part}", start(folder, side, part, until, mine)))
    for name, process in processes:
        try:
            process.wait(max(0.1, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
        process.wait()
        out = (folder / f"{name}.log").read_text()
        if out.strip() or process.returncode:
            print(f"{name}, exit status {process.returncode}:\n{out[-3000:]}", flush=True)


def geomean(values: Iterable[float]) -> float:
    logs = [math.log(v) for v in values]
    return math.exp(sum(logs) / len(logs)) if logs else math.nan


def paired(
    ours: list[tuple[str, float]], theirs: list[tuple[str, float]]
) -> list[tuple[str, float, float]]:
    """Launches that both sides have: the first of a name with the first of that name, and so on."""
    queues: dict[str, list[float]] = {}
    for name, time_us in reversed(theirs):
        queues.setdefault(name, []).append(time_us)
    return [(name, us, queues[name].pop()) for name, us in ours if queues.get(name)]


@dataclass
class Totals:
    """Of all models of a dtype: ratios of launches' times and of cold compile times, sums of times, and verdicts."""

    launches: list[float] = field(default_factory=list)
    cold: list[float] = field(default_factory=list)
    sums: list[float] = field(default_factory=lambda: [0.0, 0.0])
    timed: int = 0
    unequal: int = 0

    def line(self) -> str:
        return (
            f"{len(self.cold)} models, {self.unequal} not equal, cold compile {geomean(self.cold):.3f}; "
            f"{self.timed} timed, {len(self.launches)} launches: geomean {geomean(self.launches):.3f}, "
            f"ratio of sums {self.sums[0] / max(self.sums[1], 1e-9):.3f} of {self.sums[1]:.0f} µs"
        )


def recorded(
    name: str,
    dtype: str,
    a: dict[str, Any],
    b: dict[str, Any],
    pairs: list[tuple[str, float, float]],
) -> list[Row]:
    """A model's rows. That of generated kernels has the sums of the times of `pairs`, and as its ratio the geometric
    mean over launches."""

    def row(what: str, unit: str, key: str) -> Row:
        times = {"tessera": a[key], "triton": b[key]}
        return Row(what, name, dtype, unit, times, ratios={"triton": b[key] / a[key]})

    rows = [row("cold compile", "s", "cold_s")]
    if pairs:
        sums = {"tessera": sum(p for _, p, _ in pairs), "triton": sum(q for _, _, q in pairs)}
        mean = {"triton": geomean(q / p for _, p, q in pairs)}
        kernels = Row("generated kernels", name, dtype, "µs", sums, ratios=mean)
        rows += [kernels, row("step", "ms", "step_ms")]
    return rows


def compare(folder: Path, slowest: int) -> list[Row]:
    """Print the table, a summary for each dtype, and the launches that lose most time."""
    import torch
    from distance import distance

    head = (
        "apart",
        "rounding",
        "error",
        "error",
        "cold s",
        "cold",
        "step",
        "kernels",
        "geomean",
        "sum",
        "µs",
    )
    print(("{:11}{:10}" + "{:>9}" * len(head)).format("model", "dtype", *head))
    totals: dict[str, Totals] = {}
    worst: list[tuple[float, float, float, str]] = []
    rows: list[Row] = []
    for path in sorted((folder / "tessera").glob("*.json")):
        name, dtype = path.stem.split(" ")
        if not (folder / "triton" / path.name).exists():
            print(f"{name:11}{dtype:10}  nothing from Triton")
            continue
        a, b = (json.loads((folder / side / path.name).read_text()) for side in SIDES)
        apart = distance(*(torch.load(folder / side / f"{path.stem}.pt") for side in SIDES))
        total = totals.setdefault(dtype, Totals())
        total.cold.append(a["cold_s"] / b["cold_s"])
        row = [f"{x:9.1e}" for x in (apart, a["rounding"], a["error"], b["error"])]
        row += [f"{a['cold_s']:9.2f}", f"{total.cold[-1]:9.3f}"]
        pairs = paired(a.get("kernels", []), b.get("kernels", []))
        rows += recorded(name, dtype, a, b, pairs)
        if pairs:
            ratios = [p / q for _, p, q in pairs]
            sums = [sum(p for _, p, _ in pairs), sum(q for _, _, q in pairs)]
            total.launches += ratios
            total.sums = [x + y for x, y in zip(total.sums, sums, strict=True)]
            total.timed += 1
            worst += [(p - q, p, q, f"{path.stem}: {n}") for n, p, q in pairs]
            row += [f"{a['step_ms'] / b['step_ms']:9.3f}", f"{len(ratios):9}"]
            row += [f"{geomean(ratios):9.3f}", f"{sums[0] / sums[1]:9.3f}", f"{sums[0]:9.0f}"]
        equal = (
            apart <= max(TOLERANCE.get(dtype, 0), a["rounding"]) or a["error"] <= 1.2 * b["error"]
        )
        total.unequal += not equal
        unpaired = len(a.get("kernels", [])) + len(b.get("kernels", [])) - 2 * len(pairs)
        remarks = "" if equal else "  NOT EQUAL"
        remarks += f"  {unpaired} launches of one side only" if unpaired else ""
        print(f"{name:11}{dtype:10}" + "".join(row) + remarks, flush=True)
    for dtype, total in totals.items():
        print(f"{dtype}: {total.line()}")
    for _, ours, theirs, name in sorted(worst, reverse=True)[:slowest]:
        print(f"{ours:9.1f}{theirs:9.1f} µs {ours / theirs:6.2f}  {name[:180]}")
    return rows


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--models", nargs="*", default=MODELS)
    parser.add_argument("--dtypes", nargs="*", default=list(TOLERANCE))
    parser.add_argument("--jobs", type=int, default=8)
    parser.add_argument("--limit", type=float, default=1200, help="seconds for all of it")
    parser.add_argument("--slowest", type=int, default=0, help="list launches that lose most time")
    parser.add_argument("--compare-only", action="store_true")
    record.add_arguments(parser)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    if not options.compare_only:
        measure(
            options.folder.resolve(),
            list(options.models),
            options.dtypes,
            options.jobs,
            options.limit,
        )
    rows = compare(options.folder, options.slowest)
    device = importlib.import_module("torch").cuda.get_device_name() if rows else ""
    record.write(options, "inductor/run", rows, device, jobs=options.jobs)


if __name__ == "__main__":
    main()
