"""The fuzzer: random kernels on many devices against the interpreter.

    python -m tests.fuzz.run --family dots --count 20000 --device cpu --jobs 2 --seed 1 --out DIR

Each kernel has a number (its seed) and is drawn from it alone. It runs in a worker process; whatever it does there is
counted. DIR/log.jsonl has one line a kernel, so that a run goes on where it was ended; DIR/found/ has a reproducer,
made simpler first, of each fault. The status is 1 if there are faults.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.fuzz import case, devices, families, outcome
from tests.fuzz.pool import Pool
from tests.fuzz.shrink import shrunk


def arguments(given: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.run", description=__doc__)
    known = ", ".join(families.FAMILIES)
    parser.add_argument("--family", default="all", help=f"a comma list of {known}; or all")
    parser.add_argument(
        "--device",
        default="cpu",
        help="a comma list: cpu, generic, avx2, avx512, amx, simt, sm90, sm80, check90, check80, cuda",
    )
    parser.add_argument(
        "--count", type=int, default=0, help="kernels of each family; 0: until the time is over"
    )
    parser.add_argument(
        "--minutes", type=float, default=0, help="stop after this time; 0: no limit"
    )
    parser.add_argument("--seed", type=int, default=1, help="the first kernel's number")
    parser.add_argument("--isa", choices=("one", "two", "all"), default="two",
                        help="with cpu: one instruction set level in turn, two, or all")  # fmt: skip
    parser.add_argument("--without", default="turn", choices=("turn", "all", "none"),
                        help="also without one named optimisation, in turn, without each of them, or not")  # fmt: skip
    parser.add_argument("--jobs", type=int, default=1, help="worker processes")
    parser.add_argument(
        "--limit", type=float, default=120, help="seconds that a kernel may take on a device"
    )
    parser.add_argument(
        "--shrink", type=float, default=60, help="seconds to simplify one failing kernel; 0: not"
    )
    parser.add_argument(
        "--out", type=Path, default=Path("build/fuzz"), help="the log and the reproducers"
    )
    return parser.parse_args(given)


def planned(device: str, seed: int, isa: str, without: str) -> list[str]:
    """The devices that one kernel runs on for a name on the command line: every third once more without one named
    optimisation, in turn."""
    chosen = [device]
    if device == "cpu":
        levels = ["cpu", *devices.isas()]
        other = levels[1 + seed % (len(levels) - 1)]
        chosen = {"one": [levels[seed % len(levels)]], "two": ["cpu", other], "all": levels}[isa]
    names = devices.optimisations(device)
    if without == "turn":
        names = [names[seed // 3 % len(names)]] if seed % 3 == 0 else []
    return chosen + [f"{device}/{devices.WITHOUT}{n}" for n in names if without != "none"]


class Run:
    """A run over all kernels: what is done, what was found."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.o = options
        self.out: Path = options.out
        (self.out / "found").mkdir(parents=True, exist_ok=True)
        self.log = self.out / "log.jsonl"
        self.results: dict[tuple[str, int], dict[str, Any]] = {}
        if self.log.exists():
            for line in self.log.read_text().splitlines():
                entry = json.loads(line)
                self.results.setdefault((entry["family"], entry["seed"]), {}).update(
                    entry["results"]
                )
        self.names = (
            list(families.FAMILIES) if options.family == "all" else options.family.split(",")
        )
        self.end = time.monotonic() + 60 * options.minutes if options.minutes else float("inf")
        self.faults: list[tuple[dict[str, Any], str, outcome.Result]] = []
        self.begun, self.fresh = time.monotonic(), 0

    def tasks(self) -> Iterator[dict[str, Any]]:
        number = self.o.seed
        while time.monotonic() < self.end and (
            not self.o.count or number < self.o.seed + self.o.count
        ):
            for family in self.names:
                known = self.results.get((family, number), {})
                wanted = [
                    d for name in self.o.device.split(",")
                    for d in planned(name, number, self.o.isa, self.o.without) if d not in known
                ]  # fmt: skip
                if wanted and "interpreter" not in known:
                    yield {"family": family, "seed": number, "features": None, "devices": wanted}
            number += 1

    def done(self, task: dict[str, Any], results: dict[str, outcome.Result]) -> None:
        key = (task["family"], task["seed"])
        short = {d: (s, t if s in outcome.FAULTS else t[:300]) for d, (s, t) in results.items()}
        self.results.setdefault(key, {}).update(short)
        with self.log.open("a") as log:
            log.write(json.dumps({"family": key[0], "seed": key[1], "results": short}) + "\n")
        for device, result in results.items():
            if result[0] in outcome.FAULTS:
                self.faults.append((task, device, result))
                first = (result[1].splitlines() or [""])[0]
                print(f"{key[0]} {key[1]} {device}: {result[0]}: {first[:200]}", flush=True)
        self.fresh += 1
        if self.fresh % 200 == 0:
            rate = self.fresh / (time.monotonic() - self.begun)
            print(f"# {self.fresh} kernels, {rate:.1f} a second, at {key[1]}", flush=True)

    def reproduce(self, pool: Pool) -> None:
        """A file for each fault: one of each kind is made simpler, the others are written as they are."""
        kinds: set[tuple[str, str, str]] = set()
        for task, device, result in self.faults:
            kind = (
                device.partition("/")[0],
                result[0],
                outcome.signature(result) if result[0] != outcome.DIFFERENT else str(len(kinds)),
            )
            chosen = families.drawn(task["family"], task["seed"])
            if kind not in kinds and len(kinds) < 12 and self.o.shrink:
                simple, found = shrunk(
                    task["family"], task["seed"], device, result, pool.one, self.o.shrink
                )
                chosen, result = simple, found or result
            kinds.add(kind)
            built = families.built(task["family"], chosen, task["seed"])
            name = (
                f"{task['family']}-{task['seed']}-{device.replace('/', '-').replace(':', '-')}.py"
            )
            (self.out / "found" / name).write_text(
                case.reproducer(built, [device], f"{result[0]}: {result[1]}")
            )
            print(f"reproducer: {self.out / 'found' / name}", flush=True)

    def summary(self) -> str:
        """Kernels by family and device, and what came of them; reasons of refusals by number."""
        table: dict[tuple[str, str], Counter[str]] = {}
        reasons: Counter[str] = Counter()
        for (family, _), results in self.results.items():
            for device, result in results.items():
                table.setdefault((family, device.partition(":")[0]), Counter())[result[0]] += 1
                if result[0] in (outcome.REFUSED, outcome.INVALID):
                    reasons[f"{device.partition('/')[0]}: {outcome.signature(tuple(result))}"] += 1
        columns = (
            outcome.SAME,
            outcome.DIFFERENT,
            outcome.CRASH,
            outcome.HANG,
            outcome.INTERNAL,
            outcome.REFUSED,
            outcome.INVALID,
        )
        kernels = Counter(family for family, _ in self.results)
        lines = [
            f"{'family':8} {'device':28} {'kernels':>8} " + " ".join(f"{c:>9}" for c in columns)
        ]
        for (family, device), counts in sorted(table.items()):
            lines.append(
                f"{family:8} {device:28} {sum(counts.values()):8} "
                + " ".join(f"{counts[c]:9}" for c in columns)
            )
        lines += [f"{family}: {n} kernels" for family, n in sorted(kernels.items())]
        lines += [f"{n:6} x {reason}" for reason, n in reasons.most_common(20)]
        return "\n".join(lines)


def main(given: list[str] | None = None) -> int:
    run = Run(arguments(given))
    pool = Pool(run.o.jobs, run.o.limit, run.out)
    try:
        pool.run(run.tasks(), run.done)
        run.reproduce(pool)
    finally:
        pool.close()
        text = run.summary()
        (run.out / "summary.txt").write_text(text + "\n")
        print(text)
    return 1 if run.faults else 0


if __name__ == "__main__":
    sys.exit(main())
