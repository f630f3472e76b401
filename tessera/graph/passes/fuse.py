"""Fuses loops under shared outer indices: what one makes for the other stays inside as a local tensor.

Two loops may share their first k extents if these are equal and each load of one's result by the other has, as its
first k coordinates, the other's first k indices: then an iteration of the outer nest reads only what the same iteration
made. Between them no third op may depend on the one and feed the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

from tessera.dtypes import int64
from tessera.graph.index import Dim, Expr, IndexMap, dim, expr, size
from tessera.graph.ir.concat import placements
from tessera.graph.ir.ops import LoadOp, LoopOp, yielded
from tessera.graph.ir.types import TensorType
from tessera.graph.passes import cost
from tessera.graph.passes.alive import Order, Uses, peak_bytes
from tessera.graph.passes.cost import Machine, SizeOf
from tessera.graph.passes.facts import captured_tensors
from tessera.graph.passes.inline import selected
from tessera.graph.passes.reindex import permute, split
from tessera.graph.passes.written import again, is_too_long
from tessera.ir import Block, Builder, Op, Value
from tessera.ir.applications import apply
from tessera.ops import YieldOp

MOST_WALKED = 16  # elements of a reduction inside of an inner loop
LONG = 1 << 16  # elements of a program that take longer than another launch
COLUMNS = 64  # that one program computes, where the shared index is the one that memory goes along


def shared_extents(producer: LoopOp, consumer: LoopOp, permuted: bool = False) -> list[int] | None:
    """Which of the consumer's indices stand for the producer's first ones, in the order of these; as many as may be
    shared. None if results are used otherwise than by loads. `permuted`: any index, else the first ones in order."""
    loads = cost.loads_of(consumer, producer.results)
    if loads is None:
        return None
    order: list[int] = []
    for k, n in enumerate(producer.extents):
        fits = (
            m
            for m, arg in enumerate(consumer.body.args)
            if (m not in order if permuted else m == k)
            and consumer.extents[m] == n
            and all(_coordinate_is(x, k, arg) for x in loads)
        )
        found = next(fits, None)
        if found is None:
            break
        order.append(found)
    return order


def to_split(producer: LoopOp, consumer: LoopOp) -> tuple[LoopOp, int, int | Expr] | None:
    """Which loop's index has to be split, and by what, for the two to share one more; None where none is."""
    order = shared_extents(producer, consumer)
    loads = cost.loads_of(consumer, producer.results)
    if order is None or not loads or len(order) == len(producer.extents):
        return None
    k = len(order)
    if k >= len(consumer.extents) or cost.is_pointwise(producer.body):
        return None
    n, m = expr(producer.extents[k]), expr(consumer.extents[k])
    arg = consumer.body.args[k]
    by = size(m // n)
    if by != 1 and expr(by) * n == m:
        if all(_coordinate_of(x, k, [arg]) == dim(0) // by for x in loads):
            return consumer, k, by
    if k + 1 < len(consumer.extents):
        by = consumer.extents[k + 1]
        if m * by == n:
            both = consumer.body.args[k : k + 2]
            if all(_coordinate_of(x, k, both) == dim(0) * by + dim(1) for x in loads):
                return producer, k, by
    return None


def _coordinate_of(load: LoadOp, k: int, args: Sequence[Value]) -> Expr | None:
    """Coordinate k of what is loaded, with `Dim(i)` for `args[i]`; None if it needs other values."""
    e = load.map.results[k]
    if any(load.indices[d] not in args for d in e.dims):
        return None
    return e.subs({Dim(d): dim(args.index(load.indices[d])) for d in e.dims})


def _coordinate_is(load: LoadOp, k: int, arg: Value) -> bool:
    """Whether coordinate k of what is loaded is the value `arg`."""
    e = load.map.results[k]
    return any(v is arg and e == dim(n) for n, v in enumerate(load.indices))


def reads_alike(a: LoopOp, b: LoopOp, tensor: Value) -> bool:
    """Whether two loops of equal extents go through a tensor in the same way, as far as that counts: a loop that
    reduces its rows and one that reduces its columns read it in programs of different shape."""
    if cost.is_pointwise(a.body) or cost.is_pointwise(b.body):
        return True
    return _directions(a, tensor) == _directions(b, tensor)


def _directions(loop: LoopOp, tensor: Value) -> set[tuple[int, int]]:
    """Which of a loop's indices are used in which coordinates of a tensor."""
    return {
        (arg.index, k)
        for x in cost.loads_of(loop, [tensor]) or ()
        for k, e in enumerate(x.map.results)
        for d in e.dims
        for arg in loop.body.args
        if x.indices[d] is arg
    }


# --- the merge ------------------------------------------------------------------------------------------------------
def merge(producer: LoopOp, consumer: LoopOp, k: int) -> LoopOp:
    """One loop over the first k extents in place of two, in front of the consumer. Results of the producer that
    others read are results of it, too."""
    inside = {u for r in producer.results for u in r.users() if u.is_inside(consumer)}
    kept = [i for i, r in enumerate(producer.results) if any(u not in inside for u in r.users())]
    block = Block([int64] * k, names=[a.name for a in consumer.body.args[:k]])
    b = Builder(block, loc=consumer.loc)
    made = placed(b, producer, k)
    out = placed(b, consumer, k)
    b.insert(YieldOp([*(made[i] for i in kept), *out]))
    local = dict(zip(producer.results, made, strict=True))
    for op in list(block.walk()):
        if isinstance(op, LoadOp) and op.tensor in local:
            _read_locally(op, local[op.tensor], k)
    types = [*(producer.results[i].type for i in kept), *(r.type for r in consumer.results)]
    new = LoopOp(extents=consumer.extents[:k], regions=[block], results=types, loc=consumer.loc)
    assert consumer.parent is not None
    consumer.parent.insert_before(consumer, new)
    replaced = [*(producer.results[i] for i in kept), *consumer.results]
    for old, r in zip(replaced, new.results, strict=True):
        r.name = old.name
        for user, index in list(old.uses):
            if user not in inside:
                user.set_operand(index, r)
    consumer.erase()
    producer.erase()
    return new


def placed(b: Builder, loop: LoopOp, k: int) -> list[Value]:
    """A copy of a loop's body under the first k indices; what it yields, as scalars or local tensors."""
    assert b.block is not None
    outer = dict(zip(loop.body.args, b.block.args, strict=False))
    rest = loop.extents[k:]
    if not rest:
        return _copied(b, loop.body, outer)
    inner = Block([int64] * len(rest), names=[a.name for a in loop.body.args[k:]])
    outer.update(zip(loop.body.args[k:], inner.args, strict=True))
    body = Builder(inner, loc=loop.loc)
    body.insert(YieldOp(_copied(body, loop.body, outer)))
    types = [TensorType(r.type.shape[k:], r.type.elem, device=r.type.device) for r in loop.results]
    return b.insert(LoopOp(extents=rest, regions=[inner], results=types, loc=loop.loc)).results


def _copied(b: Builder, block: Block, mapping: dict[Value, Value]) -> list[Value]:
    for op in block:
        if not op.terminator:
            b.insert(op.clone(mapping))
    return [mapping.get(v, v) for v in yielded(block)]


def _read_locally(load: LoadOp, value: Value, k: int) -> None:
    """Read what the same iteration made: a scalar, or an element of a local tensor."""
    b = Builder.before_op(load)
    if not isinstance(value.type, TensorType):
        load.result.replace_all_uses(selected(b, load, value))
        load.erase()
        return
    map = IndexMap(load.map.dims, load.map.results[k:])
    load.set_operands(value, list(load.indices), load.mask, load.other)
    load.index_map = None if map.is_identity else map


# --- which to merge ---------------------------------------------------------------------------------------------------
class Fusion:
    """Greedy fusion of the loops of a block: those first that save the most bytes."""

    def __init__(self, block: Block, machine: Machine, size: SizeOf, bound: int | None):
        self.block, self.machine, self.size, self.bound = block, machine, size, bound
        # The bound, with what calls of the library take while they run.
        self.beside: int | None = None
        self.uses = Uses(block, size)
        self.order = Order(block, self.uses)
        self.alike: dict[
            tuple[LoopOp, LoopOp], bool
        ] = {}  # pairs that may be one as far as they themselves say

    def vertical(self, permuted: bool = False) -> bool:
        """Merge loops with those that read their results; whether any was. `permuted`: also where the reading loop gets
        another order of indices by that."""
        changed = False
        for op in self.block:
            consumer: Op | None = op
            while cost.is_fusable(consumer):
                consumer = self._with_best_producer(consumer, permuted)
                changed |= consumer is not None
        return changed

    def _with_best_producer(self, consumer: LoopOp, permuted: bool) -> LoopOp | None:
        producers = [
            v.op
            for v in self.uses.tensors(consumer)
            if v.op is not None and v.op.parent is self.block
        ]
        candidates = [p for p in dict.fromkeys(producers) if cost.is_fusable(p)]
        candidates.sort(key=self._saved, reverse=True)
        for producer in candidates:
            order = shared_extents(producer, consumer, permuted)
            once = not (producer.extents or consumer.extents or cost.has_scan(producer.body))
            if not (order or (order is not None and once)):
                continue
            if not self._fits(producer, consumer) or not self._is_faster(producer, consumer, order):
                continue
            if is_too_long(producer, consumer, self.size):
                continue
            if cost.ends_product(producer, self.size, self.uses.tensors):
                continue
            after = self._movable(producer, consumer)
            if after is None:
                continue
            in_order = order == list(range(len(order)))
            if apply("graph-fuse-rows" if in_order else "graph-permute-loops", consumer):
                consumer = consumer if in_order else self._with_order(consumer, order)
                return self._merge(producer, consumer, len(order), after)
        return None

    def _with_order(self, consumer: LoopOp, order: Sequence[int]) -> LoopOp:
        """The consumer with these indices outermost."""
        rest = [k for k in range(len(consumer.extents)) if k not in order]
        self.uses.forget([consumer])
        new = permute(consumer, [*order, *rest])
        self.order.at[new] = self.order.at[consumer]
        return new

    def split(self) -> bool:
        """Split indices such that loops share more of them, as one over groups of channels and one over all channels:
        graph-canonicalize makes them equal then. Whether any was. A loop that writes a part of a concatenation where it
        lies keeps its shape, since its result would need memory of its own."""
        changed, lying = False, placements(self.block)
        for op in list(self.block):
            if not isinstance(op, LoopOp):
                continue
            for v in captured_tensors(op):
                producer = v.op
                if isinstance(producer, LoopOp) and producer.parent is self.block:
                    found = to_split(producer, op)
                    if found is None or not lying.keys().isdisjoint(found[0].results):
                        continue
                    if apply("graph-split-loops", op):
                        split(*found)
                        changed = True
                        break
        return changed

    def horizontal(self) -> bool:
        """Merge loops of equal extents that read a tensor together; whether any was. It saves little: no more memory is
        held for it than without."""
        if self.bound is not None:
            steps = [[op] for op in self.block]
            self.bound = min(self.bound, peak_bytes(steps, self.uses))
            self.beside = peak_bytes(steps, self.uses, library=True)
        changed = False
        groups: dict[object, list[LoopOp]] = {}
        for op in self.block:
            if cost.is_fusable(op):
                groups.setdefault((op.extents, op.results[0].type.device), []).append(op)
        for group in groups.values():
            group.sort(key=self.order.at.__getitem__)  # merges of other groups moved some
            while (pair := next(self._pairs(group), None)) is not None:
                first, last, after = pair
                group[group.index(last)] = self._merge(first, last, len(last.extents), after)
                group.remove(first)
                group.sort(key=self.order.at.__getitem__)  # the merge moves what depends on `first`
                changed = True
        return changed

    def _pairs(self, group: Sequence[LoopOp]) -> Iterator[tuple[LoopOp, LoopOp, list[Op]]]:
        for n, last in enumerate(group):
            for first in reversed(group[:n]):
                pair = first, last
                if pair not in self.alike:
                    self.alike[pair] = self._is_alike(first, last)
                if not self.alike[pair] or last in self.order.users_of(first):
                    continue
                if any(cost.ends_product(x, self.size, self.uses.tensors) for x in pair):
                    continue
                after = self._movable(first, last)
                if after is not None and apply("graph-fuse-equal", last):
                    yield first, last, after

    def _is_alike(self, first: LoopOp, last: LoopOp) -> bool:
        """Whether two loops read a tensor in the same way, or move little, and fit into one kernel. Merges of others
        give them other values that are as large and read in the same way, so that it stays true."""
        common = set(self.uses.tensors(last)).intersection(self.uses.tensors(first))
        alike = any(reads_alike(first, last, v) for v in common)
        return (alike or self._is_small(first, last)) and self._fits(first, last)

    def _merge(self, producer: LoopOp, consumer: LoopOp, k: int, after: list[Op]) -> LoopOp:
        self.uses.forget((producer, consumer))
        new = merge(producer, consumer, k)
        at = new.next
        assert at is not None
        for op in after:
            op.move_before(at)
        self.order.renumber()
        return new

    def _is_small(self, a: LoopOp, b: LoopOp) -> bool:
        """Whether both move so few bytes that a launch takes longer."""
        moved = cost.traffic((a, b), self.size, self.uses.tensors)
        return moved / self.machine.bandwidth < self.machine.launch

    def _saved(self, producer: LoopOp) -> int:
        return sum(map(self.uses.bytes, producer.results))

    def _fits(self, a: LoopOp, b: LoopOp) -> bool:
        """Whether both run on one device, and the merged loop has not too many tensors."""
        same = a.results[0].type.device == b.results[0].type.device
        tensors = {*self.uses.tensors(a), *self.uses.tensors(b), *a.results, *b.results}
        return same and len(tensors) <= cost.MOST_TENSORS

    def _is_faster(self, a: LoopOp, b: LoopOp, order: Sequence[int]) -> bool:
        """Whether iterations of the shared indices keep the machine busy, or are done by a part of it in the time that
        a launch and the bytes between the two take."""
        rate, bandwidth = self.machine.rate, self.machine.bandwidth
        repeated = again(a, b, len(order), self.machine, self.size) / rate
        before = cost.traffic((a, b), self.size, self.uses.tensors)
        after = before - cost.traffic_between(a, b, self.size, self.uses.tensors)
        if len(order) == len(a.extents) == len(b.extents):
            saved = (before - after) / bandwidth + self.machine.launch
            return repeated <= saved and not self._would_split(a, b)
        if len(order) < len(a.extents) and cost.has_reduction(a.body):
            return False  # each element that reads it would reduce anew
        if len(order) < len(b.extents) and cost.longest_reduction(b.body, self.size) > MOST_WALKED:
            return False  # an element of the inner loop would walk through a row by itself
        outer = programs = prod(self.size(b.extents[m]) for m in order)
        if cost.goes_along(b, order):
            programs = -(-outer // COLUMNS)
        busy = min(1.0, programs / self.machine.lanes)
        if after > outer * self.machine.cache:
            after = before  # a row is read again from memory
        work = sum(cost.work(x, self.size, self.machine.load) for x in (a, b)) / rate
        seconds = after / bandwidth + work + repeated
        if cost.is_pointwise(b.body):
            inner = [m for m in range(len(b.extents)) if m not in order]
            seconds += cost.gathered(b, inner) * cost.extent(b, self.size) * self.machine.gather
        return seconds / busy <= before / bandwidth + work + self.machine.launch

    def _would_split(self, a: LoopOp, b: LoopOp) -> bool:
        """Whether a few programs would do long reductions of both, which are split if they are apart."""
        rows = [cost.longest_reduction(x.body, self.size) for x in (a, b)]
        outer = cost.extent(b, self.size)
        programs = -(-outer // COLUMNS) if cost.reduces_columns(b) else outer
        return programs <= self.machine.few and min(rows) * outer >= LONG * programs

    def _movable(self, first: LoopOp, last: LoopOp) -> list[Op] | None:
        """The ops that must move behind both; None if there is a way from one to the other around, or if the bound
        on memory would be passed."""
        after = self.order.between(first, last)
        if after is None or self.bound is None:
            return after
        moved = {first, *after}
        steps: list[Sequence[Op]] = []
        for op in self.block:
            if op is last:
                steps += [[first, last], *([x] for x in after)]
            elif op not in moved:
                steps.append([op])
        if peak_bytes(steps, self.uses, merged=[(first, last)]) > self.bound:
            return None
        if self.beside is not None:
            most = peak_bytes(steps, self.uses, True, merged=[(first, last)])
            return after if most <= self.beside else None
        return after
