"""Lowers structured control flow to basic blocks with one phi per distinct register, and functions and calls.

Loops are rotated: the condition is tested before the first and after each iteration. If a loop-carried address
advances by the same amount in all registers, it carries one phi per base, and the constants between registers stay in
the instructions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tessera.backends.gpu.lowering import (
    PROGRAMS,
    FunctionLowering,
    carried_type,
    lowers,
    registers_of,
)  # fmt: skip
from tessera.backends.gpu.packing import PackedShape, pack, packed_shape, unpack
from tessera.backends.gpu.types import llvm_type
from tessera.backends.gpu.writer import is_number, split
from tessera.dtypes import dtype, int1, pointer_type
from tessera.ir import Op, TileType, TokenType, Type, Value, elem_of
from tessera.ops import WgmmaOp, arith, control, tile

# A tensor map: 128 bytes in the kernel's parameters, read in place.
MAP_PARAMETER = 'ptr byval([128 x i8]) align 64 "nvvm.grid_constant"'
Row = list[str]
Edge = tuple[str, Sequence[str]]  # (predecessor block, a value for each phi)


class Carried:
    """How the registers of one loop-carried value map to phis: register i is phi `slot` plus a constant. Narrow
    numbers are packed into 32-bit registers."""

    def __init__(self, fl: FunctionLowering, v: Value, inits: Sequence[str], steady: bool) -> None:
        self.fl = fl
        self.type = carried_type(v.type)
        self.elem = elem_of(v.type)
        self.regs = _in_reg32(v)
        if self.regs is not None:
            self.type = self.regs.type
            inits = pack(fl, self.elem, inits, self.regs)
        self.inits: Row = []
        self.firsts: list[int] = []  # the register that feeds each phi
        self.parts: list[tuple[int, int]] = []
        same: Sequence[int] = range(len(inits))
        if isinstance(v.type, TileType) and self.regs is None:
            same = v.type.layout.register_representatives()
        slots: dict[str | int, int] = {}
        for i, init in enumerate(inits):
            base, constant = (
                (init, 0) if not steady or is_number(init) else split(fl.w.offsets, init)
            )
            slot = slots.setdefault(base if steady else same[i], len(slots))
            if slot == len(self.inits):
                self.inits.append(fl.w.offset_const(self.type, base, 0) if steady else init)
                self.firsts.append(i)
            self.parts.append((slot, constant))

    def fresh(self) -> Row:
        return [self.fl.w.fresh() for _ in self.inits]

    def registers(self, names: Sequence[str]) -> Row:
        w, t = self.fl.w, self.type
        row = [w.offset_const(t, names[slot], constant) for slot, constant in self.parts]
        return row if self.regs is None else unpack(self.fl, self.elem, row, self.regs)

    def feed(self, yielded: Sequence[str]) -> Row:
        """Return the values of a back edge for each phi."""
        w = self.fl.w
        row: Row = []
        if self.regs is not None:
            yielded = pack(self.fl, self.elem, yielded, self.regs)
        for first in self.firsts:
            name, constant = yielded[first], self.parts[first][1]
            if constant:
                base, offset = split(w.offsets, name)
                name = w.offset_const(self.type, base, offset - constant)
            row.append(name)
        return row

    def phis(self, names: Sequence[str], edges: Sequence[Edge]) -> list[str]:
        return phi_lines(self.type, names, edges)


def _in_reg32(v: Value) -> PackedShape | None:
    """Find how 8- and 16-bit numbers of a tile are packed in 32-bit registers, if they fill whole ones."""
    elem = elem_of(v.type)
    if not isinstance(v.type, TileType) or elem is int1 or not isinstance(elem, dtype):
        return None
    layout: Any = v.type.layout
    count = layout.size("register")
    if elem.bits >= 32 or count * elem.bits % 32 or layout.unique_registers() != layout:
        return None
    return packed_shape(elem, 32 // elem.bits)


def phi_lines(type: str, names: Sequence[str], edges: Sequence[Edge]) -> list[str]:
    text: list[str] = []
    for i, name in enumerate(names):
        sources = ", ".join([f"[ {values[i]}, %{block} ]" for block, values in edges])
        text.append(f"  {name} = phi {type} {sources}")
    return text


def _advances(v: Value, start: Value) -> bool:
    """Whether `v` is the value `start` plus the same amount in all registers."""
    while v is not start:
        op = v.op
        if not isinstance(op, arith.AddPtrOp | arith.AddOp):
            return False
        left, right = op.operands
        if _uniform(right):
            v = left
        elif isinstance(op, arith.AddOp) and _uniform(left):
            v = right
        else:
            return False
    return True


def _uniform(v: Value) -> bool:
    if not isinstance(v.type, TileType):
        return True
    op = v.op
    if isinstance(op, tile.BroadcastOp | tile.ExpandDimsOp):
        return _uniform(op.operands[0])
    return isinstance(op, tile.SplatOp | arith.ConstOp)


def _steady(arg: Value, yielded: Value) -> bool:
    """Whether registers of this loop-carried value may share a phi."""
    elem = elem_of(arg.type)
    if not isinstance(arg.type, TileType):
        return False
    index = isinstance(elem, dtype) and elem.is_int() and elem.bits >= 32
    return (index or isinstance(elem, pointer_type)) and _advances(yielded, arg)


def rows(fl: FunctionLowering, values: Sequence[Value]) -> list[Row]:
    return [[] if isinstance(v.type, TokenType) else fl.get(v) for v in values]


# --- loops ---------------------------------------------------------------------------------------------------------
def _stays(loop: Op) -> bool:
    """Whether a loop must not be unrolled. If ptxas 13.0 unrolls a loop with a known number of iterations, in which
    arithmetic changes the accumulator between asynchronous MMAs, it drops all of these but the last."""
    return any(isinstance(op, WgmmaOp) for op in loop.walk())


@lowers(control.ForOp)
def _for(fl: FunctionLowering, op: control.ForOp) -> None:
    w, t = fl.w, llvm_type(op.lb.type)
    lb, ub, step = (fl.scalar(v) for v in (op.lb, op.ub, op.step))
    test = "icmp sgt" if is_number(step) and int(step) < 0 else "icmp slt"
    yields = op.body.terminator.operands
    carried = [
        Carried(fl, arg, init, _steady(arg, y))
        for arg, init, y in zip(op.carried, rows(fl, op.inits), yields)
    ]
    before, body, after = w.block, w.label("loop"), w.label("done")
    w.branch_if(w.pure(f"{test} {t} {lb}, {ub}"), body, after)
    with w.scope():
        w.start(body)
        at = len(w.lines)
        counter, names = w.fresh(), [c.fresh() for c in carried]
        fl.set(op.induction, [counter])
        for arg, c, row in zip(op.carried, carried, names):
            fl.set(arg, c.registers(row))
        fl.lower_block(op.body)
        following = w.emit(f"add {t} {counter}, {step}")
        fed = [c.feed(row) for c, row in zip(carried, rows(fl, yields))]
        latch = w.block
        w.branch_if(w.emit(f"{test} {t} {following}, {ub}"), body, after, keep=_stays(op))
        lines = [f"  {counter} = phi {t} [ {lb}, %{before} ], [ {following}, %{latch} ]"]
        for c, row, back in zip(carried, names, fed):
            lines += c.phis(row, [(before, c.inits), (latch, back)])
        w.lines[at:at] = lines
    w.start(after)
    last = [c.fresh() if r.uses else [] for r, c in zip(op.results, carried)]
    for c, row, back in zip(carried, last, fed):
        w.lines += c.phis(row, [(before, c.inits), (latch, back)])
    for result, c, row in zip(op.results, carried, last):
        fl.set(result, c.registers(row) if row else [])


@lowers(control.WhileOp)
def _while(fl: FunctionLowering, op: control.WhileOp) -> None:
    w = fl.w
    condition = op.before.terminator
    carried = [Carried(fl, a, i, False) for a, i in zip(op.before.args, rows(fl, op.inits))]
    entry, head, body, after = w.block, w.label("test"), w.label("body"), w.label("done")
    w.branch(head)
    # Values of `before` are visible after the loop, those of `after` only inside it.
    w.start(head)
    at = len(w.lines)
    names = [c.fresh() for c in carried]
    for arg, c, row in zip(op.before.args, carried, names):
        fl.set(arg, c.registers(row))
    fl.lower_block(op.before)
    values = rows(fl, condition.operands[1:])
    w.branch_if(fl.scalar(condition.operands[0]), body, after)
    with w.scope():
        w.start(body)
        for arg, row in zip(op.after.args, values):
            fl.set(arg, row)
        fl.lower_block(op.after)
        fed = [c.feed(row) for c, row in zip(carried, rows(fl, op.after.terminator.operands))]
        latch = w.block
        w.branch(head, keep=_stays(op))
    lines: list[str] = []
    for c, row, back in zip(carried, names, fed):
        lines += c.phis(row, [(entry, c.inits), (latch, back)])
    w.lines[at:at] = lines
    w.start(after)
    for result, row in zip(op.results, values):
        fl.set(result, row)


@lowers(control.IfOp)
def _if(fl: FunctionLowering, op: control.IfOp) -> None:
    w = fl.w
    condition = fl.scalar(op.condition)
    if condition in ("true", "false"):
        block = op.then if condition == "true" else op.orelse
        fl.lower_block(block)
        for result, row in zip(op.results, rows(fl, block.terminator.operands)):
            fl.set(result, row)
        return
    labels, after = [w.label("then"), w.label("else")], w.label("after")
    w.branch_if(condition, *labels)
    ends: list[str] = []
    yielded: list[list[Row]] = []
    for block, label in zip((op.then, op.orelse), labels):
        with w.scope():
            w.start(label)
            fl.lower_block(block)
            yielded.append(rows(fl, block.terminator.operands))
            ends.append(w.block)
            w.branch(after)
    w.start(after)
    for result, one, other in zip(op.results, *yielded):
        fl.set(result, _join(fl, carried_type(result.type), ends, one, other) if one else [])


def _join(fl: FunctionLowering, type: str, ends: Sequence[str], one: Row, other: Row) -> Row:
    """Return phis for the distinct pairs of registers."""
    found: dict[tuple[str, str], str] = {}
    result: Row = []
    for a, b in zip(one, other):
        name = found.get((a, b))
        if name is None:
            name = a
            if a != b:
                name = fl.w.fresh()
                fl.w.lines += phi_lines(type, [name], [(ends[0], [a]), (ends[1], [b])])
            found[a, b] = name
        result.append(name)
    return result


# --- functions ----------------------------------------------------------------------------------------------------
def parameter_type(t: Type, kernel: bool) -> str:
    """Return the LLVM type of a parameter: int1 is passed as a byte."""
    found = carried_type(t)
    return "i8" if kernel and found == "i1" else found


def lower_function(fl: FunctionLowering) -> str:
    """Return the text of the whole function."""
    w, func = fl.w, fl.func
    params: list[str] = []
    for i, arg in enumerate(func.body.args):
        t = parameter_type(arg.type, fl.kernel)
        names = [f"%a{i}_{r}" for r in range(registers_of(arg.type))]
        params += [f"{t} {_attributes(func, i, arg)}{name}" for name in names]
        fl.set(
            arg,
            [_from_byte(fl, n) for n in names]
            if t == "i8" and carried_type(arg.type) == "i1"
            else names,
        )
    params += [f"{MAP_PARAMETER} %map{i}" for i in range(fl.tensor_maps)]
    params += [f"{MAP_PARAMETER} {PROGRAMS}"] * fl.persistent
    fl.lower_block(func.body)
    for finish in fl.at_end.values():
        finish()
    values = [x for row in rows(fl, func.body.terminator.operands) for x in row]
    types = [
        carried_type(v.type)
        for v in func.body.terminator.operands
        for _ in range(registers_of(v.type))
    ]
    result = "{" + ", ".join(types) + "}" if types else "void"
    if not types:
        w.do("ret void")
    else:
        packed = "poison"
        for i, (t, x) in enumerate(zip(types, values)):
            packed = w.emit(f"insertvalue {result} {packed}, {t} {x}, {i}")
        w.do(f"ret {result} {packed}")
    linkage = "ptx_kernel void" if fl.kernel else f"internal {result}"
    head = f"define {linkage} @{func.name}({', '.join(params)}) {fl.attributes()}"
    lines, scope = w.lines, ""
    if fl.lines is not None:
        lines = fl.lines.attach(lines)
        scope = f" !dbg !{fl.lines.scope}" if fl.lines.scope >= 0 else ""
    return "\n".join([f"{head}{scope} {{", "entry:", *w.prologue, *lines, "}"])


def _attributes(func: Any, index: int, arg: Value) -> str:
    facts = dict(func.arg_attrs[index]) if index < len(func.arg_attrs) else {}
    align = facts.get("divisibility", 1)
    return f"align {align} " if isinstance(arg.type, pointer_type) and align > 1 else ""


def _from_byte(fl: FunctionLowering, name: str) -> str:
    return fl.w.pure(f"icmp ne i8 {name}, 0")


@lowers(control.CallOp)
def _call(fl: FunctionLowering, op: control.CallOp) -> None:
    w = fl.w
    args = [
        f"{carried_type(v.type)} {name}"
        for v, row in zip(op.args, rows(fl, op.args))
        for name in row
    ]
    counts = [registers_of(r.type) for r in op.results]
    types = [carried_type(r.type) for r, n in zip(op.results, counts) for _ in range(n)]
    if not types:
        w.do(f"call void @{op.callee}({', '.join(args)})")
        return
    struct = "{" + ", ".join(types) + "}"
    packed = w.emit(f"call {struct} @{op.callee}({', '.join(args)})")
    names = w.unpack_struct(packed, struct, len(types))
    for result, count in zip(op.results, counts):
        fl.set(result, names[:count])
        names = names[count:]
