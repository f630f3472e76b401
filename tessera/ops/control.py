"""Defines structured control flow: every region is one block, whose terminator passes values out of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tessera.dtypes import dtype, int1
from tessera.ir import Block, Effect, Op, Type, Value, attr, operand, region, require
from tessera.ops.roles import is_split, verify_roles
from tessera.ops.schedule import verify_schedule

__all__ = [
    "CallOp", "ConditionOp", "ForOp", "FuncOp", "IfOp", "Loop", "ReturnOp", "WhileOp", "YieldOp",
]  # fmt: skip


def _types(values: Sequence[Value]) -> list[Any]:
    return [v.type for v in values]


class FuncOp(Op, opcode="func"):
    """A function; the kernel is the one with `kernel=True`. `arg_attrs` has the facts of arguments: for each a tuple of
    (name, value) pairs, e.g. (("divisibility", 16),). `returns`: result types, in order. A kernel with a schedule of
    warp roles says their warps and registers (`ops/roles.py`)."""

    name: str = attr()
    kernel: bool = attr(default=True)
    arg_attrs: tuple[tuple[tuple[str, Any], ...], ...] = attr(default=())
    returns: tuple[Any, ...] = attr(default=())
    body: Block = region()

    def verify(self) -> None:
        require(self.parent_op() is None, self, "a function inside a function")
        ok = not self.arg_attrs or len(self.arg_attrs) == len(self.body.args)
        require(ok, self, "arg_attrs are not one an argument")
        require(isinstance(self.body.last, ReturnOp), self, "the body must end in a return")
        require(
            _types(self.body.terminator.operands) == list(self.returns),
            self,
            "returns have the wrong types",
        )
        if is_split(self):
            verify_roles(self)


class ReturnOp(Op, opcode="return", terminator=True):
    """Leave the function with values; only at the end of its body."""

    values: tuple[Value, ...] = operand(variadic=True)


class CallOp(Op, opcode="call", effects=Effect.READ | Effect.WRITE):
    """Call a function of the same module by name; the result types are given."""

    args: tuple[Value, ...] = operand(variadic=True)
    callee: str = attr()

    def verify(self) -> None:
        callee = self.resolve()
        require(callee is not None, self, lambda: f"there is no function {self.callee!r}")
        if callee is not None:
            require(
                _types(self.args) == _types(callee.body.args),
                self,
                "arguments have the wrong types",
            )
            require(
                _types(self.results) == list(callee.returns), self, "results have the wrong types"
            )

    def resolve(self) -> FuncOp | None:
        """Return the function that is called; None if the module has none of this name."""
        top = [self, *self.ancestors()][-1].parent
        functions = top if top is not None else ()
        return next((f for f in functions if isinstance(f, FuncOp) and f.name == self.callee), None)


class YieldOp(Op, opcode="yield", terminator=True):
    """Pass values to the op around this block."""

    values: tuple[Value, ...] = operand(variadic=True)


def _ends_in_yield(op: Op, block: Block) -> None:
    require(isinstance(block.terminator, YieldOp), op, "a block does not end in a yield")


class IfOp(Op, opcode="if"):
    """Run one of two blocks; the results are what it yields, with the types of the yields."""

    condition: Value = operand()
    then: Block = region()
    orelse: Block = region()

    def verify(self) -> None:
        require(self.condition.type == int1, self, "the condition is not int1")
        want = _types(self.results)
        for block in self.regions:
            _ends_in_yield(self, block)
            require(
                _types(block.terminator.operands) == want,
                self,
                "a branch yields other types than the results",
            )


class Loop(Op):
    """Base of ops that run their blocks repeatedly, and carry values from one iteration to the next."""

    inits: tuple[Value, ...]


class ForOp(Loop, opcode="for"):
    """for i in lb, lb+step, … while i < ub (step > 0, signed comparison), or i > ub for a constant step < 0.

    Body arguments are the induction variable and the carried values; the results are the final carried values.
    Attributes are performance hints of `tl.range`, and `main_stage` for a loop with a schedule (`ops/schedule.py`).
    """

    lb: Value = operand()
    ub: Value = operand()
    step: Value = operand()
    inits: tuple[Value, ...] = operand(variadic=True)
    num_stages: int | None = attr(default=None)
    unroll: int | None = attr(default=None)
    flatten: bool = attr(default=False)
    warp_specialize: bool = attr(default=False)
    disallow_acc_multi_buffer: bool = attr(default=False)
    disable_licm: bool = attr(default=False)
    main_stage: int | None = attr(default=None)
    body: Block = region()

    def infer(self) -> Sequence[Type]:
        return _types(self.inits)

    def verify(self) -> None:
        _ends_in_yield(self, self.body)
        want = _types(self.inits)
        same = self.lb.type == self.ub.type == self.step.type
        require(same, self, "bounds and step differ in type")
        is_int = isinstance(self.lb.type, dtype) and self.lb.type.is_int()
        require(is_int, self, "bounds and step are not integer scalars")
        require(
            _types(self.body.args) == [self.lb.type, *want],
            self,
            "body arguments have the wrong types",
        )
        require(
            _types(self.body.terminator.operands) == want,
            self,
            "the body yields other types than it carries",
        )
        if self.main_stage is not None:
            verify_schedule(self)

    @property
    def induction(self) -> Value:
        return self.body.args[0]

    @property
    def carried(self) -> list[Value]:
        return self.body.args[1:]


class WhileOp(Loop, opcode="while"):
    """`before` computes a condition and values; while the condition is true, `after` runs on the values and yields the
    next ones. Both blocks take the carried values as arguments; the results are the values when the condition fails."""

    inits: tuple[Value, ...] = operand(variadic=True)
    disable_licm: bool = attr(default=False)
    before: Block = region()
    after: Block = region()

    def infer(self) -> Sequence[Type]:
        return _types(self.inits)

    def verify(self) -> None:
        _ends_in_yield(self, self.after)
        want = _types(self.inits)
        require(
            isinstance(self.before.terminator, ConditionOp),
            self,
            "`before` must end in a condition",
        )
        require(_types(self.before.args) == want, self, "`before` has the wrong arguments")
        require(
            _types(self.before.terminator.operands[1:]) == want,
            self,
            "the condition passes other types",
        )
        require(_types(self.after.args) == want, self, "`after` has the wrong arguments")
        require(_types(self.after.terminator.operands) == want, self, "`after` yields other types")


class ConditionOp(Op, opcode="condition", terminator=True):
    """End of a while's `before`: continue with `values` if `condition` (int1), else leave with them."""

    condition: Value = operand()
    values: tuple[Value, ...] = operand(variadic=True)

    def verify(self) -> None:
        require(self.condition.type == int1, self, "the condition is not int1")
