"""Emits loop nests over the index space of a tile, and chooses the dimension and width of the vector and what is
unrolled.

If the last dimension is shorter than a vector, the vector covers several trailing dimensions: for shape (64, 2) and 16
lanes one point is rows i … i+7, columns 0 and 1. Small tiles are unrolled completely, so that their buffers become
registers.

A loop may have a head: part of a vector, after which the addresses of whole vectors are multiples of their size.

Masks like `offsets < n` that are true up to some index along the vector dimension split the loop in two: whole vectors
below the bound, where the mask is known to be true, and the rest under the mask.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

from tessera.backends.cpu.llvm_text import scalar_type, vector_literal
from tessera.backends.cpu.lowering import Lowering
from tessera.backends.cpu.values import Coord, Point, Val, point
from tessera.dtypes import dtype, int1
from tessera.ir import TileType, Value, elem_of, shape_of
from tessera.ops import arith, tile

MOST = 1 << 40  # elements, more than any tile has
UNROLL = 8  # tiles of at most this many vectors are unrolled (tools/fit)
Body = Callable[[Point], None]


@dataclass(frozen=True, slots=True)
class Nest:
    """How loops traverse a tile: one element at a time over the dimensions `outer`, in vectors over those of `group`
    together (outermost first). `lanes` divides the number of elements of the group."""

    shape: tuple[int, ...]
    outer: tuple[int, ...]
    group: tuple[int, ...]
    lanes: int
    times: int = 1  # vectors of one iteration of the vector loop, if the extent allows it
    most: int = UNROLL  # vectors that need no loop

    @property
    def group_size(self) -> int:
        n = 1
        for d in self.group:
            n *= self.shape[d]
        return n

    @property
    def vectors(self) -> int:
        n = self.group_size // self.lanes
        for d in self.outer:
            n *= self.shape[d]
        return n


@dataclass(frozen=True, slots=True)
class Stream:
    """When stores of whole vectors bypass the caches. `condition` emits an i1 for the coordinates of a row. `vectors`:
    those that fill a cache line, if a tile's rows are to be stored in whole lines; 0 for one row. `ahead` emits what is
    then to be done before some elements, of which it gets the first one's coordinates and the number."""

    condition: Callable[[Sequence[Coord]], str]
    vectors: int = 0
    ahead: Callable[[Sequence[Coord], int], None] | None = None


@dataclass(frozen=True, slots=True)
class Strips:
    """Rows of a matrix that are computed in blocks while a nest loops over them. `blocks`: (rows of a block, first row,
    number of blocks). `make(row, rows)` computes a block, which is there until it ends, `finish` all rows at once.
    `accumulators`: the values computed this way."""

    blocks: tuple[tuple[int, int, int], ...]
    make: Callable[[Coord, int], AbstractContextManager[None]]
    finish: Callable[[], None]
    accumulators: tuple[Value, ...]

    def beside(self, other: Strips) -> Strips:
        """Return the strips of two matrices whose rows are divided in the same way."""

        @contextmanager
        def make(row: Coord, rows: int) -> Generator[None]:
            with self.make(row, rows), other.make(row, rows):
                yield

        def finish() -> None:
            self.finish()
            other.finish()

        return Strips(self.blocks, make, finish, (*self.accumulators, *other.accumulators))


def nest(lo: Lowering, shape: tuple[int, ...], along: int | None = None, lanes: int = 0) -> Nest:
    """Return the nest that loops over `shape`; `along`: run the vector along this dimension only."""
    width = lanes or lo.facts.lanes
    rank = len(shape)
    if along is not None:
        outer = tuple(d for d in range(rank) if d != along)
        return Nest(shape, outer, (along,), _divisor(shape[along], width))
    first, size = rank - 1, shape[-1]
    while first > 0 and size < width and size & (size - 1) == 0:
        first -= 1
        size *= shape[first]
    return Nest(shape, tuple(range(first)), tuple(range(first, rank)), _divisor(size, width))


def scalar_nest(shape: tuple[int, ...]) -> Nest:
    """Return a nest without vectors, for one element after another, which nothing is split off or unrolled."""
    return Nest(shape, tuple(range(len(shape))), (), 1)


def single_nest(shape: tuple[int, ...]) -> Nest:
    """Return a nest for one element after another, along the last dimension in a loop as of vectors of one lane."""
    last = len(shape) - 1
    return Nest(shape, tuple(range(last)), (last,), 1)


def _divisor(size: int, most: int) -> int:
    """Return the largest power of two, at most `most`, that divides `size`."""
    return min(size & -size, most)


def places(lo: Lowering, size: int, first: int, count: int) -> Iterator[Coord]:
    """Emit a loop over `count` blocks of `size` from `first` on; yield the coordinate at which a block begins."""
    with lo.em.loop(0, count, 1) as i:
        yield lo.index(i, 1, count).times(size).plus(Coord(first, (), None, first + 1))


def group_coords(lo: Lowering, plan: Nest, linear: Coord) -> dict[int, Coord]:
    """Return coordinates of the group's dimensions for a linear index within the group."""
    found: dict[int, Coord] = {}
    for d in reversed(plan.group[1:]):
        parts = lo.divided(linear, plan.shape[d])
        assert parts is not None, "a vector covers whole inner dimensions or lies within one"
        linear, found[d] = parts
    found[plan.group[0]] = linear
    return found


def each(
    lo: Lowering,
    plan: Nest,
    body: Body,
    masks: Iterable[Prefix] = (),
    unroll: bool = True,
    stream: Stream | None = None,
    head: str = "",
    strips: Strips | None = None,
    ends: Iterable[Prefix] = (),
) -> None:
    """Emit the nest; `body` gets the point of each vector. `masks`: candidates for splitting the vector loop.

    `stream`: when stores of whole vectors bypass the caches. `head`: an i64, how many elements come before the first
    whole vector (less than a vector has). `ends`: where one of these does not hold, nothing is to be done."""
    rank = len(plan.shape)
    coords: list[Coord] = [Coord()] * rank
    unrolled = unroll and plan.vectors <= plan.most
    splits = [] if unrolled or len(plan.group) != 1 else list(masks)
    last = [] if not splits else list(ends)

    def visit(depth: int) -> None:
        if depth == len(plan.outer):
            _vector_loop(lo, plan, coords, body, splits, unrolled, stream, head, last)
            return
        d = plan.outer[depth]
        if unrolled:
            for i in range(plan.shape[d]):
                coords[d] = Coord(i, (), None, plan.shape[d])
                visit(depth + 1)
            return
        with lo.em.loop(0, plan.shape[d], 1) as i:
            coords[d] = lo.index(i, 1, plan.shape[d])
            visit(depth + 1)

    lo.memo = {}
    if strips is not None and plan.outer == (0,) and not unrolled:
        for rows, first, count in strips.blocks:
            for top in places(lo, rows, first, count):
                with strips.make(top, rows), lo.em.loop(0, rows, 1) as i:
                    coords[0] = top.plus(lo.index(i, 1, rows))
                    _vector_loop(lo, plan, coords, body, splits, unrolled, stream, head, last)
    else:
        if strips is not None:
            strips.finish()
        visit(0)
    lo.memo = {}


def _vector_loop(
    lo: Lowering,
    plan: Nest,
    coords: list[Coord],
    body: Body,
    splits: list[Prefix],
    unrolled: bool,
    stream: Stream | None,
    head: str,
    ends: list[Prefix],
) -> None:
    size, n = plan.group_size, plan.lanes
    if not plan.group:
        lo.memo, lo.here = {}, Point(tuple(coords), 1)
        body(lo.here)
        return

    def at(i: int | str, more: int = 0, multiple: int = n) -> None:
        if not unrolled:
            lo.memo = {}
        linear = lo.index(i, multiple, size)
        linear = Coord(linear.base + more, linear.terms, tuple(range(n)) if n > 1 else None, size)
        for d, c in group_coords(lo, plan, linear).items():
            coords[d] = c
        lo.here = point(tuple(coords), n)
        body(lo.here)

    if unrolled:
        for i in range(0, size, n):
            at(i)
        return
    times = plan.times if size % (n * plan.times) == 0 else 1
    least = times if stream is None else max(times, stream.vectors)

    def whole(span: tuple[str, str] | None) -> None:
        for i, vectors in _trips(lo, plan, coords, times, stream, span):
            for k in range(vectors):
                at(i, k * n, 1 if head else n * vectors)

    if not splits and not head:
        whole(None)
        return
    full, proven = split_bound(lo, plan, coords, splits, n * least, head)
    if head:
        with lo.em.counted("0", head, str(n), always=True) as i, _part(lo, n, head):
            at(i, 0, 1)
    saved = lo.assumed
    lo.assumed = saved | proven
    whole((head or "0", full))
    lo.assumed = saved
    end = first_end(lo, plan.group[0], size, coords, ends, stays=True) if ends else str(size)
    with lo.em.counted(full, end, str(n), always=True) as i:
        if head:
            with _part(lo, n, lo.em.op(f"sub nsw i64 {size}, {i}")):
                at(i, 0, 1)
        else:
            at(i)


@contextmanager
def _part(lo: Lowering, n: int, count: str) -> Generator[None]:
    """While this lasts, only the first `count` (an i64) of `n` lanes belong to the tile."""
    x, em = lo.lanes(n), lo.em
    numbers = vector_literal("i32", tuple(range(n)))
    limit = em.splat("i32", em.op(f"trunc i64 {count} to i32"), n)
    lo.inside = Val(int1, n, x.cmp("icmp slt", "i32", numbers, limit))
    yield
    lo.inside = None


def _trips(
    lo: Lowering,
    plan: Nest,
    coords: list[Coord],
    times: int,
    stream: Stream | None,
    span: tuple[str, str] | None,
) -> Iterator[tuple[int | str, int]]:
    """Emit the loop over whole vectors of a row, from and to the elements `span` (i64s) or over all; in two versions,
    with streaming and with plain stores, where a condition chooses. Yields index and vectors of an iteration: `times`,
    but one where rows of a tile wait for memory anyway."""
    d = plan.group[0]
    coords[d] = Coord()
    for streams in lo.em.versions(stream.condition(coords)) if stream is not None else (False,):
        lo.streaming = streams
        vectors = 1 if stream is not None and streams and stream.vectors else times
        step = plan.lanes * vectors
        whole = lo.em.loop(0, plan.group_size, step)
        with lo.em.counted(*span, str(step), always=True) if span else whole as i:
            if stream is not None and streams and stream.ahead is not None:
                coords[d] = lo.index(i, step, plan.group_size)
                stream.ahead(coords, step)
            yield i, vectors
    lo.streaming = False


# --- masks that hold up to a bound -----------------------------------------------------------------------------
def slope(v: Value, dim: int) -> int | None:
    """Return how much an integer or pointer grows per index along `dim`, in elements; None if that is unknown."""
    t = v.type
    if not isinstance(t, TileType) or t.shape[dim] == 1:
        return 0
    op = v.op
    if isinstance(op, (arith.ConstOp, tile.SplatOp)):
        return 0
    if isinstance(op, tile.ArangeOp):
        return 1
    if isinstance(op, (arith.AddOp, arith.SubOp, arith.AddPtrOp)):
        a, b = (slope(x, dim) for x in op.operands)
        if a is None or b is None:
            return None
        return a - b if isinstance(op, arith.SubOp) else a + b
    if isinstance(op, (arith.HintOp, arith.CastOp)):
        wider = elem_of(t).bits >= elem_of(op.x.type).bits
        return slope(op.x, dim) if _is_int(op.x) and _is_int(v) and wider else None
    if isinstance(op, tile.BroadcastOp):
        return 0 if shape_of(op.x.type)[dim] == 1 else slope(op.x, dim)
    if isinstance(op, tile.ExpandDimsOp):
        return 0 if dim == op.axis else slope(op.x, dim - (dim > op.axis))
    return None


def _is_int(v: Value) -> bool:
    e = elem_of(v.type)
    return isinstance(e, dtype) and e.is_int() and e is not int1


@dataclass(frozen=True, slots=True)
class Prefix:
    """A mask in the shape of the nest, and the comparison that it comes from. `dims` maps each dimension of the
    comparison to that of the nest (or None). Along a dimension that `dims` lacks it is the same at all indices."""

    mask: Value
    compare: arith.CmpOp
    dims: tuple[int | None, ...]

    def others(self, dim: int) -> list[int]:
        """Return the dimensions of the nest besides `dim` on which the comparison depends."""
        return [d for d in self.dims if d is not None and d != dim]


def prefix_masks(lo: Lowering, mask: Value, dim: int, even: bool = False) -> list[Prefix]:
    """Return the parts of a mask that are true up to some index along `dim` and false from there on. `even`: those,
    too, that are the same at all indices along `dim`, as of rows: an access under a mask is slow, even if it holds."""
    op = mask.op
    if isinstance(op, arith.AndOp) and mask not in lo.buffers:
        return prefix_masks(lo, op.lhs, dim, even) + prefix_masks(lo, op.rhs, dim, even)
    dims: list[int | None] = list(range(len(shape_of(mask.type))))
    v = mask
    while v not in lo.buffers and isinstance(op, (tile.BroadcastOp, tile.ExpandDimsOp)):
        v = op.x
        if isinstance(op, tile.ExpandDimsOp):
            del dims[op.axis]
        else:
            dims = [None if s == 1 else d for s, d in zip(shape_of(v.type), dims, strict=True)]
        op = v.op
    if v in lo.buffers or not isinstance(op, arith.CmpOp) or not _is_int(op.lhs):
        return []
    if dim not in dims:
        return [Prefix(mask, op, tuple(dims))] if even else []
    t = elem_of(op.lhs.type)
    if t.bits == 64 and not t.signed:
        return []  # bounds are computed with signed numbers of 64 bits
    inner = dims.index(dim)
    a, b = slope(op.lhs, inner), slope(op.rhs, inner)
    rising = {"lt": (1, 0), "le": (1, 0), "gt": (0, 1), "ge": (0, 1)}.get(op.predicate)
    return [Prefix(mask, op, tuple(dims))] if (a, b) == rising else []


def split_bound(
    lo: Lowering, plan: Nest, coords: list[Coord], masks: list[Prefix], step: int, start: str = ""
) -> tuple[str, set[Value]]:
    """Return (end of the whole iterations of `step` elements from element `start` (an i64) for which all `masks` hold,
    the masks)."""
    em = lo.em
    (dim,) = plan.group
    limit = first_end(lo, dim, plan.group_size, coords, masks)
    if start:
        limit = em.op(f"sub nsw i64 {limit}, {start}")
    limit = em.call("i64", "llvm.smax.i64", f"i64 {limit}", "i64 0")
    limit = em.op(f"and i64 {limit}, {-step}")
    return em.op(f"add nsw i64 {limit}, {start}") if start else limit, {p.mask for p in masks}


def first_end(
    lo: Lowering,
    dim: int,
    size: int,
    coords: Sequence[Coord],
    masks: Iterable[Prefix],
    stays: bool = False,
) -> str:
    """Return an i64: for how many of `size` elements along `dim` all of `masks` hold; it may be negative. `stays`: none
    holds further on."""
    limit = str(size)
    for prefix in masks:
        end = _end(lo, coords, prefix, dim, size if stays else 0)
        limit = lo.em.call("i64", "llvm.smin.i64", f"i64 {limit}", f"i64 {end}")
    return limit


def last_end(
    lo: Lowering, coords: Sequence[Coord], masks: Iterable[Prefix], dim: int, size: int
) -> str:
    """Return an i64: the index along `dim`, of `size` elements, from which on none of `masks` holds; it may be beyond
    the tile."""
    limit = "0"
    for prefix in masks:
        end = _end(lo, coords, prefix, dim, size)
        limit = lo.em.call("i64", "llvm.smax.i64", f"i64 {limit}", f"i64 {end}")
    return limit


def _end(lo: Lowering, coords: Sequence[Coord], prefix: Prefix, dim: int, size: int) -> str:
    """Return an i64: for how many elements along `dim` a mask holds, if the tile had as many; it may be negative.
    `size`, if not 0: the elements for which it must not hold again. All of them are returned if it may, since the
    compared number wraps: `(index - 5).to(uint32) < n` holds from 5 on."""
    op, em = prefix.compare, lo.em
    origin = [*coords]
    origin[dim] = Coord()
    where = Point(tuple(Coord() if d is None else origin[d] for d in prefix.dims), 1)
    if dim not in prefix.dims:
        lo.memo = {}
        holds = lo.text(lo.value(op.result, where), 1)
        return em.op(f"select i1 {holds}, i64 {size or MOST}, i64 0")
    low, high = (op.lhs, op.rhs) if op.predicate in ("lt", "le") else (op.rhs, op.lhs)
    lo.memo = {}
    first, bound = (_wide(lo, v, where) for v in (low, high))
    room = em.op(f"sub nsw i64 {bound}, {first}")
    if op.predicate in ("le", "ge"):
        room = em.op(f"add nsw i64 {room}, 1")
    bits = min(_bits(low), default=64)
    if not size or bits >= 63:
        return room
    wraps = em.op(f"icmp sgt i64 {first}, {(1 << bits) - size}")
    return em.op(f"select i1 {wraps}, i64 {size}, i64 {room}")


def _bits(v: Value) -> Iterator[int]:
    """Yield how many bits, besides the sign, the sums and casts have by which `v` grows along a dimension."""
    op = v.op
    if isinstance(op, (arith.AddOp, arith.SubOp, arith.CastOp)):
        t = elem_of(v.type)
        yield t.bits - t.signed
    if isinstance(
        op,
        (arith.AddOp, arith.SubOp, arith.CastOp, arith.HintOp, tile.BroadcastOp, tile.ExpandDimsOp),
    ):
        for x in op.operands:
            yield from _bits(x)


def _wide(lo: Lowering, v: Value, at: Point) -> str:
    text, t = lo.text(lo.value(v, at), 1), elem_of(v.type)
    if t.bits == 64:
        return text
    return lo.em.op(f"{'sext' if t.signed else 'zext'} {scalar_type(t)} {text} to i64")
