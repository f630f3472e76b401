"""Executes IR with NumPy, one program after another, which defines what each op means.

`@evaluate(OpClass)` registers the meaning: a function (machine, op, *operand values) → value, or a tuple of values
if the op has several results. A machine runs tile IR and GPU IR alike, as layouts change nothing but speed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tessera.errors import InterpreterError, Loc, TesseraError
from tessera.interp.memory import Memory
from tessera.ir import Block, Effect, Module, Op, Value
from tessera.ops import CtaIdOp, CtaRankOp, FuncOp, ProgramIdOp

Evaluator = Callable[..., Any]
EVALUATORS: dict[type[Op], Evaluator] = {}


def evaluate(*classes: type[Op]) -> Callable[[Evaluator], Evaluator]:
    """Register the NumPy meaning of ops. An array may also be a NumPy scalar, which has no axes."""

    def register(fn: Evaluator) -> Evaluator:
        for cls in classes:
            EVALUATORS[cls] = fn
        return fn

    return register


@dataclass(frozen=True, slots=True)
class Plan:
    """A block prepared for execution: for each op its meaning, its operands and its results."""

    args: list[Value]
    steps: list[tuple[Evaluator, Op, list[Value], list[Value]]]
    out: list[Value]


def _plan(block: Block, done: dict[Value, Any] | None = None) -> Plan:
    """Return the plan of a block, without the ops whose results are in `done`."""
    steps: list[tuple[Evaluator, Op, list[Value], list[Value]]] = []
    for op in block:
        if op.terminator:
            return Plan(block.args, steps, op.operands)
        evaluator = EVALUATORS.get(type(op))
        if evaluator is None:
            raise InterpreterError(f"op {op.opcode!r} has no NumPy meaning", loc=op.loc)
        if not (done and op.results and op.results[0] in done):
            steps.append((evaluator, op, op.operands, op.results))
    raise InterpreterError("block without terminator")


@dataclass(slots=True)
class Machine:
    """The state of one launch. `values` holds the SSA values of the current program."""

    module: Module
    memory: Memory
    grid: tuple[int, int, int]
    program: tuple[int, int, int] = (0, 0, 0)
    rank: int = 0  # of the CTA that runs, within the cluster of the program
    values: dict[Value, Any] = field(default_factory=dict[Value, Any])
    # Values that all programs have in common.
    uniform: dict[Value, Any] = field(default_factory=dict[Value, Any])
    plans: dict[Block, Plan] = field(default_factory=dict[Block, Plan])
    # Committed, unfinished async copies.
    groups: list[list[Callable[[], None]]] = field(default_factory=list[list[Callable[[], None]]])
    open_group: list[Callable[[], None]] = field(default_factory=list[Callable[[], None]])
    barriers: Any = None  # mbarriers of tensor copies: made by the first op that needs them
    clock: int = 0  # of traced builds
    stepper: Any = None  # shows lines to a debugger
    turns: Any = None  # lets other programs run while this one waits

    def run_block(self, block: Block, args: Sequence[object]) -> list[Any]:
        """Execute a block, and return the operand values of its terminator."""
        plan = self.plans.get(block)
        if plan is None:
            plan = self.plans[block] = _plan(block)
        values = self.values
        values.update(zip(plan.args, args, strict=True))
        op: Op | None = None
        try:
            for evaluator, op, operands, results in plan.steps:
                result = evaluator(self, op, *[values[v] for v in operands])
                if len(results) == 1:
                    values[results[0]] = result
                elif results:
                    values.update(zip(results, result, strict=True))
        except TesseraError as e:
            raise self._placed(e, op.loc if op is not None else None) from None
        return [values[v] for v in plan.out]

    def compute_uniform(self, kernel: FuncOp, args: Sequence[object]) -> None:
        """Evaluate once what does not depend on the program: pure ops on arguments and constants."""
        self.values = values = dict(zip(kernel.body.args, args, strict=True))
        for op in kernel.body:
            pure = op.effects is Effect.NONE and not op.regions and not op.terminator
            if (
                pure
                and not isinstance(op, ProgramIdOp | CtaRankOp | CtaIdOp)
                and all(v in values for v in op.operands)
            ):
                out = EVALUATORS[type(op)](self, op, *[values[v] for v in op.operands])
                values.update(zip(op.results, [out] if len(op.results) == 1 else out, strict=True))
        self.uniform = values
        self.plans[kernel.body] = _plan(kernel.body, values)

    def _placed(self, error: TesseraError, loc: Loc | None) -> TesseraError:
        if error.loc is None:
            error.loc = loc
            error.note(f"program ({', '.join(map(str, self.program))})")
        return error

    def optional(self, op: Op, field_name: str) -> Any:
        """Return the value of an optional operand, None if absent."""
        v = getattr(op, field_name)
        return None if v is None else self.values[v]

    def many(self, values: Sequence[Value]) -> list[Any]:
        return [self.values[v] for v in values]


def kernel_of(module: Module) -> FuncOp:
    """Return the only kernel function of the module."""
    for f in module.body:
        if isinstance(f, FuncOp) and f.kernel:
            return f
    raise InterpreterError("the module has no kernel")


def run_program(
    machine: Machine, kernel: FuncOp, args: Sequence[object], program: tuple[int, int, int]
) -> None:
    def run() -> None:
        with np.errstate(all="ignore"):
            machine.run_block(kernel.body, args)

    machine.program = program
    for rank in range(machine.module.attrs.get("cluster", 1)):
        machine.rank = rank
        machine.values = dict(machine.uniform)
        machine.groups, machine.open_group, machine.barriers = [], [], None
        if machine.stepper is not None:
            machine.stepper.run(run)
        else:
            run()
