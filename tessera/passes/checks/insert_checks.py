"""Puts a `check` beside each access and each computation of checked builds, which finds the element that goes
wrong.

    x = tl.load(p + i, mask)     check (address of p + i outside of p's storage) & mask      before the load
    y = a / x                    check isnan(y) & !isnan(a) & !isnan(x) | …                  after the division
    k = i * n (64 bits)          check the high half of the product is no sign extension     after the product
    assert c                     check !c                                                    in its place

Only the launch knows where storages lie: for each pointer that a function takes it gets two more arguments, the
addresses where the storage begins and ends, and that of its shadow if programs may race (shadow_checks.py). For narrow
integers the front end emits assertions, since it knows which operations may wrap.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tessera.analysis.provenance import argument_of, pointers_of
from tessera.dtypes import dtype, int32, int64, pointer_type
from tessera.errors import (
    DeviceAssertionError,
    IntegerOverflow,
    Loc,
    OutOfBounds,
)
from tessera.ir import Block, Module, Op, Value, elem_of, pass_
from tessera.ops import arith, control, memory
from tessera.passes.checks.check_builder import CheckBuilder, named_inputs, report, result_name
from tessera.passes.checks.number_checks import (
    called_at,
    check_finite,
    check_negation,
    check_quotient,
    check_results,
    check_wide,
)
from tessera.passes.checks.shadow_checks import Extent, ShadowChecks, keeps_shadows
from tessera.passes.neutral.descriptors import lower_access


@pass_("checks")
def insert_checks(module: Module) -> None:
    """Put a `check` beside each access and each computation that may go wrong.

    Takes: IR as the front end emits it. Accesses through descriptors become accesses through pointers: the extents of a
        descriptor may lie.
    Gives: `check` ops, which later passes keep in their order with effects; functions take two or three more arguments,
        begin, end and shadow of the storage, for each pointer.
    Needs: the CPU, in checked builds: `kernel[grid](…, debug="check")`.
    Raises: nothing.
    Example: `access` of tests/filecheck/checks.tir
        addptr; load %q, %c → addptr; cast; cmp; cmp; or; and; check {kind='out-of-bounds', message=…}; load %q, %c
    Compare: AddressSanitizer and UndefinedBehaviorSanitizer, `compute-sanitizer --tool memcheck`.
    """
    for op in module.walk():
        if isinstance(op, (memory.DescriptorLoadOp, memory.DescriptorStoreOp)):
            lower_access(op, cpu=True)
    functions = [f for f in module.body if isinstance(f, control.FuncOp)]
    shadowed = keeps_shadows(module)
    extents = {arg: x for f in functions for arg, x in _add_extents(f, shadowed).items()}
    checker = _Checker(extents, ShadowChecks(extents) if shadowed else None)
    if checker.shadows is not None:
        checker.shadows.prepare(module)
    for f in functions:
        checker.block(f.body)


def _add_extents(f: control.FuncOp, shadowed: bool) -> dict[Value, Extent]:
    """Add two arguments, begin and end of the storage, for each pointer argument, and one for its shadow."""
    pointers = [a for a in f.body.args if isinstance(a.type, pointer_type)]
    kinds = (int64, int64, pointer_type(int32))[: 2 + shadowed]
    found = {a: tuple(f.body.add_arg(kind) for kind in kinds) for a in pointers}
    if f.arg_attrs:
        f.attrs["arg_attrs"] = (*f.arg_attrs, *(() for _ in range(len(kinds) * len(pointers))))
    return found


def _offsets(ptr: Value) -> list[Value]:
    """Return the offsets that were added to a pointer, the last one first."""
    found: list[Value] = []
    seen: set[Value] = set()
    while ptr not in seen:
        seen.add(ptr)
        op = ptr.op
        if isinstance(op, arith.AddPtrOp):
            found.append(op.offset)
        ptr = next(iter(pointers_of(ptr)), ptr)
    return found


# --- the checks ---------------------------------------------------------------------------------------------
@dataclass(slots=True)
class _Checker:
    """Puts checks into a function. `extents`: where the storage of a pointer argument begins and ends."""

    extents: dict[Value, Extent]
    shadows: ShadowChecks | None
    handlers: dict[type[Op], Callable[[Any], None]] = field(default_factory=lambda: {})

    def __post_init__(self) -> None:
        self.handlers = {
            memory.AssertOp: _assertion, control.CallOp: self.call,
            arith.DivOp: check_quotient, arith.RemOp: check_quotient, arith.NegOp: check_negation,
            **dict.fromkeys((arith.AddOp, arith.SubOp, arith.MulOp), check_wide),
        }  # fmt: skip

    def block(self, block: Block) -> None:
        # Ops inlined from calls of libdevice, by call; a call's results are checked once its code has ended.
        calls: dict[Loc, list[Op]] = {}
        for op in list(block):
            site = called_at(op)
            if site is not None:
                calls.setdefault(site, []).append(op)
                continue
            check_results(calls)
            handler = self.handlers.get(type(op))
            if isinstance(op, memory.PointerAccess):
                self.access(op)
                if self.shadows is not None:
                    self.shadows.access(op)
            elif handler is not None:
                handler(op)
            check_finite(op)
            if isinstance(op, (control.IfOp, control.Loop)):
                for inner in op.regions:
                    self.block(inner)

    def extent(self, ptr: Value, b: CheckBuilder) -> Extent:
        base = argument_of(ptr)
        known = self.extents.get(base) if base is not None else None
        if known is not None:
            return known
        low, high = (b.constant(x, int64) for x in memory.UNKNOWN_EXTENT)
        if self.shadows is None:
            return low, high
        none = arith.CastOp(b.constant(0, int64), results=[pointer_type(int32)])
        return low, high, b.emit(none)

    def call(self, op: control.CallOp) -> None:
        """Pass the extents of pointers to the callee."""
        b = CheckBuilder.before_op(op)
        pointers = [v for v in op.args if isinstance(v.type, pointer_type)]
        op.set_operands([*op.args, *(end for p in pointers for end in self.extent(p, b))])

    def access(self, op: Any) -> None:
        base = argument_of(op.ptr)
        if base is None or base not in self.extents:
            return
        b = CheckBuilder.before_op(op)
        low, high = self.extents[base][:2]
        e, t = elem_of(op.ptr.type).element_ty, op.ptr.type
        width = b.constant(e.storage_bytes if isinstance(e, dtype) else 8, int64)
        address, start = b.cast(op.ptr, int64), b.cast(base, int64)
        last = b.emit(arith.SubOp(high, width))
        bad = b.either(
            b.compare("lt", address, b.spread(low, t)), b.compare("gt", address, b.spread(last, t))
        )
        mask = op.mask
        if mask is not None:
            bad = b.both(bad, mask)
        distance = b.emit(arith.SubOp(address, b.spread(start, t)))
        element = b.emit(arith.DivOp(distance, b.spread(width, t)))
        holds = b.emit(arith.DivOp(b.emit(arith.SubOp(high, start)), width))
        what = {"load": "reads", "store": "writes"}.get(op.opcode, "updates")
        message = f"{op.opcode} out of bounds: {what} element {{}} of argument `{base.name}`"
        offsets = _offsets(op.ptr)
        shown = named_inputs(b, offsets if mask is None else [*offsets, mask], t)
        report(b, OutOfBounds.code, bad, message, shown, [element, holds])


def _assertion(op: memory.AssertOp) -> None:
    b = CheckBuilder.before_op(op)
    bad, guarded = b.negated(op.condition), _guarded(op)
    if guarded is not None:
        a, c, arithmetic = guarded
        same = (u for u in a.users() if type(u) is type(arithmetic) and u.operands == [a, c])
        named = next(same, None)
        what = result_name(named) if named is not None else "a result"
        message = f"{what} does not fit {elem_of(a.type)}: overflow in `{arithmetic.opcode}`"
        report(b, IntegerOverflow.code, bad, message, [a, c])
    else:
        by = op.condition.op
        operands = by.operands if isinstance(by, (arith.CmpOp, arith.AndOp)) else [op.condition]
        message = f"assertion failed: {op.message or 'no message'}"
        report(b, DeviceAssertionError.code, bad, message, operands)
    op.erase()


def _guarded(op: memory.AssertOp) -> tuple[Value, Value, Op] | None:
    """Return the operands and the 64-bit operation that an overflow assertion of the front end guards."""
    if "overflow detected" not in op.message:
        return None
    both = op.condition.op
    above = both.operands[0].op if isinstance(both, arith.AndOp) else None
    wide = above.operands[0].op if isinstance(above, arith.CmpOp) else None
    if not isinstance(wide, (arith.AddOp, arith.SubOp, arith.MulOp)):
        return None
    a, b = (v.op.x if isinstance(v.op, arith.CastOp) else v for v in wide.operands)
    return a, b, wide
