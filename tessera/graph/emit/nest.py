"""Emits the values of a nest as tile IR: each scalar of a body becomes a tile of the elements that a program computes.

Values are made when they are first asked for, in the block that their scope names, so that what does not depend on an
inner loop stands in front of it.
"""

from __future__ import annotations

from collections.abc import Sequence

from tessera.dtypes import dtype, int32, int64, pointer_type
from tessera.graph.emit.accesses import index_expr, offset_of, through_views
from tessera.graph.emit.index_code import IndexCode, Leaf
from tessera.graph.emit.multiply import multiply
from tessera.graph.emit.scopes import NUMBER, Index, Indices, Scope, delinearised
from tessera.graph.emit.tiles import CannotEmit, Tiles, joint_shape
from tessera.graph.emit.tiling import Tiling
from tessera.graph.index import Expr, Sym, atom_expr, expr, is_less, is_nonnegative, sym
from tessera.graph.ir.combine import finds_place
from tessera.graph.ir.ops import (
    CheckedOp,
    IndexOp,
    LoadOp,
    LoopOp,
    ReduceOp,
    ScanOp,
    SortOp,
    yielded,
)
from tessera.graph.ir.types import TensorType
from tessera.ir import Block, Builder, Value, elem_of, shape_of
from tessera.ops import arith, control, memory, tile

Size = int | Expr
PROGRAM = "%program"  # the symbol for the program's number


def _range_of(v: Value) -> tuple[int, int] | tuple[()]:
    """The least and the largest number that a value is known to be: the place of an extremum is an index."""
    op = v.op
    if isinstance(op, ReduceOp) and v.index == 1 and finds_place(op.body, op.combine):
        n = op.extents[0]
        return (0, n - 1) if isinstance(n, int) else ()
    return ()


class Arguments:
    """A kernel's parameters, in the order in which they were first needed: tensors, scalars, sizes."""

    def __init__(self, entry: Block, index_type: dtype):
        self.entry, self.index_type = entry, index_type
        self.given: dict[Value | Sym, Value] = {}

    def of(self, x: Value | Sym) -> Value:
        """The parameter for a tensor (its address), a scalar or a size."""
        found = self.given.get(x)
        if found is None:
            found = self.given[x] = self.entry.add_arg(self._type(x), self._name(x))
        return found

    def _type(self, x: Value | Sym) -> object:
        if isinstance(x, Sym):
            return self.index_type
        return pointer_type(x.type.elem) if isinstance(x.type, TensorType) else x.type

    def _name(self, x: Value | Sym) -> str:
        if isinstance(x, Sym):
            return x.name
        return f"p{len(self.given)}" if isinstance(x.type, TensorType) else f"v{len(self.given)}"


class Nest:
    """The emission of one nest, whose tiles are as `tiling` says."""

    def __init__(self, tiling: Tiling, index_type: dtype):
        self.tiling, self.index_type = tiling, index_type
        self.entry = Block()
        self.builder = Builder(self.entry)
        self.tiles = Tiles(self.builder, tiling.rank)
        self.indices = Indices()
        self.code = IndexCode(self.tiles, self._leaf, self.indices.ranges)
        self.arguments = Arguments(self.entry, index_type)
        self.numbers: dict[int, Value] = {}  # by index: the number of its block
        self.places: dict[int, Index] = {}  # outer indices by the dimension that they lie along
        self.read: dict[Value, set[Expr]] = {}  # tensors → offsets that are read of them
        self._loads: dict[object, Value] = {}
        self._opaque: dict[str, Value] = {}
        self._bounds: dict[tuple[int, Block], Value] = {}
        self._ranges: dict[tuple[int, Block], Value] = {}

    # --- indices ----------------------------------------------------------------------------------------
    def outer(self, extents: Sequence[Size], block: Block) -> Scope:
        """The scope of the nest's body, whose programs are numbered along the axes of the tiling."""
        bound: dict[Value, Expr] = {}
        left = sym(PROGRAM)
        made = [self.indices.new(a.extent, a.block, a.place) for a in self.tiling.axes]
        for axis, index in reversed(list(zip(self.tiling.axes, made, strict=True))):
            # No program runs where an extent is 0; the kernel must be well-formed all the same.
            steps = 1 if expr(index.steps).value == 0 else index.steps
            number = left % steps if index is not made[0] else left
            left = left // steps if index is not made[0] else expr(0)
            self.numbers[index.number] = self.code.value(
                self.indices.simple(number), self.index_type
            )
            if axis.place is not None:
                self.places[axis.place] = index
            parts = delinearised(index.whole, [extents[d] for d in axis.dims])
            bound |= {block.args[d]: e for d, e in zip(axis.dims, parts, strict=True)}
        for a in block.args:
            bound.setdefault(a, expr(0))
        return Scope(block, bound, self.entry)

    def _leaf(self, atom: Leaf) -> Value:
        if isinstance(atom, Sym):
            if atom.name == PROGRAM:
                return self.tiles.emit(tile.ProgramIdOp(axis=0))
            return self._opaque[atom.name] if atom.name in self._opaque else self.arguments.of(atom)
        index = self.indices.of_atom(atom)
        if atom.position % 3 == NUMBER:
            return self.numbers[index.number]
        assert index.place is not None and self.builder.block is not None
        key = (index.number, self.builder.block)
        if key not in self._ranges:
            self._ranges[key] = self.tiles.arange(index.place, index.block)
        return self._ranges[key]

    def expression(self, v: Value, scope: Scope) -> Expr:
        """An int64 scalar as an expression of indices."""

        def bound(x: Value) -> Expr | None:
            owner = scope.owner(x)
            return owner.bound.get(x) if owner is not None else None

        def opaque(x: Value) -> Expr:
            made = self.value(x, scope)
            for name, known in self._opaque.items():
                if known is made:
                    return sym(name)
            atom = self.indices.unknown(len(self._opaque), *_range_of(x))
            self._opaque[atom.name] = made
            return atom_expr(atom)

        return self.indices.simple(index_expr(v, bound, opaque))

    def number(self, e: Expr) -> Value:
        """An index as data (int64), computed in 32 bits where that is enough."""
        simple = self.indices.by_parts(e)
        ranges = self.indices.ranges
        small = is_less(simple, 1 << 31, ranges) and is_nonnegative(simple + (1 << 31), ranges)
        return self.tiles.wide(self.code.value(simple, int32 if small else int64))

    def extent(self, n: Size) -> Value:
        return self.code.value(expr(n), self.index_type)

    # --- masks --------------------------------------------------------------------------------------------
    def bounds(self, shape: Sequence[int], scope: Scope) -> Value | None:
        """Where a tile of this shape is inside of all extents; None for everywhere."""
        found: Value | None = None
        for place, n in enumerate(shape):
            if n > 1:
                index = scope.inner if place == self.tiling.inner else self.places[place]
                assert index is not None
                found = self.tiles.both(found, self.bound(index))
        return found

    def bound(self, index: Index) -> Value | None:
        """Where an index is below its extent; None for everywhere."""
        if index.exact:
            return None
        assert self.builder.block is not None
        key = (index.number, self.builder.block)
        if key not in self._bounds:
            at = self.code.value(index.parts, self.index_type)
            self._bounds[key] = self.tiles.compare(at, "lt", self.extent(index.extent))
        return self._bounds[key]

    def below(self, e: Expr, n: Size) -> Value | None:
        """Where an index is below a size; None for everywhere."""
        at = self.indices.by_parts(e)
        if is_less(at, expr(n), self.indices.ranges):
            return None
        return self.tiles.compare(self.code.value(at, self.index_type), "lt", self.extent(n))

    def zero_outside(self, v: Value, index: Index, computed: bool = False) -> Value:
        """v, 0 where an index is out of range. A load that goes along the index is masked, and 0 there; what is the
        same along it is not, nor what is `computed` of loads."""
        shape = shape_of(v.type)
        assert index.place is not None
        inside = self.bound(index)
        if inside is None or (not computed and shape[index.place : index.place + 1] > (1,)):
            return v
        return self.tiles.select(inside, v, self.tiles.const(0, elem_of(v.type)))

    # --- values -------------------------------------------------------------------------------------------
    def value(self, v: Value, scope: Scope) -> Value:
        """The tile for a scalar."""
        owner = scope.owner(v)
        if owner is None:
            return self.arguments.of(v)
        if v not in owner.values:
            with self.builder.at(owner.target):
                for x in self._needed(v, owner):
                    if x not in owner.values:
                        owner.values[x] = self._compute(x, owner)
        return owner.values[v]

    def _needed(self, v: Value, scope: Scope) -> list[Value]:
        """The values of the scope's block that `v` is computed from, each after those that it needs."""
        order: list[Value] = []
        seen: set[Value] = set()
        stack = [(v, False)]
        while stack:
            x, ready = stack.pop()
            if ready:
                order.append(x)
            elif x not in seen and x not in scope.values and x.block is scope.block:
                seen.add(x)
                stack.append((x, True))
                if isinstance(x.op, arith.Elementwise | CheckedOp):
                    stack += [(y, False) for y in x.op.operands]
        return order

    def _compute(self, v: Value, scope: Scope) -> Value:
        op = v.op
        if op is None or isinstance(op, IndexOp):
            return self.number(self.expression(v, scope))
        if isinstance(op, LoadOp):
            return self.load(op, scope)
        if isinstance(op, ReduceOp):
            made = self.reduction(op, scope)
            scope.values.update(zip(op.results, made, strict=True))
            return made[v.index]
        if isinstance(op, CheckedOp):
            return self._checked(op, scope)
        if not isinstance(op, arith.Elementwise | arith.ConstOp):
            raise CannotEmit(f"{op.opcode} cannot stand inside of a loop")
        return self.tiles.elementwise(op, [self.value(x, scope) for x in op.operands])

    def _checked(self, op: CheckedOp, scope: Scope) -> Value:
        """The value; a program in which the condition is false for one of its elements ends."""
        t, holds = self.tiles, self.value(op.condition, scope)
        mask = self.value(op.mask, scope) if op.mask is not None else None
        mask = t.both(t.both(self.bounds(shape_of(holds.type), scope), mask), scope.mask)
        if mask is not None:
            outside = t.binary(arith.XorOp, mask, t.true())
            holds = t.binary(arith.OrOp, holds, outside)
        self.builder.insert(memory.AssertOp(holds, message=op.message, loc=op.loc))
        return self.value(op.x, scope)

    def reduction(self, op: ReduceOp, scope: Scope) -> list[Value]:
        raise NotImplementedError

    def scanned(
        self, op: ScanOp | SortOp, coordinates: Sequence[Expr], scope: Scope
    ) -> list[Value]:
        raise NotImplementedError

    # --- memory -------------------------------------------------------------------------------------------
    def load(self, op: LoadOp, scope: Scope) -> Value:
        """The element that a load reads: of memory, or what a loop of the nest makes it of."""
        given = [self.expression(v, scope) for v in op.indices]
        mask = self.value(op.mask, scope) if op.mask is not None else None
        other = self.value(op.other, scope) if op.other is not None else None
        tensor, coordinates = through_views(op.tensor, op.map.at(given, 0).results)
        coordinates = [self.indices.simple(c) for c in coordinates]
        if scope.owner(tensor) is None:
            return self._read(tensor, coordinates, mask, other, scope)
        found = self.element(tensor, coordinates, scope, mask)
        if mask is None:
            return found
        if other is None:
            other = self.tiles.const(0, elem_of(found.type))
        return self.tiles.select(mask, found, other)

    def _read(
        self,
        tensor: Value,
        coordinates: Sequence[Expr],
        mask: Value | None,
        other: Value | None,
        scope: Scope,
    ) -> Value:
        offset = self.indices.by_parts(offset_of(tensor.type, coordinates))
        self.read.setdefault(tensor, set()).add(offset)
        key = (tensor, offset, mask, other, scope.mask, self.builder.block)
        if key not in self._loads:
            self._loads[key] = self._load_at(tensor, offset, mask, other, scope)
        return self._loads[key]

    def _load_at(
        self, tensor: Value, offset: Expr, mask: Value | None, other: Value | None, scope: Scope
    ) -> Value:
        t = self.tiles
        pointer = t.pointer(self.arguments.of(tensor), self.code.parts(offset, self.index_type))
        # A load runs once for each element of its own tile; more only where a mask varies on more axes.
        inside = self.bounds(shape_of(pointer.type), scope)
        mask = t.both(t.both(inside, mask), scope.mask)
        if mask is None:
            return t.emit(memory.LoadOp(pointer))
        if other is None:
            pointer, mask = t.together((pointer, mask))
            return t.emit(memory.LoadOp(pointer, mask))
        pointer, mask, other = t.together((pointer, mask, other))
        return t.emit(memory.LoadOp(pointer, mask, other))

    def element(
        self, v: Value, coordinates: Sequence[Expr], scope: Scope, mask: Value | None = None
    ) -> Value:
        """The element of a tensor: what a loop of the nest makes is computed where it is needed."""
        owner, op = scope.owner(v), v.op
        if owner is None or op is None:
            tensor, place = through_views(v, coordinates)
            place = [self.indices.simple(c) for c in place]
            return self._read(tensor, place, mask, None, scope)
        if isinstance(op, ScanOp | SortOp):
            return self.scanned(op, coordinates, scope)[v.index]
        if not isinstance(op, LoopOp):
            raise CannotEmit(f"{op.opcode} cannot stand inside of a loop")
        n = len(op.extents)
        key = (op, tuple(coordinates[:n]), scope.target, scope.mask, mask)
        child = owner.inlined.get(key)
        if child is None:
            child = owner.child(op.body, coordinates[:n], scope.target, scope.inner)
            child.mask = self.tiles.both(scope.mask, mask)
            owner.inlined[key] = child
        made = yielded(op.body)[v.index]
        if isinstance(made.type, TensorType):
            return self.element(made, coordinates[n:], child)
        return self.value(made, child)

    def store(
        self,
        result: Value,
        coordinates: Sequence[Expr],
        v: Value,
        scope: Scope,
        mask: Value | None = None,
    ) -> None:
        """Write an element of a result of the nest."""
        offset = self.indices.by_parts(offset_of(result.type, coordinates))
        parts = self.code.parts(offset, self.index_type)
        self.write(self.arguments.of(result), parts, v, mask, scope)

    def write(
        self,
        base: Value,
        offset: Sequence[Value],
        v: Value,
        mask: Value | None,
        scope: Scope,
        mode: str = "set",
    ) -> None:
        """Store or combine a value at an offset from `base` where `mask` holds."""
        t = self.tiles
        pointer = t.pointer(base, offset)
        shape = joint_shape([shape_of(x.type) for x in (pointer, v, *filter(None, (mask,)))])
        mask = t.both(self.bounds(shape, scope), mask)
        if mask is not None:
            pointer, v, mask = t.together((pointer, v, mask))
        else:
            pointer, v = t.together((pointer, v))
        if mode == "set":
            self.builder.insert(memory.StoreOp(pointer, v, mask))
        elif mode == "mul":
            multiply(t, base, pointer, v, mask)
        else:
            op = memory.AtomicRmwOp(pointer, v, mask, kind=mode, sem="relaxed")
            self.builder.insert(op)

    def function(self, name: str, alignment: Sequence[int]) -> control.FuncOp:
        """The finished function."""
        self.builder.block = self.entry
        self.builder.insert(control.ReturnOp([]))
        attrs = tuple((("divisibility", n),) if n > 1 else () for n in alignment)
        return control.FuncOp(name=name, arg_attrs=attrs, regions=[self.entry])
