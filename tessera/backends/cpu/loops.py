"""Emits loop nests over the index space of a tile, and chooses the dimension and width of the vector and what is
unrolled.

If the last dimension is shorter than a vector, the vector covers several trailing dimensions: for shape (64, 2) and 16
lanes one point is rows i … i+7, columns 0 and 1. Small tiles are unrolled completely, so that their buffers become
registers.

A loop may have a head: part of a vector, after which the addresses of whole vectors are multiples of their size.

Masks that are true up to some index along the vector dimension split the loop in two (bounds.py).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

from tessera.backends.cpu.bounds import Prefix, first_end, split_bound
from tessera.backends.cpu.llvm_text import vector_literal
from tessera.backends.cpu.lowering import Lowering
from tessera.backends.cpu.values import Coord, Point, Val, point
from tessera.dtypes import int1
from tessera.ir import Value

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
    number of blocks). `make(row, rows, end)` computes a block, which is there until it ends, up to column `end`, an
    i64, at least, `finish` all rows at once. `accumulators`: the values computed this way."""

    blocks: tuple[tuple[int, int, int], ...]
    make: Callable[[Coord, int, str], AbstractContextManager[None]]
    finish: Callable[[], None]
    accumulators: tuple[Value, ...]

    def beside(self, other: Strips) -> Strips:
        """Return the strips of two matrices whose rows are divided in the same way."""

        @contextmanager
        def make(row: Coord, rows: int, end: str) -> Generator[None]:
            with self.make(row, rows, end), other.make(row, rows, end):
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


def places(lo: Lowering, size: int, first: int, count: int, end: str = "") -> Iterator[Coord]:
    """Emit a loop over `count` blocks of `size` from `first` on, or over those of them that begin before `end` (an
    i64); yield the coordinate at which a block begins."""
    em, loop = lo.em, lo.em.loop(0, count, 1)
    if end and not end.isdigit():  # a number is the extent
        room = em.op(f"sdiv i64 {em.op(f'add nsw i64 {end}, {size - 1 - first}')}, {size}")
        some = em.call("i64", "llvm.smin.i64", f"i64 {room}", f"i64 {count}")
        loop = em.counted("0", some, "1", always=True)
    with loop as i:
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
    row_ends: Iterable[Prefix] = (),
) -> None:
    """Emit the nest; `body` gets the point of each vector. `masks`: candidates for splitting the vector loop.

    `stream`: when stores of whole vectors bypass the caches. `head`: an i64, how many elements come before the first
    whole vector (less than a vector has). `ends`: where one of these does not hold, nothing is to be done; `row_ends`:
    the same along the rows of strips."""
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
        bottom, right = (
            first_end(lo, d, plan.shape[d], coords, (p for p in e if not p.others(d)), stays=True)
            for d, e in enumerate((row_ends, last))
        )
        for rows, first, count in strips.blocks:
            for top in places(lo, rows, first, count, bottom):
                with strips.make(top, rows, right), lo.em.loop(0, rows, 1) as i:
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
    full, proven = split_bound(lo, (plan.group[0], size), coords, splits, n * least, head)
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
