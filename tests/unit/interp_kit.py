"""Small kernels for the tests of the interpreter."""

from __future__ import annotations

from typing import Any

import numpy as np

from tessera import dtypes as dt
from tessera.interp import run
from tessera.interp.machine import Machine, kernel_of, run_program
from tessera.interp.memory import Memory
from tessera.interp.numerics import carrier
from tessera.ir import Builder, Module, TileType, parse_module, verify
from tessera.ops import (
    FuncOp,
    PrintOp,
    ReturnOp,
)


def launch(arguments: str, body: str, *args: Any, grid: tuple[int, ...] = (1,)) -> None:
    module = parse_module(
        f"module {{}} {{\nfunc {{name='k'}} ({arguments}) {{\n{body}\nreturn []\n}}\n}}\n"
    )
    verify(module)
    run(module, grid, args)


def apply(op: Any, result: Any, *values: tuple[dt.dtype, list[Any]]) -> list[Any]:
    """Evaluate one op on tiles; `result` is its type's element, None where the op infers it."""
    module, n = Module(), len(values[0][1])
    func = FuncOp(name="k")
    module.body.append(func)
    args = [func.body.add_arg(TileType((n,), t), "x") for t, _ in values]
    made = op(*args) if result is None else op(*args, results=[TileType((n,), result)])
    b = Builder(func.body)
    b.insert(PrintOp([b.emit(made)]))
    b.insert(ReturnOp())
    verify(module)
    machine = Machine(module, Memory(), (1, 1, 1))
    run_program(machine, kernel_of(module), [np.array(x, carrier(t)) for t, x in values], (0, 0, 0))
    return machine.values[made.result].tolist()


def rows(name: str, n: int, offset: str = "%a") -> str:
    """Pointers `%{name}p` to n neighbouring elements of argument `%{name}`."""
    t = {"q": "i32", "x": "fp32", "h": "bf16", "b": "i1"}[name[0]]
    return f"%{name}s: tile<{n}x*{t}> = splat %{name}\n%{name}p: tile<{n}x*{t}> = addptr %{name}s, {offset}\n"


COUNT = (
    "%a: tile<8xi32> = arange {start=0, end=8}\n"
    "%ns: tile<8xi32> = splat %n\n"
    "%m: tile<8xi1> = cmp %a, %ns {predicate='lt'}\n"
)


def evaluate(body: str, arguments: str, *values: Any) -> dict[str, np.ndarray]:
    """Values by name after running a kernel whose arguments may be tiles."""
    module = parse_module(
        f"module {{}} {{\nfunc {{name='k'}} ({arguments}) {{\n{body}\nreturn []\n}}\n}}\n"
    )
    verify(module)
    machine = Machine(module, Memory(), (1, 1, 1))
    run_program(machine, kernel_of(module), values, (0, 0, 0))
    return {v.name: x for v, x in machine.values.items()}
