"""Makes a kernel of a top-level op of a graph: tile IR, what its parameters stand for, and how many programs it has."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tessera.dtypes import dtype, int32, int64
from tessera.graph.emit.accesses import offset_of, place_of
from tessera.graph.emit.aligned import aligned
from tessera.graph.emit.inner import InnerNest, Pass
from tessera.graph.emit.nest import Nest
from tessera.graph.emit.scopes import Scope
from tessera.graph.emit.tiles import CannotEmit, joint_shape
from tessera.graph.emit.tiling import Machine, Tiling, choose
from tessera.graph.emit.walk import WalkNest, emit_walk, tiling_of, walk_of
from tessera.graph.index import Expr, Sym, expr
from tessera.graph.ir.ops import IndexOp, LoopOp, ReduceOp, ScanOp, ScatterOp, SortOp, yielded
from tessera.graph.ir.types import TensorType, is_tensor
from tessera.ir import Block, Module, Op, Value, elem_of, print_module, shape_of
from tessera.ops import ConstOp, ExpOp, MulOp, SubOp, YieldOp

Size = int | Expr
NAMED = 3  # ops that a kernel's name tells


@dataclass(frozen=True, slots=True)
class KernelCode:
    """A kernel before it is compiled. `text`: its tile IR; `parameters`: tensors, scalars and sizes of the graph;
    `written`: the numbers of those that it writes; `reusable`: pairs (result, operand) of parameters that may be the
    same memory, since each program reads the elements that it writes, and no others, before it writes them;
    `contract`: whether a product may be subtracted from or added to in one rounding; `origins`: the operations of the
    program that it computes, as far as the locations of the graph's ops say."""

    name: str
    text: str
    parameters: tuple[Value | Sym, ...]
    written: tuple[int, ...]
    reusable: tuple[tuple[int, int], ...]
    programs: Size
    warps: int
    tiling: Tiling
    contract: bool = True
    origins: tuple[str, ...] = ()


def emit(op: Op, machine: Machine, wide: bool = False) -> KernelCode:
    """The kernel for one top-level op. `wide`: whether offsets need 64 bits. CannotEmit for what no kernel does."""
    if isinstance(op, ScanOp | ReduceOp | SortOp):
        op = _wrapped(op)
    if not isinstance(op, LoopOp | ScatterOp):
        raise CannotEmit(f"{op.opcode} is no nest of loops")
    # Where there is nothing to compute, the kernel is one that no program runs.
    extents = tuple(1 if n == 0 else n for n in op.extents)
    index_type = int64 if wide else int32
    walk = walk_of(op)
    if walk is not None:
        tiling = tiling_of(walk, machine)
        nest = WalkNest(walk, tiling, index_type)
    else:
        tiling = choose(op, extents, machine)
        if not machine.exact:
            tiling = aligned(tiling, op, extents)
        nest = InnerNest(tiling, index_type, machine.exact)
    scope = nest.outer(extents, op.body)
    if isinstance(nest, WalkNest):
        written = emit_walk(nest, nest.walked.op, scope)
    elif isinstance(op, LoopOp):
        written = _loop(nest, op, scope)
    else:
        written = _scatter(nest, op, scope)
    code = finished(nest, [op], tiling, written)
    return code if extents == op.extents else replace(code, programs=0)


def _wrapped(op: Op) -> LoopOp:
    """The op inside of a loop that runs once."""
    inner = op.clone()
    block = Block()
    block.append(inner)
    block.append(YieldOp(inner.results))
    return LoopOp(extents=(), regions=[block], results=[r.type for r in op.results])


def _loop(nest: InnerNest, op: LoopOp, scope: Scope) -> dict[Value, Expr]:
    """Compute and store what the nest yields: scalars, then what inner loops make, those of one shape together."""
    at = [scope.bound[a] for a in op.body.args]
    values = yielded(op.body)
    written: dict[Value, Expr] = {}
    scalars = [(r, v) for r, v in zip(op.results, values, strict=True) if not is_tensor(v)]
    made = [(r, nest.value(v, scope)) for r, v in scalars]
    for shape in dict.fromkeys(v.type.shape for v in values if is_tensor(v)):
        group = [k for k, v in enumerate(values) if is_tensor(v) and v.type.shape == shape]
        _rows(nest, op, group, at, scope, written)
    for r, v in made:
        nest.store(r, at, v, scope)
        written[r] = nest.indices.by_parts(offset_of(r.type, at))
    return written


def _rows(
    nest: InnerNest,
    op: LoopOp,
    group: Sequence[int],
    at: Sequence[Expr],
    scope: Scope,
    written: dict[Value, Expr],
) -> None:
    """Store the results of these numbers: tensors of one shape that the nest yields for each index."""
    values = yielded(op.body)
    coordinates: Sequence[Expr] = ()

    def step(p: Pass) -> None:
        here = scope.child(Block(), [], p.block, p.index)
        made = [nest.element(values[k], coordinates, here) for k in group]
        for k, v in zip(group, made, strict=True):
            r, place = op.results[k], place_of(op, k, at, coordinates)
            inside = None
            if op.is_joined(k):
                inside = nest.below(place[len(at) - 1], op.joined[k])
            nest.store(r, place, v, here, inside)
            written[r] = nest.indices.by_parts(offset_of(r.type, place))

    for index, coordinates in nest.pieces(values[group[0]].type.shape):  # noqa: B007  `step` reads them
        nest.walk(index, step)


def _scatter(nest: InnerNest, op: ScatterOp, scope: Scope) -> dict[Value, Expr]:
    """Write each value to the place that goes with it."""
    base: TensorType = op.base.type
    rank, values = base.rank, yielded(op.body)
    at = [nest.expression(v, scope) for v in values[:rank]]
    value = nest.value(values[rank], scope)
    shape = nest.tiling.shape
    if op.mode in ("add", "mul") and any(n > 1 for n in shape):
        value = nest.tiles.spread(value, joint_shape([shape_of(value.type), shape]))  # each counts
    mask = nest.value(values[rank + 1], scope) if len(values) > rank + 1 else None
    offset = nest.indices.by_parts(offset_of(op.result.type, at))
    parts = nest.code.parts(offset, nest.index_type)
    nest.write(nest.arguments.of(op.result), parts, value, mask, scope, op.mode)
    return {op.result: expr(-1)}


def finished(
    nest: Nest, ops: Sequence[Op], tiling: Tiling, written: Mapping[Value, Expr]
) -> KernelCode:
    """The kernel of a nest that computes these ops."""
    parameters = tuple(nest.arguments.given)
    place = {x: k for k, x in enumerate(parameters)}
    reusable = [
        (place[r], place[x])
        for r, offset in written.items()
        for x, read in nest.read.items()
        if read == {offset} and x.type.elem.storage_bytes == r.type.elem.storage_bytes
    ]
    alignment = [16 if isinstance(x, Value) and is_tensor(x) else 1 for x in parameters]
    module = Module()
    function = nest.function("kernel", alignment)
    module.body.append(function)
    text = print_module(module)
    name = f"{_label(ops)}_{hashlib.sha256(text.encode()).hexdigest()[:8]}"
    function.name = name
    return KernelCode(
        name, print_module(module), parameters, tuple(place[r] for r in written), tuple(reusable),
        tiling.programs, tiling.warps, tiling, not any(map(_shifts_a_product, function.walk())), origins(ops),
    )  # fmt: skip


def _shifts_a_product(op: Op) -> bool:
    """Whether an op subtracts from a product as softmax does. Its largest element, which is subtracted, is a product
    that has been rounded: less it, an unrounded one is not 0, but up to a thirtieth at a million."""
    if (
        not isinstance(op, SubOp)
        or not isinstance(op.lhs.op, MulOp)
        or isinstance(op.rhs.op, MulOp)
    ):
        return False
    elem, users = elem_of(op.result.type), op.result.users()
    if not isinstance(elem, dtype) or not elem.is_floating():
        return False
    return any(
        isinstance(x, ExpOp) or (isinstance(x, SubOp) and not isinstance(x.rhs.op, MulOp))
        for x in users
    )


def origins(ops: Sequence[Op]) -> tuple[str, ...]:
    """The functions that ops and what is inside of them were made for, in their order."""
    quiet = (ConstOp, IndexOp)  # which operations share
    places = (x.loc for op in ops for x in op.walk() if not isinstance(x, quiet))
    return tuple(dict.fromkeys(p.function for p in places if p is not None and p.function))


def _label(ops: Sequence[Op]) -> str:
    """What a kernel does, in a few words: the ops that tell most about it."""
    plain = {"const", "cast", "yield", "graph.load", "graph.index", "graph.loop", "cmp", "select"}
    words = dict.fromkeys(
        x.opcode.removeprefix("graph.") for op in ops for x in op.walk() if x.opcode not in plain
    )
    return "_".join(["graph", *list(words)[:NAMED]] if words else ["graph", "copy"])
