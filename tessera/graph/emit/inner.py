"""Emits inner loops: reductions, scans and rows, whole in one tile, in steps of a loop, or element by element.

In steps, reductions that do not need each other share one loop:

    for k in range(0, steps):                     (%r: 5000), 2048 elements at a time
        x = load row + k * 2048 + arange, mask
        acc0 = acc0 + x;  acc1 = max(acc1, x)     tiles of 2048, reduced behind the loop

Of many steps, a block of them is added up by itself, and then to what there was: of n numbers, added up one after the
other, a sum errs as the root of n does, and this one as the fourth root.

    for b in range(0, steps / 128):
        for k in range(128 * b, 128 * b + 128): part = part + x
        acc = acc + part

Source: N. J. Higham, "The accuracy of floating point summation", SIAM J. Sci. Comput. 14, 1993.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import isqrt

from tessera.dtypes import dtype, int64
from tessera.errors import InternalError
from tessera.graph.emit.nest import Nest, Size
from tessera.graph.emit.scopes import Index, Scope, delinearised
from tessera.graph.emit.sorting import sorted_rows
from tessera.graph.emit.tiles import CannotEmit, Shape, joint_shape, typed
from tessera.graph.emit.tiling import MOST_UNROLLED, Tiling, next_power
from tessera.graph.index import Dim, Expr, atom_expr, dim, expr
from tessera.graph.ir.combine import finds_place, in_order
from tessera.graph.ir.ops import CombiningOp, ReduceOp, ScanOp, SortOp, yielded
from tessera.graph.ir.types import product
from tessera.ir import Block, Builder, Op, Value, elem_of, shape_of
from tessera.ir.applications import apply
from tessera.ops import YieldOp, arith, control

LONG = 256  # steps that are added up one after the other
BLOCK = 128  # steps of a block, where their number is not known


@dataclass(eq=False)
class Pass:
    """One walk through an inner space. Where it takes several steps, `block` is the body of their loop and carries
    values from one step to the next; else it is the block around it."""

    index: Index
    block: Block
    around: Block
    loop: bool
    inits: list[Value] = field(default_factory=list[Value])
    nexts: list[Value] = field(default_factory=list[Value])


class InnerNest(Nest):
    """A nest with inner loops. `exact`: whether extents of tiles need not be powers of two."""

    def __init__(self, tiling: Tiling, index_type: dtype, exact: bool):
        super().__init__(tiling, index_type)
        self.exact = exact
        self._spaces: dict[tuple[Size, ...], tuple[Index, list[Expr]]] = {}
        self._passes: dict[int, Pass] = {}
        self._scans: dict[tuple[Op, Scope, Block], tuple[list[Expr], list[Value]]] = {}
        self._needs: dict[Op, set[Op]] = {}
        self._start: Expr | None = None
        self._row: list[Expr] = []

    # --- spaces and passes ------------------------------------------------------------------------------
    def space(self, extents: Sequence[Size]) -> tuple[Index, list[Expr]]:
        """An index along the tiles' inner dimension for all of `extents`, and their indices."""
        key = tuple(extents)
        if key in self._spaces:
            return self._spaces[key]
        total = product(list(extents))
        block = self.tiling.step
        if self.tiling.whole:
            assert isinstance(total, int)
            block = total if self.exact else next_power(total)
        elif isinstance(total, int):
            block = min(block, total if self.exact else next_power(total))
        index = self.indices.new(total, max(1, block), self.tiling.inner)
        made = index, delinearised(index.whole, extents)
        if self.tiling.whole:
            self._spaces[key] = made
        return made

    def outer(self, extents: Sequence[Size], block: Block) -> Scope:
        scope = super().outer(extents, block)
        if self.tiling.start is not None:
            self._start = self.tiling.start.subs(
                {Dim(k): scope.bound[a] for k, a in enumerate(block.args)}
            )
        return scope

    def pieces(self, extents: Sequence[Size]) -> list[tuple[Index, list[Expr]]]:
        """Indices that have all of `extents` together: one, or that of whole vectors and that of a row's edges."""
        start, unit, n = self._start, self.tiling.unit, product(list(extents))
        if start is None:
            return [self.space(extents)]
        assert isinstance(n, int)
        if not self._row:
            with self.builder.at(self.entry):
                first, behind = ((start + k) // unit * unit for k in (unit - 1, n))
                self._row = [self._named(e) for e in (first, behind)]
                self._row.append(self._named(behind - start, n))
        first, behind, late = self._row
        block = min(self.tiling.step, next_power(n))
        middle = self.indices.new(behind - first, block, self.tiling.inner, -(-n // block))
        edges = self.indices.new(n - (behind - first), 2 * unit, self.tiling.inner, 1)
        return [(middle, [first - start + middle.whole]), (edges, [(late + edges.whole) % n])]

    def _named(self, e: Expr, most: int = 1 << 62) -> Expr:
        """The expression as a symbol, which is not taken apart."""
        made = self.code.value(self.indices.by_parts(e), self.index_type)
        atom = self.indices.unknown(len(self._opaque), 0, most)
        self._opaque[atom.name] = made
        return atom_expr(atom)

    def walk(
        self, index: Index, make: Callable[[Pass], None], reductions: Sequence[ReduceOp] = ()
    ) -> list[Value]:
        """Run `make` for each step along an index. The results are what the steps carry, as the last one leaves it.
        `reductions`: those whose results so far `make` carries, in this order."""
        around = self.builder.block
        assert around is not None
        if index.steps == 1 and (index.block > 1 or index.extent == 1):
            only = Pass(index, around, around, False)
            self._passes[index.number] = only
            make(only)
            return only.nexts
        body = Block([self.index_type], names=["k"])
        self.numbers[index.number] = body.args[0]
        p = self._passes[index.number] = Pass(index, body, around, True)
        with self.builder.at(body):
            make(p)
            self.builder.insert(YieldOp(p.nexts))
        carried = sum(len(r.results) for r in reductions)
        if carried == len(p.nexts) and is_long(index) and any(map(adds_floats, reductions)):
            return self._by_blocks(p, body, reductions)
        bounds = [self.extent(n) for n in (0, index.steps, 1)]
        loop = control.ForOp(*bounds, p.inits, regions=[body])
        return self.builder.insert(loop).results

    def _by_blocks(self, p: Pass, body: Block, reductions: Sequence[ReduceOp]) -> list[Value]:
        """The loop of a pass in blocks of steps, each of which begins anew. Where all blocks are full, the inner loop
        has constant bounds, which the compilers of kernels make more of."""
        blocks = self.indices.new(p.index.steps, block_of(p.index.steps), None)
        outer = Block([self.index_type], names=["b"])
        self.numbers[blocks.number] = outer.args[0]
        before = [outer.add_arg(v.type) for v in p.inits]
        zero, one, full = (self.extent(n) for n in (0, 1, blocks.block))
        end = zero if blocks.exact else self.extent(blocks.extent)
        with self.builder.at(outer):
            first = self.code.value(dim(blocks.count.position) * blocks.block, self.index_type)
            bound = full
            if not blocks.exact:
                left = self.tiles.binary(arith.SubOp, end, first)
                bound = self.tiles.binary(arith.MinOp, full, left)
            loop = control.ForOp(zero, bound, one, p.inits, regions=[body])
            parts = self.builder.insert(loop).results
            sums: list[Value] = []
            for r in reductions:
                these = slice(len(sums), len(sums) + len(r.results))
                sums += self.tiles.inline(r.combine, [*before[these], *parts[these]])
            self.builder.insert(YieldOp(sums))
        k = body.args[0]
        moved = arith.AddOp(first, k)
        k.replace_all_uses(moved.result)
        Builder.at_start(body).insert(moved)
        moved.set_operand(1, k)
        count = self.extent(blocks.steps)
        return self.builder.insert(
            control.ForOp(zero, count, one, p.inits, regions=[outer])
        ).results

    def carry(self, p: Pass, shape: Shape, start: Sequence[tuple[object, dtype]]) -> list[Value]:
        """What the step before left, at first the numbers `start`."""
        made: list[Value] = []
        for number, elem in start:
            with self.builder.at(p.around):
                init = self.tiles.const(number, elem)  # type: ignore[arg-type]
                init = self.tiles.spread(init, shape) if shape else init
            p.inits.append(init)
            made.append(p.block.add_arg(typed(shape, elem)))
        return made

    # --- reductions -------------------------------------------------------------------------------------
    def reduction(self, op: ReduceOp, scope: Scope) -> list[Value]:
        """The results of a reduction; those of others that go well with it are kept, too."""
        if self.tiling.inner is None or scope.inner is not None:
            return self._by_element(op, scope)
        group = self._companions(op, scope)
        for k, piece in enumerate(self.pieces(op.extents)):
            found = self._reduced(group, *piece, scope)
            for r, parts in zip(group, found, strict=True):
                if k:
                    before = [scope.values[x] for x in r.results]
                    parts = self.tiles.inline(r.combine, [*before, *parts])
                scope.values.update(zip(r.results, parts, strict=True))
        return [scope.values[r] for r in op.results]

    def _reduced(
        self, group: Sequence[ReduceOp], index: Index, coordinates: Sequence[Expr], scope: Scope
    ) -> list[list[Value]]:
        """What each reduction of a group makes of the elements along an index."""
        starts: list[int] = []  # a scan that a reduction reads carries something, too

        def step(p: Pass) -> None:
            for r in group:
                values = self._accumulated(r, coordinates, p, scope)
                starts.append(len(p.nexts))
                p.nexts += values

        found, made = self.walk(index, step, group), list[list[Value]]()
        for r, start in zip(group, starts, strict=True):
            parts = found[start : start + len(r.results)]
            if index.block > 1:
                assert self.tiling.inner is not None
                parts = self.tiles.reduce(parts, self.tiling.inner, r.combine)
            made.append(parts)
        return made

    def _accumulated(
        self, op: ReduceOp, coordinates: Sequence[Expr], p: Pass, scope: Scope
    ) -> list[Value]:
        values = self._body_values(op, coordinates, p, scope, p.block)
        if not p.loop:
            return values
        before = self.carry(p, shape_of(values[0].type), self._identities(op))
        return self.tiles.inline(op.combine, [*before, *values])

    def _body_values(
        self,
        op: CombiningOp | SortOp,
        coordinates: Sequence[Expr],
        p: Pass,
        scope: Scope,
        target: Block,
    ) -> list[Value]:
        """What the body yields in a step: tiles of one shape; identities where the index is out of its extent."""
        t = self.tiles
        child = scope.child(op.body, coordinates, target, p.index)
        values = [self.value(v, child) for v in yielded(op.body)]
        inside = self.bound(p.index)
        if inside is not None:
            assert isinstance(op, CombiningOp)
            numbers = [t.const(n, elem) for n, elem in self._identities(op)]
            values = [t.select(inside, v, n) for v, n in zip(values, numbers, strict=True)]
        shapes = [shape_of(v.type) for v in values]
        if p.index.block > 1:
            shapes.append(tuple(p.index.block if k == p.index.place else 1 for k in range(t.rank)))
        shape = joint_shape(shapes)
        return [t.spread(v, shape) if shape else v for v in values]

    def _identities(self, op: CombiningOp) -> list[tuple[int | float | bool, dtype]]:
        elems = [elem_of(v.type) for v in yielded(op.body)]
        return list(zip(op.identities, elems, strict=True))

    def _companions(self, op: ReduceOp, scope: Scope) -> list[ReduceOp]:
        """`op` and the reductions of the same extents that need no result that `op` does not need either."""
        if self.tiling.whole:
            return [op]
        mine = self._needed_by(op)
        others = [
            r
            for r in scope.block
            if isinstance(r, ReduceOp) and r.extents == op.extents and r is not op
        ]
        fit = [
            r
            for r in others
            if self._needed_by(r) <= mine and r not in mine and r.results[0] not in scope.values
        ]
        return [op, *fit]

    def _needed_by(self, op: Op) -> set[Op]:
        """The reductions whose results an op needs, directly or through others."""
        found = self._needs.get(op)
        if found is not None:
            return found
        found = set[Op]()
        inside = set(op.walk())
        for x in inside:
            for v in x.operands:
                d = v.op
                if d is not None and d not in inside and not _is_top_level(d):
                    found |= self._needed_by(d) | ({d} if isinstance(d, ReduceOp) else set())
        self._needs[op] = found
        return found

    def _by_element(self, op: ReduceOp, scope: Scope) -> list[Value]:
        """Each element of the tile walks through the reduction by itself."""
        total = product(list(op.extents))
        if isinstance(total, int) and total <= MOST_UNROLLED:
            return self._written_out(op, total, scope)
        index = self.indices.new(total, 1, None)
        coordinates = delinearised(index.whole, op.extents)

        def step(p: Pass) -> None:
            child = scope.child(op.body, coordinates, p.block, scope.inner)
            values = self.tiles.together([self.value(v, child) for v in yielded(op.body)])
            before = self.carry(p, shape_of(values[0].type), self._identities(op))
            p.nexts += self.tiles.inline(op.combine, [*before, *values])

        return self.walk(index, step, [op])

    def _written_out(self, op: ReduceOp, total: int, scope: Scope) -> list[Value]:
        found = [self.tiles.const(n, elem) for n, elem in self._identities(op)]
        ordered = finds_place(op.body, op.combine) and apply("graph-order-extrema", op)
        combine = in_order(op.combine) if ordered else op.combine
        for k in range(total):
            coordinates = delinearised(expr(k), op.extents)
            child = scope.child(op.body, coordinates, scope.target, scope.inner)
            values = [self.value(v, child) for v in yielded(op.body)]
            found = self.tiles.inline(combine, [*found, *values]) if k else values
        return found

    # --- scans ------------------------------------------------------------------------------------------
    def scanned(
        self, op: ScanOp | SortOp, coordinates: Sequence[Expr], scope: Scope
    ) -> list[Value]:
        """The elements of a scan's results, or of a sorted row, at the place that the step around it is at."""
        index = scope.inner
        owner = scope.owner(op.results[0])
        assert owner is not None
        if index is None:
            raise CannotEmit("a scan is read outside of a loop along it")
        p = self._passes[index.number]
        key = op, owner, scope.target
        at, values = self._scans.get(key, ([], []))
        if not values:
            at = delinearised(index.whole, op.extents)
            if index.extent != product(list(op.extents)):
                raise CannotEmit("a scan is read in a loop of another extent")
            if p.loop and scope.target is not p.block:
                raise CannotEmit("a scan in several steps is read inside of another loop")
            with self.builder.at(scope.target):
                if isinstance(op, ScanOp):
                    values = self._scan_step(op, at, p, owner, scope.target)
                else:
                    values = self._sort_step(op, at, p, owner, scope.target)
            self._scans[key] = at, values
        if [self.indices.simple(c) for c in coordinates] != [self.indices.simple(c) for c in at]:
            raise CannotEmit("a scan is read at another place than it is computed at")
        return values

    def _scan_step(
        self, op: ScanOp, at: Sequence[Expr], p: Pass, owner: Scope, target: Block
    ) -> list[Value]:
        t, place = self.tiles, self.tiling.inner
        if place is None:
            raise InternalError("a scan has no dimension of the tiles")
        values = self._body_values(op, at, p, owner, target)
        if p.index.block > 1:
            values = t.scan(values, place, op.combine, op.reverse)
        if not p.loop:
            return values
        if op.reverse:
            raise CannotEmit("a scan from the end takes several steps")
        whole = shape_of(values[0].type)
        rest = tuple(1 if k == place else n for k, n in enumerate(whole))
        shape = rest if len(rest) > 1 else ()  # as `_last` gives it
        before = self.carry(p, shape, self._identities(op))
        values = t.inline(op.combine, [*before, *values])
        p.nexts += self._last(op, values, p.index)
        return values

    def _sort_step(
        self, op: SortOp, at: Sequence[Expr], p: Pass, owner: Scope, target: Block
    ) -> list[Value]:
        """The whole row in order: of a power of two integers, such as `expand_sorts` makes of longer rows."""
        keys, n = yielded(op.body), p.index.block
        whole = not p.loop and p.index.exact and n > 1 and not n & (n - 1)
        if not whole or op.descending or [elem_of(v.type) for v in keys] != [int64]:
            raise CannotEmit("a row of this length, or of these elements, is sorted by no kernel")
        if self.tiling.inner != self.tiling.rank - 1:
            raise CannotEmit("a sort across memory")
        return [sorted_rows(self.tiles, v) for v in self._body_values(op, at, p, owner, target)]

    def _last(self, op: ScanOp, values: Sequence[Value], index: Index) -> list[Value]:
        """The last elements of tiles along an index."""
        t, place = self.tiles, self.tiling.inner
        assert place is not None
        if index.block == 1:
            return list(values)
        at = t.arange(place, index.block)
        last = t.compare(at, "eq", t.const(index.block - 1, elem_of(at.type)))
        kept = [
            t.select(last, v, t.const(n, elem))
            for v, (n, elem) in zip(values, self._identities(op), strict=True)
        ]
        return t.reduce(kept, place, op.combine)


def is_long(index: Index) -> bool:
    """Whether a sum over an index, one step after the other, may be far from the real one. Tiles that lie along it
    make short work of sizes that are not known."""
    return index.steps > LONG if isinstance(index.steps, int) else index.block == 1


def block_of(steps: Size) -> int:
    """How many steps a block has: about the root of all, a number that divides them where there is one."""
    if not isinstance(steps, int):
        return BLOCK
    near = max(BLOCK // 2, isqrt(steps))
    return next((n for n in range(near, 4 * near) if steps % n == 0), near)


def adds_floats(op: ReduceOp) -> bool:
    """Whether a reduction rounds sums."""
    return any(isinstance(x, arith.AddOp) and x.result.type.is_floating() for x in op.combine)


def _is_top_level(op: Op) -> bool:
    return isinstance(op.parent_op(), control.FuncOp | None)
