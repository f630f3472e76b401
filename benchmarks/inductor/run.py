"""Stock TorchInductor on a GPU, on tessera and on the Triton that is installed: training steps of twenty models.

python benchmarks/inductor/run.py FOLDER [--models NAME...] [--dtypes float32 bfloat16] [--jobs 8]

For each model and dtype: how far gradients are from each other, relative to their norm, and each one's from eager's in
fp32 (equal: no further apart than the tolerance, or ours not further from fp32 than 1.2 times Triton's); the ratio of
cold compile times (first forward and backward, empty caches, both at the same time on as many cores); the geometric
mean over launches of generated kernels of the ratio of their times, and the ratio of the sums. Ratios below 1 mean
that tessera is faster.
"""

# pyright: basic, reportMissingImports=warning
from __future__ import annotations

import argparse
import math
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
MODELS = (  # what takes longest to compile first
    "mobilenet", "densenet", "squeezenet", "convnext", "mamba", "resnet", "t5", "whisper", "vit", "bert", "qwen3",
    "albert", "gemma2", "gpt2", "opt", "llama", "bloom", "mlp", "olmo2", "gpt-neox",
)  # fmt: skip
TOLERANCE = {"float32": 1e-4, "bfloat16": 3e-2}


def start(folder: Path, side: str, part: int, cases: list[str], cores: set[int]) -> Any:
    """A process that measures `cases`, on its own cores and with empty caches."""
    caches = folder / f"caches-{side}-{part}"
    shutil.rmtree(caches, ignore_errors=True)
    settings = {
        **os.environ, "TORCHINDUCTOR_CACHE_DIR": str(caches / "inductor"), "TRITON_CACHE_DIR": str(caches / "triton"),
        "TESSERA_CACHE_DIR": str(caches / "tessera"), "TORCHINDUCTOR_COMPILE_THREADS": str(max(2, len(cores))),
        "TRANSFORMERS_VERBOSITY": "error",
    }  # fmt: skip
    settings.pop("PYTHONPATH", None)
    run = [str(HERE / "measure.py"), str(folder / side), *cases, "--lock", str(folder / "lock")]
    if side == "tessera":
        settings["PYTHONPATH"] = str(ROOT)
        run = ["-m", "tessera", "run", *run]
    return subprocess.Popen(
        [sys.executable, "-W", "ignore", *run], env=settings, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, preexec_fn=lambda: os.sched_setaffinity(0, cores),
    )  # fmt: skip


def measure(folder: Path, names: list[str], dtypes: list[str], jobs: int, limit: float) -> None:
    """Both sides of everything, half of the processes each; what has not ended after `limit` seconds is stopped."""
    cases = [f"{m}:{d}" for m in names for d in dtypes]
    parts = min(max(1, jobs // 2), len(cases))
    cores = sorted(os.sched_getaffinity(0))
    share = max(1, len(cores) // (2 * parts))
    processes = []
    for side in ("tessera", "triton"):
        shutil.rmtree(folder / side, ignore_errors=True)
        (folder / side).mkdir(parents=True)
    for part in range(parts):
        for i, side in enumerate(("tessera", "triton")):
            at = (2 * part + i) * share % len(cores)
            mine = set(cores[at : at + share])
            dealt = [
                row[part if n % 2 == 0 else -1 - part]
                for n, row in enumerate(cases[k : k + parts] for k in range(0, len(cases), parts))
                if part < len(row)
            ]
            processes.append((side, start(folder, side, part, dealt, mine)))
    end = time.monotonic() + limit
    for side, process in processes:
        try:
            process.wait(max(0.1, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
        out, _ = process.communicate()
        if out.strip() or process.returncode:
            print(f"{side}, exit status {process.returncode}:\n{out[-6000:]}", flush=True)


def geomean(values: Iterable[float]) -> float:
    logs = [math.log(v) for v in values]
    return math.exp(sum(logs) / len(logs)) if logs else math.nan


def compare(folder: Path, slowest: int) -> None:
    """The table, and the launches that lose most time."""
    import torch
    from distance import distance

    head = (
        "model",
        "dtype",
        "apart",
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
    print(("{:11}{:10}" + "{:>9}" * 10).format(*head))
    every: list[float] = []
    cold: list[float] = []
    worst: list[tuple[float, float, float, str]] = []
    for path in sorted((folder / "tessera").glob("*.pt")):
        other = folder / "triton" / path.name
        if not other.exists():
            print(f"{path.stem}: nothing from Triton")
            continue
        a, b = torch.load(path), torch.load(other)
        name, dtype = path.stem.split(" ")
        apart = distance(a["gradients"], b["gradients"])
        row = [f"{apart:9.1e}", f"{a['error']:9.1e}", f"{b['error']:9.1e}"]
        cold.append(a["cold_s"] / b["cold_s"])
        row += [f"{a['cold_s']:9.2f}", f"{cold[-1]:9.3f}"]
        x, y = a.get("kernels", []), b.get("kernels", [])
        if [k for k, _ in x] != [k for k, _ in y]:
            row.append(f"  kernels differ ({len(x)}, {len(y)})")
        elif x:
            ratios = [p / q for (_, p), (_, q) in zip(x, y, strict=True)]
            every += ratios
            worst += [
                (p - q, p, q, f"{path.stem}: {n}") for (n, p), (_, q) in zip(x, y, strict=True)
            ]
            sums = sum(t for _, t in x), sum(t for _, t in y)
            row += [
                f"{a['step_ms'] / b['step_ms']:9.3f}",
                f"{len(ratios):9}",
                f"{geomean(ratios):9.3f}",
            ]
            row += [f"{sums[0] / sums[1]:9.3f}", f"{sums[0]:9.0f}"]
        equal = apart <= TOLERANCE.get(dtype, 0) or a["error"] <= 1.2 * b["error"]
        verdict = "" if equal else "  NOT EQUAL"
        print(f"{name:11}{dtype:10}" + "".join(row) + verdict, flush=True)
    print(
        f"{len(every)} launches: geomean of kernel time {geomean(every):.3f}; "
        f"{len(cold)} models: geomean of cold compile {geomean(cold):.3f}"
    )
    for _, ours, theirs, name in sorted(worst, reverse=True)[:slowest]:
        print(f"{ours:9.1f}{theirs:9.1f} µs  {name[:180]}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--models", nargs="*", default=MODELS)
    parser.add_argument("--dtypes", nargs="*", default=list(TOLERANCE))
    parser.add_argument("--jobs", type=int, default=8)
    parser.add_argument("--limit", type=float, default=1200, help="seconds for all of it")
    parser.add_argument("--slowest", type=int, default=0, help="list launches that lose most time")
    parser.add_argument("--compare-only", action="store_true")
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
    compare(options.folder, options.slowest)


if __name__ == "__main__":
    main()
