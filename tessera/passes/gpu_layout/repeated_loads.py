"""Loads once what a tile of loads reads several times along a dimension, as words that hold eight weights.

    %k = div %rows, 8                        %g = arange of 16
    %p = base + %k * n + columns      →      %q = base + %g * n + columns
    %x = load %p : 128x64                    %y = load %q : 16x64
                                             %x = reshape (broadcast (expand_dims %y)) : 128x64

Aligned runs of addresses that are equal (analysis/axis.py, constancy) become one address: the pointers and masks are
computed for the first element of each run, through loops that carry them. The copies lie in the registers of
the thread that loads. That is done where threads would load several times each: with few elements they read the same
address at once, which costs nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tessera import ops
from tessera.analysis.axis import AxisAnalysis
from tessera.ir import Builder, Module, Op, TileType, Value, elem_of, pass_, shape_of
from tessera.ir.applications import apply
from tessera.passes.neutral.loops import with_carried

MOST = 16  # equal addresses that become one: more copies would need registers


@pass_("repeated-loads", optimization="repeated-loads", counts=True)
def repeated_loads(module: Module, warp_size: int = 32) -> None:
    """Load once what a tile of pointers repeats in runs along a dimension.

    Takes: tile IR without layouts, before `coalesce`; `num_warps` of the module.
    Gives: loads of smaller tiles, whose elements are repeated; the pointers of these beside those of the whole tiles.
    Needs: any GPU.
    Raises: nothing.
    Example: `words` of tests/filecheck/repeated-loads.tir
        div; for { load; addptr } → for { load; expand_dims; broadcast; reshape; addptr }
    Compare: constancy of Triton's `AxisInfo`, by which accesses of equal masks are joined.
    """
    for func in module.body:
        assert isinstance(func, ops.FuncOp)
        loads = [op for op in func.walk() if isinstance(op, ops.LoadOp) and not op.volatile]
        loads = [op for op in loads if isinstance(op.ptr.type, TileType)]
        axis = AxisAnalysis(func) if loads else None
        threads: int = module.attrs["num_warps"] * warp_size
        for load in loads:
            assert axis is not None
            for dim, count in _runs(load, axis, threads):
                first = _First(dim, count)
                if first.can(load.operands) and apply("repeated-loads", load):
                    first.load(load)
                    break


def _runs(load: ops.LoadOp, axis: AxisAnalysis, threads: int) -> Iterator[tuple[int, int]]:
    """Yield each dimension along which the operands are equal in aligned runs, with the length of these."""
    shape = shape_of(load.ptr.type)
    size = 1
    for n in shape:
        size *= n
    for dim, extent in enumerate(shape):
        count = min(axis.facts(load.ptr).constancy[dim], extent, MOST)
        if load.mask is not None:
            count = min(count, axis.facts(load.mask).constancy[dim])
        if load.other is not None and not isinstance(load.other.op, ops.ConstOp | ops.SplatOp):
            continue
        if count > 1 and extent % count == 0 and size // count >= threads:
            yield dim, count


class _First:
    """Computes tiles for the first of each `count` elements along a dimension."""

    def __init__(self, dim: int, count: int):
        self.dim, self.count = dim, count
        self.made: dict[tuple[Value, int], Value] = {}

    def can(self, values: Sequence[Value]) -> bool:
        """Whether the values can be computed in this way: from ranges, by ops on single elements, across iterations."""
        seen: set[tuple[Value, int]] = set()
        work = [(v, self.dim) for v in values]
        while work:
            at = work.pop()
            v, dim = at
            if at in seen or not self._repeats(v, dim):
                continue
            seen.add(at)
            found = self._sources(v, dim)
            if found is None:
                return False
            work += found
        return True

    def _repeats(self, v: Value, dim: int) -> bool:
        """Whether a value has a tile's extent along the dimension, not 1 or none."""
        return isinstance(v.type, TileType) and v.type.shape[dim] > 1

    def _sources(self, v: Value, dim: int) -> list[tuple[Value, int]] | None:
        op, loop = v.op, _loop_of(v)
        if loop is not None:
            number = v.index if op is loop else v.index - 1
            return [(x, dim) for x in (loop.inits[number], loop.body.terminator.operands[number])]
        if op is None:
            return None
        if isinstance(op, ops.ArangeOp | ops.ConstOp | ops.SplatOp):
            return []
        if isinstance(op, ops.HintOp) and op.contiguity and op.contiguity[dim] > 1:
            return None
        if isinstance(op, ops.Elementwise) and not op.regions:
            return [(x, dim) for x in op.operands]
        inner = _inner_dim(op, dim)
        return None if inner is None else [(op.operands[0], inner)]

    def load(self, load: ops.LoadOp) -> None:
        """Replace a load by one of the first elements, which are repeated."""
        operands = [
            None if v is None else self.of(v, self.dim) for v in (load.ptr, load.mask, load.other)
        ]
        assert operands[0] is not None
        b, t, dim = Builder.before_op(load), load.result.type, self.dim
        new = ops.LoadOp(
            operands[0], operands[1], operands[2], cache=load.cache, eviction=load.eviction, loc=load.loc,
            names=[load.result.name],
        )  # fmt: skip
        x = b.emit(ops.ExpandDimsOp(b.emit(new), axis=dim + 1))
        runs = (*t.shape[:dim], t.shape[dim] // self.count, self.count, *t.shape[dim + 1 :])
        x = b.emit(ops.BroadcastOp(x, results=[TileType(runs, t.elem)]))
        load.replace_by([b.emit(ops.ReshapeOp(x, results=[t]))])

    def of(self, v: Value, dim: int) -> Value:
        """Return the first elements of a value, computed behind it."""
        if not self._repeats(v, dim):
            return v
        if (v, dim) not in self.made:
            loop = _loop_of(v)
            if loop is not None:
                self._carried(v, loop, v.index if v.op is loop else v.index - 1, dim)
            else:
                assert v.op is not None
                self.made[v, dim] = self._computed(v.op, v, dim)
        return self.made[v, dim]

    def _carried(self, v: Value, loop: ops.ForOp, number: int, dim: int) -> None:
        """Let a loop carry the first elements of a value, too. What is computed for that may replace loops."""
        init = self.of(loop.inits[number], dim)
        if (v, dim) in self.made:  # by the loop around, which carries it on
            return
        found = loop.results[number]
        new = with_carried(loop, [init])
        body, added = new.body, len(new.inits) - 1
        self.made[new.carried[number], dim] = new.carried[added]
        self.made[found, dim] = self.made[new.results[number], dim] = new.results[added]
        following = self.of(body.terminator.operands[number], dim)
        body.terminator.set_operand(added, following)

    def _computed(self, op: Op, v: Value, dim: int) -> Value:
        b = Builder.after_op(op)
        t = v.type
        assert isinstance(t, TileType)
        shape = (*t.shape[:dim], t.shape[dim] // self.count, *t.shape[dim + 1 :])
        small = TileType(shape, elem_of(t))
        if isinstance(op, ops.ArangeOp):
            x = b.emit(ops.ArangeOp(start=0, end=shape[0]))
            x = b.emit(ops.MulOp(x, b.emit(ops.ConstOp(value=self.count, results=[small]))))
            return b.emit(ops.AddOp(x, b.emit(ops.ConstOp(value=op.start, results=[small]))))
        inner = _inner_dim(op, dim)
        inner = dim if inner is None else inner
        for x in op.operands:
            self.of(x, inner)
        new = op.clone({x: self.of(x, inner) for x in op.operands})
        new.results[0].type = small
        if isinstance(new, ops.HintOp) and new.constancy:
            new.constancy = tuple(
                n // self.count if d == dim else n for d, n in enumerate(new.constancy)
            )
        return b.insert(new).results[0]


def _loop_of(v: Value) -> ops.ForOp | None:
    """Return the loop that carries a value, as an argument or a result."""
    if isinstance(v.op, ops.ForOp):
        return v.op
    loop = v.block.parent if v.op is None and v.block is not None else None
    return loop if isinstance(loop, ops.ForOp) and v.index > 0 else None


def _inner_dim(op: Op, dim: int) -> int | None:
    """Return the dimension of an op's operand that is a dimension of its result."""
    if isinstance(op, ops.BroadcastOp):
        return dim
    if isinstance(op, ops.ExpandDimsOp):
        return dim - (dim > op.axis)
    return op.order[dim] if isinstance(op, ops.TransOp) else None
