"""Executes IR with NumPy, one program instance after another: the definition of what each op means.

`@evaluate(OpClass)` registers the meaning: a function (machine, op, *operand values) → value, or a tuple of values
when the op has several results. A machine runs tile IR and gpu IR alike: layouts change nothing but speed.
"""

# pyright: basic
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tessera.errors import InterpreterError, Loc, TesseraError
from tessera.interp.memory import Memory
from tessera.ir import Block, Module, Op, Value
from tessera.ops import ConditionOp, FuncOp, ReturnOp, YieldOp

Evaluator = Callable[..., Any]
EVALUATORS: dict[type[Op], Evaluator] = {}


def evaluate(*classes: type[Op]) -> Callable[[Evaluator], Evaluator]:
    """Register the NumPy meaning of ops."""

    def register(fn: Evaluator) -> Evaluator:
        for cls in classes:
            EVALUATORS[cls] = fn
        return fn

    return register


@dataclass(slots=True)
class Machine:
    """State of one launch. `values` holds the current program's SSA values."""

    module: Module
    memory: Memory
    grid: tuple[int, int, int]
    program: tuple[int, int, int] = (0, 0, 0)
    values: dict[Value, Any] = field(default_factory=dict)
    groups: list[list[Callable[[], None]]] = field(
        default_factory=list
    )  # committed, unfinished async copies
    open_group: list[Callable[[], None]] = field(default_factory=list)

    def run_block(self, block: Block, args: Sequence[Any]) -> list[Any]:
        """Execute a block and give its terminator's operand values."""
        values = self.values
        for formal, actual in zip(block.args, args, strict=True):
            values[formal] = actual
        op = block.first
        while op is not None:
            if op.terminator:
                return [values[v] for v in op.operands]
            self.step(op)
            op = op.next
        raise InterpreterError("block without terminator")

    def step(self, op: Op) -> None:
        evaluator = EVALUATORS.get(type(op))
        if evaluator is None:
            raise InterpreterError(f"op {op.opcode!r} has no NumPy meaning", loc=op.loc)
        values = self.values
        try:
            result = evaluator(self, op, *[values[v] for v in op.operands])
        except TesseraError as e:
            raise self._placed(e, op.loc) from None
        if len(op.results) == 1:
            values[op.results[0]] = result
        else:
            for r, x in zip(op.results, result or (), strict=True):
                values[r] = x

    def _placed(self, error: TesseraError, loc: Loc | None) -> TesseraError:
        if error.loc is None:
            error.loc = loc
            error.note(f"program ({', '.join(map(str, self.program))})")
        return error

    def optional(self, op: Op, field_name: str) -> Any:
        """Value of an optional operand, None when absent."""
        v = getattr(op, field_name)
        return None if v is None else self.values[v]

    def many(self, values: Sequence[Value]) -> list[Any]:
        return [self.values[v] for v in values]


def kernel_of(module: Module) -> FuncOp:
    """The module's one kernel function."""
    for f in module.body:
        if isinstance(f, FuncOp) and f.kernel:
            return f
    raise InterpreterError("the module has no kernel")


def run_program(
    machine: Machine, kernel: FuncOp, args: Sequence[Any], program: tuple[int, int, int]
) -> None:
    machine.program = program
    machine.values = {}
    machine.groups, machine.open_group = [], []
    with np.errstate(all="ignore"):
        machine.run_block(kernel.body, args)


TERMINATORS = (ReturnOp, YieldOp, ConditionOp)
