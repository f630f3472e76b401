"""Makes loops of reductions of small scatters into equal elements: each element combines all that go to its place.

scatter add (i: n) into zeros (m) { yield [t(i)], v(i) }   →   loop (j: m) { sum over (i: n) t(i) == j ? v(i) : 0 }

That is n times as many comparisons, but no kernel that fills the tensor first, no atomic operation, and the loop is
part of what makes its values and of what reads it. Half types are carried in fp32, as in a scatter.
"""

from __future__ import annotations

from math import prod

from tessera.dtypes import float32, int1
from tessera.graph.ir import combine
from tessera.graph.ir.build import GraphBuilder
from tessera.graph.ir.ops import ScatterOp, yielded
from tessera.graph.ir.types import TensorType
from tessera.graph.passes import cost
from tessera.graph.passes.scatters import equal_elements
from tessera.ir import Block, Module, Value, pass_
from tessera.ir.applications import apply
from tessera.ops import AndOp

KINDS = {"add": "sum", "mul": "prod", "max": "max", "min": "min"}
PROGRAM = 1024  # elements that a program makes
COMPARING = 3  # scalar ops beside those of the body: compare, select, combine


@pass_("graph-reduce-scatters")
def reduce_scatters(module: Module) -> None:
    """Make loops of those scatters of all functions that are quicker then, without another launch."""
    for function in module.functions:
        reduce_scatters_of(function.regions[0])


def reduce_scatters_of(body: Block) -> None:
    for op in list(body):
        if isinstance(op, ScatterOp):
            passed = _passed(op)
            if _is_quick(op, passed) and apply("graph-reduce-scatters", op):
                _reduce(op, passed)


def _passed(op: ScatterOp) -> dict[Value, int]:
    """The indices of a scatter that are a coordinate as they are, and which one: nothing is compared for these."""
    places = yielded(op.body)[: op.base.type.rank]
    return {
        v: k
        for k, v in enumerate(places)
        if v in op.body.args
        and places.count(v) == 1
        and op.extents[op.body.args.index(v)] == op.base.type.shape[k]
    }


def _is_quick(op: ScatterOp, passed: dict[Value, int]) -> bool:
    """Whether there is such a loop, and its comparisons take less time than a launch and the atomic operations on one
    place, which wait for each other."""
    t = op.result.type
    rest = [n for n, a in zip(op.extents, op.body.args, strict=True) if a not in passed]
    sizes = [*t.shape, *rest]
    if not rest or not all(isinstance(n, int) and n > 0 for n in sizes):
        return False
    if op.mode not in KINDS or equal_elements(op.base) is None or not cost.is_pointwise(op.body):
        return False
    if t.elem == int1 or (t.elem.bits < 32 and not t.elem.is_floating()):
        return False
    machine, size = cost.machine_of(t.device), cost.sizes({})
    count, over = prod(map(size, t.shape)), prod(map(size, rest))
    spread = count * over if machine.few else count  # few reductions are split among programs
    busy = min(1.0, -(-spread // PROGRAM) / machine.lanes)
    work = prod(map(size, sizes)) * (sum(map(cost.weight, op.body)) + COMPARING)
    contention = prod(map(size, op.extents)) / count * machine.contention
    return work / (machine.rate * busy) < machine.launch + contention


def _reduce(op: ScatterOp, passed: dict[Value, int]) -> None:
    t: TensorType = op.result.type
    kind, rank = KINDS[op.mode], t.rank
    inside = float32 if t.elem.is_floating() and t.elem.bits < 32 else t.elem
    together, (nothing,) = combine.simple(kind, inside)
    rest = [a for a in op.body.args if a not in passed]
    g = GraphBuilder.before(op, t.device)

    def element(*at: Value) -> Value:
        def term(*over: Value) -> Value:
            known = {a: at[k] for a, k in passed.items()} | dict(zip(rest, over, strict=True))
            found = g.inlined(op.body, known)
            hits = found[rank + 1 :]  # the mask, if there is one
            hits += [g.compare("eq", at[k], found[k]) for k in range(rank) if k not in taken]
            value = g.cast(found[rank], inside)
            while len(hits) > 1:
                hits = [g.emit(AndOp(hits[0], hits[1])), *hits[2:]]
            return g.select(hits[0], value, g.const(nothing, inside)) if hits else value

        fill = equal_elements(op.base)
        assert fill is not None
        found = g.reduce(kind, [op.extents[a.index] for a in rest], term)
        if fill.value != nothing:
            (found,) = together(g.b, [g.cast(g.const(fill.value, t.elem), inside)], [found])
        return g.cast(found, t.elem)

    taken = set(passed.values())
    made = g.loop(t.shape, element)
    made.type = t
    op.replace_by([made])
