"""Does arithmetic that feeds addresses in int64, where arrays hold 2^31 elements or more.

A kernel computes offsets in int32, as its author wrote them. Where an array is so large that they may wrap, the slice
that leads from its sources (program ids, `arange`, arguments, constants) to the offset of each `addptr` is
duplicated in int64, as are comparisons of such offsets, which are the masks. The int32 values stay for their
other users. In pseudocode, for `p + (pid * 1024 + arange)` masked by `offs < n`:

    offs32 = pid * 1024 + arange               offs64 = int64(pid) * 1024 + int64(arange)
    load(p + offs32, offs32 < n)         →     load(p + offs64, offs64 < int64(n))

Unsigned arithmetic may wrap on purpose and is not followed; loaded and reduced values are extended as they are.
"""

from __future__ import annotations

from tessera.dtypes import dtype, int32, int64
from tessera.ir import Block, Builder, Module, Op, TileType, Value, elem_of, pass_
from tessera.ops import arith, control, tile

_COMPUTED = (
    arith.AddOp, arith.SubOp, arith.MulOp, arith.DivOp, arith.RemOp, arith.MinOp, arith.MaxOp,
    arith.AndOp, arith.OrOp, arith.XorOp, arith.ShlOp, arith.ShrOp, arith.NegOp, arith.AbsOp, arith.HintOp,
    tile.Rearrangement, tile.JoinOp,
)  # fmt: skip


def _wide_type(t: object) -> TileType | dtype:
    return TileType(t.shape, int64, t.layout) if isinstance(t, TileType) else int64


def _is_narrow(v: Value) -> bool:
    e = elem_of(v.type)
    return isinstance(e, dtype) and e.is_int() and e.bits < 64


class _Widener:
    """int64 versions of int32 values, made lazily and kept in `wide`; those in `computed` may differ by a wrap."""

    def __init__(self) -> None:
        self.wide: dict[Value, Value] = {}
        self.computed: set[Value] = set()

    def widened(self, v: Value) -> Value:
        if not _is_narrow(v):
            return v
        if v not in self.wide:
            self.wide[v] = self._make(v)
        return self.wide[v]

    def _make(self, v: Value) -> Value:
        op = v.op
        if elem_of(v.type) is not int32:
            return self._extended(v)
        if op is None:
            assert isinstance(v.owner, Block)
            return self._carried(v, v.owner)
        if isinstance(op, arith.ConstOp):
            return _after(v).emit(arith.ConstOp(value=op.value, results=(_wide_type(v.type),)))
        if isinstance(op, arith.SelectOp):
            self.computed.add(v)
            a, b = self.widened(op.on_true), self.widened(op.on_false)
            return _after(v).emit(arith.SelectOp(op.condition, a, b))
        if isinstance(op, _COMPUTED):
            return self._computed(v, op)
        if isinstance(op, control.Loop):
            return self._loop(v, op, v.index)
        if isinstance(op, control.IfOp):
            return self._if(v, op)
        return self._extended(v)

    def _extended(self, v: Value) -> Value:
        """Extend the value itself: it is a source of the slice."""
        return _after(v).emit(arith.CastOp(v, results=(_wide_type(v.type),)))

    def _computed(self, v: Value, op: Op) -> Value:
        self.computed.update(op.results)
        operands = [self.widened(x) for x in op.operands]
        new = op.clone(dict(zip(op.operands, operands, strict=True)))
        for r in new.results:
            r.type = _wide_type(r.type)
        _after(v).insert(new)
        self.wide.update(zip(op.results, new.results, strict=True))
        return self.wide[v]

    # --- values that control flow carries -----------------------------------------------------------------
    def _carried(self, v: Value, block: Block) -> Value:
        loop = block.parent
        if isinstance(loop, control.ForOp) and v.index > 0:
            return self._loop(v, loop, v.index - 1)
        if isinstance(loop, control.WhileOp):
            return self._loop(v, loop, v.index)
        return self._extended(v)

    def _loop(self, v: Value, loop: control.Loop, index: int) -> Value:
        """Carry the wide value beside the variable; record it before its next value is computed."""
        init, t = self.widened(loop.inits[index]), _wide_type(v.type)
        head = 1 if isinstance(loop, control.ForOp) else 0
        for block in loop.regions:
            old = block.args[index + head]
            self.wide[old] = block.add_arg(t, old.name)
            self.computed.add(old)
        self.wide[loop.results[index]] = _add_result(loop, t)
        self.computed.add(loop.results[index])
        _append_operand(loop, init)
        self._yields(loop, index)
        return self.wide[v]

    def _yields(self, op: Op, index: int) -> None:
        """Yield the wide value of that at `index`, at a position taken before other wide values of this op need one."""
        ends = [block.terminator for block in op.regions]
        places: list[tuple[Op, int, Value]] = []
        for end in ends:
            value = end.operands[index + (1 if isinstance(end, control.ConditionOp) else 0)]
            places.append((end, _append_operand(end, value), value))
        for end, place, value in places:
            end.set_operand(place, self.widened(value))

    def _if(self, v: Value, op: control.IfOp) -> Value:
        self.computed.add(v)
        self.wide[v] = _add_result(op, _wide_type(v.type))
        self._yields(op, v.index)
        return self.wide[v]


def _after(v: Value) -> Builder:
    if v.op is not None:
        return Builder.after_op(v.op)
    assert isinstance(v.owner, Block)
    return Builder.at_start(v.owner)


def _add_result(op: Op, t: TileType | dtype) -> Value:
    op.results.append(Value(t, op, len(op.results)))
    return op.results[-1]


def _append_operand(op: Op, v: Value) -> int:
    """Append a value to the last, variadic field of an op, and return its position."""
    assert op.operand_fields[-1].variadic and op.segments is not None
    place = len(op.operands)
    v.uses[op, place] = None
    op.operands.append(v)
    op.segments = (*op.segments[:-1], op.segments[-1] + 1)
    return place


@pass_("wide-index")
def wide_index(module: Module) -> None:
    """Give every `addptr` an int64 offset computed in int64, and compare and extend such offsets in int64.

    Takes: tile IR as the front end emits it, of a kernel with an array of 2^31 elements or more.
    Gives: a second, wide copy of the arithmetic that leads to offsets; narrow values stay for their other users.
    Needs: nothing of a target.
    Raises: nothing.
    Example: `offsets` of tests/filecheck/wide-index.tir
        %at = add; cmp %at, %n; addptr; load → cast; mul; add; cmp; addptr; load
    Compare: the widening of induction variables in LLVM IndVarSimplify.
    """
    widener = _Widener()
    ops = list(module.walk())
    for op in ops:
        if isinstance(op, arith.AddPtrOp):
            op.set_operand(1, widener.widened(op.offset))
        elif isinstance(op, arith.CastOp) and elem_of(op.result.type) is int64 and _is_narrow(op.x):
            new = widener.widened(op.x)
            if new is not op.result:
                op.result.replace_all_uses(new)
    for op in ops:
        if isinstance(op, arith.CmpOp) and elem_of(op.lhs.type) is int32:
            if op.lhs in widener.computed or op.rhs in widener.computed:
                lhs, rhs = widener.widened(op.lhs), widener.widened(op.rhs)
                op.set_operand(0, lhs)
                op.set_operand(1, rhs)
