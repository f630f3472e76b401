"""Decides how a nest is cut into programs and tiles: a plan as data, made from the nest's extents and accesses.

loop (%i: 8, %j: 64, %k: 100), all accesses dense      →  one axis of 51200, blocks of 1024
loop (%i: 4096) { sum over (%r: 768), rows dense }     →  axis %i, blocks of 1; %r whole, in the last dimension
loop (%i: 512, %j: 512), one of two loads transposed   →  two axes, blocks of 32 x 32
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tessera.graph.emit.accesses import INNER, Access, Accesses, inner_ops
from tessera.graph.emit.long_rows import ELEMENTS, MOST_WARPS, is_wide, kept_whole, walks_again
from tessera.graph.index import Expr, estimate
from tessera.graph.ir.ops import LoopOp, ReduceOp, ScanOp, ScatterOp
from tessera.graph.ir.types import TensorType, product
from tessera.ir import Block, Op
from tessera.ir.applications import apply

Size = int | Expr
MOST_SHARING = 8  # results of a program whose inner loops read the same elements
MOST_SCANNED = 1 << 24  # elements of a row that a scan goes through in one loop
MOST_UNROLLED = 32  # elements of a reduction that is written out: windows of 3x3x3


@dataclass(frozen=True, slots=True)
class Machine:
    """What tilings depend on of a target. `exact`: extents of tiles need not be powers of two; `tile`: elements of a
    pointwise program; `row`: elements of the longest row that is kept whole; `step`: elements of a longer one that a
    program takes at a time, on GPUs twice as many where programs are few; `lanes`: programs that run at once;
    `columns`: elements of the largest tile of columns that is kept whole; `walk`: elements of the longest reduction
    that each element of a tile walks through by itself; `part`: elements of a program that reduces a part of what
    too few programs would reduce; `groups`: programs that walk through rows and reduce columns on the way; `products`:
    whether times of matrix products can be estimated (product_time.py)."""

    name: str
    exact: bool
    tile: int
    row: int
    step: int
    lanes: int
    columns: int
    walk: int
    part: int = 2048
    groups: int = 256
    products: bool = False


@dataclass(frozen=True, slots=True)
class Axis:
    """A loop over programs: indices `dims` of the nest as one. `place`: the dimension of tiles along which `block`
    elements of it lie; None where a program has one."""

    dims: tuple[int, ...]
    extent: Size
    block: int
    place: int | None

    @property
    def programs(self) -> Size:
        return cdiv(self.extent, self.block)


@dataclass(frozen=True, slots=True)
class Tiling:
    """`axes`: outer ones, slowest first. Inner loops lie along dimension `inner` of the tiles, whole where `whole`,
    else `step` elements at a time; where `inner` is None each element walks through them by itself. `start`: where in
    memory a program's row starts, by the nest's indices, if steps begin at a multiple of `unit` elements (aligned.py).
    """

    axes: tuple[Axis, ...]
    rank: int
    inner: int | None = None
    whole: bool = False
    step: int = 1
    warps: int = 4
    start: Expr | None = None
    unit: int = 1

    @property
    def programs(self) -> Size:
        """The number of programs."""
        return product([a.programs for a in self.axes])

    @property
    def shape(self) -> tuple[int, ...]:
        """The extents of a tile of the nest's elements, without inner loops."""
        blocks = {a.place: a.block for a in self.axes}
        return tuple(blocks.get(k, 1) for k in range(self.rank))


def cdiv(n: Size, by: int) -> Size:
    """n / by, rounded up."""
    if isinstance(n, int):
        return -(-n // by)
    return n if by == 1 else (n + (by - 1)) // by


def next_power(n: int) -> int:
    return 1 << max(0, (n - 1).bit_length())


def choose(op: Op, extents: Sequence[Size], machine: Machine) -> Tiling:
    """The tiling of a nest."""
    known = Accesses(op, extents)
    groups = coalesced(extents, known.found)
    body: Block = op.regions[0]
    spaces = inner_spaces(op, body)
    if not spaces:
        return _pointwise(groups, known.found, machine)
    return _with_inner(op, groups, known.found, spaces, machine)


# --- outer axes ---------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Group:
    """Neighbouring indices of a nest that count as one; `last` is that of the innermost."""

    dims: tuple[int, ...]
    extent: Size

    @property
    def last(self) -> int:
        return self.dims[-1]


def coalesced(extents: Sequence[Size], accesses: Sequence[Access]) -> list[Group]:
    """The indices of a nest in the order in which results lie in memory; neighbours that every access treats as one
    become one. Those of extent 1 are left out."""
    groups = [Group((k,), n) for k, n in enumerate(extents) if n != 1]
    stores = [a for a in accesses if a.store]
    if stores:
        groups.sort(key=lambda g: -_distance(stores[0], g))
    done: list[Group] = []
    for g in groups:
        if done and all(_as_one(a, done[-1], g) for a in accesses):
            before = done.pop()
            g = Group((*before.dims, *g.dims), product([before.extent, g.extent]))
        done.append(g)
    return done


def _distance(store: Access, g: Group) -> int:
    """The stride of a store along an index, where sizes that are not known count as 4096."""
    stride = store.stride(g.last)
    return 0 if stride is None else abs(estimate(stride, lambda _: 4096))


def _as_one(a: Access, outer: Group, inner: Group) -> bool:
    far, near = a.stride(outer.last), a.stride(inner.last)
    return far is not None and near is not None and far == near * inner.extent


def _weight(accesses: Sequence[Access], index: int) -> int:
    """The bytes of an element of all accesses that walk through memory along an index; stores count twice."""
    return sum(a.width * (1 + a.store) for a in accesses if a.stride(index) == 1)


def _block(extent: Size, most: int, machine: Machine) -> int:
    """Elements of a block along an extent."""
    if not isinstance(extent, int):
        return next_power(most)
    if extent <= most:
        return max(1, extent) if machine.exact else next_power(extent)
    power = next_power(most + 1) // 2
    return (machine.exact and _divisor(extent, most)) or power


def _along(extent: Size, most: int, machine: Machine) -> int:
    """The same along memory: on CPUs whole vectors, and several of them where a mask leaves out few elements more."""
    n = _block(extent, most, machine)
    if not machine.exact or n != extent or n <= 4 or n % 8 == 0:
        return n
    return next(m for by in (32, 16, 8) if (m := -(-n // by) * by) - n <= n // 8 or by == 8)


def _divisor(extent: int, most: int) -> int:
    """The largest multiple of 64 in (most / 2, most] that divides an extent; 0 if there is none."""
    return next((n for n in range(most // 64 * 64, most // 2, -64) if extent % n == 0), 0)


def _pointwise(groups: Sequence[Group], accesses: Sequence[Access], machine: Machine) -> Tiling:
    most = _elements([g.extent for g in groups], machine)
    blocks = _blocks(groups, accesses, most, machine)
    return _made(groups, blocks, machine)


def _elements(extents: Sequence[Size], machine: Machine) -> int:
    """Elements of a program: few where all lanes would not be busy otherwise."""
    total = product(list(extents))
    if not isinstance(total, int):
        return machine.tile
    least = machine.tile // 8
    return max(least, min(machine.tile, next_power(max(1, total // (4 * machine.lanes)))))


def _blocks(
    groups: Sequence[Group], accesses: Sequence[Access], most: int, machine: Machine, lanes: int = 1
) -> dict[Group, int]:
    """How many elements of each axis make the tile; axes that are left out have one. `lanes` have a program each, if
    the axis along memory need not be cut for that."""
    if not groups:
        return {}
    by_weight = sorted(groups, key=lambda g: (_weight(accesses, g.last), g.last), reverse=True)
    first = by_weight[0] if _weight(accesses, by_weight[0].last) else groups[-1]
    crossing = [g for g in groups if g is not first and _weight(accesses, g.last)]
    crossing = [g for g in crossing if _only_along(accesses, g, first)]
    if crossing:
        side = 1 << (max(256, min(most, 4096)).bit_length() - 1) // 2
        return {g: _block(g.extent, side, machine) for g in (first, crossing[0])}
    along = _weight(accesses, first.last) > 0
    found = {first: (_along if along else _block)(first.extent, most, machine)}
    room = most // found[first]
    rest = [g for g in reversed(groups) if g is not first]
    programs = product([cdiv(first.extent, found[first]), *(g.extent for g in rest)])
    room = min(room, programs // lanes) if isinstance(programs, int) else room
    if room > 1 and rest:
        found[rest[0]] = _block(rest[0].extent, room, machine)
    return found


def _only_along(accesses: Sequence[Access], g: Group, first: Group) -> bool:
    """Whether an access walks through memory along `g` and jumps along `first`."""
    return any(a.width and a.stride(g.last) == 1 and a.stride(first.last) != 0 for a in accesses)


def _made(
    groups: Sequence[Group],
    blocks: dict[Group, int],
    machine: Machine,
    inner: str = "",
    whole: bool = False,
    step: int = 1,
) -> Tiling:
    """The tiling of these blocks. `inner`: whether inner loops lie along the "first" or the "last" dimension."""
    place = 1 if inner == "first" else 0
    axes: list[Axis] = []
    elements = max(1, step)
    for g in groups:
        block = blocks.get(g, 1)
        wide = block > 1
        axes.append(Axis(g.dims, g.extent, block, place if wide else None))
        place += wide
        elements *= block
    rank = place + (inner == "last")
    at = None if not inner else 0 if inner == "first" else rank - 1
    most = MOST_WARPS if elements >= ELEMENTS else 16
    warps = 4 if elements <= 2048 and not inner else min(most, max(1, next_power(elements // 512)))
    return Tiling(tuple(axes), rank, at, whole, step, warps)


# --- inner loops --------------------------------------------------------------------------------------------------
def inner_spaces(op: Op, body: Block) -> list[tuple[Size, ...]]:
    """The extents of the loops and reductions in a nest, and of the tensors that it yields for each index."""
    found: dict[tuple[Size, ...], None] = {}
    for inner in inner_ops(body):
        found[tuple(inner.extents)] = None
    if not isinstance(op, ScatterOp):
        for v in body.terminator.operands:
            if isinstance(v.type, TensorType):
                found[tuple(v.type.shape)] = None
    return list(found)


def _with_inner(
    op: Op,
    groups: Sequence[Group],
    accesses: Sequence[Access],
    spaces: Sequence[tuple[Size, ...]],
    machine: Machine,
) -> Tiling:
    sizes = [product(list(s)) for s in spaces]
    longest = _longest(sizes)
    streams = machine.exact and longest is not None and longest <= MOST_SCANNED and _streams(op)
    if streams:
        machine = replace(machine, row=MOST_SCANNED, columns=MOST_SCANNED * machine.columns)
    only_sums = all(isinstance(i, ReduceOp) for i in inner_ops(op.regions[0]))
    along = _inner_weight(accesses)
    outer = max((_outer_weight(accesses, g) for g in groups), default=0)
    small = longest is not None and longest <= machine.walk
    if only_sums and not _yields_tensors(op):
        walks = any(_steps(accesses, g) for g in groups)
        if (small and walks) or (machine.exact and outer > along):
            most = _elements([g.extent for g in groups], machine)
            if machine.exact:
                most = min(most, 512)
            else:
                groups = _without_gaps(groups, most)
            lanes = machine.lanes if machine.exact and not small else 1
            return _made(groups, _blocks(groups, accesses, most, machine, lanes), machine)
    if outer > along:
        return _columns(groups, accesses, longest, machine, _yields_tensors(op), streams)
    if machine.exact or longest is None:
        return _rows(groups, accesses, longest, machine)
    row = kept_whole(op, accesses, longest, machine.row)
    if longest <= row:
        return _rows(groups, accesses, longest, replace(machine, row=row))
    found, programs = _rows(groups, accesses, longest, machine), product([g.extent for g in groups])
    many = not isinstance(programs, int) or programs >= machine.lanes
    if many and found.step == machine.step and walks_again(op) and is_wide(accesses, longest):
        return replace(found, step=max(found.step, machine.row), warps=MOST_WARPS)
    return found


def _without_gaps(groups: Sequence[Group], most: int) -> list[Group]:
    """The groups, the last ones as one where a block of powers of two would have more than an eighth of its elements
    outside: windows are read by gathers, which need no rows."""
    *before, last = groups
    n = last.extent
    if not before or not isinstance(n, int):
        return list(groups)
    block = min(most, next_power(n))
    if -(-n // block) * block <= n + n // 8:
        return list(groups)
    outer = before.pop()
    joined = Group((*outer.dims, *last.dims), product([outer.extent, n]))
    return _without_gaps([*before, joined], most)


def _longest(sizes: Sequence[Size]) -> int | None:
    """The largest of several sizes; None where one is symbolic."""
    known = [n for n in sizes if isinstance(n, int)]
    return max(known) if len(known) == len(sizes) else None


def _streams(op: Op) -> bool:
    """Whether a nest is a scan and loops over what it gives. On CPUs one loop does all of that, and keeps no row."""
    inner = [x for x in op.regions[0] if x.regions]
    flat = all(isinstance(x, ScanOp | LoopOp) and not any(y.regions for y in x.body) for x in inner)
    scans = sum(isinstance(x, ScanOp) for x in inner)
    return flat and scans == 1 and apply("graph-stream-scans", op)


def _yields_tensors(op: Op) -> bool:
    return any(isinstance(v.type, TensorType) for v in op.regions[0].terminator.operands)


def _inner_weight(accesses: Sequence[Access]) -> int:
    inner = {d for a in accesses for d in a.offset.dims if d >= INNER}
    return sum(_weight(accesses, d) for d in inner)


def _outer_weight(accesses: Sequence[Access], g: Group) -> int:
    """The same along an outer axis. What stands inside of inner loops alone counts where some of that jumps along the
    axis: it is read once for each of their elements."""
    deep = [a for a in accesses if any(d >= INNER for d in a.offset.dims)]
    strides = [a.stride(g.last) for a in deep]
    jump = any(s is None or s.value is None or abs(s.value) > 4 for s in strides)
    return _weight(deep if jump else accesses, g.last)


def _steps(accesses: Sequence[Access], g: Group) -> bool:
    """Whether loads inside of inner loops go on by a few elements along an outer axis."""
    deep = [a for a in accesses if any(d >= INNER for d in a.offset.dims)]
    return any(0 < abs(a.pace(g.last)) <= 4 for a in deep)


def _rows(
    groups: Sequence[Group], accesses: Sequence[Access], longest: int | None, machine: Machine
) -> Tiling:
    """Inner loops along memory: one or several whole rows in a program, or one in steps. Programs of a GPU take fewer
    rows where these are few, as pointwise ones take fewer elements: each thread computes its own one after another."""
    shared = {} if machine.exact else _sharing(groups, accesses, longest, machine)
    if longest is None or longest > machine.row or shared:
        programs = product([g.extent for g in groups])
        few = isinstance(programs, int) and programs < machine.lanes and not machine.exact
        step = min(machine.row, 2 * machine.step if few or shared else machine.step)
        step //= max([1, *shared.values()])
        if longest is not None and longest <= step:
            return _made(groups, shared, machine, "last", True, next_power(longest))
        return _made(groups, shared, machine, "last", False, step)
    width = longest if machine.exact else next_power(longest)
    most = _elements([longest, *(g.extent for g in groups)], machine)
    most = 1024 if machine.exact else min(most, 1024)
    rows = max(1, most // max(1, width))
    blocks: dict[Group, int] = {}
    if rows > 1 and groups:
        blocks[groups[-1]] = _block(groups[-1].extent, rows, machine)
    found = _made(groups, blocks, machine, "last", True, width)
    if blocks and most < 1024:  # a warp for each row
        found = replace(found, warps=max(found.warps, min(4, blocks[groups[-1]])))
    return found


def _sharing(
    groups: Sequence[Group], accesses: Sequence[Access], longest: int | None, machine: Machine
) -> dict[Group, int]:
    """A block of results that read the same elements in their inner loops, as sums by key do: a program reads these
    once for all, where they are many. Nothing on a CPU, whose cores have them in caches."""
    total = product([longest or 0, *(g.extent for g in groups)])
    if not isinstance(total, int) or total <= machine.lanes * machine.row:
        return {}
    deep = [a for a in accesses if any(d >= INNER for d in a.offset.dims)]
    for g in groups:
        if isinstance(g.extent, int) and all(a.stride(g.last) == 0 for a in deep):
            return {g: min(MOST_SHARING, next_power(g.extent))}
    return {}


def _columns(
    groups: Sequence[Group],
    accesses: Sequence[Access],
    longest: int | None,
    machine: Machine,
    stays: bool,
    streams: bool,
) -> Tiling:
    """Inner loops across memory: many columns in a program, in steps unless all of it is small. `stays`: what it is
    made of is a result, too, so that its reductions cannot be split among more programs; `streams`: it is a scan."""
    first = max(groups, key=lambda g: (_weight(accesses, g.last), g.last))
    along, most = _block if streams else _along, machine.columns
    columns = along(first.extent, 64 if machine.exact else 32, machine)
    if not machine.exact and longest is not None:
        columns, most = _narrower(columns, groups, first, longest, machine, stays)
    if longest is not None and longest * columns <= most:
        width = longest if machine.exact else next_power(longest)
        return _made(groups, {first: columns}, machine, "first", True, width)
    return _made(groups, {first: columns}, machine, "first", False, 32)


def _narrower(
    columns: int,
    groups: Sequence[Group],
    first: Group,
    longest: int,
    machine: Machine,
    stays: bool,
) -> tuple[int, int]:
    """Fewer columns, but as many as memory hands out at a time, where programs are few and then hold them whole; and
    how many elements these are at most. Where more programs cannot help they hold as many as of rows."""
    programs = product([cdiv(g.extent, columns if g is first else 1) for g in groups])
    least = min(columns, 8)
    for lanes, most in ((2 * machine.lanes, machine.columns), (stays * machine.lanes, machine.row)):
        if isinstance(programs, int) and programs < lanes and longest * least <= most:
            while longest * columns > most:
                columns //= 2
            return columns, most
    return columns, machine.columns
