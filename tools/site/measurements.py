"""Draws plots of the tutorials from the files of benchmarks/results/."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

from tools.site import plots
from tools.site.svg import Picture

RESULTS = Path(__file__).resolve().parents[2] / "benchmarks/results"
NAMES = {
    "tessera": "tessera",
    "triton": "Triton",
    "torch": "torch",
    "numpy": "NumPy",
    "numpy, fp32": "NumPy, fp32",
}


@cache
def results(name: str) -> dict[str, Any]:
    return json.loads((RESULTS / f"{name}.json").read_text("utf-8"))


def _where(found: dict[str, Any], more: str = "") -> str:
    machine = found["machine"]
    on = machine.get("device") or machine["processor"]
    return f"{on}{more}; {found['date']}, commit {found['commit']}"


def _rows(file: str, name: str) -> list[dict[str, Any]]:
    return [row for row in results(file)["rows"] if row["name"] == name]


def on_cpu(name: str, title: str, along: str) -> Picture:
    """Rates over sizes, by one thread of a CPU."""
    rows = _rows("tutorials", name)
    series = {NAMES[who]: [row["rates"][who] for row in rows] for who in rows[0]["rates"]}
    picture = plots.lines(
        title, [float(row["shape"]) for row in rows], series, rows[0]["unit"], along
    )
    return plots.source(picture, _where(results("tutorials"), ", one thread"))


def on_gpu(title: str, *cases: tuple[str, str, str]) -> Picture:
    """Rates on a GPU for (name, shape, dtype)."""
    groups: dict[str, dict[str, float]] = {}
    unit = ""
    for name, shape, dtype in cases:
        (row,) = [r for r in _rows("gpu", name) if (r["shape"], r["dtype"]) == (shape, dtype)]
        label = (
            f"{shape} {dtype}" if len({c[0] for c in cases}) == 1 else f"{name}, {shape} {dtype}"
        )
        groups[label] = {NAMES[who]: row["rates"][who] for who in NAMES if who in row["rates"]}
        unit = row["unit"]
    return plots.source(plots.bars(title, groups, unit), _where(results("gpu")))


def fast() -> Picture:
    """Time of the column sums of tutorial 10 after each step."""
    (row,) = _rows("tutorials", "column sums")
    times = row["times"]
    tiles = {name: ms for name, ms in times.items() if name[0].isdigit()}
    best = min(tiles, key=lambda name: tiles[name])
    groups = {
        "slow.py": times["slow.py"], "fast.py, 4x128": times["tessera"],
        f"the best tile, {best}": tiles[best], "NumPy": times["numpy"],
    }  # fmt: skip
    picture = plots.bars(
        "Time of column sums", {k: {"": v} for k, v in groups.items()}, "ms", digits=1
    )
    return plots.source(picture, _where(results("tutorials"), ", one thread"))


def graph_models() -> Picture:
    """Geometric means of eager's and Inductor's time by ours, in inference and in training."""
    groups: dict[str, dict[str, float]] = {}
    for kind in ("inference", "training"):
        rows = _rows(f"graph_models-{kind}", "GPU time")
        groups[kind] = {
            label: statistics.geometric_mean(
                row["ratios"][who] for row in rows if who in row["ratios"]
            )
            for label, who in (("eager", "eager"), ("Inductor", "inductor"))
        }
    title = "Time of a step's kernels, divided by tessera's (above 1: tessera is faster)"
    found = results("graph_models-training")
    return plots.source(plots.bars(title, groups, "times tessera's", digits=2), _where(found))


def graph_steps() -> Picture:
    """Time of the kernels of a step of some models in training."""
    rows = {
        row["shape"].partition(",")[0]: row
        for row in _rows("graph_models-training", "GPU time")
        if row["dtype"] == "float32"
    }
    labels = {"tessera": "tessera", "inductor": "Inductor", "eager": "eager"}
    groups = {
        model: {label: rows[model]["times"][who] / 1000 for who, label in labels.items()}
        for model in ("gpt2", "llama", "bert", "vit", "resnet")
    }
    picture = plots.bars("Time of the kernels of a training step, fp32", groups, "ms", digits=2)
    return plots.source(picture, _where(results("graph_models-training")))


FIGURES: dict[str, Callable[[], Picture]] = {
    "vector-add": partial(on_cpu, "vector add", "Speed of vector addition", "elements"),
    "softmax": partial(on_cpu, "softmax", "Speed of softmax", "elements of a row"),
    "matmul": partial(on_cpu, "matmul", "Speed of matrix multiplication, fp32", "rows and columns"),
    "attention": partial(on_cpu, "attention", "Speed of attention, fp32", "tokens"),
    "quantised": partial(on_cpu, "int8 matmul", "Speed of int8 and fp32 products", "rows and columns"),
    "fast": fast,
    "graph-steps": graph_steps,
    "graph-models": graph_models,
    "vector-add-h200": partial(on_gpu, "Vector addition on an H200", ("vector add", "2^27", "fp32")),
    "softmax-h200": partial(
        on_gpu, "Softmax on an H200", *(("softmax", f"{s}", "fp32") for s in ("8192x1024", "8192x4096", "4096x16384"))
    ),
    "matmul-h200": partial(
        on_gpu, "Matrix multiplication on an H200",
        *(("matmul, pointers", f"{n}^3 rr", "fp16") for n in (2048, 4096, 8192)),
    ),
    "attention-h200": partial(
        on_gpu, "Attention on an H200",
        *(
            (f"{kind}attention by descriptors", f"128x4096x{dim}", "fp16")
            for dim in (64, 128)
            for kind in ("", "causal ")
        ),
    ),
    "layer-norm-h200": partial(
        on_gpu, "Layer norm on an H200",
        *((f"layer norm {way}", "16384x4096", "fp32") for way in ("forward", "backward")),
    ),
    "dropout-h200": partial(
        on_gpu, "Dropout on an H200", *((f"dropout, {n} of a counter", "2^26", "fp32") for n in (1, 4))
    ),
}  # fmt: skip
