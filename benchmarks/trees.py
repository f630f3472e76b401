"""Speeds of two trees of this repository in one process: kernels, launches or compilations.

    git worktree add /tmp/before COMMIT
    python benchmarks/trees.py gpu /tmp/before . [--only attention] [--rounds N] [--rep MS] [--json FILE]
    python benchmarks/trees.py cpu /tmp/before . --threads 1
    python benchmarks/trees.py launch /tmp/before .
    python benchmarks/trees.py compile_time /tmp/before .

Each tree compiles with its own compiler, language and examples; in each round both trees are timed, in random turn.
Processes that take turns on a GPU share its power limit: there the same kernel came out at 0.93 and at 1.18 of its own
time. What is left on a GPU is the place of arrays, of which each tree makes its own: a kernel of less than 30 us may be
2 % slower in one tree, and with both trees exchanged (`. /tmp/before`) in the other one. On the CPU arrays are shared.

`cpu` with one thread, `launch` and `compile_time` measure the time that the processor worked, which other programs of
the machine change less than what a clock shows; with more threads the clock counts. `launch` is that of the CPU;
`compile_time` compiles for sm_90a (with ptxas) and for the CPU at hand.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import os
import random
import re
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean, median
from types import ModuleType
from typing import Any

import record

Call = Callable[[], Any]
Times = dict[str, float]
WORTH_A_ROUND = 1.2  # times the fastest of a tree's calls: slower ones are left out
LEAST_SAMPLE = 4.0  # ms of calls that are timed together, so that the way there does not count


class Tree:
    """A tree's modules, which are imported under the same names as the other one's."""

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()
        self.paths = [str(self.root / part) for part in ("", "benchmarks", "examples")]
        self.modules: dict[str, ModuleType] = {}

    def commit(self) -> str:
        run = ["git", "-C", str(self.root), "rev-parse", "--short=7", "HEAD"]
        return subprocess.run(run, capture_output=True, text=True, check=False).stdout.strip()

    def load(self, name: str) -> Any:
        with self.active():
            return importlib.import_module(name)

    @contextmanager
    def active(self) -> Generator[None]:
        sys.path[:0] = self.paths
        sys.modules.update(self.modules)
        try:
            yield
        finally:
            del sys.path[: len(self.paths)]
            self.leave()

    def leave(self) -> None:
        """Take the tree's modules away, so that the other one's are imported."""
        for name, module in list(sys.modules.items()):
            file = str(getattr(module, "__file__", None) or "")
            # Its environment may lie in the tree, as `make` puts it.
            own = file.startswith(f"{self.root}/") and "site-packages" not in file
            if own or name.split(".")[0] == "tessera":
                self.modules[name] = sys.modules.pop(name)

    def each(self, made: Iterable[Any], seed: Callable[[int], Any]) -> Iterator[Any]:
        """The elements of `made`, each computed with the tree's modules and the same random numbers."""
        elements = iter(made)
        while True:
            with self.active():
                seed(0)
                found = next(elements, None)
            if found is None:
                return
            yield found

    def ready(self, call: Call) -> Call:
        """A call with the tree's modules in their places, behind its first one, which compiles."""
        with self.active():
            call()

        def run() -> Any:
            sys.modules.update(self.modules)
            return call()

        return run


@dataclass
class Subject:
    """What is timed: of several calls, such as those with other tile sizes, the fastest counts."""

    name: str
    shape: str
    dtype: str
    calls: list[Call]


Entries = list[tuple[str, Callable[[], Iterable[Subject]]]]  # names, and what makes their subjects


# --- kinds of benchmarks -----------------------------------------------------------------------------------
class Kind:
    """`entries`: a tree's (name, function that gives its subjects). `in_turn`: ms of each tree's subject."""

    device = ""

    def entries(self, tree: Tree) -> Entries:
        raise NotImplementedError

    def seed(self, number: int) -> None:
        """Begin the random numbers again."""

    def typical(self, times: list[float]) -> float:
        """Which of the rounds' times counts: the least, since other programs slow some of them down."""
        return min(times)

    def in_turn(self, trees: dict[str, Tree], pair: dict[str, Subject], rep: float) -> Times:
        """The least ms of each, of about `rep` ms for each."""
        calls = [x for who, subject in pair.items() for x in self.fast(trees[who], who, subject)]
        numbers = [max(1, round(LEAST_SAMPLE / max(once, 1e-4))) for *_, once in calls]
        found: list[list[float]] = [[] for _ in calls]
        spent = 0.0
        while spent < rep * len(pair) or len(found[0]) < 3:
            for i in random.sample(range(len(calls)), len(calls)):
                who, call, _ = calls[i]
                with trees[who].active():
                    found[i].append(self.timed(call, numbers[i]))
                spent += found[i][-1] * numbers[i] / (len(calls) / len(pair))
        return {
            who: min(min(ms) for (of, *_), ms in zip(calls, found, strict=True) if of == who)
            for who in pair
        }

    def fast(self, tree: Tree, who: str, subject: Subject) -> list[tuple[str, Call, float]]:
        """Those of a subject's calls that may be its fastest, with `who` and ms of one."""
        with tree.active():
            times = [min(self.timed(call, 1) for _ in range(2)) for call in subject.calls]
        most = WORTH_A_ROUND * min(times)
        kept = [pair for pair in zip(subject.calls, times, strict=True) if pair[1] <= most]
        subject.calls = [call for call, _ in kept]  # of the rounds that follow, too
        return [(who, call, ms) for call, ms in kept]

    def ratio(self, found: list[Times]) -> float:
        """That of the typical times of all rounds."""
        return self.typical([ms["before"] for ms in found]) / self.typical(
            [ms["after"] for ms in found]
        )

    def timed(self, call: Call, number: int) -> float:
        """ms of one of `number` calls."""
        start = self.clock()
        for _ in range(number):
            call()
        return (self.clock() - start) / number * 1e3

    def clock(self) -> float:
        """Seconds that this process and those that it has waited for have worked."""
        used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
        return sum(x.ru_utime + x.ru_stime for x in used)


class Gpu(Kind):
    """The kernels of gpu.py."""

    def __init__(self, threads: int) -> None:
        import torch

        torch.zeros(1, device="cuda")
        torch.backends.cuda.matmul.allow_tf32 = True
        self.device, self.begin = torch.cuda.get_device_name(), torch.manual_seed

    def seed(self, number: int) -> None:
        self.begin(number)

    def typical(self, times: list[float]) -> float:
        return median(times)

    def entries(self, tree: Tree) -> Entries:
        with tree.active():
            cases: list[tuple[str, Call]] = list(importlib.import_module("gpu").cases())

        def subjects(make: Call) -> Iterator[Subject]:
            found = make()
            for case in found if hasattr(found, "__iter__") else [found]:
                if not case.name.endswith("torch: FA2"):  # the kernels of the row before it
                    call, _ = case.build("tessera")
                    # The element type is part of the shape in old trees.
                    yield Subject(case.name, case.shape, getattr(case, "dtype", ""), [call])

        return [(name, lambda make=make: subjects(make)) for name, make in cases]

    def in_turn(self, trees: dict[str, Tree], pair: dict[str, Subject], rep: float) -> Times:
        in_turn = trees["after"].load("cases").in_turn
        calls = {who: trees[who].ready(subject.calls[0]) for who, subject in pair.items()}
        found = in_turn(calls, rep)
        for tree in trees.values():
            tree.leave()
        return found


class Cpu(Kind):
    """The kernels of cpu.py."""

    def __init__(self, threads: int) -> None:
        import torch

        self.torch, self.threads, self.begin = torch, threads, torch.manual_seed
        self.arrays: dict[tuple[str, int], Any] = {}
        if threads > 1:
            self.clock = time.perf_counter

    def ratio(self, found: list[Times]) -> float:
        """The median of the rounds' ratios: what other programs leave of the caches and of the memory's speed is much
        the same within a round, and differs by 10 % between rounds."""
        return median(ms["before"] / ms["after"] for ms in found)

    def seed(self, number: int) -> None:
        self.begin(number)

    def entries(self, tree: Tree) -> Entries:
        with tree.active():
            cpu: Any = importlib.import_module("cpu")
            cpu.knobs.runtime.num_threads = self.threads
            cpu.driver.set_active("cpu")
            cpu.keep_freed_memory()
            cases = cpu.Cases(self.torch)
        for name in ("normal", "empty"):
            setattr(cases, name, self.shared(name, getattr(cases, name)))

        def subjects(group: Call) -> Iterator[Subject]:
            for case in group():
                yield Subject(case.name, case.shape, getattr(case, "dtype", ""), case.ours)

        groups = ("streams", "softmax", "norms", "losses", "matmuls", "gemv", "attention")
        return [(g, lambda g=g: subjects(getattr(cases, g))) for g in groups]

    def shared(self, name: str, make: Callable[..., Any]) -> Callable[..., Any]:
        """`make` for one of the trees, which gives the same arrays in the same order to both: a copy is 20 % slower
        where its arrays lie badly."""
        numbers = itertools.count()

        def run(*shape: int, **kind: Any) -> Any:
            key = name, next(numbers)
            if key in self.arrays:
                return self.arrays.pop(key)  # the other tree has had it
            return self.arrays.setdefault(key, make(*shape, **kind))

        return run


class Launch(Kind):
    """The launches of launch.py with NumPy's arrays, by one thread."""

    def __init__(self, threads: int) -> None:
        import numpy

        self.zeros = numpy.zeros

    def entries(self, tree: Tree) -> Entries:
        with tree.active():
            launch: Any = importlib.import_module("launch")
            importlib.import_module("tessera.config").knobs.runtime.num_threads = 1

        def subjects() -> Iterator[Subject]:
            for name, call in launch.launches(launch.tessera, self.zeros).items():
                yield Subject(name, "NumPy", "", [call])

        return [("launch", subjects)]


class CompileTime(Kind):
    """The kernels of compile_time.py, compiled for both back ends, and starts of Python."""

    def __init__(self, threads: int) -> None:
        self.threads = threads

    def entries(self, tree: Tree) -> Entries:
        with tree.active():
            module: Any = importlib.import_module("compile_time")
            module.knobs.compilation.always_compile = True

        def subjects() -> Iterator[Subject]:
            for name, (kernel, signature, constants, options) in module.cases("tessera").items():
                attributes = module.attributes(kernel, signature)
                source = module.ASTSource(kernel, signature, constants, attributes)
                for target in (("cuda", 90, 32), ("cpu", "native", 1)):
                    made = source, module.GPUTarget(*target), options
                    call = lambda made=made: module.compile_kernel(*made)  # noqa: E731
                    yield Subject(name, "sm_90a" if target[0] == "cuda" else "CPU", "", [call])
            yield Subject("import", "", "", [lambda: self.imported(tree)])

        return [("compile time", subjects)]

    @staticmethod
    def imported(tree: Tree) -> None:
        variables = {**os.environ, "PYTHONPATH": str(tree.root), "PYTHONDONTWRITEBYTECODE": ""}
        subprocess.run([sys.executable, "-c", "import tessera"], check=True, env=variables)


KINDS = {"gpu": Gpu, "cpu": Cpu, "launch": Launch, "compile_time": CompileTime}


# --- comparison --------------------------------------------------------------------------------------------
def row(
    kind: Kind, trees: dict[str, Tree], pair: dict[str, Subject], rounds: int, rep: float
) -> record.Row:
    """The typical times of all rounds, and the ratio of the trees; the line has the range of the rounds' ratios."""
    found = [kind.in_turn(trees, pair, rep) for _ in range(rounds)]
    ratios = [ms["before"] / ms["after"] for ms in found]
    times = {who: kind.typical([ms[who] for ms in found]) for who in pair}
    ratio, subject = kind.ratio(found), pair["after"]
    what = f"{subject.name} {subject.shape} {subject.dtype}"
    spread = f"({min(ratios):.3f} to {max(ratios):.3f})"
    print(f"{ratio:.3f} {spread} {1e3 * times['after']:9.1f} us  {what}", flush=True)
    return record.Row(
        subject.name, subject.shape, subject.dtype,
        times={"tessera": times["after"], "before": times["before"]}, ratios={"before": ratio},
    )  # fmt: skip


def compared(kind: Kind, trees: dict[str, Tree], args: argparse.Namespace) -> list[record.Row]:
    """A row for each subject that both trees have."""
    entries = [kind.entries(tree) for tree in trees.values()]
    if len(entries[0]) != len(entries[1]):
        sys.exit("the trees have other cases")
    rows: list[record.Row] = []
    for before, after in zip(*entries, strict=True):
        if args.kind == "gpu" and not re.search(args.only, after[0]):
            continue  # its arrays need not be made
        both = [
            tree.each(make(), kind.seed)
            for tree, (_, make) in zip(trees.values(), (before, after), strict=True)
        ]
        for subjects in zip(*both, strict=True):
            pair = dict(zip(trees, subjects, strict=True))
            if not re.search(args.only, f"{after[0]} {pair['after'].name}"):
                continue
            rows.append(row(kind, trees, pair, args.rounds, args.rep))
            settings: dict[str, Any] = {"kind": args.kind, "before": trees["before"].commit()}
            if args.kind == "cpu":
                settings["threads"] = args.threads
            record.write(args, "trees", rows, kind.device, **settings)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--only", default="", help="pattern of the names of cases")
    parser.add_argument("--rounds", type=int, default=5, help="medians of each row")
    parser.add_argument("--rep", type=float, default=25.0, help="ms for timing each in a round")
    parser.add_argument("--threads", type=int, default=1, help="of kernels on the CPU")
    record.add_arguments(parser)
    args = parser.parse_args()
    trees = {"before": Tree(args.before), "after": Tree(args.after)}
    rows = compared(KINDS[args.kind](args.threads), trees, args)
    found = [row.ratios["before"] for row in rows]
    print(
        f"{len(rows)} rows, {geometric_mean(found):.4f}, {sum(x < 0.99 for x in found)} below 0.99"
    )


if __name__ == "__main__":
    main()
