"""The time that `explain` predicts for the rows of benchmarks/cpu.py, or of benchmarks/gpu.py, beside the measured one.

    python benchmarks/predicted.py [--gpu] [--threads N] [--rep MS] [--only PATTERN]

Of a few tile sizes the fastest is taken. A round measures what the machine can do, then the kernel: the median of
many calls, with one thread of the processor's time, else of the time on the wall. Rows show the round whose ratio is
the median of the rounds', since what other programs leave of the clock and of memory changes from second to second. The
last line says for how many rows the prediction is within a quarter of the measured time, and for how many it would be
with other values of `predict.HIDDEN`, which was chosen by that. Of a GPU a row is the median time of a call with a cold
L2, and the sum of what is predicted for the kernels that it launches.
"""

from __future__ import annotations

import argparse
import os
import re
import time
from collections.abc import Iterator
from statistics import median

from cpu import Call, Case, Cases, fastest

from tessera.compiler.kernel import LazyDict
from tessera.config import knobs
from tessera.explain import builder_for, measure
from tessera.explain import predict as predicting
from tessera.explain.build import Builder
from tessera.explain.cpu_machine import measured_anew
from tessera.explain.predict import predict
from tessera.runtime.benchmark import device_name
from tessera.runtime.driver import driver
from tessera.testing import print_table

WITHIN = 0.25
ROUNDS = 5
HIDDEN = (0.0, 0.2, 0.4, 0.6)


def typical(fn: Call, ms: float) -> float:
    """The median time of a call in seconds, of about `ms` in all."""
    clock = time.process_time if knobs.runtime.num_threads == 1 else time.perf_counter
    times: list[float] = []
    end = time.perf_counter() + ms / 1e3
    while time.perf_counter() < end or not times:
        start = clock()
        fn()
        times.append(clock() - start)
    return median(times)


def builders(call: Call) -> list[Builder]:
    """What predicts the times of the kernels that a call launches, once tuners have chosen."""
    call()
    seen: list[LazyDict] = []
    with knobs.runtime.scope():
        knobs.runtime.launch_enter_hook = seen.append
        call()
    found: list[Builder] = []
    for metadata in seen:
        assert metadata.launch is not None
        kernel, grid, values = metadata.launch
        found.append(builder_for(kernel, list(kernel.arguments(values)), grid))
    return found


def one_round(
    call: Call, told: list[Builder], rep: float
) -> tuple[float, float, float, str, list[float]]:
    """The ratio of the predicted and the measured seconds, both, what bounds the slowest kernel, and the ratios with
    each of HIDDEN."""
    machine = measured_anew()
    measured = typical(call, rep)
    lines = [predict(x.totals, machine, False, None) for x in told]
    predicted = sum(x.predicted for x in lines)
    bound = max(lines, key=lambda x: x.predicted).bound
    ratios: list[float] = []
    usual = predicting.HIDDEN
    for predicting.HIDDEN in HIDDEN:
        seconds = sum(predict(x.totals, machine, False, None).predicted for x in told)
        ratios.append(seconds / measured)
    predicting.HIDDEN = usual
    return predicted / measured, predicted, measured, bound, ratios


def row(case: Case, rep: float, others: list[list[float]]) -> list[str]:
    """A line of the table; the medians of the ratios with each of HIDDEN are added to `others`."""
    call = fastest(case.ours, rep / 4)
    told = builders(call)
    rounds = sorted(one_round(call, told, rep / ROUNDS) for _ in range(ROUNDS))
    _, predicted, measured, bound, _ = rounds[ROUNDS // 2]
    others.append([median(column) for column in zip(*(r[4] for r in rounds), strict=True)])
    return shown(case.name, f"{case.shape} {case.dtype}", measured, predicted, bound)


def rows_of_gpu(pattern: str) -> Iterator[list[str]]:
    """The rows of benchmarks/gpu.py that match."""
    import gpu  # needs a GPU

    for _, build in gpu.cases():
        made = build()
        for case in [made] if isinstance(made, gpu.Case) else made:
            shape = f"{case.shape} {case.dtype}"
            if not re.search(pattern, f"{case.name} {shape}"):
                continue
            call, _ = case.build("tessera")
            lines = [x.report(None).roofline for x in builders(call)]
            predicted, measured = sum(x.predicted for x in lines), measure(call)
            bound = max(lines, key=lambda x: x.predicted).bound
            yield shown(case.name, shape, measured, predicted, bound)


def shown(name: str, shape: str, measured: float, predicted: float, bound: str) -> list[str]:
    times = f"{measured * 1e6:.1f}", f"{predicted * 1e6:.1f}"
    return [name, shape, *times, f"{predicted / measured:.2f}", bound]


def finish(title: str, rows: list[list[str]]) -> None:
    near = sum(abs(float(r[4]) - 1) <= WITHIN for r in rows)
    titles = ["kernel", "shape", "measured us", "predicted us", "ratio", "bound by"]
    print_table(title, titles, rows)
    print(f"within {WITHIN:.0%}: {near} of {len(rows)} rows")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--gpu", action="store_true", help="the rows of benchmarks/gpu.py")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rep", type=float, default=300.0, help="ms for timing each kernel")
    parser.add_argument("--only", default="", help="rows whose name and shape match this")
    args = parser.parse_args()
    if args.gpu:
        found: list[list[str]] = []
        for line in rows_of_gpu(args.only):
            found.append(line)
            print(*line, sep="  ", flush=True)
        finish("GPU", found)
        return
    import torch

    knobs.runtime.num_threads = args.threads
    driver.set_active("cpu")
    cases = Cases(torch)
    groups = (
        cases.streams, cases.softmax, cases.norms, cases.losses, cases.matmuls, cases.gemv, cases.attention,
    )  # fmt: skip
    rows: list[list[str]] = []
    others: list[list[float]] = []
    for group in groups:
        for case in group():
            if re.search(args.only, f"{case.name} {case.shape} {case.dtype}"):
                rows.append(row(case, args.rep, others))
                print(*rows[-1], sep="  ", flush=True)
    near_by = [sum(abs(x - 1) <= WITHIN for x in column) for column in zip(*others, strict=True)]
    finish(f"{device_name()}, {args.threads} threads", rows)
    for value, count in zip(HIDDEN, near_by):
        print(f"with HIDDEN = {value}: {count}")


if __name__ == "__main__":
    main()
