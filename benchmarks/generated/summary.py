"""Rows of what breadth.py has timed, and what they say: distribution, geometric mean, the worst with their limit."""

# pyright: basic
from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from math import exp, isnan, log
from pathlib import Path
from typing import Any

from record import Row

from generated.kernel import Kernel
from tessera.testing import print_table

BYTES_PER_SECOND = {"H200": 4.8e12, "H100": 3.35e12}
LAUNCH = 4.0  # µs: a kernel that takes no longer does nothing but start and end
WORST = 50
STEPS = (0.5, 0.8, 0.9, 0.95, 0.97, 1.0, 1.03, 1.1, 1.5)


@dataclass
class Facts:
    """What is said of all rows. `seconds`: of compilation, by compiler."""

    device: str = ""
    errors: list[tuple[str, str]] = field(default_factory=list)
    seconds: list[dict[str, float]] = field(default_factory=list)
    details: dict[str, str] = field(default_factory=dict)  # of a row, by its shape


def rows_of(kernels: list[Kernel], results: Path) -> tuple[list[Row], Facts]:
    """A row for each kernel that has a result, named by the kernel and what it was written for."""
    known = {k.key: k for k in kernels}
    rows: list[Row] = []
    facts = Facts()
    for line in results.read_text().splitlines():
        found = json.loads(line)
        kernel = known.get(found["key"])
        if kernel is None:
            continue
        if "error" in found:
            facts.errors.append((kernel.sources[0], found["error"]))
            continue
        facts.device = found["device"]
        facts.seconds.append(found["seconds"])
        row = row_of(kernel, found)
        facts.details[row.shape] = detail(row, kernel, found)
        rows.append(row)
    return rows, facts


def row_of(kernel: Kernel, found: dict[str, Any]) -> Row:
    """Times in µs of each compiler's fastest configuration."""
    times = {side: min(all_of) for side, all_of in found["times"].items()}
    rates = {s: 1e6 * kernel.gigabytes / us for s, us in times.items()} if kernel.gigabytes else {}
    name, mode, dtype = kernel.sources[0].rsplit(" ", 2)
    return Row(
        f"{name}, {mode}", f"{kernel.name} {kernel.key[:6]}", dtype, "µs", times, "GB/s" if rates else "", rates,
        {"triton": times["triton"] / times["tessera"]}, {} if isnan(found["apart"]) else {"tessera": found["apart"]},
    )  # fmt: skip


def detail(row: Row, kernel: Kernel, found: dict[str, Any]) -> str:
    """What limits our kernel: bytes, arithmetic, the launch, or else; registers and local bytes of both."""
    peak = next((v for k, v in BYTES_PER_SECOND.items() if k in found["device"]), 0.0)
    share = 1e9 * row.rates.get("tessera", 0.0) / peak if peak else 0.0
    us = row.times["tessera"]
    if us <= LAUNCH:
        limit = "launch"
    elif share >= 0.75:
        limit = "bytes"
    else:
        limit = "instructions or latency"
    best = {s: min(range(len(t)), key=t.__getitem__) for s, t in found["times"].items()}
    resources = "/".join(
        "{}r{}".format(r[0], f"+{r[1]}" if r[1] else "")
        for r in (found["resources"][s][best[s]] for s in ("tessera", "triton"))
    )
    configs = " ".join(
        f"{s} {c.constants} {c.warps}w" for s, c in ((s, kernel.configs[i]) for s, i in best.items())
    )  # fmt: skip
    return f"{limit} ({100 * share:.0f} % of the memory's speed), {resources}, {configs}"


def geomean(values: list[float]) -> float:
    return exp(sum(map(log, values)) / len(values)) if values else float("nan")


def line(name: str, ratios: list[float]) -> str:
    """Of a set of ratios: how many, their mean, and what the slowest reach."""
    ranked = sorted(ratios)
    if not ranked:
        return f"{name}: none"
    at = [ranked[int(len(ranked) * part)] for part in (0.01, 0.05, 0.5)]
    return (
        f"{name}: {len(ranked)} kernels, geomean {geomean(ranked):.3f}, slowest {ranked[0]:.2f}, "
        f"1 % {at[0]:.3f}, 5 % {at[1]:.3f}, median {at[2]:.3f}"
    )


def summary(rows: list[Row], facts: Facts) -> str:
    """Prints the worst rows as a table; the text that follows it."""
    worst = sorted(rows, key=lambda r: r.ratios["triton"])[:WORST]
    print_table(
        f"the slowest beside Triton, {facts.device}", ["for", "kernel", "dtype", "µs", "Triton", "ratio", "limit"],
        [
            [r.name, r.shape, r.dtype, f"{r.times['tessera']:.1f}", f"{r.times['triton']:.1f}",
             f"{r.ratios['triton']:.2f}", facts.details[r.shape]] for r in worst
        ],
    )  # fmt: skip
    ratios = [r.ratios["triton"] for r in rows]
    longer = [r.ratios["triton"] for r in rows if r.times["triton"] > LAUNCH]
    below = Counter(next((s for s in STEPS if x < s), 99.0) for x in ratios)
    spread = ", ".join(f"<{s:g}: {below[s]}" for s in (*STEPS, 99.0))
    different = [r for r in rows if r.deviations.get("tessera", 0) > 0.02]
    cold = [s["tessera"] / s["triton"] for s in facts.seconds if s["triton"] > 0]
    out = [line("all", ratios), line(f"longer than {LAUNCH:g} µs", longer), f"ratios {spread}"]
    out.append(f"cold compilation, processor time beside Triton's: geomean {geomean(cold):.3f}")
    out.append(f"{len(different)} differ from Triton's results by more than 2 %")
    out += [f"  {r.name} {r.shape} {r.dtype}: {r.deviations['tessera']:.2g}" for r in different]
    out.append(f"{len(facts.errors)} errors")
    for (_, error), count in Counter((n, e[:160]) for n, e in facts.errors).most_common(40):
        out.append(f"  {count} {_}: {error}")
    return "\n".join(out)
