"""Computes what a loop expands again where it is read, if that takes less time than to store it and read it.

%a: (n, m, 16), %t: (n, m) = loop (i) { t[j] = f(x[i, j]); a[j, k] = exp(w[k] * t[j]) }         other rows read %a, too
%b = loop (i) { … load %a[i, j, k] … }       →       %b = loop (i) { … exp(load w[k] * load %t[i, j]) … }

So is what is read of the caller's own tensors, as rows of an embedding's table are, since these stay where they are.
Loops that nobody else shares indices with are inlined before (inline.py); this is for a result of a loop that was fused
with others, and whose readers were not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tessera.dtypes import int64
from tessera.graph.index import Dim, IndexMap
from tessera.graph.ir.ops import IndexOp, LoadOp, LoopOp, MatmulOp, donated_arguments, yielded
from tessera.graph.ir.types import TensorType
from tessera.graph.passes import cost
from tessera.graph.passes.cost import Machine, SizeOf
from tessera.graph.passes.facts import captured_tensors, symbol_ranges
from tessera.graph.passes.inline import inline_load
from tessera.ir import Block, Builder, Effect, Module, Op, Value, pass_
from tessera.ir.applications import apply
from tessera.ops import YieldOp

EXPANDED = 4  # times as many bytes as are read for them
MOST_OPS = 64  # that an element takes

Env = Mapping[Value, Value]


class CannotComputeError(Exception):
    """An element needs what a loop does not compute element by element."""


@pass_("graph-recompute-expanded")
def recompute_expanded(module: Module) -> None:
    """Compute results that expand smaller tensors where they are read (docs/graph-fusion.md)."""
    size = cost.sizes(symbol_ranges(module))
    for function in module.functions:
        body = function.regions[0]
        for op in list(body):
            if cost.is_fusable(op) and any(isinstance(x, LoopOp) for x in op.body):
                machine = cost.machine_of(op.results[0].type.device)
                for r in op.results:
                    _recompute(op, r, machine, size)


def _recompute(loop: LoopOp, r: Value, machine: Machine, size: SizeOf) -> None:
    body = loop.parent
    loads = [x for x in r.users() if isinstance(x, LoadOp) and x.tensor is r]
    if body is None or not loads or len(loads) != len(r.uses):
        return
    readers = list(dict.fromkeys(cost.top_level(x, body) for x in loads))
    if not all(cost.is_fusable(x) and not _ends_product(x) for x in readers):
        return
    made = element_of(loop, r)
    if made is None:
        return
    runs = sum(cost.evaluations(x, cost.top_level(x, body), size) for x in loads)
    if _pays(made, readers, runs, machine, size) and apply("graph-recompute-expanded", loop):
        for x in loads:
            inline_load(x, made, 0)
    made.erase()


def _pays(made: LoopOp, readers: Sequence[Op], runs: int, machine: Machine, size: SizeOf) -> bool:
    stored = cost.bytes_of(made.results[0].type, size)
    read = _read(made, size)
    weight = cost.weight_of(made.body, size)
    kept = _kept_by_the_caller(made)
    own = sum(n for v, n in read.items() if v not in kept)
    if EXPANDED * own > stored or weight > MOST_OPS or _is_gathered(made):
        return False
    more = 0
    for op in readers:
        known = {*captured_tensors(op), *op.results}
        if len(known.union(read)) > cost.MOST_TENSORS:
            return False
        more += sum(n for v, n in read.items() if v not in known)
    saved = stored * (1 + len(readers)) - more
    work = cost.weight_of(made.body, size, machine.load) * runs
    return work / machine.rate < saved / machine.bandwidth


def _ends_product(loop: Op) -> bool:
    """Whether a loop may become a part of a product's kernel, where more work would hold up the product."""
    return any(isinstance(v.op, MatmulOp) for v in captured_tensors(loop))


def _read(made: LoopOp, size: SizeOf) -> dict[Value, int]:
    """The bytes that a loop reads of each tensor: of a table of rows, those that are read."""
    count = cost.extent(made, size)
    loads = [x for x in made.walk() if isinstance(x, LoadOp)]
    found: dict[Value, int] = {}
    for v in captured_tensors(made):
        times = sum(x.tensor is v for x in loads)
        found[v] = min(cost.bytes_of(v.type, size), count * times * v.type.elem.storage_bytes)
    return found


def _kept_by_the_caller(loop: LoopOp) -> set[Value]:
    """Arguments that stay where they are in any case."""
    assert loop.parent is not None
    return {*loop.parent.args} - {*donated_arguments(loop.parent)}


def _is_gathered(made: LoopOp) -> bool:
    """Whether neighbours are read from places that do not follow each other."""
    for x in made.body:
        if isinstance(x, LoadOp):
            others = {k for k, i in enumerate(x.indices) if not _is_affine(i)}
            if any(x.map.results[-1].coefficient(Dim(k)) != 0 for k in others):
                return True
    return False


def _is_affine(index: Value) -> bool:
    """Whether an index follows from those of a loop alone."""
    if isinstance(index.op, IndexOp):
        return all(map(_is_affine, index.op.operands))
    return index.op is None


def element_of(loop: LoopOp, r: Value) -> LoopOp | None:
    """A loop behind `loop` that computes its result `r` from what it reads and stores besides; None if there is none
    that only computes elements."""
    t: TensorType = r.type
    body = Block([int64] * t.rank)
    b = Builder(body)
    try:
        value = Element(loop, r, b).of_result(list(body.args))
    except CannotComputeError:
        value = None
    if value is None:
        for op in reversed(list(body)):
            op.erase()
        return None
    b.insert(YieldOp([value]))
    made = LoopOp(extents=t.shape, regions=[body], results=[t], loc=loop.loc)
    assert loop.parent is not None and loop.next is not None
    loop.parent.insert_before(loop.next, made)
    return made


class Element:
    """Writes what an element of a loop's result takes."""

    def __init__(self, loop: LoopOp, result: Value, b: Builder):
        self.loop, self.result, self.b = loop, result, b
        self.places = {v: k for k, v in enumerate(yielded(loop.body))}

    def of_result(self, at: Sequence[Value]) -> Value:
        self.outer = list(at[: len(self.loop.extents)])
        env = dict(zip(self.loop.body.args, self.outer, strict=True))
        value = yielded(self.loop.body)[self.result.index]
        return self._of(value, env, at[len(self.outer) :])

    def _of(self, value: Value, env: Env, at: Sequence[Value]) -> Value:
        """A scalar, or the element of a local tensor at these indices."""
        if not isinstance(value.type, TensorType):
            return self._scalar(value, dict(env))
        inner = value.op
        if not isinstance(inner, LoopOp):
            raise CannotComputeError
        count = len(inner.extents)
        inside = {**env, **dict(zip(inner.body.args, at[:count], strict=True))}
        return self._of(yielded(inner.body)[value.index], inside, at[count:])

    def _scalar(self, v: Value, env: dict[Value, Value]) -> Value:
        if v not in env:
            env[v] = self._stored(v, env) or self._computed(v, env)
        return env[v]

    def _stored(self, v: Value, env: Env) -> Value | None:
        """A load of what the loop stores of it besides."""
        inner = v.op.parent_op() if v.op is not None else None
        if inner is self.loop and v in self.places:
            return self._load(self.places[v], self.outer)
        if isinstance(inner, LoopOp) and inner.parent is self.loop.body:
            for q, y in enumerate(yielded(inner.body)):
                if y is v and inner.results[q] in self.places:
                    at = [env[a] for a in inner.body.args]
                    return self._load(self.places[inner.results[q]], [*self.outer, *at])
        return None

    def _load(self, k: int, at: Sequence[Value]) -> Value | None:
        stored = self.loop.results[k]
        if stored is self.result or len(at) != stored.type.rank:
            return None
        return self.b.emit(LoadOp(stored, list(at), None, None))

    def _computed(self, v: Value, env: dict[Value, Value]) -> Value:
        op = v.op
        if op is not None and not op.is_inside(self.loop):
            return v
        if op is None or op.regions or op.effects & Effect.WRITE:
            raise CannotComputeError
        if (
            isinstance(op, LoadOp)
            and op.tensor.op is not None
            and op.tensor.op.is_inside(self.loop)
        ):
            if op.mask is not None:
                raise CannotComputeError
            given = [self._scalar(i, env) for i in op.indices]
            at = [
                self.b.emit(IndexOp(given, index_map=IndexMap(op.map.dims, [e])))
                for e in op.map.results
            ]
            return self._of(op.tensor, {a: x for a, x in env.items() if a.op is None}, at)
        for x in op.operands:
            if not isinstance(x.type, TensorType):
                self._scalar(x, env)
        return self.b.insert(op.clone(dict(env))).results[v.index]
