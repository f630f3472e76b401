"""Fuses vertically: puts the body of a producing loop at the place of each load of its result.

A loop's result at map(i) is its body for the indices map(i): that needs no proof beyond the load being in range, which
loads promise. Where a load is masked the body's own loads get the mask, too.
"""

from __future__ import annotations

from collections.abc import Sequence

from tessera.graph.index import Dim, Expr, IndexMap
from tessera.graph.ir.ops import CheckedOp, IndexOp, LoadOp, LoopOp, yielded
from tessera.graph.ir.types import TensorType
from tessera.graph.passes import cost
from tessera.graph.passes.alive import Uses, peak_bytes
from tessera.graph.passes.cost import Machine, SizeOf
from tessera.graph.passes.facts import extent_of
from tessera.ir import Block, Builder, Op, Value
from tessera.ir.applications import apply
from tessera.ops import AndOp, ConstOp, SelectOp

FREE = 3  # scalar ops of a body that is computed again rather than stored


def zero(b: Builder, t: object) -> Value:
    """The number 0 of a scalar type."""
    floating = t.is_floating()  # type: ignore[attr-defined]
    value = 0.0 if floating else False if t.is_bool() else 0  # type: ignore[attr-defined]
    return b.emit(ConstOp(value=value, results=[t]))


def slice_of(value: Value, block: Block) -> list[Op]:
    """The ops of a block that a value of it needs, in order."""
    needed: set[Op] = set()
    work = [value.op] if value.op is not None and value.op.parent is block else []
    while work:
        op = work.pop()
        if op in needed:
            continue
        needed.add(op)
        for inner in op.walk():
            for v in inner.operands:
                if v.op is not None and v.op.parent is block:
                    work.append(v.op)
    return [op for op in block if op in needed]


def inline_load(load: LoadOp, loop: LoopOp, position: int, last: bool = False) -> None:
    """Compute what a load reads of a loop's result at its place. `last`: nobody else needs the loop, whose ops may move
    there: copies of them would take time that grows with the square of the length of a chain of loops."""
    value, mask = yielded(loop.body)[position], load.mask
    needed = slice_of(value, loop.body)
    unmasked = _in_range_anyway(load, loop, needed) if mask is not None else set[Op]()
    b = Builder.before_op(load)
    mapping: dict[Value, Value] = {}
    for arg, e in zip(loop.body.args, load.map.results, strict=True):
        if arg.uses:
            mapping[arg] = _index(b, load, e)
            if last:
                arg.replace_all_uses(mapping[arg])
    for op in needed:
        free = op in unmasked
        if last:
            op.move_before(load)
        else:
            op = b.insert(op.clone(mapping))
        for inner in op.walk():
            if mask is not None and not free and isinstance(inner, LoadOp | CheckedOp):
                masked(inner, mask)
    load.result.replace_all_uses(selected(b, load, mapping.get(value, value)))
    load.erase()


def _in_range_anyway(load: LoadOp, loop: LoopOp, ops: Sequence[Op]) -> set[Op]:
    """The loads of a body that may read where a masked load does not: at indices that are those of its nest, as the
    factors of a batch norm are read in front of a pooling. They are then the same for all elements of a window."""
    safe: set[Value] = set()
    for arg, n, e in zip(loop.body.args, loop.extents, load.map.results, strict=True):
        if isinstance(e.atom, Dim) and extent_of(load.indices[e.atom.position]) == n:
            safe.add(arg)
    return {
        op
        for op in ops
        if isinstance(op, LoadOp) and op.mask is None and all(v in safe for v in op.indices)
    }


def _index(b: Builder, load: LoadOp, e: Expr) -> Value:
    """One of the indices at which a load reads."""
    if isinstance(e.atom, Dim):
        return load.indices[e.atom.position]
    return b.emit(IndexOp(list(load.indices), index_map=IndexMap(load.map.dims, [e])))


def masked(op: LoadOp | CheckedOp, mask: Value) -> None:
    """Let a load read nothing, and a check look at nothing, where `mask` is false."""
    both = mask if op.mask is None else Builder.before_op(op).emit(AndOp(op.mask, mask))
    if isinstance(op, LoadOp):
        op.set_operands(op.tensor, list(op.indices), both, op.other)
    else:
        op.set_operands(op.x, op.condition, both)


def selected(b: Builder, load: LoadOp, value: Value) -> Value:
    """`value`, or what a masked load gives where its mask is false."""
    if load.mask is None:
        return value
    other = load.other or zero(b, load.result.type)
    return b.emit(SelectOp(load.mask, value, other))


def inline_producers(
    block: Block, machine: Machine, size: SizeOf, shared: bool, bound: int | None = None
) -> bool:
    """Inline loops of a block into those behind them where that pays; whether any was. `shared`: also those that
    several ops read and that then are computed by each. `bound`: the most bytes that tensors may take at a time."""
    changed, uses = False, Uses(block, size)
    for op in block:
        if cost.is_fusable(op) and _pays(op, uses, machine, shared, bound):
            uses.forget([op])
            found = [(user, at) for at, r in enumerate(op.results) for user in r.users()]
            for user, position in found:
                assert isinstance(user, LoadOp)
                inline_load(user, op, position, last=len(found) == 1)
            op.erase()
            changed = True
    return changed


def _pays(loop: LoopOp, uses: Uses, machine: Machine, shared: bool, bound: int | None) -> bool:
    block, size = uses.body, uses.size
    loads = _reading_loads(loop)
    if not loads:
        return False
    count = cost.extent(loop, size)
    runs = [_runs(x, block, size) for x in loads]
    readers = list(dict.fromkeys(cost.top_level(x, block) for x in loads))
    once = sum(runs) <= count
    pointwise = cost.is_pointwise(loop.body)
    if not pointwise and not (once and all(_is_in_loops(x, block) for x in loads)):
        return False
    if any(len(_inputs(op, loop, uses)) > cost.MOST_TENSORS for op in readers):
        return False
    if any(isinstance(op, LoopOp) and not cost.is_fusable(op) for op in readers):
        return False
    if cost.ends_product(loop, size, uses.tensors) and not all(
        _ends_as_well(op, loop, machine, size) for op in readers
    ):
        return False
    if not once and not (
        (pointwise and _is_free(loop, sum(runs), machine, uses))
        or (shared and _is_cheaper(loop, readers, sum(runs), machine, uses))
    ):
        return False
    if bound is not None and not _reads_little(loop, uses):
        if peak_bytes(_steps(block, loop, readers), uses) > bound:
            return False
    return apply("graph-inline-loops", loop)


def _ends_as_well(reader: Op, loop: LoopOp, machine: Machine, size: SizeOf) -> bool:
    """Whether a product's kernel can store what a reader of `loop` makes of it, in no more bytes: one product's, as
    that of another one would be stored as it is (on CPUs, as no GPU has timed it)."""
    if not isinstance(reader, LoopOp) or not cost.is_pointwise(reader.body):
        return False
    made = [sum(cost.bytes_of(r.type, size) for r in op.results) for op in (reader, loop)]
    return made[0] <= made[1] and not (machine.nests and cost.ends_product(reader, size))


def _steps(block: Block, loop: LoopOp, readers: Sequence[Op]) -> list[list[Op]]:
    """The order of a block where a loop runs as part of the last one that reads it, as what it reads must live."""
    left = set(readers)
    steps: list[list[Op]] = []
    for op in block:
        left.discard(op)
        if op is not loop:
            steps.append([loop, op] if op in readers and not left else [op])
    return steps


def _is_in_loops(load: LoadOp, block: Block) -> bool:
    """Whether a load runs once for each index of parallel loops: a reduction at its place does, too."""
    op = load.parent_op()
    while op is not None and isinstance(op, LoopOp) and op.parent is not block:
        op = op.parent_op()
    return load.mask is None and isinstance(op, LoopOp)


def _reading_loads(loop: LoopOp) -> list[LoadOp] | None:
    """The loads that read a loop's scalar results; None if something else uses one."""
    found: list[LoadOp] = []
    if any(isinstance(v.type, TensorType) for v in yielded(loop.body)):
        return None
    for r in loop.results:
        for user in r.users():
            if not isinstance(user, LoadOp) or user.parent is loop.parent:
                return None
            found.append(user)
    return found


def _runs(load: LoadOp, block: Block, size: SizeOf) -> int:
    return cost.evaluations(load, cost.top_level(load, block), size)


def _inputs(reader: Op, loop: LoopOp, uses: Uses) -> set[Value]:
    """The tensors of a reader that has a producer of these inputs inlined, results and all."""
    own = {v for v in uses.tensors(reader) if v.op is not loop}
    return own | set(uses.tensors(loop)) | set(reader.results)


def _is_free(loop: LoopOp, runs: int, machine: Machine, uses: Uses) -> bool:
    """Whether a pointwise body is computed again rather than stored. `runs`: how often its readers do; where a loss
    picks an element of each row, that is hardly more often than each element is there."""
    work: float = cost.weight_of(loop.body, uses.size)
    if machine.nests:
        again = min(1.0, runs / max(1, cost.extent(loop, uses.size)) - 1)
        work = cost.weight_of_element(loop, uses.size) * again
    return work <= FREE and _reads_little(loop, uses, 1.125)


def _reads_little(loop: LoopOp, uses: Uses, most: float = 1.0) -> bool:
    """Whether the tensors that a body reads are at most `most` times those that it makes."""
    return sum(map(uses.bytes, uses.tensors(loop))) <= most * sum(map(uses.bytes, loop.results))


def _is_cheaper(
    loop: LoopOp, readers: Sequence[Op], runs: int, machine: Machine, uses: Uses
) -> bool:
    """Whether computing it in each reader takes less time than storing it once."""
    made, inputs = sum(map(uses.bytes, loop.results)), uses.tensors(loop)
    before = made + sum(map(uses.bytes, inputs)) + made * len(readers)
    after = 0
    for op in readers:
        known = set(uses.tensors(op))
        after += sum(uses.bytes(v) for v in inputs if v not in known)
    again = runs - cost.extent(loop, uses.size)
    work = cost.weight_of(loop.body, uses.size, machine.load) * again
    return (after - before) / machine.bandwidth + work / machine.rate < machine.launch
