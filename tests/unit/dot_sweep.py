"""Runs the kernels of dot_cases.py natively and with the interpreter: a few in the tests, as many as wanted by hand.

    python -m tests.unit.dot_sweep 0 1000 native avx2 generic amx loop=while change=scale

runs seeds 0 … 999 under four instruction sets, with two choices fixed. "amx" is emulated: see amx_kit.py.
`off=prepack-k,dot-chains` leaves optimisations out, `off=each` one after another, a kernel each.
"""

# pyright: basic
from __future__ import annotations

import importlib.util
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

import numpy as np

import tessera
from tessera.backends.compiler import GPUTarget
from tessera.backends.cpu.target import lacking
from tessera.compiler import ASTSource
from tessera.config import knobs
from tessera.config.optimizations import OPTIMIZATIONS
from tests.unit import amx_kit
from tests.unit.cpu_kit import interpreted, native
from tests.unit.dot_cases import HEAD, Case
from tests.unit.dot_operands import TYPES

SHORT = {np.dtype(v): f"*{k}" for k, v in TYPES.items()} | {
    np.dtype(np.int8): "*i8", np.dtype(np.int32): "*i32", np.dtype(np.uint8): "*u8"
}  # fmt: skip
OFF = [x.name for x in OPTIMIZATIONS.values() if "cpu" in x.targets]
TILES = ("bf16", "fp8e4nv", "fp8e5", "int8")  # operands of the matrix unit


def levels() -> list[str]:
    """The instruction sets that this machine runs or emulates."""
    found = [x for x in ("native", "avx512", "avx2", "generic") if not lacking(x)]
    return [*found, *([] if amx_kit.lacking() else ["amx"])]


class Sweep:
    """Kernels in one folder, results of the interpreter per case."""

    def __init__(self, folder: str | Path):
        self.folder = Path(folder)

    def kernel(self, case: Case) -> Any:
        path = self.folder / f"case_{case.seed}.py"
        path.write_text(HEAD + case.source)
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module.k

    def differences(self, case: Case, isas: list[str], off: str = "") -> list[str]:
        """What is wrong under which instruction set, in words; `off`: optimisations that are left out."""
        kernel, found = self.kernel(case), []
        want = [x.copy() for x in case.arrays.values()]
        interpreted(kernel, case.grid, *want, case.trips)
        for isa in isas:
            if isa == "amx" and case.t not in TILES:
                continue
            got = [x.copy() for x in case.arrays.values()]
            with knobs.scope():
                knobs.compilation.disable = off
                run(kernel, case, got, isa)
            for name, x, y in zip(case.arrays, got, want, strict=True):
                x, y = x.astype(np.float64), y.astype(np.float64)
                if not np.array_equal(x, y, equal_nan=True):
                    found.append(f"{isa}: {int((x != y).sum())} of {x.size} elements of {name}")
        return found


def run(kernel: Any, case: Case, arrays: list[Any], isa: str) -> None:
    if isa != "amx":
        knobs.cpu.isa = isa
        native(kernel, case.grid, *arrays, case.trips)
        return
    kinds = {n: SHORT[x.dtype] for n, x in case.arrays.items()} | {"T": "i32"}
    attrs = {(i,): [["tt.divisibility", 16]] for i in range(len(arrays))}
    compiled = tessera.compile(
        ASTSource(kernel, kinds, {}, attrs), target=GPUTarget("cpu", "amx", 1)
    )
    amx_kit.run(compiled, (*case.grid, 1), *arrays, case.trips)


def main(first: int, count: int, *words: str) -> int:
    fixed = dict(w.split("=") for w in words if "=" in w)
    isas = [w for w in words if "=" not in w] or levels()
    off = fixed.pop("off", "")
    wrong, start = 0, time.monotonic()
    with tempfile.TemporaryDirectory(prefix="tessera-dots-") as folder:
        sweep = Sweep(folder)
        for seed in range(first, first + count):
            less = OFF[seed % len(OFF)] if off == "each" else off
            try:
                found = sweep.differences(Case(seed, fixed), isas, less)
            except Exception:  # a crash is a finding: the sweep goes on
                found = [traceback.format_exc(limit=-2)]
            wrong += bool(found)
            for line in found:
                print(f"seed {seed}{f' without {less}' if less else ''}: {line}", flush=True)
    print(
        f"{count} kernels under {', '.join(isas)}: {wrong} wrong, {time.monotonic() - start:.0f} s"
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:]))
