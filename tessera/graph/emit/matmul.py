"""Emits a matrix product with what is computed of its operands before and of its result after it, as one kernel.

number → batch, block of rows, block of columns       a few blocks of rows after one another share columns of b
for k in 0 … K / 64:
    a = rows x 64 elements, loaded or computed          at any strides, masked at the edges
    b = 64 x columns
    acc = dot a, b, acc
y = relu(acc + bias)                                    the body of a loop over the product
store y
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tessera.dtypes import int32, int64
from tessera.graph.emit import product_time
from tessera.graph.emit.accesses import offset_of, through_views
from tessera.graph.emit.kernel import KernelCode, finished
from tessera.graph.emit.nest import PROGRAM, Nest
from tessera.graph.emit.product_time import HALF, TILES, Blocks, Shape
from tessera.graph.emit.scopes import Index, Scope, delinearised
from tessera.graph.emit.tiles import CannotEmit
from tessera.graph.emit.tiling import Axis, Machine, Tiling, cdiv
from tessera.graph.index import Expr, expr, minimum, sym
from tessera.graph.ir.ops import LoadOp, LoopOp, MatmulOp, yielded
from tessera.graph.ir.types import product
from tessera.ir import Block, Op, Value
from tessera.ops import YieldOp, arith, control, tile

Size = int | Expr
# Beside the rule's, where products are timed.
GPU_TILES = ((64, 128), (128, 64), (128, 256), (64, 64))
MOST_VARIANTS = 6  # of those whose times are estimated


@dataclass(frozen=True, slots=True)
class Product:
    """A matmul and the loops that are computed with it: `prologues` make operands, `epilogue` reads the result, whose
    coordinates are those of its extents that `groups` number, one group for each dimension of the product."""

    op: MatmulOp
    prologues: tuple[LoopOp, ...] = ()
    epilogue: LoopOp | None = None
    groups: tuple[tuple[int, ...], ...] = ()

    @property
    def ops(self) -> list[Op]:
        """All that the kernel computes, in order."""
        return [*self.prologues, self.op, *([self.epilogue] if self.epilogue else [])]


def blocks_of(op: MatmulOp, machine: Machine, epilogue: LoopOp | None = None) -> Blocks:
    """The tile sizes of a product on a machine, with what reads it in its kernel: its own, if it has any."""
    if op.blocks:
        return Blocks(*op.blocks)
    (m, k), n = op.a.type.shape[-2:], op.b.type.shape[-1]
    if not machine.exact:
        shape = estimated(op, machine)
        if shape is None:
            return _gpu_blocks(op)
        return product_time.fastest(shape, _tiles(op, epilogue))
    rows, columns = _side(m, 256), _side(n, 128)
    batch = product(list(op.a.type.shape[:-2]))
    while rows >= 64 and _few(batch, m, rows, n, columns, machine.lanes):
        rows //= 2
    return Blocks(rows, columns, _depth(k), 2, 4)


def estimated(op: MatmulOp, machine: Machine) -> Shape | None:
    """The product, if its time on this machine can be estimated."""
    (*batch, m, k), n = op.a.type.shape, op.b.type.shape[-1]
    sizes = [n for n in (*batch, m, k, n) if isinstance(n, int) and n > 0]
    halves = op.a.type.elem.storage_bytes == HALF
    if not machine.products or not halves or len(sizes) < len(batch) + 3:
        return None
    return Shape(math.prod(sizes[:-3]), *sizes[-3:])


def _tiles(op: MatmulOp, epilogue: LoopOp | None) -> tuple[Blocks, ...]:
    """The tiles that a GPU has the registers for."""
    if epilogue is None:
        return TILES
    count = product(list(op.result.type.shape))
    loaded = {x.tensor for x in epilogue.body if isinstance(x, LoadOp)} - {op.result}
    whole = sum(product(list(v.type.shape)) == count for v in loaded)
    scalars = sum(isinstance(x, arith.Elementwise) for x in epilogue.body)
    return product_time.fitting(whole + len(epilogue.results) - 1, scalars)


def pays(op: MatmulOp, epilogue: LoopOp, machine: Machine) -> bool:
    """Whether what reads a product is computed in its kernel in less time than apart from it."""
    shape = estimated(op, machine)
    if shape is None or op.blocks:
        return True
    alone, together = (
        product_time.microseconds(shape, product_time.fastest(shape, t))
        for t in (TILES, _tiles(op, epilogue))
    )
    moved = 2 * shape.batch * shape.m * shape.n * op.result.type.elem.storage_bytes
    return together < alone + product_time.LAUNCH + moved / product_time.MEMORY


def _gpu_blocks(op: MatmulOp) -> Blocks:
    """Tiles that are not bad for any product."""
    m = op.a.type.shape[-2]
    rows = 64 if isinstance(m, int) and m <= 64 else 128
    deep = 32 if op.a.type.elem.storage_bytes >= 4 else 64
    return Blocks(rows, 128, deep, 8, 4 if rows == 64 else 8)


def variants(op: MatmulOp, machine: Machine) -> list[Blocks]:
    """The tile sizes that may be the best ones of a product, those of `blocks_of` first."""
    b = blocks_of(op, machine)
    shape = estimated(op, machine)
    if machine.exact:
        found = [replace(b, m=cdiv(b.m, 2)), replace(b, n=cdiv(b.n, 2)), replace(b, k=2 * b.k)]
    elif shape is not None:
        found = sorted(TILES, key=lambda x: product_time.microseconds(shape, x))[:MOST_VARIANTS]
    else:
        found = [replace(b, m=m, n=n, warps=8 if m * n >= 1 << 14 else 4) for m, n in GPU_TILES]
    whole = op.a.type.shape[-2], op.b.type.shape[-1], op.a.type.shape[-1]
    fit = [
        x for x in found
        if all(not isinstance(n, int) or tile < 2 * n for tile, n in zip((x.m, x.n, x.k), whole, strict=True))
    ]  # fmt: skip
    return list(dict.fromkeys([b, *fit]))


def _side(n: Size, most: int) -> int:
    """Rows or columns of a block: of those not much smaller than `most` the one that goes least beyond the end, since a
    block computes what lies there, too."""
    if not isinstance(n, int):
        return most // 2
    if n <= most:
        return max(1, n)
    return min(range(most, most // 2, -16), key=lambda side: -n % side)


def _depth(k: Size) -> int:
    """Steps along k of one dot."""
    if not isinstance(k, int):
        return 64
    if k <= 128:
        return max(1, k)
    return next((s for s in (64, 96, 128, 48, 32) if k % s == 0), 64)


def _few(batch: Size, m: Size, rows: int, n: Size, columns: int, lanes: int) -> bool:
    """Whether there are fewer programs than run at once."""
    programs = product([batch, cdiv(m, rows), cdiv(n, columns)])
    return isinstance(programs, int) and programs < 2 * lanes


def emit_matmul(p: Product, machine: Machine, wide: bool = False) -> KernelCode:
    """The kernel of a product. CannotEmit for types that tile IR's dot does not take."""
    op = p.op
    if not op.acc.is_floating() or not op.a.type.elem == op.b.type.elem:
        raise CannotEmit(f"a product of {op.a.type.elem.short} and {op.b.type.elem.short}")
    blocks = blocks_of(op, machine, p.epilogue)
    *batch, m, n = op.result.type.shape
    axes = (
        Axis((0,), product(list(batch)), 1, None),
        Axis((1,), m, blocks.m, 0),
        Axis((2,), n, blocks.n, 1),
    )
    tiling = Tiling(axes, 2, warps=blocks.warps)
    nest = _ProductNest(p, tiling, blocks, int64 if wide else int32)
    written = nest.stored(nest.accumulated())
    return finished(nest, p.ops, tiling, written)


class _ProductNest(Nest):
    """A nest whose tiles lie along rows and k, along k and columns, or along rows and columns."""

    def __init__(self, p: Product, tiling: Tiling, blocks: Blocks, index_type: object):
        super().__init__(tiling, index_type)  # type: ignore[arg-type]
        self.p, self.blocks = p, blocks
        self.prologues = {r: loop for loop in p.prologues for r in loop.results}
        batch, rows, columns = tiling.axes
        k = p.op.a.type.shape[-1]
        self.batch = self.indices.new(batch.extent, 1, None)
        self.rows = [self.indices.new(rows.extent, blocks.m, 0) for _ in range(2)]
        self.columns = [self.indices.new(columns.extent, blocks.n, 1) for _ in range(2)]
        self.depth = [self.indices.new(k, blocks.k, place) for place in (1, 0)]
        self._number(_steps(self.rows[0]), _steps(self.columns[0]))
        outer = p.op.a.type.shape[:-2]
        self.outer_at = delinearised(self.batch.whole, outer) if outer else []

    def _number(self, rows: Size, columns: Size) -> None:
        """Which blocks a program's number stands for: `group` blocks of rows, then the next one of columns."""
        number = sym(PROGRAM)
        each = expr(rows) * columns
        inside, group = number % each, self.blocks.group
        first = inside // (columns * group) * group
        divides = (expr(rows) % group).value == 0
        height = expr(group) if divides else minimum(expr(rows) - first, group)
        place = inside % (columns * group)
        self._set([self.batch], number // each)
        self._set(self.rows, first + place % height)
        self._set(self.columns, place // height)

    def _set(self, indices: Sequence[Index], number: Expr) -> None:
        value = self.code.value(self.indices.simple(number), self.index_type)
        for index in indices:
            self.numbers[index.number] = value

    # --- the product ------------------------------------------------------------------------------------
    def accumulated(self) -> Value:
        """The tile of the product, in the type that it is added up in."""
        t, op = self.tiles, self.p.op
        shape = (self.blocks.m, self.blocks.n)
        start = t.spread(t.const(0, op.acc), shape)
        steps = self.depth[0].steps
        if steps == 0:
            return start
        if steps == 1:
            return self._step(start, self.entry)
        body = Block([self.index_type, start.type], names=["k", "acc"])
        for index in self.depth:
            self.numbers[index.number] = body.args[0]
        with self.builder.at(body):
            self.builder.insert(YieldOp([self._step(body.args[1], body)]))
        bounds = [self.extent(n) for n in (0, steps, 1)]
        stages = self.blocks.stages or None
        loop = control.ForOp(*bounds, [start], regions=[body], num_stages=stages)
        return self.builder.insert(loop).results[0]

    def _step(self, acc: Value, target: Block) -> Value:
        op, b = self.p.op, self.blocks
        k = self.depth
        left = self._operand(op.a, [self.rows[0], k[0]], (b.m, b.k), k[0], target)
        right = self._operand(op.b, [k[1], self.columns[0]], (b.k, b.n), k[1], target)
        return self.tiles.emit(tile.DotOp(left, right, acc, precision=op.precision))

    def _operand(
        self, v: Value, along: Sequence[Index], shape: tuple[int, int], k: Index, target: Block
    ) -> Value:
        """A tile of an operand: 0 where k is out of range."""
        self.places = dict(enumerate(along))
        tensor, at = through_views(v, [*self.outer_at, *(i.whole for i in along)])
        at = [self.indices.simple(c) for c in at]
        loop = self.prologues.get(tensor)
        if loop is None:
            found = self.element(tensor, at, Scope(Block(), {}, target))
        else:
            scope = Scope(loop.body, dict(zip(loop.body.args, at, strict=True)), target)
            found = self.value(yielded(loop.body)[tensor.index], scope)
        found = self.zero_outside(found, k, loop is not None)
        return self.tiles.spread(found, shape)

    # --- what is made of it -------------------------------------------------------------------------------
    def stored(self, acc: Value) -> Mapping[Value, Expr]:
        """Store the product, or what the epilogue makes of it; where in each result."""
        rows, columns = self.rows[1], self.columns[1]
        self.places = {0: rows, 1: columns}
        made = self.tiles.cast(acc, self.p.op.result.type.elem)
        at = [*self.outer_at, rows.whole, columns.whole]
        loop = self.p.epilogue
        if loop is None:
            scope = Scope(Block(), {}, self.entry)
            return self._store([(self.p.op.result, made)], at, scope)
        at = self._coordinates(loop, at)
        scope = Scope(loop.body, dict(zip(loop.body.args, at, strict=True)), self.entry)
        for x in loop.body:
            if isinstance(x, LoadOp) and x.tensor is self.p.op.result:
                scope.values[x.result] = made
        shape = (self.blocks.m, self.blocks.n)
        values = [self.tiles.spread(self.value(v, scope), shape) for v in yielded(loop.body)]
        return self._store(list(zip(loop.results, values, strict=True)), at, scope)

    def _coordinates(self, loop: LoopOp, at: Sequence[Expr]) -> list[Expr]:
        """The indices of the epilogue for coordinates of the product."""
        found = [expr(0)] * len(loop.extents)
        for group, e in zip(self.p.groups, at, strict=True):
            parts = delinearised(e, [loop.extents[d] for d in group])
            for d, part in zip(group, parts, strict=True):
                found[d] = part
        return found

    def _store(
        self, made: Sequence[tuple[Value, Value]], at: Sequence[Expr], scope: Scope
    ) -> Mapping[Value, Expr]:
        for result, v in made:
            self.store(result, at, v, scope)
        return {r: self.indices.by_parts(offset_of(r.type, at)) for r, _ in made}


def _steps(index: Index) -> Size:
    """How many blocks there are; no program runs where there are none."""
    return max(index.steps, 1) if isinstance(index.steps, int) else index.steps
