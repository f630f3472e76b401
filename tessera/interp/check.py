"""Checked execution: accesses out of their array, the first NaN or Inf, integer overflow and failed assertions.

`CheckedMachine` looks at every op after it has run (at memory accesses before) and reports the source line, the
variable, the program, the element and the operands. An access is checked against the storage of the argument that its
pointer derives from: one that lands in another array is found too. Overflow is found by the assertions that the front
end emits in debug builds, which respect `sanitize_overflow`, and for 64-bit results and quotients here.
"""

# pyright: basic
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tessera.dtypes import dtype, pointer_type
from tessera.errors import (
    DeviceAssertionError,
    IntegerOverflow,
    NotFinite,
    OutOfBounds,
    TesseraError,
)
from tessera.interp.machine import EVALUATORS, Machine
from tessera.ir import Block, Op, Value, elem_of
from tessera.ops import (
    AddOp,
    AddPtrOp,
    AndOp,
    AssertOp,
    AtomicCasOp,
    AtomicRmwOp,
    BitcastOp,
    BroadcastOp,
    CastOp,
    CmpOp,
    ConstOp,
    DivOp,
    Elementwise,
    ExpandDimsOp,
    ForOp,
    FuncOp,
    HintOp,
    IfOp,
    LoadOp,
    MulOp,
    NegOp,
    ReshapeOp,
    SplatOp,
    StoreOp,
    SubOp,
    TransOp,
    WhileOp,
)  # fmt: skip
from tessera.ops.control import CallOp

_ACCESSES = (LoadOp, StoreOp, AtomicRmwOp, AtomicCasOp)
_SAME_BASE = (AddPtrOp, SplatOp, BroadcastOp, ExpandDimsOp, ReshapeOp, TransOp, HintOp)
_SAME_VALUE = (SplatOp, BroadcastOp, ExpandDimsOp, ReshapeOp, HintOp, CastOp)
_NOT_COMPUTED = (LoadOp, ConstOp, BitcastOp, IfOp, ForOp, WhileOp, CallOp)
SHOWN = 4  # operands of an op that is no elementwise one are shown up to this many elements


class CheckedMachine(Machine):
    """A machine that stops at the first suspicious value."""

    def compute_uniform(self, kernel: FuncOp, args: Sequence[Any]) -> None:
        """Nothing in advance: every value is looked at where it is computed."""

    def run_block(self, block: Block, args: Sequence[Any]) -> list[Any]:
        values = self.values
        values.update(zip(block.args, args, strict=True))
        for op in block:
            if op.terminator:
                break
            self._before(op)
            try:
                result = EVALUATORS[type(op)](self, op, *[values[v] for v in op.operands])
            except TesseraError as error:
                raise self._placed(error, op.loc) from None
            if len(op.results) == 1:
                values[op.results[0]] = result
            else:
                values.update(zip(op.results, result or (), strict=True))
            self._after(op)
        return [values[v] for v in block.terminator.operands]

    def _before(self, op: Op) -> None:
        if isinstance(op, _ACCESSES):
            self._check_access(op)
        if isinstance(op, AssertOp):
            self._check_assertion(op)

    def _after(self, op: Op) -> None:
        if len(op.results) == 1 and not isinstance(op, _NOT_COMPUTED):
            e = elem_of(op.result.type)
            if isinstance(e, dtype) and e.is_floating():
                self._check_finite(op)
            elif isinstance(e, dtype) and e.is_int():
                self._check_overflow(op, e)

    # --- reports --------------------------------------------------------------------------------------------
    def _fail(
        self, error: TesseraError, op: Op, index: tuple[int, ...], operands: list[Value]
    ) -> None:
        error.loc = op.loc
        where = f"program ({', '.join(map(str, self.program))})"
        error.note(where + (f", element ({', '.join(map(str, index))})" if index else ""))
        for v in dict.fromkeys(operands):
            error.note(f"{self._name(v)} = {self._value_at(v, index)}")
        raise error

    def _name(self, v: Value) -> str:
        while not v.name and isinstance(v.op, _SAME_VALUE):
            v = v.op.operands[0]
        if v.name:
            return f"`{v.name}`"
        if isinstance(v.op, ConstOp):
            return "a constant"
        return f"the operand from `{v.op.opcode}`" if v.op is not None else "an argument"

    def _value_at(self, v: Value, index: tuple[int, ...]) -> str:
        x = np.asarray(self.values[v])
        if x.ndim == len(index) and all(i < n for i, n in zip(index, x.shape, strict=True)):
            return str(x[index])
        if x.ndim == 0:
            return str(x)
        return np.array2string(x, threshold=SHOWN, edgeitems=2, separator=", ").replace("\n", "")

    def _result_name(self, op: Op) -> str:
        name = op.results[0].name if op.results else ""
        return f"`{name}`" if name else f"the result of `{op.opcode}`"

    # --- memory -----------------------------------------------------------------------------------------------
    def _check_access(self, op: Any) -> None:
        base, offsets = self._provenance(op.ptr)
        extent = self.memory.extents.get(base.name) if base is not None else None
        if base is None or extent is None:
            return
        address = np.asarray(self.values[op.ptr], np.int64)
        elem = elem_of(op.ptr.type).element_ty
        width = elem.storage_bytes if isinstance(elem, dtype) else 8
        bad = (address < extent[0]) | (address + width > extent[1])
        mask = self.optional(op, "mask") if not isinstance(op, AtomicCasOp) else None
        if mask is not None:
            bad = bad & mask
        if not np.any(bad):
            return
        index = _first(bad)
        start = int(self.values[base])
        element = (int(address[index]) - start) // width
        holds = (extent[1] - start) // width
        what = {"load": "reads", "store": "writes"}.get(op.opcode, "updates")
        error = OutOfBounds(
            f"{op.opcode} out of bounds: {what} element {element} of argument `{base.name}`, whose storage ends "
            f"after element {holds - 1}" if element >= 0 else
            f"{op.opcode} out of bounds: {what} element {element} of argument `{base.name}`, before its storage"
        )  # fmt: skip
        masks = [] if mask is None or isinstance(op, AtomicCasOp) else [op.mask]
        self._fail(error, op, index, [*offsets, *masks])

    def _provenance(self, v: Value) -> tuple[Value | None, list[Value]]:
        """The kernel argument that a pointer derives from, and the offsets that were added on the way."""
        offsets: list[Value] = []
        seen: set[Value] = set()
        while v not in seen:
            seen.add(v)
            op = v.op
            if isinstance(op, AddPtrOp):
                offsets.append(op.offset)
            if isinstance(op, _SAME_BASE):
                v = op.operands[0]
            elif isinstance(op, CastOp) and isinstance(elem_of(op.x.type), pointer_type):
                v = op.x
            elif isinstance(op, (ForOp, WhileOp)):
                v = op.inits[v.index]
            elif op is None and isinstance(loop := v.owner.parent, (ForOp, WhileOp)):
                v = loop.inits[v.index - isinstance(loop, ForOp)]
            else:
                break
        holder = v.owner.parent
        is_argument = v.op is None and isinstance(holder, Op) and holder.opcode == "func"
        return (v if is_argument else None), offsets

    # --- numbers ----------------------------------------------------------------------------------------------
    def _check_finite(self, op: Op) -> None:
        result = np.asarray(self.values[op.result])
        finite = np.isfinite(result)
        if finite.all():
            return
        inputs = [v for v in op.operands if _is_float(v)]
        nan, inf = np.isnan(result), np.isinf(result)
        for v in inputs:
            x = np.asarray(self.values[v])
            if isinstance(op, Elementwise):
                nan, inf = nan & ~np.isnan(x), inf & np.isfinite(x)
            else:
                nan, inf = nan & ~np.isnan(x).any(), inf & np.isfinite(x).all()
        bad = nan | inf
        if not np.any(bad):
            return
        index = _first(bad)
        what = "NaN" if np.isnan(result[index]) else "infinity"
        error = NotFinite(f"{self._result_name(op)} becomes {what}: `{op.opcode}` of finite numbers"
                          if what != "NaN" or not any(np.isinf(self.values[v]).any() for v in inputs)
                          else f"{self._result_name(op)} becomes NaN: `{op.opcode}` of infinities")  # fmt: skip
        self._fail(error, op, index, op.operands)

    def _check_overflow(self, op: Op, e: dtype) -> None:
        if not isinstance(op, (AddOp, SubOp, MulOp, NegOp, DivOp)) or not e.signed or e.bits == 1:
            return
        values = [np.asarray(self.values[v]) for v in op.operands]
        result = np.asarray(self.values[op.result])
        low = e.get_int_min_value()
        if isinstance(op, NegOp):
            bad = values[0] == low
        elif isinstance(op, DivOp):
            zero = values[1] == 0
            if zero.any():
                index = _first(zero)
                error = IntegerOverflow(
                    f"{self._result_name(op)}: division by zero",
                    help="divide where the divisor is not 0",
                )
                self._fail(error, op, index, op.operands)
            bad = (values[0] == low) & (values[1] == -1)
        elif e.bits < 64:
            return  # the front end's assertions know which operations may wrap
        else:
            bad = _overflows(op, values[0], values[1], result)
        if np.any(bad):
            error = IntegerOverflow(
                f"{self._result_name(op)} does not fit {e}: overflow in `{op.opcode}`"
            )
            self._fail(error, op, _first(bad), op.operands)

    def _check_assertion(self, op: AssertOp) -> None:
        condition = np.asarray(self.values[op.condition])
        if condition.all():
            return
        index = _first(~condition)
        if "overflow detected" in op.message:
            a, b, arithmetic = _overflow_operands(op)
            if arithmetic is not None:
                e = elem_of(a.type)
                named = next(
                    (u for u in a.users() if type(u) is type(arithmetic) and u.operands == [a, b]),
                    None,
                )
                what = self._result_name(named) if named is not None else "a result"
                error = IntegerOverflow(
                    f"{what} does not fit {e}: overflow in `{arithmetic.opcode}`"
                )
                self._fail(error, op, index, [a, b])
        by = op.condition.op
        operands = list(by.operands) if isinstance(by, (CmpOp, AndOp)) else [op.condition]
        self._fail(
            DeviceAssertionError(f"assertion failed: {op.message or 'no message'}"),
            op,
            index,
            operands,
        )


def _first(bad: Any) -> tuple[int, ...]:
    bad = np.asarray(bad)
    return (
        tuple(int(i) for i in np.unravel_index(int(np.argmax(bad)), bad.shape)) if bad.ndim else ()
    )


def _is_float(v: Value) -> bool:
    e = elem_of(v.type) if hasattr(v.type, "elem") or isinstance(v.type, dtype) else None
    return isinstance(e, dtype) and e.is_floating()


def _overflows(op: Op, a: Any, b: Any, result: Any) -> Any:
    """Where a 64-bit result is not the true one."""
    if isinstance(op, AddOp):
        return ((a ^ result) & (b ^ result)) < 0
    if isinstance(op, SubOp):
        return ((a ^ b) & (a ^ result)) < 0
    return (
        np.abs(a.astype(np.longdouble) * b.astype(np.longdouble) - result.astype(np.longdouble)) > 1
    )


def _overflow_operands(op: AssertOp) -> tuple[Any, Any, Op | None]:
    """The operands of the operation that an overflow assertion of the front end guards."""
    both = op.condition.op
    above = both.operands[0].op if isinstance(both, AndOp) else None
    wide = above.operands[0].op if isinstance(above, CmpOp) else None
    if isinstance(wide, (AddOp, SubOp, MulOp)):
        a, b = (v.op.x if isinstance(v.op, CastOp) else v for v in wide.operands)
        return a, b, wide
    return None, None, None
