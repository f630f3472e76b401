"""Splits the index sets of loops where conditions on an index change, as those of concatenations and of padded tensors.

y = loop (i: 10) { i < 4 ? load a[i] : exp (load b[i - 4]) }      →      p = loop (i: 6) { exp (load b[i]) }
                                                                         y = concat a, p
A part that is a whole tensor may be computed where it lies in y, so that nobody copies it (`concat.py`); the others are
loops without masks, which their producers fuse with. A loop stays whole where that takes less time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import prod

from tessera.dtypes import int64
from tessera.graph.index import Dim, Expr, IndexMap, dim, expr, is_nonnegative, size
from tessera.graph.ir.concat import ConcatOp, is_aligned, may_lie_inside
from tessera.graph.ir.ops import IndexOp, LoadOp, LoopOp, ViewOp, yielded
from tessera.graph.ir.types import TensorType
from tessera.graph.passes import cost
from tessera.graph.passes.alive import Uses, peak_bytes
from tessera.graph.passes.boxes import Box, Conditions
from tessera.graph.passes.cost import Machine, SizeOf
from tessera.graph.passes.facts import Leaves, SymbolRanges, shared_ranges
from tessera.graph.passes.fuse import shared_extents
from tessera.ir import Block, Builder, Op, Value
from tessera.ir.applications import apply
from tessera.ops import CmpOp, YieldOp

Size = int | Expr
MOST_PARTS = 64
VECTOR = (
    3  # times as fast as `rate` says are the comparisons and selections of loops without branches
)


@dataclass(frozen=True, slots=True)
class Part:
    """How a box is computed: `whole` holds a tensor and its map for each result, if the box is a copy of them; `cut`,
    the parts along a dimension; else a loop.
    `seconds` are those that it takes beside what is done anyhow; `launched`, whether it is a kernel of its own."""

    box: Box
    seconds: float
    whole: tuple[tuple[Value, IndexMap], ...] = ()
    along: int = 0
    cut: tuple[Part, ...] = ()
    launched: bool = False


@dataclass
class IndexSets:
    """The choice for one loop. `places`: where conditions on each of its indices change."""

    loop: LoopOp
    machine: Machine
    size: SizeOf
    symbols: SymbolRanges
    places: dict[int, list[Expr]] = field(default_factory=dict[int, list[Expr]])

    def __post_init__(self) -> None:
        self.args = self.loop.body.args
        self.inside = Conditions(self.loop, self.symbols)
        self.ranges = shared_ranges((), tuple(sorted(self.symbols.items())))
        found: dict[int, set[Expr]] = {}
        for op in self.loop.body:
            if isinstance(op, CmpOp) and op.lhs.type is int64:
                self._note(op, found)
        for d, cuts in found.items():
            kept = self._in_order(d, cuts)
            if kept:
                self.places[d] = kept

    # --- where conditions change --------------------------------------------------------------------------------------
    def _note(self, op: CmpOp, found: dict[int, set[Expr]]) -> None:
        """Note between which values of an index a comparison may change."""
        leaves = Leaves()
        e = leaves.follow(op.lhs) - leaves.follow(op.rhs)
        if len(e.dims) != 1:
            return
        (n,) = e.dims
        step, arg = e.coefficient(Dim(n)), leaves.values[n]
        if step is None or step.value not in (1, -1) or arg not in self.args:
            return
        falling = step.value == -1
        value = e - dim(n) * step  # e is 0 at -value, or at value if it falls
        value = value if falling else -value
        cuts = {value, value + 1}
        if op.predicate in ("lt", "ge"):
            cuts = {value + 1} if falling else {value}
        elif op.predicate in ("le", "gt"):
            cuts = {value} if falling else {value + 1}
        found.setdefault(arg.index, set()).update(cuts)

    def _in_order(self, d: int, cuts: set[Expr]) -> list[Expr]:
        """The places inside of an extent in their order, none if that is not known; those where all results may begin
        in the memory of a whole."""
        end = expr(self.loop.extents[d])
        inside = [
            c
            for c in cuts
            if is_nonnegative(c - 1, self.ranges) and is_nonnegative(end - c - 1, self.ranges)
        ]
        inside = [c for c in inside if all(self._is_aligned(c, d, r) for r in self.loop.results)]
        inside.sort(key=self.size)
        pairs = pairwise(inside)
        return inside if all(is_nonnegative(b - a, self.ranges) for a, b in pairs) else []

    def _is_aligned(self, at: Expr, d: int, r: Value) -> bool:
        return is_aligned(size(at * r.type.all_strides[d]), r.type)

    # --- what a box is ------------------------------------------------------------------------------------------------
    def copies(self, box: Box) -> tuple[tuple[Value, IndexMap], ...]:
        """The tensors whose elements, all of them, the results have inside of a box; none if there is another one."""
        found: list[tuple[Value, IndexMap]] = []
        for v in yielded(self.loop.body):
            inside = self.inside.under(v, box)
            load = None if inside is None else inside.op
            map = self._copied(load, box) if isinstance(load, LoadOp) else None
            if map is None:
                return ()
            assert isinstance(load, LoadOp)
            found.append((load.tensor, map))
        return tuple(found)

    def _copied(self, load: LoadOp, box: Box) -> IndexMap | None:
        """For each index of a box, which element a load reads, if it reads each element of its tensor once."""
        if load.parent is not self.loop.body:
            return None
        if load.mask is not None and not self.inside.holds(load.mask, box):
            return None
        leaves = Leaves()
        results = leaves.through(load.map, load.indices).results
        if any(v not in self.args for v in leaves.values):
            return None
        rank = len(self.args)
        moved = [box.index(v.index, dim(v.index)) for v in leaves.values]
        map = IndexMap(len(moved), results).at(moved, rank)
        map = map.simplify(shared_ranges(box.sizes, tuple(sorted(self.symbols.items()))))
        used: list[int] = []
        for e, n in zip(map.results, load.tensor.type.shape, strict=True):
            d = e.atom
            if isinstance(d, Dim) and d.position not in used and box.sizes[d.position] == n:
                used.append(d.position)
            elif n != 1 or e.value != 0:
                return None
        whole = all(n == 1 for k, n in enumerate(box.sizes) if k not in used)
        return map if whole else None

    # --- what is best -------------------------------------------------------------------------------------------------
    def best(self, box: Box) -> Part:
        """The way to compute a box that takes the least time."""
        as_one = self.as_one(box)
        if as_one.whole:
            return as_one
        found = as_one
        for d, cuts in self.places.items():
            ends = [box.lows[d], box.lows[d] + box.sizes[d]]
            inner = [c for c in cuts if self._is_inside(c, *ends)]
            if inner and len(inner) < MOST_PARTS:
                bounds = [ends[0], *inner, ends[1]]
                boxes = [box.between(d, a, b) for a, b in pairwise(bounds)]
                made = self._joined(d, [self.best(b) for b in boxes])
                seconds = sum(p.seconds for p in made) - self._launched_together(made)
                if len(made) > 1 and seconds < found.seconds:
                    found = Part(box, seconds, (), d, tuple(made))
        return found

    def _is_inside(self, c: Expr, low: Expr, high: Expr) -> bool:
        return is_nonnegative(c - low - 1, self.ranges) and is_nonnegative(
            high - c - 1, self.ranges
        )

    def as_one(self, box: Box) -> Part:
        """A box as a tensor that is there, or as one loop."""
        count = prod(map(self.size, box.sizes))
        moved = 2 * count * sum(r.type.elem.storage_bytes for r in self.loop.results)
        moving = moved / self.machine.bandwidth
        copies = self.copies(box)
        if copies and len({v for v, _ in copies}) == len(copies):
            if all(self._lies_inside(v) for v, _ in copies):
                fuses = all(self._fuses(v) for v, _ in copies)
                return Part(box, moving + self.machine.launch if fuses else 0.0, copies)
            if all(self._yields_twice(v, box) for v, _ in copies):
                return Part(box, moving / 2)
        work = sum(cost.weight(op) for op in self.inside.needed(box))
        computing = work * count / (VECTOR * self.machine.rate)
        return Part(box, self.machine.launch + max(moving, computing), (), launched=True)

    def _lies_inside(self, v: Value) -> bool:
        body = self.loop.parent
        assert body is not None
        same = all(
            v.type.elem == r.type.elem and v.type.device == r.type.device for r in self.loop.results
        )
        return same and not _is_part(v) and may_lie_inside(v, body)

    def _fuses(self, v: Value) -> bool:
        """Whether the loop that makes a tensor may share a kernel with the one that is to be split, and nobody else
        reads the tensor: nothing is saved where it lies inside then, and there is one kernel more."""
        maker = v.op
        alone = all(user.is_inside(self.loop) for user in v.users())
        return isinstance(maker, LoopOp) and alone and bool(shared_extents(maker, self.loop, True))

    def unfused(self) -> float:
        """The seconds that it takes to write and read the results for loops that would else be fused with this one."""
        seconds = 0.0
        for r in self.loop.results:
            loops = [isinstance(user, LoadOp) for user in r.users()]
            if any(loops):
                moved = cost.bytes_of(r.type, self.size) * (1 + all(loops))
                seconds += moved / self.machine.bandwidth
        return seconds

    def _yields_twice(self, v: Value, box: Box) -> bool:
        """Whether the loop that makes a tensor is fused with the one that copies it."""
        maker = v.op
        return isinstance(maker, LoopOp) and _without_units(maker.extents) == _without_units(
            box.sizes
        )

    def _joined(self, d: int, parts: Sequence[Part]) -> list[Part]:
        """The parts along a dimension, where neighbours that are computed by loops are one if that is quicker."""
        found: list[Part] = []
        for p in parts:
            if found and p.launched and found[-1].launched:
                a = found[-1].box
                both = self.as_one(a.between(d, a.lows[d], p.box.lows[d] + p.box.sizes[d]))
                apart = found[-1].seconds + p.seconds - self._launched_together((found[-1], p))
                if both.seconds <= apart:
                    found[-1] = both
                    continue
            found.append(p)
        return found

    def _launched_together(self, parts: Sequence[Part]) -> float:
        """The time of the launches that are saved since loops of equal extents which read the same become one."""
        seen: dict[tuple[Size, ...], set[Value]] = {}
        saved = 0
        for p in parts:
            if p.launched:
                reads = {op.tensor for op in self.inside.needed(p.box) if isinstance(op, LoadOp)}
                known = seen.setdefault(p.box.sizes, set())
                saved += bool(reads & known)
                known |= reads
        return saved * self.machine.launch

    # --- the rewrite --------------------------------------------------------------------------------------------------
    def build(self, b: Builder, part: Part) -> list[Value]:
        """The results inside of a part's box."""
        if part.cut:
            made = [self.build(b, p) for p in part.cut]
            return [
                b.emit(ConcatOp(list(values), along=part.along))
                for values in zip(*made, strict=True)
            ]
        if part.whole:
            return [self._seen(b, v, map, part.box) for v, map in part.whole]
        return self._loop(b, part.box)

    def _seen(self, b: Builder, v: Value, map: IndexMap, box: Box) -> Value:
        if map.is_identity and v.type.shape == box.sizes:
            return v
        t = TensorType(box.sizes, v.type.elem, device=v.type.device)
        return b.emit(ViewOp(v, index_map=map, results=[t]))

    def _loop(self, b: Builder, box: Box) -> list[Value]:
        """The loop over a box alone."""
        old = self.loop
        block = Block([int64] * len(self.args), names=[a.name for a in self.args])
        inner = Builder(block, loc=old.loc)
        mapping: dict[Value, Value] = {}
        for new, arg, low in zip(block.args, self.args, box.lows, strict=True):
            moved = IndexMap(1, [dim(0) + low])
            mapping[arg] = new if low.value == 0 else inner.emit(IndexOp([new], index_map=moved))
        for op in old.body:
            if not op.terminator:
                inner.insert(op.clone(mapping))
        inner.insert(YieldOp([mapping.get(v, v) for v in yielded(old.body)]))
        types = [TensorType(box.sizes, r.type.elem, device=r.type.device) for r in old.results]
        made = LoopOp(extents=box.sizes, regions=[block], results=types, loc=old.loc)
        return b.insert(made).results


def split_index_sets(
    body: Block, machine: Machine, size: SizeOf, symbols: SymbolRanges, bound: int
) -> bool:
    """Split the loops of a block where that pays, and no more than `bound` bytes are held by it; whether any was."""
    changed = False
    for op in list(body):
        if isinstance(op, LoopOp) and _may_split(op):
            changed |= _split(op, body, IndexSets(op, machine, size, symbols), bound)
    return changed


def _may_split(op: LoopOp) -> bool:
    used = all(r.uses for r in op.results)
    return bool(op.extents) and used and cost.is_pointwise(op.body)


def _split(loop: LoopOp, body: Block, sets: IndexSets, bound: int) -> bool:
    if not sets.places or 0 in loop.extents:
        return False
    whole = Box((expr(0),) * len(loop.extents), loop.extents)
    part = sets.best(whole)
    if not part.cut or part.seconds + sets.unfused() >= sets.as_one(whole).seconds:
        return False
    first = loop.prev
    made = sets.build(Builder.before_op(loop), part)
    for old, new in zip(loop.results, made, strict=True):
        new.type = old.type
        new.name = new.name or old.name
    uses = [(r, list(r.uses)) for r in loop.results]
    for old, new in zip(loop.results, made, strict=True):
        old.replace_all_uses(new)
    if peak_bytes([[op] for op in body], Uses(body, sets.size)) <= bound and apply(
        "graph-split-index-sets", loop
    ):
        loop.erase()
        return True
    for old, users in uses:
        for user, index in users:
            user.set_operand(index, old)
    _erase_between(first, loop, body)
    return False


def _erase_between(first: Op | None, last: Op, body: Block) -> None:
    """Erase what lies between two ops, from the last one on."""
    while last.prev is not first:
        op = last.prev
        assert op is not None
        op.erase()


def _is_part(v: Value) -> bool:
    """Whether a tensor is a part of a concatenation, itself or a view of it."""
    users = v.users()
    views = (user.result for user in users if isinstance(user, ViewOp))
    return any(isinstance(user, ConcatOp) for user in users) or any(map(_is_part, views))


def _without_units(extents: Sequence[Size]) -> list[Size]:
    return [n for n in extents if n != 1]
