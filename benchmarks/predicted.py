"""The time that `explain` predicts for the rows of benchmarks/cpu.py beside the measured one.

    python benchmarks/predicted.py [--threads N] [--rep MS] [--only PATTERN]

Of a few tile sizes the fastest is taken; measured is the shortest of many calls, since other work on the machine only
adds: with one thread the processor's time, else the time on the wall. The last line
says for how many rows the prediction is within a quarter of the measured time.
"""

from __future__ import annotations

import argparse
import os
import re
import time

from cpu import Call, Case, Cases, fastest

from tessera.compiler.kernel import LazyDict
from tessera.config import knobs
from tessera.explain import explain_compiled
from tessera.explain.report import Report
from tessera.runtime.benchmark import device_name
from tessera.runtime.driver import driver
from tessera.testing import print_table

WITHIN = 0.25


def shortest(fn: Call, ms: float) -> float:
    """The shortest time of a call in seconds, of about `ms` in all."""
    clock = time.process_time if knobs.runtime.num_threads == 1 else time.perf_counter
    found, end = float("inf"), time.perf_counter() + ms / 1e3
    while time.perf_counter() < end or found == float("inf"):
        start = clock()
        fn()
        found = min(found, clock() - start)
    return found


def reports(call: Call) -> list[Report]:
    """The reports of the kernels that a call launches."""
    seen: list[LazyDict] = []
    with knobs.runtime.scope():
        knobs.runtime.launch_enter_hook = seen.append
        call()
    found: list[Report] = []
    for metadata in seen:
        assert metadata.launch is not None
        kernel, grid, values = metadata.launch
        found.append(explain_compiled(kernel, list(kernel.arguments(values)), grid))
    return found


def row(case: Case, rep: float) -> list[str]:
    call = fastest(case.ours, rep / 4)
    told = reports(call)
    measured = shortest(call, rep)
    predicted = sum(r.roofline.predicted for r in told)
    bound = max(told, key=lambda r: r.roofline.predicted).roofline.bound
    shape = f"{case.shape} {case.dtype}"
    return [
        case.name,
        shape,
        f"{measured * 1e6:.1f}",
        f"{predicted * 1e6:.1f}",
        f"{predicted / measured:.2f}",
        bound,
    ]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rep", type=float, default=200.0, help="ms for timing each kernel")
    parser.add_argument("--only", default="", help="rows whose name and shape match this")
    args = parser.parse_args()
    import torch

    knobs.runtime.num_threads = args.threads
    driver.set_active("cpu")
    cases = Cases(torch)
    groups = (
        cases.streams, cases.softmax, cases.norms, cases.losses, cases.matmuls, cases.gemv, cases.attention,
    )  # fmt: skip
    rows: list[list[str]] = []
    for group in groups:
        for case in group():
            if re.search(args.only, f"{case.name} {case.shape} {case.dtype}"):
                rows.append(row(case, args.rep))
                print(*rows[-1], sep="  ", flush=True)
    near = sum(abs(float(r[4]) - 1) <= WITHIN for r in rows)
    titles = ["kernel", "shape", "measured us", "predicted us", "ratio", "bound by"]
    print_table(f"{device_name()}, {args.threads} threads", titles, rows)
    print(f"within {WITHIN:.0%}: {near} of {len(rows)} rows")


if __name__ == "__main__":
    main()
