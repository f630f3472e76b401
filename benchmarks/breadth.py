"""Kernels that nobody here wrote, by tessera beside Triton on a GPU: those that TorchInductor writes for 39 models and
400 single operations, or those of published libraries.

    python benchmarks/breadth.py write FILE [--set libraries] [--only NAME ...] [--jobs 16]      # needs no GPU
    python benchmarks/breadth.py time FILE FOLDER [--minutes 8] [--slice 0/4] [--json FILE]
    python benchmarks/breadth.py show FILE FOLDER [--json FILE]

`write` lets stock Inductor write kernels for an H200 from steps on fake tensors (generated/fakes.py): models and
operations (generated/operations.py), forward and with gradients, in fp32 and bf16. Each kernel is kept once, with the
configurations, grids and arguments that Inductor would launch. Of libraries it keeps what they launch in steps on fake
tensors (generated/launches.py), with the configurations that their tuners would try; those must be installed or lie on
PYTHONPATH. `time` compiles the same text by both compilers in all
configurations, and times the binaries in one process on one GPU, in random turn with a cold L2; a kernel's time is that
of its fastest configuration, for each compiler its own. What FOLDER holds already is not done again. A kernel that
fails, or takes too long, is a row with its error.
"""

# pyright: basic, reportMissingImports=false
from __future__ import annotations

import argparse
import json
import os
import queue
import random
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parent))

import model_cases
import record
from generated.kernel import Kernel, from_json, read, write
from generated.pool import Pool
from generated.summary import rows_of, summary

HERE = Path(__file__).resolve().parent
SHARES = {
    "tessera": 0.3,
    "triton": 0.7,
}  # of the processes that compile: both are to end at the same time
MODES = ("training", "inference")
DTYPES = ("float32", "bfloat16")


def everything(which: str, only: list[str]) -> list[list[str]]:
    """(name, mode, dtype) of all that kernels are written for, models first, as they take longest. An operation's
    forward pass is the same kernel in training and in inference."""
    from generated.libraries import CASES
    from generated.operations import OPERATIONS

    if which == "libraries":
        steps = [
            [n, "training" if c.training else "inference", dtype]
            for n, c in CASES.items()
            for dtype in DTYPES
        ]
        return [s for s in steps if not only or any(part in s[0] for part in only)]
    models = [*model_cases.LIBRARY, *model_cases.FAMILIES]
    steps = [[n, mode, dtype] for n in models for mode in MODES for dtype in DTYPES]
    steps += [[n, "training", dtype] for n in OPERATIONS for dtype in DTYPES]
    return [s for s in steps if not only or any(part in s[0] for part in only)]


def python(script: str, *words: str) -> list[str]:
    return [sys.executable, "-W", "ignore", str(HERE / "generated" / script), *words]


def written(args: argparse.Namespace) -> None:
    """Write the kernels' file; it is complete at any time, and a second run adds what is missing."""
    from generated.kernel import helpers

    kernels: dict[str, Kernel] = {}
    facts: dict[str, Any] = {"helpers": helpers(), "done": [], "errors": {}}
    if args.file.exists():
        found, facts = read(args.file)
        kernels = {k.key: k for k in found}
    tasks = [t for t in everything(args.set, args.only) if t not in facts["done"]]
    writers = Pool(python("writer.py"), args.jobs, args.limit)
    random.Random(0).shuffle(tasks)
    for task in tasks:
        writers.submit(task)
    for i in range(len(tasks)):
        task, answer = writers.answers.get()
        source = " ".join(task)
        if "error" in answer:
            facts["errors"][source] = answer["error"]
            print(f"{source}: {answer['error']}", flush=True)
        else:
            facts["done"].append(task)
            facts["errors"].pop(source, None)
        for left_out in answer.get("left_out", []):
            print(f"{source}: left out: {left_out}", flush=True)
        for line in answer.get("kernels", []):
            kernel = from_json(line)
            kernels.setdefault(kernel.key, kernel).sources.append(source)
        if i % 50 == 49 or i == len(tasks) - 1:
            write(args.file, kernels.values(), facts)
            print(f"{i + 1} of {len(tasks)} steps, {len(kernels)} kernels", flush=True)


class Run:
    """Compiles kernels by both compilers, times those that both have, and keeps every answer in a file."""

    def __init__(self, args: argparse.Namespace, kernels: list[Kernel]) -> None:
        self.kernels, self.folder = kernels, args.folder
        self.folder.mkdir(parents=True, exist_ok=True)
        self.results = self.folder / "results.jsonl"
        self.end = time.monotonic() + 60 * args.minutes
        self.answers: queue.Queue[tuple[Any, dict[str, Any]]] = queue.Queue()
        common = (str(args.file), str(self.folder))
        workers = {s: max(1, round(part * (args.jobs - 1))) for s, part in SHARES.items()}
        self.builders = {
            side: Pool(python("builder.py", side, *common), count, args.limit, self._settings(side), self.answers)
            for side, count in workers.items()
        }  # fmt: skip
        self.timer = Pool(
            python("timer.py", "tessera", *common, str(args.rounds)),
            1,
            args.limit,
            self._settings("tessera"),
            self.answers,
        )
        self.built: dict[int, dict[str, Any]] = {}

    def _settings(self, side: str) -> dict[str, str]:
        """Caches that are empty at first: compile times are cold ones."""
        caches = self.folder / "caches" / side
        return {
            "TRITON_CACHE_DIR": str(caches), "TESSERA_CACHE_DIR": str(caches), "TESSERA_STRICT": "1",
            "TORCHINDUCTOR_CACHE_DIR": str(caches / "inductor"),
        }  # fmt: skip

    def done(self) -> set[str]:
        if not self.results.exists():
            return set()
        return {json.loads(line)["key"] for line in self.results.read_text().splitlines()}

    def keep(self, number: int, **facts: Any) -> None:
        with open(self.results, "a") as file:
            file.write(json.dumps({"key": self.kernels[number].key, **facts}) + "\n")

    def work(self, numbers: list[int]) -> int:
        """Until all is done or the time is over; the number of kernels that were finished."""
        finished = 0
        for number in numbers:
            reasons = [c.unlaunchable() for c in self.kernels[number].configs]
            if any(reasons):
                self.keep(number, error=next(filter(None, reasons)))
                finished += 1
                continue
            for side, pool in self.builders.items():
                pool.submit([side, number])
        while finished < len(numbers) and (left := self.end - time.monotonic()) > 0:
            try:
                task, answer = self.answers.get(timeout=left)
            except queue.Empty:
                break
            finished += self.take(task, answer)
        for pool in (*self.builders.values(), self.timer):
            pool.stop()
        return finished

    def take(self, task: Any, answer: dict[str, Any]) -> bool:
        """Whether a kernel is finished by this answer."""
        if isinstance(task, dict):
            self.keep(task["kernel"], **answer, seconds=task["seconds"])
            return True
        side, number = task
        sides = self.built.setdefault(number, {})
        sides[side] = answer
        if len(sides) < len(SHARES):
            return False
        del self.built[number]
        errors = {s: a["error"] for s, a in sides.items() if "error" in a}
        if errors:
            self.keep(number, error="; ".join(f"{s}: {e}" for s, e in errors.items()))
            return True
        binaries = {s: a["binaries"] for s, a in sides.items()}
        seconds = {s: a["seconds"] for s, a in sides.items()}
        self.timer.submit({"kernel": number, "binaries": binaries, "seconds": seconds})
        return False


def timed(args: argparse.Namespace) -> None:
    kernels, _ = read(args.file)
    run = Run(args, kernels)
    part, parts = (int(n) for n in args.slice.split("/"))
    done = run.done()
    numbers = [
        i for i, k in enumerate(kernels)
        if i % parts == part and k.key not in done
        and (not args.only or any(o in s for o in args.only for s in (*k.sources, k.name)))
    ]  # fmt: skip
    random.Random(0).shuffle(numbers)  # what is done in time stands for the rest
    print(f"{len(numbers)} kernels, {len(done)} done before", flush=True)
    print(f"{run.work(numbers)} done now", flush=True)
    shown(args)


def shown(args: argparse.Namespace) -> None:
    kernels, _ = read(args.file)
    rows, facts = rows_of(kernels, args.folder / "results.jsonl")
    print(summary(rows, facts))
    record.write(args, "breadth" if args.set == "inductor" else "libraries", rows, facts.device)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    for name, places in (("write", ["file"]), ("time", ["file", "folder"]), ("show", ["file", "folder"])):  # fmt: skip
        command = commands.add_parser(name)
        for place in places:
            command.add_argument(place, type=Path)
        command.add_argument("--set", choices=("inductor", "libraries"), default="inductor")
        command.add_argument("--only", nargs="*", default=[], help="parts of names")
        command.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
        command.add_argument("--limit", type=float, default=60, help="seconds for a task")
        command.add_argument("--minutes", type=float, default=8, help="for all of it")
        command.add_argument("--rounds", type=int, default=15, help="timings of each binary")
        command.add_argument("--slice", default="0/1", help="which of how many parts")
        record.add_arguments(command)
    args = parser.parse_args()
    {"write": written, "time": timed, "show": shown}[args.command](args)


if __name__ == "__main__":
    main()
