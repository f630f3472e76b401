"""Models under torch.compile: eager, this backend and Inductor; right or not, times, compile times, kernels, memory.

    python benchmarks/graph_models.py [--device cuda] [--models llama gru | library | families] [--modes training]
                                      [--dtypes bfloat16] [--jobs 8] [--threads 1] [--seconds 240] [--warm]
                                      [--json FILE]

Several processes take cases (model, mode, dtype) from a queue, each on cores of its own. In each case both compilers
begin with empty caches; the first step is the cold compile. Then steps of all programs follow each other in random
turn, and medians count; on a GPU nobody else times meanwhile, and a trace tells for how long the GPU computes in a
step, which neither the host nor other processes change. A model is right by the rule of benchmarks/inductor. Ratios
above 1 mean that tessera is better. `kernels` are launches of generated kernels and externs in the graphs of a step; on
a CPU each loop nest in a function of Inductor's counts.
`--warm` compiles once more from the disk's caches. What is not done behind `--seconds` is left out. On a CPU the models
of benchmarks/inductor get small inputs, and there must be a C++ compiler for Inductor.
Needs torch, and for twenty of the models torchvision and transformers.
"""

# pyright: basic, reportMissingImports=false
from __future__ import annotations

import argparse
import math
import multiprocessing
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
for folder in (HERE.parent, HERE, HERE / "inductor"):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

import record  # noqa: E402
from model_cases import FAMILIES, LIBRARY  # noqa: E402
from record import Row  # noqa: E402

RIVALS = ("tessera", "inductor")
GROUPS = {"library": LIBRARY, "families": FAMILIES, "all": LIBRARY + FAMILIES}
MODES, DTYPES = ("training", "inference"), ("float32", "bfloat16")
SLOWER = 1.1  # of Inductor's time: such steps are taken apart
Asked = tuple[str, str, str]  # model, mode, dtype

# What a table says, in which unit, from which figure of a case, and what makes its unit of that.
FIGURES = (
    ("GPU time", "µs", "gpu_us", 1.0),
    ("step", "ms", "step_ms", 1.0),
    ("cold compile", "s", "cold_s", 1.0),
    ("warm compile", "s", "warm_s", 1.0),
    ("kernels", "", "kernels", 1.0),
    ("peak memory", "MB", "peak_bytes", 1e-6),
)


# --- processes ------------------------------------------------------------------------------------------------------
def work(connection: Any, cores: list[int], settings: dict[str, Any], scratch: str) -> None:
    """A process that measures; what it prints goes to a file."""
    os.sched_setaffinity(0, cores)
    threads = str(settings["threads"] or len(cores))
    os.environ.update(
        OMP_NUM_THREADS=threads, MKL_NUM_THREADS=threads, TESSERA_NUM_THREADS=threads,
        TORCHINDUCTOR_COMPILE_THREADS=str(max(2, len(cores))),
        TRANSFORMERS_VERBOSITY="error", TESSERA_STRICT="1", PYTHONWARNINGS="ignore",
        TORCHINDUCTOR_CACHE_DIR=f"{scratch}/{os.getpid()}", TMPDIR=scratch,
    )  # fmt: skip
    if settings["device"] == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    log = os.open(f"{scratch}/{os.getpid()}.log", os.O_WRONLY | os.O_CREAT)
    os.dup2(log, 1)
    os.dup2(log, 2)
    import warnings

    warnings.simplefilter("ignore")
    import model_measure

    model_measure.answer(connection, settings)


@dataclass
class Worker:
    """A process, the case that it measures now, and since when."""

    process: Any
    connection: Any
    cores: list[int]
    case: Asked | None = None
    since: float = 0.0


@dataclass
class Crew:
    """The processes and the queue of cases; `case_s`: what takes longer is stopped."""

    settings: dict[str, Any]
    scratch: str
    queue: list[Asked]
    case_s: float
    workers: list[Worker] = field(default_factory=list)
    device: str = ""

    def start(self, cores: list[int]) -> None:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        given = (theirs, cores, self.settings, self.scratch)
        process = context.Process(target=work, args=given, daemon=False)
        process.start()
        theirs.close()
        self.workers.append(Worker(process, ours, cores, since=time.monotonic()))

    def results(self, until: float) -> Iterator[dict[str, Any]]:
        """What has been measured, as it comes; it ends when all is done, or at the time `until`."""
        while self.workers and time.monotonic() < until:
            ready = wait([w.connection for w in self.workers], timeout=1.0)
            for worker in [w for w in self.workers if w.connection in ready]:
                yield from self.heard(worker)
            for worker in [w for w in self.workers if w not in ready and w.case is not None]:
                if time.monotonic() - worker.since > self.case_s:
                    yield self.lost(worker, f"took longer than {self.case_s:.0f} s")

    def heard(self, worker: Worker) -> Iterator[dict[str, Any]]:
        try:
            found = worker.connection.recv()
        except (EOFError, ConnectionError):
            worker.process.join()
            if worker.case is None:
                self.workers.remove(worker)
                print(f"a process ended with {worker.process.exitcode} before its first case")
                self.show_log(worker)
            else:
                yield self.lost(worker, f"its process ended with {worker.process.exitcode}")
            return
        if worker.case is not None:
            yield {**found, **named(worker.case)}
        self.device = found.get("device", self.device)
        worker.case, worker.since = (self.queue.pop(0) if self.queue else None), time.monotonic()
        worker.connection.send(worker.case)
        if worker.case is None:
            self.workers.remove(worker)
            worker.process.join(10)

    def lost(self, worker: Worker, why: str) -> dict[str, Any]:
        """A case that came to nothing; its process is replaced."""
        assert worker.case is not None
        self.stop(worker)
        self.show_log(worker)
        if self.queue:
            self.start(worker.cores)
        return {**named(worker.case), "failed": {"all": why}}

    def stop(self, worker: Worker) -> None:
        self.workers.remove(worker)
        worker.process.kill()
        worker.process.join()

    def show_log(self, worker: Worker) -> None:
        log = Path(self.scratch) / f"{worker.process.pid}.log"
        print(log.read_text()[-1500:] if log.exists() else "", flush=True)


def named(case: Asked) -> dict[str, str]:
    return dict(zip(("model", "mode", "dtype"), case, strict=True))


# --- figures --------------------------------------------------------------------------------------------------------
def values_of(case: dict[str, Any], figure: str) -> dict[str, float]:
    found = case.get(figure, {})
    return {who: x["all"] if isinstance(x, dict) else x for who, x in found.items()}


def rows_of(case: dict[str, Any]) -> list[Row]:
    """A row for each figure that was measured; the errors are in the one of the step."""
    rows: list[Row] = []
    for what, unit, figure, factor in FIGURES:
        values = {who: factor * x for who, x in values_of(case, figure).items()}
        ours = values.get("tessera")
        if not ours:  # not measured, or, of kernels, a model that Dynamo leaves to eager
            continue
        if what.endswith("compile") and not any(values_of(case, "kernels").values()):
            continue  # nothing was compiled
        ratios = {who: x / ours for who, x in values.items() if who != "tessera"}
        row = Row(
            what, f"{case['model']}, {case['mode']}", case["dtype"], unit, values, ratios=ratios
        )
        if figure == "step_ms":
            row.deviations = case["error"]
        rows.append(row)
    return rows


def show(case: dict[str, Any], rows: list[Row]) -> None:
    """A line for a case: what is wrong, and of each figure ours, then what the rivals have in its place."""
    parts = [f"{who} failed: {why}" for who, why in case["failed"].items()]
    parts += [f"{who.upper()} WRONG" for who, good in case.get("right", {}).items() if not good]
    for row in rows:
        rivals = ", ".join(f"{v:.2f}x {who[:3]}" for who, v in row.ratios.items())
        parts.append(f"{row.name} {row.times['tessera']:.4g} {row.time_unit} ({rivals})")
    print(
        f"{case['model']:20} {case['mode']:9} {case['dtype']:8} " + "; ".join(parts),
        flush=True,
    )


def lost(cases: list[dict[str, Any]]) -> None:
    """What the GPU computes longest in the steps that take longer than Inductor's."""
    for case in cases:
        times = case.get("gpu_us", {})
        if times.get("tessera", 0) > SLOWER * times.get("inductor", math.inf):
            print(f"\n{case['model']}, {case['mode']}, {case['dtype']}: {times}")
            for who in RIVALS:
                for name, us, count in case["slowest"][who]:
                    print(f"    {who:9} {us:9.1f} µs {count:5g} launches of {name}")


def geomean(values: Iterable[float]) -> float:
    logs = [math.log(v) for v in values if v > 0]
    return math.exp(sum(logs) / len(logs)) if logs else math.nan


def summary(rows: list[Row], worst: int = 8) -> None:
    """Geometric means over the models, and which are the worst."""
    for what, *_ in FIGURES:
        for rival in ("inductor", "eager"):
            found = [r for r in rows if r.name == what and rival in r.ratios]
            if found:
                print(f"\n{what} beside {rival}, above 1 is better:")
                means(found, rival)
                for r in sorted(found, key=lambda r: r.ratios[rival])[:worst]:
                    both = f"{r.times['tessera']:.4g} and {r.times[rival]:.4g}"
                    print(f"    {r.ratios[rival]:.3f}  {r.shape}, {r.dtype}: {both}")


def means(rows: list[Row], rival: str) -> None:
    """A line for each kind of step, and one for all."""
    kinds = [(mode, dtype) for mode in MODES for dtype in DTYPES] + [("", "")]
    for mode, dtype in kinds:
        found = [r.ratios[rival] for r in rows if r.shape.endswith(mode) and dtype in r.dtype]
        if found:
            spread = f"geomean {geomean(found):.3f}, least {min(found):.3f}"
            print(f"  {mode or 'all':9} {dtype:8} {len(found):3} models, {spread}")


# --- the command ----------------------------------------------------------------------------------------------------
def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--models", nargs="+", default=["all"], help="names, or library, families")
    parser.add_argument("--modes", nargs="+", default=list(MODES), choices=MODES)
    parser.add_argument("--dtypes", nargs="+", default=list(DTYPES), choices=DTYPES)
    parser.add_argument("--rivals", nargs="+", default=list(RIVALS), choices=RIVALS)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--jobs", type=int, default=max(1, len(os.sched_getaffinity(0)) // 2))
    parser.add_argument("--seconds", type=float, default=math.inf, help="for all of it")
    parser.add_argument("--case-seconds", type=float, default=150, help="for a case")
    parser.add_argument("--threads", type=int, default=0, help="of a process; 0: one for each core")
    parser.add_argument("--warm", action="store_true", help="time a compile from the disk's caches")
    record.add_arguments(parser)
    return parser.parse_args()


def cases(args: argparse.Namespace) -> list[Asked]:
    """Models that take longest to compile come first, and of each the four kinds one after the other."""
    models = [name for given in args.models for name in GROUPS.get(given, (given,))]
    unknown = [m for m in models if m not in GROUPS["all"]]
    if unknown:
        sys.exit(f"unknown models: {', '.join(unknown)}; there are {', '.join(GROUPS['all'])}")
    return [(m, mode, dtype) for mode in args.modes for m in models for dtype in args.dtypes]


def main() -> None:
    begin = time.monotonic()
    args = parsed()
    rivals = [r for r in RIVALS if r in args.rivals]
    if args.device == "cpu" and not any(map(shutil.which, ("g++", "clang++", "c++"))):
        print("no C++ compiler: Inductor is left out")
        rivals.remove("inductor")
    queue = cases(args)
    cores = sorted(os.sched_getaffinity(0))
    jobs = min(args.jobs, len(queue))
    share = max(1, len(cores) // jobs)
    with tempfile.TemporaryDirectory(prefix="graph-models-", ignore_cleanup_errors=True) as scratch:
        settings = {
            "device": args.device, "rivals": rivals, "rounds": args.rounds, "lock": f"{scratch}/lock",
            "warm": args.warm, "threads": args.threads,
        }  # fmt: skip
        crew = Crew(settings, scratch, list(queue), args.case_seconds)
        for part in range(jobs):
            at = part * share % len(cores)
            crew.start(cores[at : at + share])
        found: list[dict[str, Any]] = []
        rows: list[Row] = []
        loads: list[float] = []
        for case in crew.results(begin + args.seconds):
            found.append(case)
            loads.append(os.getloadavg()[0])
            rows += (mine := rows_of(case))
            show(case, mine)
        for worker in list(crew.workers):
            crew.stop(worker)
    lost(found)
    summary(rows)
    load = statistics.median(loads) if loads else 0.0
    finish(args, crew, queue, found, rows, time.monotonic() - begin, load)


def finish(
    args: argparse.Namespace,
    crew: Crew,
    queue: list[Asked],
    found: list[dict[str, Any]],
    rows: list[Row],
    took: float,
    load: float,
) -> None:
    """What came to nothing, and the file. `load`: how many processes and threads wanted to run, in the median."""

    def title(case: dict[str, Any]) -> str:
        return f"{case['model']}, {case['mode']}, {case['dtype']}"

    wrong = {
        who: [title(c) for c in found if not c.get("right", {}).get(who, True)]
        for who in args.rivals
    }
    failed = {f"{title(c)}, {who}": why for c in found for who, why in c["failed"].items()}
    right = sum(c.get("right", {}).get("tessera", False) for c in found)
    print(f"\n{right} of {len(queue)} right, {len(found)} measured in {took:.0f} s")
    print(f"wrong: {wrong}\nfailed: {failed}")
    record.write(
        args, "graph_models", rows, device=crew.device, jobs=args.jobs, threads=args.threads, cases=len(queue),
        measured=len(found), right=right, wrong=wrong, failed=failed, load=round(load, 1),
    )  # fmt: skip


if __name__ == "__main__":
    main()
