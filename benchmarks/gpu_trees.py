"""GPU speeds of the examples' kernels by two trees of this repository, in one process.

    git worktree add /tmp/before COMMIT
    python benchmarks/gpu_trees.py /tmp/before . [--only attention] [--rounds N] [--rep MS] [--json FILE]

Each tree makes its own arrays and compiles with its own compiler, language and examples; in each round one call of each
tree is timed, in random turn. Processes that take turns on a GPU share its power limit: there the same kernel came out
at 0.93 and at 1.18 of its own time. What is left here is the place of arrays: a kernel of less than 30 us may be 2 %
slower in one tree, and with both trees exchanged (`. /tmp/before`) in the other one.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from statistics import geometric_mean, median
from types import ModuleType
from typing import Any

import record
import torch


class Tree:
    """A tree's modules, which are imported under the same names as the other one's."""

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()
        self.paths = [str(self.root / part) for part in ("", "benchmarks", "examples")]
        self.modules: dict[str, ModuleType] = {}
        with self.active():
            gpu = importlib.import_module("gpu")
            self.cases: list[tuple[str, Callable[[], Any]]] = list(gpu.cases())

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
            own = str(getattr(module, "__file__", None) or "").startswith(f"{self.root}/")
            if own or name.split(".")[0] == "tessera":
                self.modules[name] = sys.modules.pop(name)

    def made(self, number: int) -> list[Any]:
        """The cases of an entry, with the same numbers in the arrays of both trees."""
        with self.active():
            torch.manual_seed(0)
            found = self.cases[number][1]()
            return list(found) if hasattr(found, "__iter__") else [found]

    def call_of(self, case: Any) -> Callable[[], Any]:
        """A call of a case's kernel, behind its first one. What it imports is the tree's own."""
        with self.active():
            call, _ = case.build("tessera")
            call()
            torch.cuda.synchronize()

        def run() -> Any:
            sys.modules.update(self.modules)
            return call()

        return run


def compared(
    calls: dict[str, Callable[[], Any]], trees: dict[str, Tree], rounds: int, rep: float
) -> Any:
    """(median ms of each tree, the smallest and the greatest ratio of the rounds)."""
    in_turn = trees["after"].modules["cases"].in_turn
    found = [in_turn(calls, rep) for _ in range(rounds)]
    for tree in trees.values():
        tree.leave()
    ratios = [ms["before"] / ms["after"] for ms in found]
    return {who: median(ms[who] for ms in found) for who in calls}, min(ratios), max(ratios)


def rows_of(trees: dict[str, Tree], number: int, rounds: int, rep: float) -> Generator[Any]:
    """A row for each case of an entry that both trees have."""
    made = [tree.made(number) for tree in trees.values()]
    for before, after in zip(*made, strict=True):
        if after.name.endswith("torch: FA2"):
            continue  # the kernels of the row before it
        pairs = zip(trees.items(), (before, after), strict=True)
        calls = {who: tree.call_of(case) for (who, tree), case in pairs}
        times, least, most = compared(calls, trees, rounds, rep)
        ratio = times["before"] / times["after"]
        elem = getattr(after, "dtype", "")  # part of the shape in old trees
        what = f"{after.name} {after.shape} {elem}"
        us = 1e3 * times["after"]
        print(f"{ratio:.3f} ({least:.3f} to {most:.3f}) {us:9.1f} us  {what}", flush=True)
        yield record.Row(
            after.name, after.shape, elem, times={"tessera": times["after"], "before": times["before"]},
            ratios={"before": ratio},
        )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--only", default="", help="parts of case names, comma-separated")
    parser.add_argument("--rounds", type=int, default=5, help="medians of each row")
    parser.add_argument(
        "--rep", type=float, default=25.0, help="ms for timing each kernel in a round"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there")
    parser.add_argument("--commit", help="what is measured, where git does not know it")
    args = parser.parse_args()
    torch.zeros(1, device="cuda")
    torch.backends.cuda.matmul.allow_tf32 = True
    trees = {"before": Tree(args.before), "after": Tree(args.after)}
    names = [[name for name, _ in tree.cases] for tree in trees.values()]
    if len(names[0]) != len(names[1]):
        sys.exit("the trees have other cases")
    words = [word for word in args.only.split(",") if word]
    rows: list[Any] = []
    for number, name in enumerate(names[1]):
        if words and not any(word in name for word in words):
            continue
        rows += rows_of(trees, number, args.rounds, args.rep)
        record.write(args, "gpu_trees", rows, torch.cuda.get_device_name())
        torch.cuda.empty_cache()
    found = [row.ratios["before"] for row in rows]
    print(
        f"{len(rows)} rows, {geometric_mean(found):.4f}, {sum(x < 0.99 for x in found)} below 0.99"
    )


if __name__ == "__main__":
    main()
