"""Finds the strided view of an array that a tile of pointers addresses, if the host can describe that array before
the launch.

    p = a + (tile_m * 128 + arange(0, 128))[:, None] * stride + arange(0, 64) + k

is the strided view of 128 x 64 elements at coordinates (128·tile_m, k) of an array at `a` with strides (stride, 1). A
mask that compares coordinates with numbers known to the host bounds the array. The rest of the address, such as
`head * stride_h`, becomes a coordinate along a further dimension."""

from __future__ import annotations

from dataclasses import dataclass, field

from tessera.analysis.axis import TOP, AxisAnalysis, power_of_two_part
from tessera.analysis.dead_elements import conditions, dead_beyond
from tessera.analysis.host_code import HostCode
from tessera.analysis.polynomials import (
    Along,
    Atom,
    Monomial,
    Poly,
    Polynomials,
    along_one,
    is_index,
)
from tessera.dtypes import pointer_type
from tessera.ir import Block, Op, Value, shape_of
from tessera.ir.applications import Declined
from tessera.ops import ForOp, FuncOp, LoadOp, StoreOp

ONE = Poly.constant(1)


@dataclass(slots=True)
class Side:
    """One dimension of a strided view: stride between neighbours in elements, first coordinate, extent.

    `bound`: where the array ends (None: unbounded). `from_zero`: it begins at coordinate 0, and the view may begin
    before that. `period`: coordinates are taken modulo this multiple of the extent; the start is a multiple, too."""

    stride: Poly
    start: Poly
    extent: int
    bound: Poly | None = None
    from_zero: bool = False
    period: Poly | None = None


@dataclass(slots=True)
class StridedView:
    """A tile's strided view of an array. `base` points to the array's first element. `sides` are in the order of the
    tile's dimensions; `further` are sides of extent 1 that the tile lacks. `contiguous` is the dimension of stride
    1."""

    base: Value
    sides: list[Side]
    contiguous: int
    further: list[Side] = field(default_factory=lambda: [])


class StridedViews:
    """Strided views of one function's loads and stores."""

    def __init__(self, func: FuncOp, axis: AxisAnalysis, code: HostCode):
        self.func, self.axis, self.code = func, axis, code
        self.polynomials: Polynomials = code.polynomials

    def of(self, access: LoadOp | StoreOp) -> StridedView:
        """Return the strided view of a load or a store. Raises Declined if there is none."""
        p = self.polynomials.of(access.ptr)
        if p is None:
            raise Declined("the address is not linear in its coordinates")
        base, offset = self._base(p)
        tilted = offset.only(is_index)
        found = self._sides(tilted, shape_of(access.ptr.type))
        view = StridedView(base, [side for side, _ in found], self._contiguous(found))
        left = self._place(view, offset - tilted)
        for d, (side, index) in enumerate(found):
            if index is not None and index.limited is not None:
                left += self._limit(access, d, side, index)
        if access.mask is not None:
            for c in conditions(access.mask, self.polynomials):
                left += self._bound(view.sides, c)
        self._further(view, left)
        return view

    def known(self, atom: Atom) -> bool:
        """Whether the host knows a value exactly."""
        number = self.code.value(atom) if isinstance(atom, Value) else None
        return number is not None and self.code.exact(number)

    def computed(self, p: Poly) -> Poly:
        """Return the terms of a polynomial that contain a value unknown to the host."""
        return p.only(lambda atom: not self.known(atom))

    def divisor(self, p: Poly) -> int:
        """Return a power of two that divides the polynomial in all iterations."""
        counts: set[Value] = set()  # induction variables that now stand for iteration counts
        while True:
            loops = [
                loop for x in p.atoms if (loop := _loop_of(x)) and loop.induction not in counts
            ]
            if not loops:
                break
            loop = max(loops, key=_depth)  # innermost first: its bounds may depend on outer loops
            lb, step = self.polynomials.of(loop.lb), self.polynomials.of(loop.step)
            assert lb is not None and step is not None, "scalars have polynomials"
            p = p.replaced(loop.induction, lb + step * Poly.atom(loop.induction))
            counts.add(loop.induction)
        found = TOP
        for m, c in p.terms.items():
            part = power_of_two_part(c)
            for atom, power in m:
                assert isinstance(atom, Value)
                part *= 1 if atom in counts else self.axis.facts(atom).divisibility[0] ** power
            found = min(found, part)
        return found

    # --- parts of the address ------------------------------------------------------------------------------
    def _base(self, p: Poly) -> tuple[Value, Poly]:
        for atom in p.atoms:
            if isinstance(atom, Value) and isinstance(atom.type, pointer_type):
                offset = p - Poly.atom(atom)
                if atom.owner is self.func.body and atom not in offset.atoms:
                    return atom, offset
        raise Declined("the array is no argument")

    def _sides(self, tilted: Poly, shape: tuple[int, ...]) -> list[tuple[Side, Along | None]]:
        """Return the sides, with only their strides set, and their indices."""
        indices: dict[int, Along] = {}
        strides: dict[int, Poly] = {}
        for term in tilted:
            (index, *others) = [a for a in term.atoms if isinstance(a, Along)]
            stride = term.over(Poly.atom(index))
            if others or stride is None or index in stride.atoms:
                raise Declined("the address is not linear in its coordinates")
            if indices.setdefault(index.dim, index) != index:
                raise Declined("two coordinates run along one dimension")
            strides[index.dim] = strides.get(index.dim, Poly({})) + stride
        sides: list[tuple[Side, Along | None]] = []
        for d, extent in enumerate(shape):
            stride = strides.get(d)
            if stride is None and extent > 1:
                raise Declined("the same elements stand along a dimension")
            if stride is not None and (len(stride.terms) != 1 or self.computed(stride).terms):
                raise Declined("the host does not know a stride")
            sides.append((Side(stride or Poly({}), Poly({}), extent), indices.get(d)))
        return sides

    def _contiguous(self, found: list[tuple[Side, Along | None]]) -> int:
        ones = [d for d, (side, _) in enumerate(found) if side.stride == ONE]
        if len(ones) != 1:
            raise Declined("there is not one dimension of stride 1")
        return ones[0]

    def _place(self, view: StridedView, rest: Poly) -> Poly:
        """Give each part of the address that is uniform over the tile to the side whose stride divides it. Return the
        parts whose strides no side has."""
        left = Poly({})
        order = sorted(view.sides, key=lambda s: _degree(s.stride), reverse=True)
        for term in rest:
            for side in order:
                part = term.over(side.stride) if side.stride.terms else None
                if part is not None:
                    if side.stride == ONE and self._strided(term):
                        left += term
                    else:
                        side.start += part
                    break
        return left

    def _strided(self, term: Poly) -> bool:
        """Whether a part of the address is a number of steps of a size that the host knows."""
        known = [self.known(atom) for atom in term.atoms]
        return any(known) and not all(known)

    def _limit(self, access: LoadOp | StoreOp, d: int, side: Side, index: Along) -> Poly:
        """Take over the bound of a limited coordinate. Return whatever else moves the view along its dimension."""
        assert index.limited is not None
        coordinate, bound = index.limited
        one = along_one(coordinate)
        assert one is not None
        moved, side.start = side.start * side.stride, one[1]
        if self.computed(bound).terms:
            raise Declined("the host does not know a bound")
        if isinstance(access, StoreOp):
            raise Declined("elements beyond a bound are stored elsewhere")
        if dead_beyond(access.result, d, side.start, bound, self.polynomials):
            side.bound = bound
        elif index.wraps and self.divisor(side.start) % side.extent == 0:
            side.period = bound
        else:
            raise Declined("elements beyond a bound are used")
        return moved

    def _bound(self, sides: list[Side], condition: Poly | None) -> Poly:
        """Take a bound from a part of the mask, which is negative where the mask is true. Return what moves the view
        but not the coordinate that is compared."""
        if condition is None:
            raise Declined("the mask is no bound of coordinates")
        below, above = along_one(condition), along_one(-condition)
        if below is not None:
            d, uniform = below
            side = sides[d]
        elif above is not None:
            d, uniform = above[0], -above[1]
            side = sides[d]
        else:
            raise Declined("the mask is no bound of coordinates")
        sign = ONE if below is not None else -ONE
        excess = self.computed(side.start - uniform * sign)
        if side.period is not None or (excess.terms and (side.bound is not None or side.from_zero)):
            raise Declined("coordinates are compared with different numbers")
        side.start -= excess
        if below is not None:
            bound = side.start - uniform
            if side.bound is not None and side.bound != bound:
                raise Declined("a coordinate has two bounds")
            side.bound = bound
        elif side.start + uniform == -ONE:
            side.from_zero = True
        else:
            raise Declined("the array does not begin at 0")
        return excess * side.stride

    def _further(self, view: StridedView, left: Poly) -> None:
        """Add dimensions of extent 1 for what is left of the address."""
        found: dict[Poly, Side] = {}
        for term in left:
            ((m, c),) = term.terms.items()
            known = Monomial((a, n) for a, n in m if self.known(a))
            rest = Monomial((a, n) for a, n in m if not self.known(a))
            stride, start = Poly({known: c}), Poly({rest: 1})
            side = found.setdefault(stride, Side(stride, Poly({}), 1))
            side.start += start
        view.further = list(found.values())


def _degree(p: Poly) -> tuple[int, int]:
    """Return a sort key of a single monomial: its number of factors, then its coefficient."""
    for m, c in p.terms.items():
        return sum(n for _, n in m), abs(c)
    return 0, 0


def _loop_of(atom: Atom) -> ForOp | None:
    """Return the loop whose induction variable a factor is."""
    loop = atom.owner.parent if isinstance(atom, Value) and isinstance(atom.owner, Block) else None
    return loop if isinstance(loop, ForOp) and atom is loop.induction else None


def _depth(op: Op) -> int:
    parent = op.parent_op()
    return 1 + _depth(parent) if parent is not None else 0
