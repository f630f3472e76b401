"""The NumPy interpreter runs a module over a grid on real memory (rank 4).

`run(module, grid, args)` takes one argument per IR argument of the kernel: arrays (NumPy, or anything with
`data_ptr()`/`__array_interface__`), raw addresses, None, or Python numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from tessera.analysis.written import written_arguments
from tessera.dtypes import pointer_type
from tessera.interp import arith, effects, roles, stepping, tile, trace
from tessera.interp.extents import address_of, array_extent
from tessera.interp.machine import EVALUATORS, Machine, evaluate, kernel_of, run_program
from tessera.interp.memory import Memory
from tessera.interp.numerics import settle
from tessera.interp.reports import failure, from_words
from tessera.interp.shadows import Shadows
from tessera.interp.turns import Turns
from tessera.ir import Module
from tessera.ops.memory import SHADOW_SITES, SHADOW_UNIT, BreakpointOp

__all__ = [
    "EVALUATORS", "Machine", "Memory", "Shadows", "address_of", "array_extent", "evaluate", "failure",
    "from_words", "run",
]  # fmt: skip

_REGISTERED = (arith, effects, roles, tile, trace)  # importing them registers their evaluators


def run(module: Module, grid: Sequence[int], args: Sequence[object]) -> None:
    """Execute the module's kernel for every program of the grid (x fastest), one after another but where they wait."""
    kernel = kernel_of(module)
    memory = Memory()
    values: list[Any] = []
    formals = kernel.body.args
    shadows: Shadows | None = None
    if len(formals) > len(args):  # a checked build
        events = prod(grid) * module.attrs.get(SHADOW_SITES, 0)
        shadows = Shadows(module.attrs.get(SHADOW_UNIT, 0), events)
        kinds = [a.type.short for a in formals[: len(args)]]
        args = [*args, *shadows.arguments(kinds, args, written_arguments(module))]
    for i, (formal, x) in enumerate(zip(formals, args, strict=True)):
        if not isinstance(formal.type, pointer_type):
            values.append(settle(np.asarray(x), formal.type))
            continue
        extent = array_extent(x)
        if extent is None:
            memory.open |= x is not None
        else:
            memory.extents[formal.name or f"argument {i}"] = extent
        memory.open |= isinstance(formal.type.element_ty, pointer_type)
        values.append(np.asarray(address_of(x), np.int64))
    memory.open |= any(_makes_pointers(op) for op in module.walk())
    gx, gy, gz = (*grid, 1, 1, 1)[:3]
    machine = Machine(module, memory, (gx, gy, gz))
    if any(isinstance(op, BreakpointOp) for op in module.walk()):
        machine.stepper = stepping.Stepper(module)
    with np.errstate(all="ignore"):
        machine.compute_uniform(kernel, values)
    try:
        programs = ((x, y, z) for z in range(gz) for y in range(gy) for x in range(gx))
        Turns(programs, lambda m, program: run_program(m, kernel, values, program)).run(machine)
    finally:
        if shadows is not None:
            shadows.close()


def _makes_pointers(op: Any) -> bool:
    """Whether an op turns integers into pointers, whose storage the launch cannot know."""
    from_int = op.opcode in ("cast", "bitcast") and not isinstance(
        getattr(op.x.type, "elem", op.x.type), pointer_type
    )
    return from_int and isinstance(getattr(op.result.type, "elem", op.result.type), pointer_type)
