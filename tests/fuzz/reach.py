"""Which optimisations random kernels reach: `PYTHONPATH=. python -m tests.fuzz.reach [--family dots] [--count 200]`.

Kernels are compiled for sm_90 to LLVM IR, or for a CPU (`--device avx2`), and not run. An optimisation
that no kernel reaches is not fuzzed."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterable

from tessera.compiler import CompiledKernel
from tessera.config import knobs
from tessera.ir.applications import Session
from tessera.runtime.driver import driver
from tests.fuzz import case, devices, families

SIMT = "simt"  # the simulator of GPUs; other devices are instruction sets of CPUs


def applied(built: case.Case, device: str = SIMT) -> Counter[str]:
    """How often each optimisation is applied to a kernel."""
    return compiled(built, device)[1]


def compiled(built: case.Case, device: str = SIMT) -> tuple[CompiledKernel, Counter[str]]:
    """A kernel, and how often each optimisation was applied to it."""
    found: Counter[str] = Counter()
    commit = Session.commit

    def noting(self: Session) -> None:
        found.update(a.name for a in self.applied)
        commit(self)

    kernel = case.load_kernel(built.source)
    driver.set_active(SIMT if device == SIMT else "cpu")
    Session.commit = noting
    try:
        with knobs.scope():
            knobs.compilation.always_compile = True
            if device != SIMT:
                knobs.cpu.isa = device
            arguments = devices.Memory(built).arguments()
            made = kernel.warmup(*arguments, grid=built.grid, **built.options)
    finally:
        Session.commit = commit
        driver.reset_active()
    return made, found


def reached(family: str, seeds: Iterable[int], device: str = SIMT) -> Counter[str]:
    """By how many of these kernels each optimisation is reached."""
    total: Counter[str] = Counter()
    for seed in seeds:
        total.update(
            set(applied(families.built(family, families.drawn(family, seed), seed), device))
        )
    return total


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.reach", description=__doc__)
    parser.add_argument("--family", default="dots")
    parser.add_argument("--device", default=SIMT, help="simt, generic, avx2, avx512 or amx")
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    found = reached(given.family, range(given.seed, given.seed + given.count), given.device)
    for name, count in sorted(found.items(), key=lambda item: -item[1]):
        print(f"{name:24} {count:5} of {given.count}")


if __name__ == "__main__":
    main()
