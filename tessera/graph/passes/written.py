"""Estimates how many scalar ops the kernel of a fused loop is written in.

A kernel computes an element of a local tensor at each place that reads one, unless another place has read the same:

    t = graph.loop (12) { f(x[k]) }            f: 20 ops
    u = graph.loop (12) { t[k] + t[k + 1] }    f is written twice
    v = graph.loop (12) { u[k] * u[0] }        and four times, if this one reads u

Steps of a scan that follow each other like this double the kernel each time.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from tessera.graph.emit.tiling import MOST_UNROLLED
from tessera.graph.index import IndexMap
from tessera.graph.ir.ops import LoadOp, LoopOp, ReduceOp
from tessera.graph.passes import cost
from tessera.graph.passes.cost import Machine, SizeOf
from tessera.graph.passes.facts import is_index
from tessera.ir import Block, Value

MOST_WRITTEN = 4000  # scalar ops; the largest kernels of usual models have some hundreds


def is_too_long(producer: LoopOp, consumer: LoopOp, size: SizeOf) -> bool:
    """Whether the kernel of both as one loop would be too long, because the one computes elements of the other at
    several places."""
    counts = Counts(consumer, size)
    places = counts.places(producer.results)
    total = Counts(producer, size).total * places + counts.total
    return places > 1 and total > MOST_WRITTEN


def again(producer: LoopOp, consumer: LoopOp, k: int, machine: Machine, size: SizeOf) -> float:
    """The scalar ops in whose time elements of local tensors are computed once more, because the consumer, which shares
    `k` indices, reads them at several places."""
    total = 0.0
    for r in producer.results:
        loads = [x for x in r.users() if isinstance(x, LoadOp) and x.is_inside(consumer)]
        if r.type.rank > k and loads:
            elements = prod(map(size, r.type.shape))
            moved = [x for x in loads if not _is_plain(x)]
            runs = sum(cost.evaluations(x, consumer, size) for x in moved)
            runs += elements * (len(moved) < len(loads))
            total = max(total, runs / elements - 1)
    return 0.0 if total <= 0 else total * cost.work(producer, size, machine.load)


class Counts:
    """How often each block of a loop is written, by block, and the ops of all in `total`."""

    def __init__(self, loop: LoopOp, size: SizeOf):
        self.size = size
        self.of: dict[Block, int] = {}
        self.total = 0
        self._block(loop.body, 1)

    def _block(self, block: Block, count: int) -> None:
        """Readers come behind what they read, so they are counted first."""
        self.of[block] = count
        self.total += count * sum(not op.terminator for op in block)
        for op in reversed(list(block)):
            if isinstance(op, LoopOp):
                self._block(op.body, self.places(op.results))
            elif op.regions:
                n = cost.extent(op, self.size)
                out = isinstance(op, ReduceOp) and n <= MOST_UNROLLED
                self._block(op.regions[0], count * n if out else count)

    def places(self, tensors: Sequence[Value]) -> int:
        """The places in blocks that have been counted at which elements of some tensors are computed, those that are
        sure to be the same counted once."""
        plain, found = 0, 0
        seen: set[tuple[Block, IndexMap | None, tuple[Value, ...], Value | None]] = set()
        for user in (u for v in tensors for u in v.users()):
            block = user.parent
            if block is None or block not in self.of:
                continue
            if not isinstance(user, LoadOp) or _is_plain(user):
                plain = max(plain, self.of[block])
                continue
            key = block, user.index_map, tuple(user.indices), user.mask
            if key not in seen:
                seen.add(key)
                found += self.of[block]
        return max(1, plain + found)


def _is_plain(load: LoadOp) -> bool:
    """Whether a load reads the element of the indices around it."""
    return load.index_map is None and load.mask is None and all(map(is_index, load.indices))
