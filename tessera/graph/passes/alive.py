"""Knows who uses the tensors of a graph, in which order, and how much memory they take at a time in it."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence

from tessera.graph.emit.accesses import offset_of
from tessera.graph.index import dim
from tessera.graph.ir.concat import ConcatOp, placements
from tessera.graph.ir.ops import ExternOp, LoopOp, ViewOp, donated_arguments
from tessera.graph.ir.types import TensorType
from tessera.graph.passes.cost import SizeOf, bytes_of, is_pointwise, loads_of, top_level
from tessera.graph.passes.facts import captured_tensors
from tessera.ir import Block, Op, Value

PRODUCTS = ("aten.mm.", "aten.addmm.", "aten.bmm.", "aten.baddbmm.")


class Uses:
    """Who uses the tensors of a block. Fusion asks for the same of each candidate, and a candidate changes few ops:
    what is known of them is forgotten by `forget` before they change, all else is found once."""

    def __init__(self, body: Block, size: SizeOf):
        self.body, self.size = body, size
        self._tensors: dict[Op, list[Value]] = {}
        self._readers: dict[Value, list[Op]] = {}
        self._bytes: dict[Value, int] = {}

    def tensors(self, op: Op) -> list[Value]:
        """The tensors that an op of the block captures."""
        found = self._tensors.get(op)
        if found is None:
            found = self._tensors[op] = captured_tensors(op)
        return found

    def readers(self, v: Value) -> list[Op]:
        """The ops of the block that use a tensor, themselves or inside."""
        found = self._readers.get(v)
        if found is None:
            ops = dict.fromkeys(top_level(user, self.body) for user in v.users())
            found = self._readers[v] = list(ops)
        return found

    def bytes(self, v: Value) -> int:
        found = self._bytes.get(v)
        if found is None:
            found = self._bytes[v] = bytes_of(v.type, self.size)
        return found

    def forget(self, ops: Iterable[Op]) -> None:
        """Ops will get other operands, or go."""
        for op in ops:
            for v in self.tensors(op):
                self._readers.pop(v, None)
            for r in op.results:
                for reader in self.readers(r):
                    self._tensors.pop(reader, None)
                del self._readers[r]
            del self._tensors[op]


class Order:
    """Which op of a block comes before which; numbered anew when the block has changed."""

    def __init__(self, block: Block, uses: Uses):
        self.block, self.uses = block, uses
        self.renumber()

    def renumber(self) -> None:
        self.at = {op: k for k, op in enumerate(self.block)}

    def between(self, first: Op, last: Op) -> list[Op] | None:
        """The ops in front of `last` that depend on `first`; None if one of them feeds `last`."""
        end = self.at[last]
        found: set[Op] = set()
        work = [first]
        while work:
            op = work.pop()
            for user in self.users_of(op):
                if user is last:
                    if op is not first:
                        return None
                elif self.at[user] < end and user not in found:
                    found.add(user)
                    work.append(user)
        if any(op.all_effects() for op in found):
            return None  # their order counts
        return sorted(found, key=self.at.__getitem__)

    def users_of(self, op: Op) -> set[Op]:
        """The ops of the block that use an op's results, themselves or inside."""
        return {user for r in op.results for user in self.uses.readers(r)}


def peak_bytes(
    steps: Sequence[Sequence[Op]],
    uses: Uses,
    library: bool = False,
    merged: Sequence[Sequence[LoopOp]] = (),
) -> int:
    """The most that tensors made inside of a graph take at one time, and arguments that go when nobody reads them any
    more. The ops of a step run as one: what only they read is never stored. Views are the memory of what they view,
    and parts of a concatenation that are written where they lie are its memory. `library`: with what its calls take
    while they run; `merged`: groups of loops, each of which runs as one, whose results may take the memory of what dies
    there."""
    body, size = uses.body, uses.size
    at = {op: k for k, step in enumerate(steps) for op in step}
    homes = placements(body) if any(isinstance(op, ConcatOp) for op in at) else {}
    lives: dict[Value, tuple[int, int]] = {}  # of what lies in a concatenation's memory
    change = [0] * (len(steps) + 2)
    for op, k in at.items() if library else ():
        n = workspace(op, size)
        change[k] += n
        change[k + 1] -= n
    for loops in merged:
        n = _reused(loops, uses, at, homes)
        change[at[loops[0]]] -= n
        change[at[loops[0]] + 1] += n
    for v in donated_arguments(body):
        n = uses.bytes(v)
        change[0] += n
        change[_last_use(v, uses, at, 0) + 1] -= n
    for op, k in at.items():
        if isinstance(op, ViewOp):
            continue
        for r in op.results:
            if not isinstance(r.type, TensorType):
                continue
            home = homes[r].root if r in homes else r
            first, end = lives.get(home, (k, k))
            end = max(end, _last_use(r, uses, at, k))
            if home is not r:
                lives[home] = first, end
            elif end > first or isinstance(op, ExternOp):
                n = uses.bytes(r)
                change[first] += n
                change[end + 1] -= n
    now = most = 0
    for n in change:
        now += n
        most = max(most, now)
    return most


def workspace(op: Op, size: SizeOf) -> int:
    """What a call of the library may take while it runs, such as what a convolution pads: about as much as it reads and
    makes. For matrix products the library keeps its memory."""
    if not isinstance(op, ExternOp) or op.target.startswith(PRODUCTS):
        return 0
    tensors = {v for v in (*op.operands, *op.results) if isinstance(v.type, TensorType)}
    return sum(bytes_of(v.type, size) for v in tensors)


def _reused(
    loops: Sequence[LoopOp], uses: Uses, at: Mapping[Op, int], homes: Container[Value]
) -> int:
    """The bytes of what dies in loops that run as one, each element where a result's is made, which takes its place;
    nothing of that is what lies in a concatenation (`homes`)."""
    here = at[loops[0]]
    inside = [r for loop in loops for r in loop.results]
    if any(not is_pointwise(x.body) or x.extents != loops[0].extents for x in loops):
        return 0
    if not all(_goes_along(loop, r, r.type) for r in inside for loop in loops):
        return 0
    made = [r.type for r in inside if r not in homes and _last_use(r, uses, at, here) > here]
    total = 0
    for v in dict.fromkeys(v for loop in loops for v in uses.tensors(loop)):
        if v in inside or v in homes or not isinstance(v.op, LoopOp | ExternOp):
            continue
        n = uses.bytes(v)
        fits = (
            t
            for t in made
            if t.elem.storage_bytes == v.type.elem.storage_bytes and bytes_of(t, uses.size) == n
        )
        t = next((t for t in fits if all(_goes_along(loop, v, t) for loop in loops)), None)
        if t is not None and _last_use(v, uses, at, here) == here:
            made.remove(t)
            total += n
    return total


def _goes_along(loop: LoopOp, tensor: Value, t: TensorType) -> bool:
    """Whether each iteration of a loop reads of a tensor what lies where its own element does in one of type `t`."""
    dims = {a: dim(k) for k, a in enumerate(loop.body.args)}
    own = offset_of(t, list(dims.values()))
    loads = loads_of(loop, [tensor])
    return loads is not None and all(
        all(v in dims for v in x.indices)
        and offset_of(tensor.type, x.map.at([dims[v] for v in x.indices], len(dims)).results) == own
        for x in loads
    )


def _last_use(v: Value, uses: Uses, at: Mapping[Op, int], end: int) -> int:
    for op in uses.readers(v):
        end = max(end, at[op])
        if isinstance(op, ViewOp):
            end = max(end, _last_use(op.result, uses, at, end))
    return end
