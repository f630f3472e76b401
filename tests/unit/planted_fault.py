"""A program with a fault in an optimisation, planted as its argument says: `wrong`, `crash`, `everywhere` or `none`."""

# annotations of kernels name dtypes
# pyright: basic, reportInvalidTypeForm=false, reportUndefinedVariable=false, reportOperatorIssue=false
from __future__ import annotations

import importlib
import sys
from typing import Any

import numpy as np

import tessera
import tessera.language as tl


@tessera.jit
def twice(x, out, B: tl.constexpr):
    i = tl.arange(0, B)
    tl.store(out + i, tl.load(x + i) * 2)


@tessera.jit
def differences(x, y, out, B: tl.constexpr):
    i = tl.arange(0, B)
    a, b = tl.load(x + i), tl.load(y + i)
    tl.store(out + i, (a - b) * (b - a))


def plant(kind: str) -> None:
    cse: Any = importlib.import_module("tessera.passes.neutral.cse")
    key = cse._key

    def of(op: Any) -> Any:
        """Takes `a - b` for `b - a`; or runs into an error there."""
        if kind == "crash" and op.opcode == "sub":
            raise RuntimeError("planted")
        cls, operands, *rest = key(op)
        return (cls, tuple(sorted(operands, key=id)), *rest)

    if kind in ("wrong", "crash"):
        cse._key = of


def main(kind: str) -> None:
    plant(kind)
    x, y, out = (
        np.arange(64, dtype=np.float32),
        np.full(64, 3, np.float32),
        np.zeros(64, np.float32),
    )
    twice[(1,)](x, out, B=64)
    differences[(1,)](x, y, out, B=64)
    if kind == "everywhere":
        sys.exit("a fault of the program's own")


if __name__ == "__main__":
    main(sys.argv[1])
