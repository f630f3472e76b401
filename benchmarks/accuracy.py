"""Largest errors of the mathematical functions in ulp, on the CPU and by GPU code in the simulator; needs mpmath.

    python benchmarks/accuracy.py [--count 4096] [--only exp] [--json FILE]

The arguments of a function are drawn as in its test (tests/lang/libdevice_kit.py), and results compared with mpmath's
in 170 bits. The CPU's functions are those of the widest vectors that this machine has (or TESSERA_CPU names). The
simulator's hardware functions are exact: ex2.approx, rsqrt.approx and their like add up to 2 ulp in fp32.
"""

# pyright: basic
from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

import numpy as np
import record

import tessera
import tessera.language as tl
from tessera.runtime import driver
from tessera.testing import print_table

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tests.lang.libdevice_kit import SIZE, UNARY, error, unary_case

DEVICES = ("cpu", "simt")
BLOCK = 128
QUICK = "tl.exp"  # the language's own, beside libdevice's
ABSOLUTE = 3  # bounds of functions whose error is absolute near their zeros: they are left out


@tessera.jit
def apply_kernel(x, out, F: tl.constexpr, N: tl.constexpr):
    i = tl.program_id(0) * N + tl.arange(0, N)
    tl.store(out + i, F(tl.load(x + i)))


def names() -> list[str]:
    """Functions whose results are rounded, and that have a relative bound."""
    found = [n for n, (_, _, bounds, _) in UNARY.items() if any(bounds) and len(bounds) < ABSOLUTE]
    return [*found, QUICK]


def worst(name: str, dtype: str, count: int) -> dict[str, float]:
    """The largest error by device, of `count` arguments, those that give no finite number included."""
    x, want = unary_case(name.removeprefix("tl."), dtype, count)
    function = tl.exp if name == QUICK else getattr(tl.extra.libdevice, name)
    found = {}
    for device in DEVICES:
        driver.set_active(device)
        out = np.zeros(count, SIZE[dtype])
        apply_kernel[(count // BLOCK,)](x, out, F=function, N=BLOCK)
        found[device] = float(error(out, want).max())
    driver.reset_active()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--count", type=int, default=4096, help="arguments, a multiple of 128")
    parser.add_argument("--only", default="", help="pattern of the names of functions")
    record.add_arguments(parser)
    args = parser.parse_args()
    rows = []
    for name in names():
        if re.search(args.only, name):
            for dtype in SIZE:
                deviations = worst(name, dtype, args.count)
                rows.append(record.Row(name, dtype=dtype, unit="ulp", deviations=deviations))
                record.write(args, "accuracy", rows, count=args.count)
    shown = [[r.name, r.dtype, *(f"{r.deviations[d]:.2f}" for d in DEVICES)] for r in rows]
    print_table("largest error in ulp", ["function", "dtype", "CPU", "GPU code"], shown)


if __name__ == "__main__":
    main()
