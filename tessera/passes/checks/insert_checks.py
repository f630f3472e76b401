"""Puts a `check` beside each access and each computation of checked builds, which finds the element where it goes
wrong.

    x = tl.load(p + i, mask)     check (address of p + i outside of p's storage) & mask      before the load
    y = a / x                    check isnan(y) & !isnan(a) & !isnan(x) | …                  after the division
    k = i * n (64 bits)          check the high half of the product is no sign extension     after the product
    assert c                     check !c                                                    in its place

Storages are known to the launch only: a function gets two more arguments for each pointer that it takes, the address
where the storage begins and where it ends. Narrow integers are guarded by assertions of the front end, which knows
the operations that may wrap.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from math import inf
from typing import Any

from tessera.dtypes import dtype, float32, int1, int64, pointer_type
from tessera.errors import (
    DeviceAssertionError,
    IntegerOverflow,
    Loc,
    NotFinite,
    OutOfBounds,
    UnsupportedLanguageConstruct,
)
from tessera.ir import (
    Block,
    Builder,
    Module,
    Op,
    TileType,
    Value,
    elem_of,
    pass_,
    shape_of,
    with_elem,
)
from tessera.language import extra
from tessera.ops import arith, control, memory, tile
from tessera.passes.neutral.descriptors import lower_access

_ACCESSES = (memory.LoadOp, memory.StoreOp, memory.AtomicRmwOp, memory.AtomicCasOp)
_SAME_BASE = (arith.AddPtrOp, arith.HintOp, tile.SplatOp, tile.BroadcastOp, tile.ExpandDimsOp, tile.ReshapeOp,
              tile.TransOp)  # fmt: skip
_SHAPED = (tile.BroadcastOp, tile.ExpandDimsOp, tile.ReshapeOp, tile.TransOp)
_SAME_VALUE = (
    arith.CastOp,
    arith.HintOp,
    tile.SplatOp,
    tile.BroadcastOp,
    tile.ExpandDimsOp,
    tile.ReshapeOp,
)
# Element-wise ops that give a NaN or an infinity only where an operand is one, or that make floats of bits.
_NOT_COMPUTED = (arith.BitcastOp, arith.HintOp, arith.SelectOp, arith.NegOp, arith.AbsOp, arith.CopySignOp,
                 arith.MinOp, arith.MaxOp, arith.ConstOp)  # fmt: skip
_WHOLE = (tile.DotOp, tile.ReduceOp, tile.ScanOp)


@pass_("checks")
def insert_checks(module: Module) -> None:
    """Put checks into IR as the front end emits it. Later passes keep them in their order with effects.

    Accesses through descriptors become accesses through pointers: the extents of a descriptor may lie.
    """
    for op in module.walk():
        if isinstance(op, (memory.DescriptorLoadOp, memory.DescriptorStoreOp)):
            with suppress(UnsupportedLanguageConstruct):  # of a descriptor that a loop changes
                lower_access(op)
    functions = [f for f in module.body if isinstance(f, control.FuncOp)]
    extents = {arg: pair for f in functions for arg, pair in _add_extents(f).items()}
    checker = _Checker(extents)
    for f in functions:
        checker.block(f.body)


def _add_extents(f: control.FuncOp) -> dict[Value, tuple[Value, Value]]:
    """Two more arguments for each pointer argument."""
    pointers = [a for a in f.body.args if isinstance(a.type, pointer_type)]
    found = {a: (f.body.add_arg(int64), f.body.add_arg(int64)) for a in pointers}
    if f.arg_attrs:
        f.attrs["arg_attrs"] = (*f.arg_attrs, *(() for _ in range(2 * len(pointers))))
    return found


# --- provenance ---------------------------------------------------------------------------------------------
def _derived_from(v: Value) -> tuple[Value | None, list[Value]]:
    """The function argument that a pointer derives from, and the offsets that were added on the way."""
    offsets: list[Value] = []
    seen: set[Value] = set()
    while v not in seen:
        seen.add(v)
        op = v.op
        if isinstance(op, arith.AddPtrOp):
            offsets.append(op.offset)
        before = _before(v)
        if before is None:
            break
        v = before
    holder = v.owner.parent if isinstance(v.owner, Block) else None
    return (v if isinstance(holder, control.FuncOp) else None), offsets


def _before(v: Value) -> Value | None:
    """What a pointer was before one step: an offset, a change of shape or type, the trips of a loop."""
    op = v.op
    if isinstance(op, _SAME_BASE):
        return op.operands[0]
    if isinstance(op, (arith.CastOp, arith.BitcastOp)) and isinstance(
        elem_of(op.x.type), pointer_type
    ):
        return op.x
    if isinstance(op, (control.ForOp, control.WhileOp)):
        return op.inits[v.index]
    loop = v.owner.parent if isinstance(v.owner, Block) else None
    if isinstance(loop, control.ForOp):
        return loop.inits[v.index - 1] if v.index else None
    return loop.inits[v.index] if isinstance(loop, control.WhileOp) else None


# --- names --------------------------------------------------------------------------------------------------
def _name(v: Value) -> str:
    while not v.name and isinstance(v.op, _SAME_VALUE):
        v = v.op.operands[0]
    if v.name:
        return f"`{v.name}`"
    if isinstance(v.op, arith.ConstOp):
        return "a constant"
    return f"the operand from `{v.op.opcode}`" if v.op is not None else "an argument"


def _inputs(b: _Emit, values: Sequence[Value], like: Any) -> list[Value]:
    """What the author of a kernel has named of what `values` are computed from, in the shape of `like`.

    Results without a name give way to their operands; constants are left out.
    """
    found: dict[str, Value] = {}

    def visit(v: Value, shaped: tuple[Op, ...], depth: int) -> None:
        while isinstance(v.op, tile.SplatOp):
            v = v.op.operands[0]
        op, label = v.op, _name(v)
        inner = op.operands if isinstance(op, (arith.Elementwise, *_SAME_VALUE)) else []
        if label.startswith("`") or not inner or depth == _SHOWN_STEPS:
            if label not in found and (
                v.name or not isinstance(op, (arith.ConstOp, tile.ProgramIdOp))
            ):
                found[label] = b.shaped(v, shaped, like)
            return
        assert op is not None
        for x in inner:
            visit(x, (op, *shaped) if isinstance(op, _SHAPED) else shaped, depth + 1)

    for v in values:
        visit(v, (), 0)
    return list(found.values())


_SHOWN_STEPS = 6  # operations that are followed back from an address


def _result_name(op: Op) -> str:
    name = op.results[0].name if op.results else ""
    return f"`{name}`" if name else f"the result of `{op.opcode}`"


# --- building -----------------------------------------------------------------------------------------------
class _Emit(Builder):
    """A builder with the few combinations that conditions are made of."""

    __slots__ = ()

    def constant(self, value: float, like: Any) -> Value:
        return self.emit(arith.ConstOp(value=value, results=[like]))

    def compare(self, predicate: str, a: Value, b: Value | float) -> Value:
        other = b if isinstance(b, Value) else self.constant(b, a.type)
        return self.emit(arith.CmpOp(a, other, predicate=predicate))

    def both(self, a: Value, *others: Value) -> Value:
        for b in others:
            a = self.emit(arith.AndOp(a, b))
        return a

    def either(self, a: Value, *others: Value) -> Value:
        for b in others:
            a = self.emit(arith.OrOp(a, b))
        return a

    def negated(self, bit: Value) -> Value:
        return self.emit(arith.XorOp(bit, self.constant(True, bit.type)))

    def cast(self, v: Value, to: dtype) -> Value:
        if elem_of(v.type) == to:
            return v
        return self.emit(arith.CastOp(v, results=[with_elem(v.type, to)]))

    def spread(self, v: Value, like: Any) -> Value:
        """A scalar in the shape of `like`."""
        if not isinstance(like, TileType) or isinstance(v.type, TileType):
            return v
        return self.emit(tile.SplatOp(v, results=[TileType(like.shape, v.type)]))

    def shaped(self, v: Value, ops: Sequence[Op], like: Any) -> Value:
        """A tile that went through these changes of shape and was broadcast then; a scalar as it is."""
        for op in ops if shape_of(v.type) else ():
            new = op.clone({op.operands[0]: v})
            new.result.type = with_elem(op.result.type, elem_of(v.type))
            v = self.insert(new).result
        have, wanted = shape_of(v.type), shape_of(like)
        stretches = len(have) == len(wanted) and all(
            n in (1, m) for n, m in zip(have, wanted, strict=True)
        )
        if have == wanted or not stretches:
            return v
        return self.emit(tile.BroadcastOp(v, results=[TileType(like.shape, elem_of(v.type))]))

    def magnitude(self, v: Value) -> Value:
        narrow = elem_of(v.type).bits < 32
        return self.emit(arith.AbsOp(self.cast(v, float32) if narrow else v))

    def everywhere(self, bits: Value, op: type[arith.Binary]) -> Value:
        """All elements of an int1 tile combined by `op` (and, or)."""
        shape = shape_of(bits.type)
        if not shape:
            return bits
        if len(shape) > 1:
            n = 1
            for s in shape:
                n *= s
            bits = self.emit(tile.ReshapeOp(bits, results=[TileType((n,), int1)]))
        combine = Block([int1, int1])
        end = Builder(combine)
        end.insert(control.YieldOp([end.emit(op(*combine.args))]))
        return self.emit(tile.ReduceOp([bits], axis=0, regions=[combine]))


def _before_op(op: Op) -> _Emit:
    return _Emit(op.parent, op, op.loc)


def _after_op(op: Op) -> _Emit:
    return _Emit(op.parent, op.next, op.loc)


def _report(
    b: _Emit, kind: str, bad: Value, message: str, shown: Sequence[Value], facts: Sequence[Value] = ()
) -> None:  # fmt: skip
    numbers = [
        v for v in dict.fromkeys(shown) if isinstance(elem_of(v.type), (dtype, pointer_type))
    ]
    labels = tuple(_name(v) for v in numbers)
    b.insert(memory.CheckOp(bad, [*facts, *numbers], kind=kind, message=message, labels=labels))


# --- the checks ---------------------------------------------------------------------------------------------
@dataclass(slots=True)
class _Checker:
    """`extents`: where the storage of a pointer argument begins and ends."""

    extents: dict[Value, tuple[Value, Value]]
    handlers: dict[type[Op], Callable[[Any], None]] = field(default_factory=lambda: {})

    def __post_init__(self) -> None:
        self.handlers = {
            **dict.fromkeys(_ACCESSES, self.access), memory.AssertOp: _assertion, control.CallOp: self.call,
            arith.DivOp: _quotient, arith.RemOp: _quotient, arith.NegOp: _negation,
            **dict.fromkeys((arith.AddOp, arith.SubOp, arith.MulOp), _wide),
        }  # fmt: skip

    def block(self, block: Block) -> None:
        # Of libdevice, by their place, as long as their code goes on.
        calls: dict[Loc, list[Op]] = {}
        for op in list(block):
            site = _called_at(op)
            if site is not None:
                calls.setdefault(site, []).append(op)
                continue
            _results(calls)
            handler = self.handlers.get(type(op))
            if handler is not None:
                handler(op)
            _finite(op)
            if isinstance(op, (control.IfOp, control.ForOp, control.WhileOp)):
                for inner in op.regions:
                    self.block(inner)

    def extent(self, ptr: Value, b: _Emit) -> tuple[Value, Value]:
        base, _ = _derived_from(ptr)
        known = self.extents.get(base) if base is not None else None
        low, high = (b.constant(x, int64) for x in memory.UNKNOWN_EXTENT)
        return known or (low, high)

    def call(self, op: control.CallOp) -> None:
        """The callee's pointers come with their extents."""
        b = _before_op(op)
        pointers = [v for v in op.args if isinstance(v.type, pointer_type)]
        op.set_operands([*op.args, *(end for p in pointers for end in self.extent(p, b))])

    def access(self, op: Any) -> None:
        base, offsets = _derived_from(op.ptr)
        if base is None or base not in self.extents:
            return
        b = _before_op(op)
        low, high = self.extents[base]
        e, t = elem_of(op.ptr.type).element_ty, op.ptr.type
        width = b.constant(e.storage_bytes if isinstance(e, dtype) else 8, int64)
        address, start = b.cast(op.ptr, int64), b.cast(base, int64)
        last = b.emit(arith.SubOp(high, width))
        bad = b.either(
            b.compare("lt", address, b.spread(low, t)), b.compare("gt", address, b.spread(last, t))
        )
        mask = None if isinstance(op, memory.AtomicCasOp) else op.mask
        if mask is not None:
            bad = b.both(bad, mask)
        distance = b.emit(arith.SubOp(address, b.spread(start, t)))
        element = b.emit(arith.DivOp(distance, b.spread(width, t)))
        holds = b.emit(arith.DivOp(b.emit(arith.SubOp(high, start)), width))
        what = {"load": "reads", "store": "writes"}.get(op.opcode, "updates")
        message = f"{op.opcode} out of bounds: {what} element {{}} of argument `{base.name}`"
        shown = _inputs(b, offsets if mask is None else [*offsets, mask], t)
        _report(b, OutOfBounds.code, bad, message, shown, [element, holds])


def _assertion(op: memory.AssertOp) -> None:
    b = _before_op(op)
    bad, guarded = b.negated(op.condition), _guarded(op)
    if guarded is not None:
        a, c, arithmetic = guarded
        same = (u for u in a.users() if type(u) is type(arithmetic) and u.operands == [a, c])
        named = next(same, None)
        what = _result_name(named) if named is not None else "a result"
        message = f"{what} does not fit {elem_of(a.type)}: overflow in `{arithmetic.opcode}`"
        _report(b, IntegerOverflow.code, bad, message, [a, c])
    else:
        by = op.condition.op
        operands = by.operands if isinstance(by, (arith.CmpOp, arith.AndOp)) else [op.condition]
        message = f"assertion failed: {op.message or 'no message'}"
        _report(b, DeviceAssertionError.code, bad, message, operands)
    op.erase()


def _guarded(op: memory.AssertOp) -> tuple[Value, Value, Op] | None:
    """(operands, operation in 64 bits) that an overflow assertion of the front end guards."""
    if "overflow detected" not in op.message:
        return None
    both = op.condition.op
    above = both.operands[0].op if isinstance(both, arith.AndOp) else None
    wide = above.operands[0].op if isinstance(above, arith.CmpOp) else None
    if not isinstance(wide, (arith.AddOp, arith.SubOp, arith.MulOp)):
        return None
    a, b = (v.op.x if isinstance(v.op, arith.CastOp) else v for v in wide.operands)
    return a, b, wide


def _is_signed(op: Op) -> bool:
    e = elem_of(op.result.type)
    return isinstance(e, dtype) and e.is_int() and e.signed


def _overflow(b: _Emit, op: Op, bad: Value) -> None:
    e = elem_of(op.result.type)
    message = f"{_result_name(op)} does not fit {e}: overflow in `{op.opcode}`"
    _report(b, IntegerOverflow.code, bad, message, op.operands)


def _negation(op: arith.NegOp) -> None:
    if _is_signed(op):
        b = _before_op(op)
        _overflow(b, op, b.compare("eq", op.x, elem_of(op.x.type).get_int_min_value()))


def _quotient(op: arith.DivOp | arith.RemOp) -> None:
    e = elem_of(op.result.type)
    if not e.is_int() or e is int1:
        return
    b = _before_op(op)
    message = f"{_result_name(op)}: division by zero"
    _report(b, IntegerOverflow.code, b.compare("eq", op.rhs, 0), message, op.operands)
    if e.signed:
        lowest = b.compare("eq", op.lhs, e.get_int_min_value())
        _overflow(b, op, b.both(lowest, b.compare("eq", op.rhs, -1)))


def _wide(op: Any) -> None:
    """64-bit sums, differences and products."""
    if not _is_signed(op) or elem_of(op.result.type).bits != 64:
        return
    b = _after_op(op)
    x, y, r = op.lhs, op.rhs, op.result
    if isinstance(op, arith.MulOp):
        sign = b.emit(arith.ShrOp(r, b.constant(63, r.type)))
        _overflow(b, op, b.compare("ne", b.emit(arith.MulHiOp(x, y)), sign))
        return
    # A sum has the sign of its operands where they agree; a difference that of x where they do not.
    other = r if isinstance(op, arith.AddOp) else x
    signs = b.emit(arith.AndOp(b.emit(arith.XorOp(x, r)), b.emit(arith.XorOp(y, other))))
    _overflow(b, op, b.compare("lt", signs, 0))


def _finite(op: Op) -> None:
    """The first NaN, or infinity, that an operation makes of numbers that are none."""
    computes = isinstance(op, (arith.Elementwise, *_WHOLE)) and not isinstance(op, _NOT_COMPUTED)
    if computes and len(op.results) == 1 and _is_float(op.result) and not _only_widens(op):
        _compare_finite(_after_op(op), op.result, op.operands, op.opcode, isinstance(op, _WHOLE))


def _compare_finite(
    b: _Emit, result: Value, operands: Sequence[Value], function: str, whole: bool
) -> None:
    """`whole`: every element of the result depends on all elements of the operands."""
    t = result.type
    size = b.magnitude(result)
    nan, infinite = b.emit(arith.IsNanOp(size)), b.compare("eq", size, inf)
    sizes = [b.magnitude(v) for v in operands if _is_float(v)]
    no_nan = [b.negated(b.emit(arith.IsNanOp(s))) for s in sizes]
    finite = [b.compare("lt", s, inf) for s in sizes]
    infinities = [b.compare("eq", s, inf) for s in sizes]
    if whole:
        no_nan = [b.everywhere(x, arith.AndOp) for x in no_nan]
        finite = [b.everywhere(x, arith.AndOp) for x in finite]
        infinities = [b.everywhere(x, arith.OrOp) for x in infinities]
    no_nan, finite = ([b.spread(x, t) for x in bits] for bits in (no_nan, finite))
    bad = b.either(b.both(nan, *no_nan), b.both(infinite, *finite))
    some = b.constant(False, int1) if not infinities else b.either(
        *(infinities if whole else [b.spread(x, t) for x in infinities])
    )  # fmt: skip
    name = f"`{result.name}`" if result.name else f"the result of `{function}`"
    message = f"{name} becomes {{}}: `{function}` of {{}}"
    _report(b, NotFinite.code, bad, message, operands, [result, some])


# --- functions of libdevice ---------------------------------------------------------------------------------
LIBDEVICE = os.path.dirname(extra.__file__)


def _called_at(op: Op) -> Loc | None:
    """Where a kernel calls the function of libdevice that an op belongs to, whose steps may wrap and overflow."""
    loc = op.loc
    while loc is not None and loc.file.startswith(LIBDEVICE):
        loc = loc.call_site
    return loc if loc is not op.loc else None


def _results(calls: dict[Loc, list[Op]]) -> None:
    """Check what functions of libdevice return, as if each were one operation."""
    for site, ops in calls.items():
        inside = {r for op in ops for r in op.results}
        given = [v for op in ops for v in op.operands if v not in inside and _is_float(v)]
        for v in inside:
            leaves = any(user not in ops for user in v.users())
            same = [x for x in dict.fromkeys(given) if shape_of(x.type) in ((), shape_of(v.type))]
            if leaves and _is_float(v) and not isinstance(v.op, arith.ConstOp):
                b = _Emit(ops[-1].parent, ops[-1].next, site)
                _compare_finite(b, v, same, _function_called(ops[0], site), whole=False)
    calls.clear()


def _function_called(op: Op, site: Loc) -> str:
    loc = op.loc
    while loc is not None and loc.call_site != site:
        loc = loc.call_site
    return loc.function if loc is not None else op.opcode


def _is_float(v: Value) -> bool:
    e = elem_of(v.type) if isinstance(v.type, (dtype, TileType)) else None
    return isinstance(e, dtype) and e.is_floating()


def _only_widens(op: Op) -> bool:
    """Whether a cast gives every finite number as a finite one."""
    return (
        isinstance(op, arith.CastOp)
        and _is_float(op.x)
        and elem_of(op.result.type).bits > elem_of(op.x.type).bits
    )
