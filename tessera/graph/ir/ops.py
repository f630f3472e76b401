"""Defines the operations of the graph compiler: loops over index spaces, loads through index maps, reductions, externs.

Tensors are values: no op writes memory but `graph.write`. Scalar computation inside of loops is that of tile IR
(`tessera/ops/arith.py`, `math.py`), on scalar types. A row-wise softmax:

    %y: tensor<s0x128xfp32> = graph.loop {extents=[@size<s0>]} (%i: i64) {
      %m: fp32 = graph.reduce {extents=[128], identities=[float('-inf')]} (%r: i64) {
        %0: fp32 = graph.load %x, [%i, %r], _, _
        yield [%0]
      } (%a: fp32, %b: fp32) {
        %1: fp32 = max %a, %b {propagate_nan=True}
        yield [%1]
      }
      ...
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tessera.dtypes import dtype, float32, int1, int64
from tessera.graph.index import Expr, IndexMap, size
from tessera.graph.ir.types import TensorType
from tessera.ir import Block, Effect, Op, Type, Value, attr, operand, region, require
from tessera.ops import FuncOp, YieldOp

SCATTER_MODES = ("set", "add", "mul", "max", "min")
Size = int | Expr


class GraphOp(Op):
    """Base of the ops here: `value_types()` gives shapes and element types; strides and devices of tensors come from
    the results as built."""

    def value_types(self) -> Sequence[Any]:
        raise NotImplementedError

    def infer(self) -> Sequence[Type]:
        types = self.value_types()
        built: Sequence[Value] = getattr(self, "results", ())  # none yet while the op is being made
        return [_with_place_of(t, built[i].type) if built else t for i, t in enumerate(types)]


def _with_place_of(t: Any, given: Any) -> Any:
    both = isinstance(t, TensorType) and isinstance(given, TensorType)
    return t.with_place(given) if both else t


def yielded(block: Block) -> list[Value]:
    """What a block hands to the op around it."""
    return list(block.terminator.operands)


def _yields(op: Op, block: Block) -> list[Any]:
    require(isinstance(block.last, YieldOp), op, "a block does not end in a yield")
    return [v.type for v in yielded(block)]


def _is_scalar(t: Any) -> bool:
    return isinstance(t, dtype)


def _check_indices(op: Op, block: Block, extents: Sequence[Size]) -> None:
    """Require one int64 index argument for each extent."""
    ok = [a.type for a in block.args] == [int64] * len(extents)
    require(ok, op, lambda: f"the body must have {len(extents)} indices (int64)")
    require(
        all(not e.dims for e in extents if isinstance(e, Expr)), op, "an extent has a dimension"
    )


def spread(extents: Sequence[Size], t: Any, joined: Size = 0) -> TensorType:
    """The type of what a loop makes of a value that its body yields. `joined`: unless 0, what the last extent and the
    first one of a tensor become together."""
    if joined != 0:
        return TensorType((*extents[:-1], joined, *t.shape[1:]), t.elem, device=t.device)
    if isinstance(t, TensorType):
        return TensorType((*extents, *t.shape), t.elem, device=t.device)
    return TensorType(extents, t)


class LoopOp(GraphOp, opcode="graph.loop"):
    """A parallel nest: the body runs for each index tuple below `extents`, in any order.

    Each scalar that the body yields becomes a tensor of shape `extents`, a tensor of shape s one of `extents` + s.
    No extents: the body runs once, for tensors without dimensions.

    `joined`: empty, or a size for each result. Where it is not 0, the last index and the first dimension of the tensor
    that the body yields are one dimension of the result, of this size: what lies behind its end is left out. So parts
    of a row, of which the last one is shorter, are written where the row lies."""

    extents: tuple[Size, ...] = attr()
    joined: tuple[Size, ...] = attr(default=())
    body: Block = region()

    def value_types(self) -> Sequence[Any]:
        values = yielded(self.body)
        sizes = self.joined or (0,) * len(values)
        return [spread(self.extents, v.type, n) for v, n in zip(values, sizes, strict=True)]

    def is_joined(self, k: int) -> bool:
        """Whether the last index is part of a dimension of result k."""
        return bool(self.joined) and self.joined[k] != 0

    def verify(self) -> None:
        _yields(self, self.body)
        _check_indices(self, self.body, self.extents)
        given = zip(yielded(self.body), self.joined, strict=False)
        tensors = all(isinstance(v.type, TensorType) for v, n in given if n != 0)
        ok = not self.joined or (tensors and len(self.joined) == len(self.results))
        require(ok and (self.extents or not self.joined), self, "joined sizes do not fit")


class _Mapped(GraphOp):
    """Has indices that go through a map; without `index_map` they are the coordinates."""

    @property
    def map(self) -> IndexMap:
        """The map of the indices."""
        found = self.attrs["index_map"]
        return IndexMap.identity(len(self.index_operands)) if found is None else found

    @property
    def index_operands(self) -> tuple[Value, ...]:
        return self.indices  # type: ignore[attr-defined]

    def _check_map(self, results: int) -> None:
        dims = len(self.index_operands)
        require(self.map.dims == dims, self, lambda: f"{self.map} does not take {dims} indices")
        ok = len(self.map.results) == results
        require(ok, self, lambda: f"{self.map} does not give {results} indices")
        require(all(v.type == int64 for v in self.index_operands), self, "an index is not int64")


class LoadOp(_Mapped, opcode="graph.load"):
    """The element of `tensor` at `map(indices)`; `other`, or 0, where `mask` (int1) is false: nothing is read there.
    Indices are index arguments or any int64 scalars; they must be in range where the mask holds."""

    tensor: Value = operand()
    indices: tuple[Value, ...] = operand(variadic=True)
    mask: Value | None = operand(optional=True)
    other: Value | None = operand(optional=True)
    index_map: IndexMap | None = attr(default=None)

    def value_types(self) -> Sequence[Any]:
        return [self.tensor.type.elem]

    def verify(self) -> None:
        require(isinstance(self.tensor.type, TensorType), self, "the operand is no tensor")
        self._check_map(self.tensor.type.rank)
        require(self.mask is None or self.mask.type == int1, self, "the mask is not int1")
        ok = self.other is None or (
            self.mask is not None and self.other.type == self.tensor.type.elem
        )
        require(ok, self, "`other` needs a mask and the tensor's element type")


class IndexOp(_Mapped, opcode="graph.index"):
    """The int64 scalar that the one result of `map` is; without indices, an expression of symbolic sizes."""

    indices: tuple[Value, ...] = operand(variadic=True)
    index_map: IndexMap | None = attr(default=None)

    def value_types(self) -> Sequence[Any]:
        return [int64]

    def verify(self) -> None:
        self._check_map(1)


class CheckedOp(GraphOp, opcode="graph.checked"):
    """`x` where `condition` (int1) holds. Elsewhere the call ends with an error that says `message`, unless `mask`
    (int1) is false there. What nobody uses checks nothing."""

    x: Value = operand()
    condition: Value = operand()
    mask: Value | None = operand(optional=True)
    message: str = attr()

    def value_types(self) -> Sequence[Type]:
        return [self.x.type]

    def verify(self) -> None:
        given = [self.condition, *([] if self.mask is None else [self.mask])]
        require(all(v.type == int1 for v in given), self, "a condition is not int1")


class CombiningOp(GraphOp):
    """Base of reduce and scan: the body yields k scalars for each index tuple, `combine` makes k of 2k of them by an
    associative function of its arguments alone; `identities`, k numbers, change nothing when they are combined with a
    value."""

    extents: tuple[Size, ...] = attr()
    identities: tuple[int | float | bool, ...] = attr()
    body: Block = region()
    combine: Block = region()

    def verify(self) -> None:
        types = _yields(self, self.body)
        _check_indices(self, self.body, self.extents)
        require(all(map(_is_scalar, types)), self, "the body must yield scalars")
        require(bool(types), self, "the body yields nothing")
        ok = [a.type for a in self.combine.args] == types * 2
        require(ok, self, "combine has the wrong arguments")
        require(_yields(self, self.combine) == types, self, "combine yields other types")
        require(len(self.identities) == len(types), self, "identities are not one a value")
        own = {v for op in self.combine for v in op.results}.union(self.combine.args)
        closed = all(v in own for op in self.combine for v in op.operands)
        require(closed, self, "combine uses values from outside")


class ReduceOp(CombiningOp, opcode="graph.reduce"):
    """Combine the values of all index tuples, in any order (combine is commutative, too); k scalars."""

    def value_types(self) -> Sequence[Any]:
        return [v.type for v in yielded(self.body)]


class ScanOp(CombiningOp, opcode="graph.scan"):
    """Inclusive prefix combination along one extent, from the end when `reverse`; k tensors of that extent."""

    reverse: bool = attr(default=False)

    def value_types(self) -> Sequence[Any]:
        return [spread(self.extents, v.type) for v in yielded(self.body)]

    def verify(self) -> None:
        super().verify()
        require(len(self.extents) == 1, self, "a scan goes along one extent")


class SortOp(GraphOp, opcode="graph.sort"):
    """The body yields a key, and other scalars that go with it, for each index below the one extent; k tensors of
    them in the order of their keys, equal ones in that of their indices. A NaN counts as the largest key."""

    extents: tuple[Size, ...] = attr()
    descending: bool = attr(default=False)
    body: Block = region()

    def value_types(self) -> Sequence[Any]:
        return [spread(self.extents, v.type) for v in yielded(self.body)]

    def verify(self) -> None:
        types = _yields(self, self.body)
        _check_indices(self, self.body, self.extents)
        require(len(self.extents) == 1, self, "a sort goes along one extent")
        require(bool(types) and all(map(_is_scalar, types)), self, "the body must yield scalars")


class ScatterOp(GraphOp, opcode="graph.scatter"):
    """`base` with elements combined into it. For each index tuple below `extents` the body yields the coordinates in
    base (int64 each), the value and perhaps a mask (int1; false: nothing happens). Where several meet, "add", "mul",
    "max" and "min" combine all, in any order; of "set" one is left."""

    base: Value = operand()
    extents: tuple[Size, ...] = attr()
    mode: str = attr(default="set")
    body: Block = region()

    def value_types(self) -> Sequence[Any]:
        return [TensorType(self.base.type.shape, self.base.type.elem, device=self.base.type.device)]

    def verify(self) -> None:
        require(isinstance(self.base.type, TensorType), self, "the base is no tensor")
        require(self.mode in SCATTER_MODES, self, lambda: f"unknown mode {self.mode!r}")
        _check_indices(self, self.body, self.extents)
        types, rank = _yields(self, self.body), self.base.type.rank
        want = [*[int64] * rank, self.base.type.elem]
        ok = types in (want, [*want, int1])
        require(ok, self, lambda: f"the body must yield {rank} indices, a value, perhaps a mask")


class MatmulOp(GraphOp, opcode="graph.matmul"):
    """a[…, M, K] @ b[…, K, N] with equal batch dimensions, added up in `acc`, rounded once to `elem` (a's own if None).

    `precision` says how fp32 operands are multiplied, as tile IR's `dot`: "ieee", "tf32"... `blocks`: how its kernel is
    tiled, where that was measured (rows, columns, k, blocks of rows that follow one another, warps, stages)."""

    a: Value = operand()
    b: Value = operand()
    acc: Any = attr(default=float32)
    elem: Any = attr(default=None)
    precision: str = attr(default="ieee")
    blocks: tuple[int, ...] = attr(default=())

    def value_types(self) -> Sequence[Any]:
        a, b = self.a.type, self.b.type
        return [TensorType((*a.shape[:-1], b.shape[-1]), self.elem or a.elem, device=a.device)]

    def verify(self) -> None:
        a, b = self.a.type, self.b.type
        ok = isinstance(a, TensorType) and isinstance(b, TensorType) and a.rank == b.rank >= 2
        require(ok, self, "the operands are not two tensors of one rank")
        fits = a.shape[:-2] == b.shape[:-2] and a.shape[-1] == b.shape[-2]
        require(fits, self, lambda: f"shapes {a.short} @ {b.short} do not fit")


class AttentionBase(GraphOp):
    """Base of attention and its gradients: q[B, H, M, D], k[B, G, N, D], v[B, G, N, E] with G heads that H / G heads of
    q share each; bias[b, h, M, N], where b and h are 1 or B and H. `causal`: query i sees keys up to i. Sums are added
    up in `acc`."""

    q: Value = operand()
    k: Value = operand()
    v: Value = operand()
    bias: Value | None = operand(optional=True)
    scale: float = attr()
    causal: bool = attr(default=False)
    acc: Any = attr(default=float32)

    @property
    def given(self) -> list[Value | None]:
        """All operands."""
        return [self.q, self.k, self.v, self.bias]

    def verify(self) -> None:
        q, k, v = (x.type for x in (self.q, self.k, self.v))
        ok = all(isinstance(t, TensorType) and t.rank == 4 for t in (q, k, v))
        require(ok, self, "queries, keys and values are not tensors of four dimensions")
        fits = q.shape[0] == k.shape[0] and q.shape[3] == k.shape[3] and k.shape[:3] == v.shape[:3]
        require(fits, self, lambda: f"{q.short}, {k.short} and {v.short} do not fit")


class AttentionOp(AttentionBase, opcode="graph.attention"):
    """softmax(scale * q @ k.T + bias) @ v for each head.

    Results: [B, H, M, E], and the logarithms of the sums of exponentials [B, H, M] in `acc`. A query that sees no key
    gives 0 in both."""

    def value_types(self) -> Sequence[Any]:
        q, v = self.q.type, self.v.type
        out = TensorType((*q.shape[:-1], v.shape[-1]), q.elem, device=q.device)
        return [out, TensorType(q.shape[:-1], self.acc, device=q.device)]


class AttentionGradOp(AttentionBase):
    """Base of the gradients of attention for `grad`[B, H, M, E], that of its result. With the `logs` that attention
    gives, weights are p = exp(scale * q @ k.T + bias - logs), and with `delta` = (grad * attention).sum(-1), both
    [B, H, M], the gradient of the scores is ds = p * (grad @ v.T - delta). Logs of -inf are those of a query that sees
    no key."""

    grad: Value = operand()
    logs: Value = operand()
    delta: Value = operand()

    @property
    def given(self) -> list[Value | None]:
        return [*super().given, self.grad, self.logs, self.delta]

    def verify(self) -> None:
        super().verify()
        q, v, grad = self.q.type, self.v.type, self.grad.type
        shape = (*q.shape[:-1], v.shape[-1])
        ok = isinstance(grad, TensorType) and grad.shape == shape and grad.elem == q.elem
        require(ok, self, lambda: f"the gradient {grad.short} is not one of attention's result")
        rows = [(x.type.shape, x.type.elem) for x in (self.logs, self.delta)]
        ok = rows == [(q.shape[:-1], self.acc)] * 2
        require(ok, self, "logs and delta do not have one number of type `acc` for each query")


class AttentionGradsOp(AttentionGradOp, opcode="graph.attention_grads"):
    """The gradients of q, k and v."""

    def value_types(self) -> Sequence[Any]:
        given = [x.type for x in (self.q, self.k, self.v)]
        return [TensorType(t.shape, t.elem, device=t.device) for t in given]


class AttentionQueryGradOp(AttentionGradOp, opcode="graph.attention_dq"):
    """The gradient of q alone: scale * ds @ k."""

    def value_types(self) -> Sequence[Any]:
        q = self.q.type
        return [TensorType(q.shape, q.elem, device=q.device)]


class AttentionKeyGradsOp(AttentionGradOp, opcode="graph.attention_dkdv"):
    """The gradients of k and v alone, scale * ds.T @ q and p.T @ grad, added up over the heads that share them."""

    def value_types(self) -> Sequence[Any]:
        k, v = self.k.type, self.v.type
        return [TensorType(t.shape, t.elem, device=t.device) for t in (k, v)]


class ExternOp(GraphOp, opcode="graph.extern"):
    """A function of another library by name ("aten.convolution.default"). `arguments` and `keywords` (pairs) are its
    arguments: numbers, texts, None, lists, expressions of sizes, `Place(i)` for operand i, `Name` for constants of the
    library. Result types are given, strides exactly. One that is not `pure` is kept, and in order with the others."""

    args: tuple[Value, ...] = operand(variadic=True)
    target: str = attr()
    arguments: tuple[Any, ...] = attr(default=())
    keywords: tuple[tuple[str, Any], ...] = attr(default=())
    pure: bool = attr(default=True)

    def infer(self) -> Sequence[Type]:
        return [v.type for v in getattr(self, "results", ())]

    def all_effects(self) -> Effect:
        return Effect.NONE if self.pure else Effect.READ | Effect.WRITE


class ViewOp(GraphOp, opcode="graph.view"):
    """The elements of `x` at `index_map` of each coordinate; the result's type is given. Loads look through it."""

    x: Value = operand()
    index_map: IndexMap = attr()

    def infer(self) -> Sequence[Type]:
        return [v.type for v in getattr(self, "results", ())]

    def verify(self) -> None:
        both = isinstance(self.x.type, TensorType) and isinstance(self.result.type, TensorType)
        require(both, self, "operand and result are not tensors")
        ranks = (self.result.type.rank, self.x.type.rank)
        ok = (self.index_map.dims, len(self.index_map.results)) == ranks
        require(ok, self, lambda: f"{self.index_map} does not go from {ranks[0]} to {ranks[1]}")
        require(self.x.type.elem == self.result.type.elem, self, "element types differ")


class WriteOp(GraphOp, opcode="graph.write", effects=Effect.WRITE):
    """The memory of `target`, an argument of the graph, holds `value` when the graph is done. All that reads `target`
    inside of the graph sees what it held before."""

    target: Value = operand()
    value: Value = operand()

    def value_types(self) -> Sequence[Any]:
        return []

    def verify(self) -> None:
        require(
            isinstance(self.target.owner, Block), self, "the target is no argument of the graph"
        )
        a, b = self.target.type, self.value.type
        require((a.shape, a.elem) == (b.shape, b.elem), self, "target and value differ in type")


def extents_of(sizes: Sequence[Size]) -> tuple[Size, ...]:
    """Extents as ops hold them: ints where they are ints."""
    return tuple(map(size, sizes))


def donated_arguments(body: Block) -> list[Value]:
    """The tensors whose memory a graph function may write to when nobody reads them any more."""
    function = body.parent
    facts = function.arg_attrs if isinstance(function, FuncOp) else ()
    return [v for v, about in zip(body.args, facts, strict=False) if dict(about).get("donated")]
