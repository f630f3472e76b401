"""Builds graphs in Python: bodies are functions of their indices, called once, whose ops land in the op's block.

g = GraphBuilder("softmax")
n = sym("s0")
x = g.input("x", TensorType((n, 128), float32))

def row(i: Value) -> Value:
    m = g.reduce("max", [128], lambda r: g.load(x, i, r))
    e = g.loop([128], lambda r: g.exp(g.sub(g.load(x, i, r), m)))
    s = g.reduce("sum", [128], lambda r: g.load(e, r))
    return g.loop([128], lambda r: g.div(g.load(e, r), s))

g.output(g.loop([n], row))
module = g.finish()
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tessera.dtypes import dtype, float32, int64
from tessera.graph.index import Expr, IndexMap, dim, expr
from tessera.graph.ir import combine as combining
from tessera.graph.ir.combine import Combine, region_of
from tessera.graph.ir.concat import ConcatOp
from tessera.graph.ir.ops import (
    AttentionGradsOp,
    AttentionOp,
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
    extents_of,
    spread,
    yielded,
)
from tessera.graph.ir.types import CPU, TensorType
from tessera.ir import Block, Builder, Module, Op, Value
from tessera.ops import MATH_OPS, FuncOp, ReturnOp, YieldOp, arith

Size = int | Expr
Range = tuple[int, int | None]
Body = Callable[..., "Value | Sequence[Value]"]
Index = Value | Expr | int

_BINARY: dict[str, type[Op]] = {
    op.opcode: op
    for op in (
        arith.AddOp, arith.SubOp, arith.MulOp, arith.DivOp, arith.RemOp, arith.AndOp, arith.OrOp, arith.XorOp,
        arith.ShlOp, arith.ShrOp, arith.MinOp, arith.MaxOp, arith.PowOp, arith.Atan2Op, arith.CopySignOp,
    )
}  # fmt: skip


class GraphBuilder:
    """Makes a module with one function. `device`: where tensors lie that ops make from now on. `ranges`: smallest and
    largest values of symbols, by name."""

    def __init__(self, name: str, device: str = CPU, ranges: Mapping[str, Range] | None = None):
        self.name, self.device = name, device
        self.ranges = dict(ranges or {})
        self.block = Block()
        self.b = Builder(self.block)
        self.facts: list[tuple[tuple[str, str | bool], ...]] = []  # of each argument
        self.results: list[Value] = []

    @staticmethod
    def before(op: Op, device: str) -> GraphBuilder:
        """A builder of more ops in front of one of a graph that is there already."""
        made = GraphBuilder("", device)
        made.b = Builder.before_op(op)
        return made

    def inlined(self, block: Block, mapping: dict[Value, Value]) -> list[Value]:
        """What a copy of a block's ops yields; `mapping` has its arguments, and gets what else was copied."""
        for x in block:
            if not isinstance(x, YieldOp):
                self.b.insert(x.clone(mapping))
        return [mapping.get(v, v) for v in block.terminator.operands]

    # --- the function -----------------------------------------------------------------------------------------
    def input(
        self, name: str, type: TensorType | dtype, symbol: str = "", donated: bool = False
    ) -> Value:
        """An argument: a tensor, or a scalar; an int64 scalar may be what `symbol` stands for. Symbols that are sizes
        of tensor arguments need no argument of their own. `donated`: the caller does not need the tensor any more, and
        nothing shares its memory: what nobody reads any more is overwritten."""
        facts: dict[str, str | bool] = {"symbol": symbol, "donated": donated}
        self.facts.append(tuple((name, x) for name, x in facts.items() if x))
        return self.block.add_arg(type, name)

    def output(self, *values: Value) -> None:
        """More results of the function."""
        self.results += values

    def finish(self) -> Module:
        """The module, complete."""
        self.b.insert(ReturnOp(self.results))
        attrs: dict[str, Any] = {"arg_attrs": tuple(self.facts)} if any(self.facts) else {}
        returns = tuple(v.type for v in self.results)
        ranges = tuple((name, *r) for name, r in sorted(self.ranges.items()))
        module = Module(**({"ranges": ranges} if ranges else {}))
        module.body.append(FuncOp(name=self.name, returns=returns, regions=[self.block], **attrs))
        return module

    # --- scalars ----------------------------------------------------------------------------------------------
    def emit(self, op: Op, name: str = "") -> Value:
        """Insert an op with one result, which tensors of no place get from here, and return it."""
        value = self.b.emit(self._placed(op))
        value.name = name or value.name
        return value

    def const(self, value: int | float | bool, elem: dtype) -> Value:
        return self.emit(arith.ConstOp(value=value, results=[elem]))

    def cast(self, x: Value, elem: dtype, contract: bool = False) -> Value:
        """x as another scalar type; itself where it is of that type. `contract`: a float of more bits, which a pass
        may hand on without the rounding."""
        if x.type is elem:
            return x
        return self.emit(arith.CastOp(x, contract=contract, results=[elem]))

    def compare(self, predicate: str, a: Value, b: Value) -> Value:
        return self.emit(arith.CmpOp(a, b, predicate=predicate))

    def select(self, condition: Value, a: Value, b: Value) -> Value:
        return self.emit(arith.SelectOp(condition, a, b))

    def binary(self, name: str, a: Value, b: Value, **attrs: Any) -> Value:
        """An op of `tessera/ops/arith.py` by its opcode: "add", "max", "pow"..."""
        return self.emit(_BINARY[name](a, b, **attrs))

    def unary(self, name: str, x: Value) -> Value:
        """A function of `tessera/ops/math.py` by its opcode, or "neg", "abs", "isnan"."""
        cls = {"neg": arith.NegOp, "abs": arith.AbsOp, "isnan": arith.IsNanOp}.get(name)
        return self.emit((cls or MATH_OPS[name])(x))

    def add(self, a: Value, b: Value) -> Value:
        return self.binary("add", a, b)

    def sub(self, a: Value, b: Value) -> Value:
        return self.binary("sub", a, b)

    def mul(self, a: Value, b: Value) -> Value:
        return self.binary("mul", a, b)

    def div(self, a: Value, b: Value) -> Value:
        return self.binary("div", a, b)

    def exp(self, x: Value) -> Value:
        return self.unary("exp", x)

    def index(self, e: Expr | int, *indices: Value) -> Value:
        """An expression of sizes, or of indices (`dim(k)` is `indices[k]`), as an int64 scalar."""
        return self.emit(IndexOp(list(indices), index_map=IndexMap(len(indices), [e])))

    # --- tensors ------------------------------------------------------------------------------------------------
    def load(
        self, x: Value, *indices: Index, mask: Value | None = None, other: Value | None = None
    ) -> Value:
        """The element at `indices`: int64 scalars, numbers, or expressions of sizes."""
        given = [v for v in indices if isinstance(v, Value)]
        place = {v: k for k, v in reversed(list(enumerate(given)))}
        results = [dim(place[v]) if isinstance(v, Value) else expr(v) for v in indices]
        return self.load_at(x, IndexMap(len(given), results), given, mask, other)

    def load_at(
        self,
        x: Value,
        map: IndexMap,
        indices: Sequence[Value],
        mask: Value | None = None,
        other: Value | None = None,
    ) -> Value:
        """The element at `map(indices)`."""
        index_map = None if map.is_identity else map
        return self.emit(LoadOp(x, list(indices), mask, other, index_map=index_map))

    def _block(self, extents: Sequence[Size], body: Body, names: str = "ijklmn") -> Block:
        """The block of a body with one index for each extent."""
        labels = [names[k] if k < len(names) else f"i{k}" for k in range(len(extents))]
        block = Block([int64] * len(extents), names=labels)
        try:
            with self.b.at(block):
                out = body(*block.args)
                self.b.insert(YieldOp([out] if isinstance(out, Value) else list(out)))
        except BaseException:
            while block.last is not None:
                block.last.erase()  # else the values that it reads keep uses in a block that is nowhere
            raise
        return block

    def _placed(self, op: Op) -> Op:
        for r in op.results:
            if isinstance(r.type, TensorType) and not op.operands and r.type.device == CPU:
                r.type = TensorType(r.type.shape, r.type.elem, r.type.strides, self.device)
        return op

    def loops(
        self, extents: Sequence[Size], body: Body, strides: Sequence[Sequence[Size] | None] = ()
    ) -> list[Value]:
        """What a parallel nest makes of what its body yields, one tensor each, in these strides (None: row-major)."""
        block = self._block(extents, body)
        types = None
        if strides:
            made = [spread(extents, v.type) for v in yielded(block)]
            types = [t.with_strides(s) for t, s in zip(made, strides, strict=True)]
        op = LoopOp(extents=extents_of(extents), regions=[block], results=types)
        return self.b.insert(self._placed(op)).results

    def loop(self, extents: Sequence[Size], body: Body) -> Value:
        """The same for a body that yields one value."""
        (value,) = self.loops(extents, body)
        return value

    def reduces(
        self,
        extents: Sequence[Size],
        body: Body,
        combine: Combine,
        identities: Sequence[int | float | bool],
    ) -> list[Value]:
        """Reductions of several values by one function; `combine(builder, a, b)` gives as many as the body."""
        return self.b.insert(self._combining(ReduceOp, extents, body, combine, identities)).results

    def scans(
        self,
        extent: Size,
        body: Body,
        combine: Combine,
        identities: Sequence[int | float | bool],
        reverse: bool = False,
    ) -> list[Value]:
        """Inclusive prefix combinations along an extent, as tensors."""
        op = self._combining(ScanOp, [extent], body, combine, identities, reverse=reverse)
        return self.b.insert(op).results

    def _combining(
        self,
        cls: type[Op],
        extents: Sequence[Size],
        body: Body,
        combine: Combine,
        identities: Sequence[Any],
        **attrs: Any,
    ) -> Op:
        block = self._block(extents, body, "rstuvw")
        region = region_of([v.type for v in block.terminator.operands], combine)
        given: dict[str, Any] = {"identities": tuple(identities), **attrs}
        return self._placed(cls(regions=[block, region], extents=extents_of(extents), **given))

    def reduce(self, kind: str, extents: Sequence[Size], body: Body) -> Value:
        """The reduction of one value by a function of `combine.KINDS`: "sum", "max"..."""
        return self._simple(ReduceOp, kind, extents, body)

    def scan(self, kind: str, extent: Size, body: Body, reverse: bool = False) -> Value:
        """The inclusive scan of one value by a function of `combine.KINDS`."""
        return self._simple(ScanOp, kind, [extent], body, reverse=reverse)

    def _simple(
        self, cls: type[Op], kind: str, extents: Sequence[Size], body: Body, **attrs: Any
    ) -> Value:
        block = self._block(extents, body, "rstuvw")
        (value,) = block.terminator.operands
        combine, identities = combining.simple(kind, value.type)
        region = region_of([value.type], combine)
        given: dict[str, Any] = {"extents": extents_of(extents), "identities": identities, **attrs}
        return self.emit(cls(regions=[block, region], **given))

    def arg_reduce(
        self, kind: str, extent: Size, body: Body, last_nan: bool = False
    ) -> tuple[Value, Value]:
        """(value, index) of the "max" or "min" along an extent: the first of equal ones, the first or the last NaN if
        any."""

        def pair(r: Value) -> Sequence[Value]:
            found = body(r)
            assert isinstance(found, Value)
            return found, r

        block = self._block([extent], pair, "rstuvw")
        types = [v.type for v in block.terminator.operands]
        region = region_of(types, combining.arg_extremum(kind, last_nan))
        identities = combining.arg_identities(kind, types[0])
        op = ReduceOp(extents=extents_of([extent]), identities=identities, regions=[block, region])
        value, index = self.b.insert(op).results
        return value, index

    def welford(self, extents: Sequence[Size], body: Body) -> tuple[Value, Value, Value]:
        """(mean, sum of squared deviations, count) of what the body yields, all in its float type."""

        def triple(*indices: Value) -> Sequence[Value]:
            x = body(*indices)
            assert isinstance(x, Value)
            return x, self.const(0.0, x.type), self.const(1.0, x.type)

        mean, m2, count = self.reduces(extents, triple, combining.welford, (0.0, 0.0, 0.0))
        return mean, m2, count

    def sort(self, extent: Size, body: Body, descending: bool = False) -> list[Value]:
        """Tensors of what the body yields for each index, in the order of the first of them."""
        block = self._block([extent], body, "rstuvw")
        op = SortOp(extents=extents_of([extent]), descending=descending, regions=[block])
        return self.b.insert(self._placed(op)).results

    def scatter(self, base: Value, extents: Sequence[Size], body: Body, mode: str = "set") -> Value:
        """`base` with elements combined into it; the body yields indices, value and perhaps a mask."""
        block = self._block(extents, body)
        return self.b.emit(ScatterOp(base, extents=extents_of(extents), mode=mode, regions=[block]))

    def matmul(
        self,
        a: Value,
        b: Value,
        acc: dtype = float32,
        elem: dtype | None = None,
        precision: str = "ieee",
        blocks: tuple[int, ...] = (),
    ) -> Value:
        return self.b.emit(MatmulOp(a, b, acc=acc, elem=elem, precision=precision, blocks=blocks))

    def attention(
        self,
        q: Value,
        k: Value,
        v: Value,
        scale: float,
        bias: Value | None = None,
        causal: bool = False,
        acc: dtype = float32,
    ) -> tuple[Value, Value]:
        """(attention, logarithms of the sums of exponentials)."""
        op = AttentionOp(q, k, v, bias, scale=scale, causal=causal, acc=acc)
        out, logs = self.b.insert(op).results
        return out, logs

    def attention_grads(
        self,
        q: Value,
        k: Value,
        v: Value,
        grad: Value,
        logs: Value,
        delta: Value,
        scale: float,
        bias: Value | None = None,
        causal: bool = False,
    ) -> tuple[Value, Value, Value]:
        """The gradients of q, k and v (see AttentionGradOp)."""
        op = AttentionGradsOp(
            q, k, v, bias, grad, logs, delta, scale=scale, causal=causal, acc=logs.type.elem
        )  # fmt: skip
        dq, dk, dv = self.b.insert(op).results
        return dq, dk, dv

    def extern(
        self,
        target: str,
        args: Sequence[Value],
        arguments: Sequence[Any],
        results: Sequence[Any],
        keywords: Mapping[str, Any] | None = None,
        pure: bool = True,
    ) -> list[Value]:
        """A function of another library; `arguments` with `Place(i)` for `args[i]`, `results`: types."""
        pairs = tuple((keywords or {}).items())
        op = ExternOp(
            list(args), target=target, arguments=tuple(arguments), keywords=pairs, pure=pure, results=list(results)
        )  # fmt: skip
        return self.b.insert(op).results

    def view(self, x: Value, map: IndexMap, type: TensorType) -> Value:
        """The elements of x at `map` of each coordinate."""
        return self.b.emit(ViewOp(x, index_map=map, results=[type]))

    def concat(self, parts: Sequence[Value], along: int) -> Value:
        """Tensors one behind the other along a dimension."""
        return self.emit(self._placed(ConcatOp(list(parts), along=along)))

    def write(self, target: Value, value: Value) -> None:
        """Let the memory of an argument hold `value` in the end."""
        self.b.insert(WriteOp(target, value))
