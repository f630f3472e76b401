"""The NumPy interpreter runs a module over a grid on real memory (rank 4).

`run(module, grid, args)` takes one argument per IR argument of the kernel: arrays (NumPy, or anything with
`data_ptr()`/`__array_interface__`), raw addresses, None, or Python numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from tessera.dtypes import pointer_type
from tessera.interp import arith, effects, roles, stepping, tile, trace
from tessera.interp.machine import EVALUATORS, Machine, evaluate, kernel_of, run_program
from tessera.interp.memory import Memory
from tessera.interp.numerics import settle
from tessera.interp.races import Races, may_race
from tessera.interp.reports import failure, from_words
from tessera.ir import Module
from tessera.ops.memory import UNKNOWN_EXTENT, BreakpointOp

__all__ = [
    "EVALUATORS", "Machine", "Memory", "address_of", "evaluate", "extents_of", "failure", "from_words", "run",
]  # fmt: skip

_REGISTERED = (arith, effects, roles, tile, trace)  # importing them registers their evaluators


def array_extent(x: Any) -> tuple[int, int] | None:
    """Return the (first, end) address of the storage behind an array argument; None for raw addresses."""
    if isinstance(x, np.ndarray):
        array = cast("np.ndarray", x)
        while isinstance(inner := array.base, np.ndarray):
            array = inner
        low = high = array.ctypes.data
        for n, stride in zip(array.shape, array.strides, strict=True):
            reach = (n - 1) * stride
            low, high = low + min(reach, 0), high + max(reach, 0)
        return (low, high + array.itemsize) if array.size else (low, low)
    if hasattr(x, "untyped_storage"):
        s = x.untyped_storage()
        return s.data_ptr(), s.data_ptr() + s.nbytes()
    base = getattr(x, "base", None)  # a typed view of an array
    return None if base is None else array_extent(base)


def address_of(x: Any) -> int:
    """Return the address that a pointer argument stands for."""
    if x is None:
        return 0
    if isinstance(x, np.ndarray):
        return x.ctypes.data
    return x.data_ptr() if hasattr(x, "data_ptr") else int(x)


def extents_of(kinds: Sequence[str], args: Sequence[object]) -> list[int]:
    """Return the additional arguments of a checked build: first and end address of each pointer's storage."""
    found: list[int] = []
    for kind, x in zip(kinds, args, strict=True):
        if kind.startswith("*"):
            found += array_extent(x) or UNKNOWN_EXTENT
    return found


def run(module: Module, grid: Sequence[int], args: Sequence[object]) -> None:
    """Execute the module's kernel for every program of the grid (x fastest), one after another."""
    kernel = kernel_of(module)
    memory = Memory()
    values: list[Any] = []
    formals = kernel.body.args
    checked = len(formals) > len(args)
    if checked:
        args = [*args, *extents_of([a.type.short for a in formals[: len(args)]], args)]
    for formal, x in zip(formals, args, strict=True):
        if not isinstance(formal.type, pointer_type):
            values.append(settle(np.asarray(x), formal.type))
            continue
        extent = array_extent(x)
        if extent is None:
            memory.open |= x is not None
        else:
            memory.extents[formal.name] = extent
        memory.open |= isinstance(formal.type.element_ty, pointer_type)
        values.append(np.asarray(address_of(x), np.int64))
    memory.open |= any(_makes_pointers(op) for op in module.walk())
    if checked and not memory.open and may_race(module):
        memory.races = Races(memory.extents)
    gx, gy, gz = (*grid, 1, 1, 1)[:3]
    machine = Machine(module, memory, (gx, gy, gz))
    if stepping.wanted() and any(isinstance(op, BreakpointOp) for op in module.walk()):
        machine.stepper = stepping.Stepper()
    with np.errstate(all="ignore"):
        machine.compute_uniform(kernel, values)
    for z in range(gz):
        for y in range(gy):
            for x in range(gx):
                run_program(machine, kernel, values, (x, y, z))


def _makes_pointers(op: Any) -> bool:
    """Whether an op turns integers into pointers, whose storage the launch cannot know."""
    from_int = op.opcode in ("cast", "bitcast") and not isinstance(
        getattr(op.x.type, "elem", op.x.type), pointer_type
    )
    return from_int and isinstance(getattr(op.result.type, "elem", op.result.type), pointer_type)
