"""Lets the kernel that computes rows of tensors reduce their columns, too, so that both are read once: each program
walks through a group of rows and keeps what it has of the columns; a small kernel puts the groups together.

dx = graph.loop (%i: 8192) { … of x[i, :], dy[i, :] }
db = graph.loop (%j: 4096) { sum over (%r: 8192) dy[r, j] }
    →   dx, t = graph.loop (%s: 256) {
            rows = graph.loop (%c: 32) { … of x[s * 32 + c, :], dy[s * 32 + c, :] }
            columns = graph.loop (%j: 4096) { sum over (%c: 32) dy[s * 32 + c, j] }
            yield [rows, columns]
        }                                                       dx has its rows `joined`
        db = graph.loop (%j: 4096) { sum over (%s: 256) t[s, j] }
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass

from tessera.dtypes import int64
from tessera.graph.emit.tiling import Machine, Size, cdiv, choose, next_power
from tessera.graph.index import Expr, IndexMap, dim
from tessera.graph.ir.ops import LoadOp, LoopOp, ReduceOp, ViewOp, yielded
from tessera.graph.ir.types import TensorType, product, row_major
from tessera.graph.passes import cost
from tessera.graph.passes.facts import captured_tensors
from tessera.graph.passes.fuse import placed
from tessera.graph.passes.split import depends, part_body
from tessera.ir import Block, Builder, Op, Value
from tessera.ir.applications import apply
from tessera.ops import FuncOp, YieldOp

MOST_SUMS = 4  # tensors of a row's length that a program keeps from row to row


def reduce_columns_with_rows(
    function: FuncOp, machine: Machine, size: cost.SizeOf, taken: Container[Op] = ()
) -> set[Op]:
    """Do so for the loops of a graph function where it moves fewer bytes, but for those of other kernels that are
    `taken`; the loops that put groups together."""
    made = set[Op]()
    if machine.exact:
        return made
    for op in list(function.body):
        free = op not in taken and op.parent is not None
        if isinstance(op, LoopOp) and free and not op.joined:
            found = _candidate(op, function.body, machine, size)
            if found is not None and apply("graph-walk-rows", op):
                made.add(found.build())
    return made


def _candidate(op: LoopOp, body: Block, machine: Machine, size: cost.SizeOf) -> Grouping | None:
    """What is to be done with the loop `op` over rows, if anything."""
    flat = not any(x.regions for x in op.body)
    k = len(op.extents) - flat
    extents = op.extents[:k]
    if k == 0 or product(extents) == 0 or not _has_plain_rows(op, k):
        return None
    if not flat and not _holds_rows(op, machine):
        return None
    at = {x: n for n, x in enumerate(body)}
    columns = [
        c for c in body if isinstance(c, LoopOp) and c is not op and _fits(c, op, k, at, machine)
    ]
    shapes = dict.fromkeys(c.extents for c in columns)
    for shape in shapes:
        group = [c for c in columns if c.extents == shape]
        found = Grouping(op, k, group, machine)
        sums = sum(len(r.results) for r in found.reductions)
        if sums <= MOST_SUMS and found.saved(size) > 2 * found.added(size):
            return found
    return None


def _has_plain_rows(op: LoopOp, k: int) -> bool:
    """Whether the rows of each result can be counted through, if there are several indices for them."""
    return k == 1 or all(r.type.all_strides == row_major(r.type.shape) for r in op.results)


def _holds_rows(op: LoopOp, machine: Machine) -> bool:
    tiling = choose(op, op.extents, machine)
    return tiling.whole and tiling.inner is not None and tiling.inner == tiling.rank - 1


def _fits(c: LoopOp, op: LoopOp, k: int, at: dict[Op, int], machine: Machine) -> bool:
    """Whether `c` reduces columns of the rows that `op` computes, and may do so at its place."""
    reductions = [x for x in c.body if x.regions]
    length = product(c.extents)
    if not c.extents or not isinstance(length, int) or not 16 <= length <= machine.row or c.joined:
        return False
    if c.results[0].type.device != op.results[0].type.device:
        return False
    if not reductions or not all(_reduces(x, op.extents[:k]) for x in reductions):
        return False
    if depends(c.body, [x for x in reductions if isinstance(x, ReduceOp)]):
        return False
    given = captured_tensors(c)
    if any(v.op is not None and v.op is not op and at[v.op] > at[op] for v in given):
        return False
    users = [cost.top_level(u, c.parent) for r in c.results for u in r.users()] if c.parent else []
    if any(at.get(u, len(at)) <= at[op] for u in users):
        return False
    if not any(
        v in captured_tensors(op) or v.op is op for v in given if v.type.rank >= k + len(c.extents)
    ):
        return False
    return all(_reads_own(c, r, k) for r in op.results)


def _reduces(x: Op, extents: Sequence[Size]) -> bool:
    return (
        isinstance(x, ReduceOp)
        and x.extents == tuple(extents)
        and not any(y.regions for y in x.body)
    )


def _reads_own(c: LoopOp, result: Value, k: int) -> bool:
    """Whether the columns read of a row's result what the same row and column have."""
    loads = cost.loads_of(c, [result])
    shape = result.type.shape
    if loads is None:
        return False
    if loads and shape[k:] not in ((), c.extents):
        return False
    for x in loads:
        reduction = x.parent_op()
        if not isinstance(reduction, ReduceOp) or x.mask is not None or not x.map.is_identity:
            return False
        if list(x.indices) != [*reduction.body.args, *c.body.args][: len(shape)]:
            return False
    return True


@dataclass
class Grouping:
    """A loop `op` over rows, of which the first k extents count, and the loops that reduce its columns."""

    op: LoopOp
    k: int
    columns: list[LoopOp]
    machine: Machine

    @property
    def reductions(self) -> list[ReduceOp]:
        return [x for c in self.columns for x in c.body if isinstance(x, ReduceOp)]

    @property
    def count(self) -> Size:
        """The number of rows."""
        return product(self.op.extents[: self.k])

    def step(self) -> int:
        """Rows that a program computes at a time."""
        length = product(self.columns[0].extents)
        assert isinstance(length, int)
        width = next_power(length)
        most, least = max(1, self.machine.step // width), max(1, self.machine.tile // width)
        if not isinstance(self.count, int):
            return least
        return max(least, min(most, next_power(self.count // self.machine.groups + 1) // 2))

    def groups(self) -> tuple[int, Size]:
        """How many groups, and of how many rows, which are a multiple of `step`."""
        step, groups = self.step(), self.machine.groups
        if isinstance(self.count, int):
            each = cdiv(cdiv(self.count, groups), step) * step
            assert isinstance(each, int)
            return -(-self.count // each), each
        return groups, cdiv(cdiv(self.count, groups), step) * step

    def saved(self, size: cost.SizeOf) -> int:
        """Bytes that are not moved twice."""
        mine, inside = set(captured_tensors(self.op)), set[Op](self.columns)
        total = 0
        for c in self.columns:
            for v in captured_tensors(c):
                total += cost.bytes_of(v.type, size) * (v in mine or v.op is self.op)
        for r in self.op.results:
            users = (
                {cost.top_level(u, self.op.parent) for u in r.users()}
                if self.op.parent
                else set[Op]()
            )
            total += cost.bytes_of(r.type, size) * (users <= inside)
        return total

    def added(self, size: cost.SizeOf) -> int:
        """Bytes of what groups have, written and read."""
        groups, _ = self.groups()
        each = sum(v.type.primitive_bitwidth // 8 for r in self.reductions for v in r.results)
        return 2 * groups * each * size(product(self.columns[0].extents))

    # --- the rewrite ----------------------------------------------------------------------------------------
    def build(self) -> Op:
        """Put both loops in the place of all; the one that puts groups together."""
        groups, each = self.groups()
        block = Block([int64], names=["s"])
        b = Builder(block, loc=self.op.loc)
        rows = self._rows(b, each)
        kept = self._kept()
        values = [rows.results[k] for k in kept]
        partial: list[list[Value]] = []
        for c in self.columns:
            for r in c.body:
                if isinstance(r, ReduceOp):
                    partial.append(self._column(b, c, r, rows, each))
        sums = [v for found in partial for v in found]
        b.insert(YieldOp([*values, *sums]))
        flat = [self._flat(self.op.results[k].type) for k in kept]
        joined = (*(self.count for _ in kept), *(0 for _ in sums))
        loop = LoopOp(extents=(groups,), joined=joined, regions=[block], loc=self.op.loc)
        device = self.op.results[0].type.device
        for r, t in zip(loop.results, [*flat, *(None for _ in sums)], strict=True):
            r.type = t or TensorType(r.type.shape, r.type.elem, None, device)
        before = Builder.before_op(self.op)
        before.insert(loop)
        final = self._final(before, groups, list(loop.results[len(kept) :]))
        for k, r in zip(kept, loop.results, strict=False):
            self.op.results[k].replace_all_uses(self._whole(before, r, self.op.results[k].type))
        self.op.erase()
        return final

    def _kept(self) -> list[int]:
        """The results of the rows that somebody else reads."""
        return [
            n
            for n, r in enumerate(self.op.results)
            if any(not any(u.is_inside(c) for c in self.columns) for u in r.users())
        ]

    def _rows(self, b: Builder, each: Size) -> LoopOp:
        """The loop over the rows of a group."""
        assert b.block is not None
        op = self.op
        if self.k < len(op.extents):
            outer = Block([int64] * self.k)
            inside = Builder(outer, loc=op.loc)
            inside.insert(YieldOp(placed(inside, op, self.k)))
            op = LoopOp(extents=op.extents[: self.k], regions=[outer], loc=op.loc)
            Builder.before_op(self.op).insert(op)
        body = part_body(op, {}, b.block.args[:1], each, self.count)
        if op is not self.op:
            op.erase()
        return b.insert(LoopOp(extents=(each,), regions=[body], loc=op.loc))

    def _column(self, b: Builder, c: LoopOp, r: ReduceOp, rows: LoopOp, each: Size) -> list[Value]:
        """What a group has of a reduction: tensors of the columns."""
        assert b.block is not None
        block = Block([int64] * len(c.extents), names=[a.name for a in c.body.args])
        inner = Builder(block, loc=c.loc)
        mapping: dict[Value, Value] = dict(zip(c.body.args, block.args, strict=True))
        for x in c.body:
            known = all(v in mapping or v.block is not c.body for v in x.operands)
            if not x.regions and not isinstance(x, YieldOp) and known:
                inner.insert(x.clone(mapping))
        body = part_body(r, mapping, b.block.args[:1], each, self.count, r.identities)
        for x in body:
            if isinstance(x, LoadOp) and x.tensor.op is self.op:
                tensor = rows.results[x.tensor.index]
                at = [body.args[0], *block.args][: tensor.type.rank]
                x.set_operands(tensor, at, None, None)
                x.index_map = None
        regions = [body, r.combine.clone({})]
        new = inner.insert(ReduceOp(extents=(each,), identities=r.identities, regions=regions))
        inner.insert(YieldOp(new.results))
        return b.insert(LoopOp(extents=c.extents, regions=[block], loc=c.loc)).results

    def _final(self, b: Builder, groups: int, partial: list[Value]) -> LoopOp:
        """The loop that puts the groups together, for all columns, in place of theirs."""
        extents = self.columns[0].extents
        block = Block([int64] * len(extents), names=[a.name for a in self.columns[0].body.args])
        inner = Builder(block, loc=self.columns[0].loc)
        values: list[Value] = []
        for c in self.columns:
            mapping: dict[Value, Value] = dict(zip(c.body.args, block.args, strict=True))
            for x in c.body:
                if isinstance(x, ReduceOp):
                    taken, partial = partial[: len(x.results)], partial[len(x.results) :]
                    found = _together(inner, x, taken, groups, block.args)
                    mapping.update(zip(x.results, found, strict=True))
                elif not isinstance(x, YieldOp):
                    inner.insert(x.clone(mapping))
            values += [mapping.get(v, v) for v in yielded(c.body)]
        inner.insert(YieldOp(values))
        types = [r.type for c in self.columns for r in c.results]
        loop = b.insert(LoopOp(extents=extents, regions=[block], results=types))
        made = iter(loop.results)
        for c in self.columns:
            c.replace_by([next(made) for _ in c.results])
        return loop

    def _flat(self, t: TensorType) -> TensorType:
        """The type of a result with its rows counted through."""
        if self.k == 1:
            return t
        return TensorType((self.count, *t.shape[self.k :]), t.elem, None, t.device)

    def _whole(self, b: Builder, v: Value, t: TensorType) -> Value:
        """A result as it was before."""
        if self.k == 1:
            return v
        place: Expr | int = 0
        for n in range(self.k):
            place = place * self.op.extents[n] + dim(n)
        at = [place, *(dim(n) for n in range(self.k, t.rank))]
        return b.emit(ViewOp(v, index_map=IndexMap(t.rank, at), results=[t]))


def _together(
    b: Builder, r: ReduceOp, partial: Sequence[Value], groups: int, at: Sequence[Value]
) -> Sequence[Value]:
    body = Block([int64], names=["s"])
    inner = Builder(body)
    loads = [inner.emit(LoadOp(t, [body.args[0], *at], None, None)) for t in partial]
    inner.insert(YieldOp(loads))
    regions = [body, r.combine.clone({})]
    return b.insert(ReduceOp(extents=(groups,), identities=r.identities, regions=regions)).results
