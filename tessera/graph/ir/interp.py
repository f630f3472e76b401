"""Gives the meaning of graphs: NumPy executes them, all indices of a loop at a time.

    outputs = interpret(module, [np.ones((4, 128), np.float32)])

Arrays hold values as `interp/numerics.py` carries them: float32 for bf16 and fp8, bool for int1. Inside of loops a
scalar is an array with one axis for each index around it, of extent 1 where it does not depend on that index; a local
tensor has its own axes behind those. Scalar ops have the meaning that they have in tile IR (`interp/arith.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tessera.errors import DeviceAssertionError, InterpreterError, TesseraError
from tessera.graph.index import Expr, IndexMap, Sym
from tessera.graph.ir.attention_meaning import attention, grads, key_grads, query_grad
from tessera.graph.ir.concat import ConcatOp
from tessera.graph.ir.ops import (
    AttentionBase,
    AttentionGradsOp,
    AttentionKeyGradsOp,
    AttentionOp,
    AttentionQueryGradOp,
    CheckedOp,
    CombiningOp,
    ExternOp,
    IndexOp,
    LoadOp,
    LoopOp,
    MatmulOp,
    ReduceOp,
    ScanOp,
    ScatterOp,
    SortOp,
    ViewOp,
    WriteOp,
)
from tessera.graph.ir.types import ForeignType, TensorType
from tessera.interp import EVALUATORS
from tessera.interp.numerics import carrier, settle
from tessera.ir import Block, Module, Op, Value
from tessera.ops import FuncOp

Array = np.ndarray
Extern = Callable[[ExternOp, list[Any], Mapping[str, int]], Sequence[Any]]
CHUNK = 1 << 22  # elements of an array that a top-level loop makes at a time, about


def function_of(graph: Module | FuncOp) -> FuncOp:
    """The one function of a module."""
    if isinstance(graph, FuncOp):
        return graph
    (function,) = graph.functions
    assert isinstance(function, FuncOp)
    return function


def bind_symbols(function: FuncOp, args: Sequence[Any]) -> dict[str, int]:
    """What the symbols of a function are for these arguments: by arguments that are symbols, and by sizes of tensors
    that are plain symbols."""
    found: dict[str, int] = {}
    for formal, x in zip(function.body.args, args, strict=True):
        if isinstance(formal.type, TensorType):
            for size, n in zip(formal.type.shape, np.shape(x), strict=True):
                if isinstance(size, Expr) and isinstance(size.atom, Sym):
                    found.setdefault(size.atom.name, int(n))
    for facts, x in zip(function.arg_attrs, args, strict=False):
        name = dict(facts).get("symbol")
        if name is not None:
            found[name] = int(x)
    return found


def interpret(
    graph: Module | FuncOp, args: Sequence[Any], extern: Extern | None = None
) -> list[Any]:
    """The results of a graph for its arguments: arrays, and NumPy scalars or numbers for scalars. `graph.write`
    changes the array that is its target in the end. `extern(op, arrays, symbols)` runs extern ops; InterpreterError
    without it, and for what the text of the IR cannot rule out: loads out of range, unequal sizes of one symbol."""
    function = function_of(graph)
    machine = _Machine(bind_symbols(function, args), extern)
    machine.bind(function.body.args, args)
    with np.errstate(all="ignore"):
        out = machine.block(function.body, (), 0)
    for target, value in [(target, np.array(value)) for target, value in machine.writes]:
        np.copyto(target, value)  # all values are those from before the writes
    return out


class _Machine:
    """`values`: each value's array and the number of nest axes in front of its own."""

    def __init__(self, symbols: dict[str, int], extern: Extern | None):
        self.symbols, self.extern = symbols, extern
        self.env = {Sym(name): n for name, n in symbols.items()}
        self.values: dict[Value, tuple[Any, int]] = {}
        self.writes: list[tuple[Array, Array]] = []

    def bind(self, formals: Sequence[Value], args: Sequence[Any]) -> None:
        for formal, x in zip(formals, args, strict=True):
            t = formal.type
            if isinstance(t, TensorType):
                if not isinstance(t.elem, ForeignType):
                    x = np.asarray(x).astype(carrier(t.elem), copy=False)
                want = self.extents(t.shape)
                if tuple(x.shape) != want:
                    raise InterpreterError(
                        f"argument {formal.name!r} has shape {tuple(x.shape)}, not {want}"
                    )
            else:
                x = settle(np.asarray(x), t)
            self.values[formal] = x, 0

    def extents(self, sizes: Sequence[int | Expr]) -> tuple[int, ...]:
        return tuple(n if isinstance(n, int) else int(n.evaluate(self.env)) for n in sizes)

    def get(self, v: Value, depth: int) -> Any:
        """The array of a value with `depth` nest axes in front."""
        x, own = self.values[v]
        if own == depth:
            return x
        return x.reshape(*x.shape[:own], *(1,) * (depth - own), *x.shape[own:])

    def block(self, block: Block, indices: Sequence[Any], depth: int) -> list[Any]:
        """Run a block inside of `depth` nest axes; what it yields, with as many nest axes."""
        for arg, x in zip(block.args if indices else (), indices, strict=True):
            self.values[arg] = x, depth
        for op in block:
            if op.terminator:
                return [self.get(v, depth) for v in op.operands]
            try:
                self.step(op, depth)
            except TesseraError as e:
                e.loc = e.loc or op.loc
                raise
        raise InterpreterError("block without terminator")

    def step(self, op: Op, depth: int) -> None:
        meaning = _MEANING.get(type(op))
        if meaning is not None:
            out = meaning(self, op, depth)
        else:
            evaluator = EVALUATORS.get(type(op))
            if evaluator is None:
                raise InterpreterError(f"op {op.opcode!r} has no NumPy meaning", loc=op.loc)
            out = [np.asarray(evaluator(self, op, *[self.get(v, depth) for v in op.operands]))]
            if out[0].ndim < depth:
                out[0] = out[0].reshape((1,) * (depth - out[0].ndim) + out[0].shape)
        for r, x in zip(op.results, out, strict=True):
            self.values[r] = x, depth

    def inside(self, block: Block, extents: Sequence[int], depth: int) -> list[Array]:
        """What a body yields, with axes for its own indices behind the nest's, at their full extents."""
        indices = [np.arange(n) for n in extents]
        return self.at_indices(block, indices, depth)

    def at_indices(self, block: Block, indices: Sequence[Array], depth: int) -> list[Array]:
        k = len(indices)
        placed = [
            x.reshape(*(1,) * (depth + i), len(x), *(1,) * (k - 1 - i))
            for i, x in enumerate(indices)
        ]
        out = self.block(block, placed, depth + k)
        sizes = tuple(len(x) for x in indices)
        return [np.broadcast_to(x, (*x.shape[:depth], *sizes, *x.shape[depth + k :])) for x in out]

    def flat_inside(self, op: CombiningOp | SortOp, depth: int) -> list[Array]:
        """What a body of scalars yields, with one axis for all of its indices, equally long in all."""
        extents = self.extents(op.extents)
        n = int(np.prod(extents, dtype=np.int64))
        return [x.reshape(*x.shape[:depth], n) for x in self.inside(op.body, extents, depth)]

    def gather(
        self, x: Value, coordinates: Sequence[Any], depth: int, mask: Any = None, other: Any = None
    ) -> Array:
        """Elements of a tensor at coordinates (arrays with `depth` nest axes, or numbers)."""
        data, own = self.values[x]
        shape = data.shape[own:]
        kept = [np.asarray(c) for c in coordinates]
        for c, n in zip(kept, shape, strict=True):
            bad = (c < 0) | (c >= n)
            if mask is not None:
                bad = bad & mask
            if bad.any():
                raise InterpreterError(f"a load goes to {int(c.ravel()[0])}…, outside of {shape}")
        nest = [_along(n, axis, depth) for axis, n in enumerate(data.shape[:own])]
        if mask is None:
            return _at_least(data[(*nest, *kept)], depth)
        kept = [np.where(mask, c, 0) for c in kept]
        wide = np.broadcast_shapes(*(np.shape(c) for c in (*nest, *kept)), np.shape(mask))
        if not data.size:
            return np.broadcast_to(np.zeros((), data.dtype) if other is None else other, wide)
        found = data[(*nest, *kept)]
        rest = np.zeros((), data.dtype) if other is None else other
        return _at_least(np.where(mask, found, rest), depth)


def _along(n: int, axis: int, depth: int) -> Any:
    """The index along a nest axis, which is 0 where the value does not depend on it."""
    if n == 1:
        return np.zeros((1,) * depth, np.int64)
    return np.arange(n).reshape(*(1,) * axis, n, *(1,) * (depth - axis - 1))


def _at_least(x: Array, depth: int) -> Array:
    return x.reshape((1,) * (depth - x.ndim) + x.shape) if x.ndim < depth else x


# --- meanings ---------------------------------------------------------------------------------------------------
def _loop(m: _Machine, op: LoopOp, depth: int) -> list[Any]:
    made = _iterations(m, op, depth)
    return [_behind(m, op, k, x, depth) if op.is_joined(k) else x for k, x in enumerate(made)]


def _behind(m: _Machine, op: LoopOp, k: int, x: Array, depth: int) -> Array:
    """What the last index has made, behind each other."""
    at = depth + len(op.extents) - 1
    (size,) = m.extents(op.joined[k : k + 1])
    joined = x.reshape(*x.shape[:at], x.shape[at] * x.shape[at + 1], *x.shape[at + 2 :])
    return joined[(slice(None),) * at + (slice(size),)]


def _iterations(m: _Machine, op: LoopOp, depth: int) -> list[Array]:
    extents = m.extents(op.extents)
    work = _work(m, op)
    if depth or not extents or work <= CHUNK or extents[0] < 2:
        return m.inside(op.body, extents, depth)
    step = max(1, CHUNK * extents[0] // work)
    rest = [np.arange(n) for n in extents[1:]]
    parts = [
        m.at_indices(op.body, [np.arange(k, min(k + step, extents[0])), *rest], depth)
        for k in range(0, extents[0], step)
    ]
    return [np.concatenate(column) for column in zip(*parts, strict=True)]


def _work(m: _Machine, op: Op) -> int:
    """The elements of the largest array inside of an op."""
    own = int(np.prod(m.extents(getattr(op, "extents", ())), dtype=np.int64))
    inner = [_work(m, x) for block in op.regions for x in block if x.regions]
    return own * max(inner, default=1)


def _load(m: _Machine, op: LoadOp, depth: int) -> list[Any]:
    indices = [m.get(v, depth) for v in op.indices]
    mask = None if op.mask is None else m.get(op.mask, depth)
    other = None if op.other is None else m.get(op.other, depth)
    return [m.gather(op.tensor, op.map.evaluate(indices, m.symbols), depth, mask, other)]


def _index(m: _Machine, op: IndexOp, depth: int) -> list[Any]:
    indices = [m.get(v, depth) for v in op.indices]
    (value,) = op.map.evaluate(indices, m.symbols)
    return [_at_least(np.asarray(value, np.int64), depth)]


def _checked(m: _Machine, op: CheckedOp, depth: int) -> list[Array]:
    bad = ~m.get(op.condition, depth)
    if op.mask is not None:
        bad = bad & m.get(op.mask, depth)
    if np.any(bad):
        raise DeviceAssertionError(op.message, loc=op.loc)
    return [m.get(op.x, depth)]


def _joined(m: _Machine, op: CombiningOp, a: list[Array], b: list[Array], depth: int) -> list[Any]:
    """The combine region on arrays with one axis behind the nest's."""
    out = m.block(op.combine, [*a, *b], depth + 1)
    shape = np.broadcast_shapes(*(x.shape for x in (*a, *b)))
    return [np.broadcast_to(x, shape) for x in out]


def _reduce(m: _Machine, op: ReduceOp, depth: int) -> list[Any]:
    """A balanced tree: halves are combined until one element is left (an odd one waits)."""
    parts = m.flat_inside(op, depth)
    n = parts[0].shape[-1]
    if n == 0:
        return [
            np.full(x.shape[:-1], settle(np.asarray(e), r.type))
            for x, e, r in zip(parts, op.identities, op.results, strict=True)
        ]
    while n > 1:
        half = n // 2
        joined = _joined(
            m, op, [x[..., :half] for x in parts], [x[..., half : 2 * half] for x in parts], depth
        )
        if n % 2:
            joined = [_appended(j, x[..., n - 1 :]) for j, x in zip(joined, parts, strict=True)]
        parts, n = joined, half + n % 2
    return [x[..., 0] for x in parts]


def _appended(a: Array, b: Array) -> Array:
    """Both behind each other along the last axis; nest axes of extent 1 grow."""
    nest = np.broadcast_shapes(a.shape[:-1], b.shape[:-1])
    pair = [np.broadcast_to(x, (*nest, x.shape[-1])) for x in (a, b)]
    return np.concatenate(pair, axis=-1)


def _scan(m: _Machine, op: ScanOp, depth: int) -> list[Any]:
    """By doubling: after the step with distance d, each element combines the 2·d up to it."""
    parts = [x[..., ::-1] if op.reverse else x for x in m.flat_inside(op, depth)]
    distance = 1
    while distance < parts[0].shape[-1]:
        joined = _joined(
            m, op, [x[..., :-distance] for x in parts], [x[..., distance:] for x in parts], depth
        )
        parts = [_appended(x[..., :distance], j) for x, j in zip(parts, joined, strict=True)]
        distance *= 2
    return [x[..., ::-1] if op.reverse else x for x in parts]


def _sort(m: _Machine, op: SortOp, depth: int) -> list[Any]:
    parts = m.flat_inside(op, depth)
    parts = list(np.broadcast_arrays(*parts))
    if op.descending:
        last = parts[0].shape[-1] - 1
        order = last - np.argsort(parts[0][..., ::-1], axis=-1, kind="stable")[..., ::-1]
    else:
        order = np.argsort(parts[0], axis=-1, kind="stable")
    return [np.take_along_axis(x, order, axis=-1) for x in parts]


_INTO = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}


def _scatter(m: _Machine, op: ScatterOp, depth: int) -> list[Any]:
    base = m.get(op.base, depth)
    out = m.inside(op.body, m.extents(op.extents), depth)
    rank, own = op.base.type.rank, len(op.extents)
    nest = np.broadcast_shapes(base.shape[:depth], *(x.shape[:depth] for x in out))
    result = np.array(np.broadcast_to(base, (*nest, *base.shape[depth:])))
    wide = (*nest, *out[0].shape[depth:])
    around = [_along(n, axis, depth + own) for axis, n in enumerate(nest)]
    flat = [np.broadcast_to(x, wide).ravel() for x in (*around, *out)]
    if len(out) > rank + 1:
        flat = [x[flat[-1]] for x in flat[:-1]]
    *places, value = flat
    for c, n in zip(places[depth:], result.shape[depth:], strict=True):
        if c.size and not (c.min() >= 0 and c.max() < n):
            raise InterpreterError(f"a scatter goes outside of {result.shape[depth:]}")
    if op.mode == "set":
        result[tuple(places)] = value
    else:
        _INTO[op.mode].at(result, tuple(places), value)
    return [settle(result, op.base.type.elem)]


def _matmul(m: _Machine, op: MatmulOp, depth: int) -> list[Any]:
    a, b = m.get(op.a, depth), m.get(op.b, depth)
    wide = np.int64 if op.acc.is_int() else np.float64
    product = settle(np.matmul(a.astype(wide), b.astype(wide)), op.acc)
    return [settle(product, op.result.type.elem)]


def _attention(m: _Machine, op: AttentionBase, depth: int) -> list[Any]:
    arrays = [None if x is None else m.get(x, depth) for x in op.given]
    found = _ATTENTION[type(op)](*arrays, scale=op.scale, causal=op.causal)
    return [settle(x, r.type.elem) for x, r in zip(found, op.results, strict=True)]


def _extern(m: _Machine, op: ExternOp, depth: int) -> list[Any]:
    if m.extern is None or depth:
        raise InterpreterError(f"nothing runs the extern {op.target!r}", loc=op.loc)
    out = m.extern(op, [m.get(v, 0) for v in op.args], m.symbols)
    return [_carried(x, r.type) for x, r in zip(out, op.results, strict=True)]


def _carried(x: Any, t: Any) -> Any:
    elem = t.elem if isinstance(t, TensorType) else t
    foreign = isinstance(elem, ForeignType)
    return x if foreign else np.asarray(x).astype(carrier(elem), copy=False)


def _view(m: _Machine, op: ViewOp, depth: int) -> list[Any]:
    shape = m.extents(op.result.type.shape)
    inner = depth + len(shape)
    indices = [_along(n, depth + k, inner) for k, n in enumerate(shape)]
    if 0 in shape:
        nest = m.values[op.x][0].shape[: m.values[op.x][1]]
        return [np.zeros((*_padded(nest, depth), *shape), carrier(op.result.type.elem))]
    found = m.gather(op.x, _evaluated(op.index_map, indices, m), inner)
    return [np.broadcast_to(found, (*found.shape[:depth], *shape))]


def _concat(m: _Machine, op: ConcatOp, depth: int) -> list[Any]:
    return [np.concatenate([m.get(x, 0) for x in op.parts], op.along)]


def _evaluated(map: IndexMap, indices: Sequence[Any], m: _Machine) -> list[Any]:
    return map.evaluate(indices, m.symbols)


def _padded(shape: tuple[int, ...], depth: int) -> tuple[int, ...]:
    return (*shape, *(1,) * (depth - len(shape)))


def _write(m: _Machine, op: WriteOp, depth: int) -> list[Any]:
    m.writes.append((m.get(op.target, 0), m.get(op.value, 0)))
    return []


_ATTENTION: dict[type[Op], Callable[..., list[Any]]] = {
    AttentionOp: attention, AttentionQueryGradOp: query_grad, AttentionKeyGradsOp: key_grads, AttentionGradsOp: grads,
}  # fmt: skip
_MEANING: dict[type[Op], Callable[..., list[Any]]] = {
    LoopOp: _loop, LoadOp: _load, IndexOp: _index, ReduceOp: _reduce, ScanOp: _scan, SortOp: _sort,
    ScatterOp: _scatter, MatmulOp: _matmul, **dict.fromkeys(_ATTENTION, _attention), ExternOp: _extern,
    ViewOp: _view, ConcatOp: _concat, WriteOp: _write, CheckedOp: _checked,
}  # fmt: skip
