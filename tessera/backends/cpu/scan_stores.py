"""Stores what a scan gives vector by vector, in the scan's own loop, instead of a buffer that a second loop reads.

    x = load; y = scan(x); store y        for each vector: load, combine, store

A scan whose results only stores of the same block need, themselves or by element-wise ops, waits for the last of these
stores, and its loop does what all of them do. Results are the same as those of one loop after another: nothing but
these stores has an effect up to there, the arguments that they write do not overlap, which the launch checks, and
loads that they would overtake are executed before, as those of any store (`fusion.flush`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tessera.backends.cpu.aliases import apart
from tessera.backends.cpu.fusion import DEEPEST, contiguous_dimension, flush, prepare
from tessera.backends.cpu.lowering import EVALUATORS, Lowering
from tessera.backends.cpu.memory import store_at
from tessera.backends.cpu.reduce import Group
from tessera.backends.cpu.values import Point
from tessera.ir import Effect, Op, TileType, Value, elem_of
from tessera.ir.applications import apply
from tessera.ops import LoadOp, ScanOp, StoreOp
from tessera.ops.arith import Elementwise

MOST = 64  # ops between a scan and its last store: each adds to the depth of lazy evaluation


@dataclass(frozen=True, slots=True)
class Stores:
    """The stores that a scan's loop does, in order. `leaves`: what else their values are computed from."""

    scan: ScanOp
    ops: tuple[StoreOp, ...]
    leaves: tuple[Value, ...]

    @property
    def mask(self) -> Value | None:
        """The mask of all stores; None if they have none, or several."""
        masks = {op.mask for op in self.ops}
        return masks.pop() if len(masks) == 1 else None

    @property
    def values(self) -> list[Value]:
        """What the loop evaluates: the scan's operands and those of the stores."""
        found = [*self.scan.inputs, *(op.ptr for op in self.ops), *self.leaves]
        return found + [op.mask for op in self.ops if op.mask is not None]

    def suit(self, lo: Lowering) -> bool:
        """Whether vectors of the scan are no worse for the stores than those that these would choose."""
        return all(contiguous_dimension(lo, op.ptr) is None for op in self.ops)

    def prepare(self, lo: Lowering) -> None:
        flush(lo, self.ops[-1], self.values, [op.ptr for op in self.ops])
        prepare(lo, self.values, self.ops[-1])

    def put(self, lo: Lowering, at: Point, results: Group) -> None:
        """Store a vector. All that is read is read before the first store, as each may write what another one reads."""
        for r, x in zip(self.scan.results, results, strict=True):
            lo.memo[r, at] = x
        found = [
            (lo.value(op.ptr, at), lo.value(op.value, at), lo.value(op.mask, at) if op.mask else None)
            for op in self.ops
        ]  # fmt: skip
        for op, (address, x, mask) in zip(self.ops, found, strict=True):
            store_at(lo, address, elem_of(op.value.type), x, mask, at.lanes)


def joined(lo: Lowering, op: ScanOp) -> Stores | None:
    """Return the stores that the loop of a scan may do; None if it must fill buffers."""
    found = _users(op)
    if found is None or op.all_effects() is not Effect.NONE:
        return None
    stores, leaves = found
    if not _alone(op, stores) or any(lo.depth.get(v, 0) >= DEEPEST - MOST for v in leaves):
        return None
    pairs = ((a.ptr, b.ptr) for i, a in enumerate(stores) for b in stores[:i])
    if not all(apart(lo, a, b) for a, b in pairs) or not apply("scan-stores", op):
        return None
    return Stores(op, tuple(stores), tuple(leaves))


def wait(lo: Lowering, stores: Stores, run: Callable[[], None]) -> None:
    """Let `run`, which emits the scan's loop, take the place of the last store."""
    last = stores.ops[-1]
    lo.chained[stores.scan] = None
    for op in stores.ops:
        lo.position[op] = lo.position[last]  # so that what it needs is not released before
        lo.joined[op] = _nothing
    lo.joined[last] = run


def give_up(lo: Lowering, stores: Stores) -> None:
    """Let the scan and its stores be what they are without each other."""
    del lo.chained[stores.scan]
    for op in stores.ops:
        del lo.joined[op]


def _nothing() -> None:
    pass


def _users(op: ScanOp) -> tuple[list[StoreOp], dict[Value, None]] | None:
    """Return the stores that need the results of a scan, in order, and what else the values are computed from that they
    store; None if others need them."""
    own, stores, leaves = set[Value](op.results), dict[StoreOp, None](), dict[Value, None]()
    waiting = list(op.results)
    while waiting:
        for user, index in waiting.pop().uses:
            if isinstance(user, StoreOp) and user.operands[index] is user.value:
                stores[user] = None
            elif not isinstance(user, Elementwise) or type(user) not in EVALUATORS:
                return None
            elif user.results[0] not in own:
                own.update(user.results)
                waiting += user.results
                leaves.update(dict.fromkeys(user.operands))
        if len(own) > MOST:
            return None
    rest = {v: None for v in leaves if v not in own and isinstance(v.type, TileType)}
    addressed = {v for s in stores for v in (s.ptr, s.mask)}
    if (
        not stores
        or not own.isdisjoint(addressed)
        or any(s.parent is not op.parent for s in stores)
    ):
        return None
    return sorted(stores, key=_place(op).__getitem__), rest


def _place(op: Op) -> dict[Op, int]:
    return {x: i for i, x in enumerate(_following(op))}


def _following(op: Op) -> Iterator[Op]:
    following = op.next
    while following is not None:
        yield following
        following = following.next


def _alone(op: ScanOp, stores: list[StoreOp]) -> bool:
    """Whether only `stores` have effects up to the last of them, and nothing reads what the first ones write."""
    begun, count = False, 0
    for x in _following(op):
        count += 1
        if x in stores:
            begun = True
            if x is stores[-1]:
                return count <= MOST
            continue
        reads = isinstance(x, LoadOp) and not begun
        if x.regions or (x.effects is not Effect.NONE and not reads):
            return False
    return False
