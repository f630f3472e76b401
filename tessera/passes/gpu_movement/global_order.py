"""Tells which accesses to global memory must be ordered by a barrier, since threads of a program run on their own.

A program means what it does in the order in which it is written. Accesses of one thread keep that order, those of two
do not, not even in one warp: the assembler exchanges a thread's accesses that it shows to be of other bytes. So
accesses that may reach the same bytes of one array need no barrier only where each element is with one thread:

    store(p, x); x = load(p)            in one layout, in which no two threads share elements
    load(p + i); store(p + i, x)        the same; also in the next iteration, as i has grown by the tile's extent

Where each element is with one warp, its threads wait for one another alone.

Arrays of different arguments are taken for apart (docs/debugging.md, "Arrays that overlap")."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from tessera.analysis.allocation import is_in_loop
from tessera.analysis.polynomials import Along, Poly, Polynomials, is_index
from tessera.analysis.provenance import defined_inside, origins_of
from tessera.dtypes import pointer_type
from tessera.ir import Op, TileType, Type, Value, elem_of, shape_of
from tessera.layout import is_within_threads, is_within_warps
from tessera.ops import (
    RELEASES,
    AsyncCopyOp,
    Atomic,
    CallOp,
    ForOp,
    FuncOp,
    Loop,
    PointerAccess,
    PointerWrite,
)


@dataclass(frozen=True, slots=True)
class GlobalTouch:
    """An access to global memory through `ptr`. `arrays`: what that may be made from. `place`: its polynomial, in
    elements. `since`: loops of which an iteration has begun since. `met`: the threads of each warp have met since."""

    ptr: Value
    arrays: frozenset[Value]
    place: Poly | None
    write: bool
    atomic: bool = False
    since: tuple[Loop, ...] = ()
    met: bool = False

    def conflicts(self, earlier: object) -> bool:
        """Whether a barrier must be placed between this access and an earlier one."""
        if not isinstance(earlier, GlobalTouch) or not (self.write or earlier.write):
            return False
        if (self.atomic and earlier.atomic) or self.arrays.isdisjoint(earlier.arrays):
            return False
        if self.is_by_one_warp(earlier) and (earlier.met or self._is_by_one_thread(earlier)):
            return False
        return not self._elsewhere(earlier)

    def next_iteration(self, loop: Loop) -> GlobalTouch:
        return self if loop in self.since else replace(self, since=(*self.since, loop))

    def is_by_one_warp(self, earlier: GlobalTouch) -> bool:
        """Whether each element is accessed by the same warp alone."""
        place, a, b = self.place, self.ptr.type, earlier.ptr.type
        if place is None or place != earlier.place or not has_one_element_each(place, a):
            return False
        if any(defined_inside(x, loop) for x in numbers(place) for loop in earlier.since):
            return False
        return (a.shape, a.elem) == (b.shape, b.elem) and is_within_warps(b.layout, a.layout)

    def _is_by_one_thread(self, earlier: GlobalTouch) -> bool:
        """Whether, of accesses by one warp, each element is accessed by the same thread alone."""
        return is_within_threads(earlier.ptr.type.layout, self.ptr.type.layout)

    def _elsewhere(self, earlier: GlobalTouch) -> bool:
        """Whether the access is shown to be to other elements."""
        a, b = extent(self), extent(earlier)
        elems = [elem_of(t.ptr.type) for t in (self, earlier)]
        if a is None or b is None or elems[0] != elems[1] or len(earlier.since) > 1:
            return False
        apart, step = (a[0] - b[0]).value, 0
        for loop in earlier.since:
            found = change(b[0], loop)
            if found is None:
                return False
            step = found
        if apart is None:
            return False
        if step == 0:
            return apart > b[1] or -apart > a[1]
        return apart + step > b[1] if step > 0 else -(apart + step) > a[1]


def has_one_element_each(place: Poly, t: Type) -> bool:
    """Whether the pointers of a tile are taken to be all different: along no dimension they are known to repeat, and
    rows of known strides do not overlap. Of a store to equal ones with a mask, another warp might read what it has not
    stored."""
    if not isinstance(t, TileType):
        return False
    known: list[tuple[int, int]] = []  # strides, extents
    for dim, n in enumerate(t.shape):
        index = Poly.atom(Along(dim))
        stride = place.only(index.atoms.__contains__).over(index)
        if n > 1 and (stride is None or not stride.terms):
            return False
        if n > 1 and stride is not None and stride.value is not None:
            known.append((abs(stride.value), n))
    reach = 0
    for stride, n in sorted(known):
        if stride <= reach:
            return False
        reach += stride * (n - 1)
    return not any(isinstance(a, Along) and a.limited is not None for a in place.atoms)


def extent(t: GlobalTouch) -> tuple[Poly, int] | None:
    """Return the place of an access's first element and the distance to its last one; None if they are not known."""
    if t.place is None:
        return None
    along, most, shape = t.place.only(is_index), 0, shape_of(t.ptr.type)
    for m, c in along.terms.items():
        ((atom, power), *others) = m
        if not isinstance(atom, Along) or others or power > 1 or atom.limited is not None or c < 0:
            return None
        most += c * (shape[atom.dim] - 1)
    return t.place - along, most


def change(p: Poly, loop: Loop) -> int | None:
    """Return how much a place grows from one iteration to the next, always; None if that is not known."""
    by = p.only(lambda atom: isinstance(atom, Value) and defined_inside(atom, loop))
    if not by.terms:
        return 0
    if not isinstance(loop, ForOp):
        return None
    each, step = by.over(Poly.atom(loop.induction)), Polynomials().of(loop.step)
    if each is None or each.value is None or step is None or step.value is None:
        return None
    return each.value * step.value


def numbers(p: Poly) -> list[Value]:
    return [a for a in p.atoms if isinstance(a, Value)]


def global_touches(func: FuncOp) -> dict[Op, list[GlobalTouch]]:
    """Return the accesses of ops to arrays that a function writes, and accesses more than once."""
    polynomials = Polynomials()
    found = [(op, v, write, origins_of(v)) for op in func.walk() for v, write in _accesses(op)]
    times: dict[Value, int] = {}
    for op, _, _, reach in found:
        for array in reach:
            times[array] = times.get(array, 0) + (2 if is_in_loop(op) else 1)
    written = {a for _, _, write, reach in found if write for a in reach if times[a] > 1}
    touches: dict[Op, list[GlobalTouch]] = {}
    for op, ptr, write, reach in found:
        if not reach.isdisjoint(written):
            t = GlobalTouch(ptr, reach, polynomials.of(ptr), write, isinstance(op, Atomic))
            touches.setdefault(op, []).append(t)
    return touches


def _accesses(op: Op) -> Iterator[tuple[Value, bool]]:
    """Yield pointers through which threads access global memory, and whether they write there. A function may write
    through its arguments."""
    if isinstance(op, PointerAccess | AsyncCopyOp):
        yield op.ptr, isinstance(op, PointerWrite)
    elif isinstance(op, CallOp):
        for v in op.operands:
            if isinstance(elem_of(v.type), pointer_type):
                yield v, True


def meets_before(op: Op) -> bool:
    """Whether the threads of a program wait for one another in front of an op's access."""
    return isinstance(op, Atomic) and not shape_of(op.ptr.type) and op.sem in RELEASES
