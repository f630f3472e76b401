"""Gives rules that lower ATen operations what they work with: tensors as maps of values, loops, a register.

A rule gets a `Lowering` and the operation's arguments, with a `Tensor` for each tensor and an expression for each
symbolic size; it returns a `Tensor`, or several. It raises `NotLowered` for what it does not take: an extern then.

    @rule("sum.dim_IntList")
    def total(low: Lowering, x: Tensor, dims: list[int] | None, keepdim: bool = False, dtype: Any = None) -> Tensor: ...
"""

# pyright: basic
# torch gives most of its values no type.
from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from tessera.dtypes import dtype, int64
from tessera.graph.index import (
    Dim,
    Expr,
    IndexMap,
    Ranges,
    dim,
    expr,
    is_less,
    is_nonnegative,
    simplify,
)
from tessera.graph.ir.build import GraphBuilder
from tessera.graph.ir.combine import Combine
from tessera.graph.ir.scalars import Number, Scalar, constant, where
from tessera.graph.ir.types import ForeignType
from tessera.graph.torch.types import NotLowered, Size, element_of, sizes_of
from tessera.ir import Value

Index = Expr | int
Rule = Callable[..., Any]
RULES: dict[str, Rule] = {}


@dataclass(frozen=True, eq=False)
class Tensor:
    """What a node of torch's graph stands for: the elements of `value` at `map` of each coordinate below `shape`.

    `strides`: those that torch gives it; `home`: the device that it is on for torch."""

    value: Value
    map: IndexMap
    shape: tuple[Size, ...]
    strides: tuple[Size, ...] | None = None
    home: str | None = None

    @property
    def elem(self) -> Any:
        return self.value.type.elem

    @property
    def device(self) -> str:
        return self.value.type.device

    @property
    def rank(self) -> int:
        return len(self.shape)

    def through(self, map: IndexMap, shape: Sequence[Size]) -> Tensor:
        """The view whose coordinates `map` takes to this one's."""
        return Tensor(self.value, self.map.compose(map), tuple(shape))


@dataclass(frozen=True, eq=False)
class Float:
    """A float computed from symbolic sizes in each call: `value`, in fp64. Rules read it by `Lowering.number`; those
    that take it for a constant raise `NotLowered`."""

    value: Value

    def _unknown(self, *_: Any) -> Any:
        raise NotLowered("a number computed from sizes")

    __float__ = __int__ = __index__ = __bool__ = __lt__ = __le__ = __gt__ = __ge__ = _unknown
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _unknown
    __truediv__ = __rtruediv__ = __pow__ = __rpow__ = __neg__ = __abs__ = _unknown
    __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = _unknown


def whole(value: Value) -> Tensor:
    """A value as it is."""
    shape = value.type.shape
    return Tensor(value, IndexMap.identity(len(shape)), shape, value.type.all_strides)


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Registers what lowers the overloads of these names ("sum.dim_IntList"); "sum" stands for all overloads."""

    def register(function: Rule) -> Rule:
        for name in names:
            assert name not in RULES, f"two rules for {name}"
            RULES[name] = function
        return function

    return register


# Those of torch's prims whose arguments or meaning are not those of ATen's operation of that name.
OTHER_PRIMS = {"amax", "amin", "div", "prod", "sum", "transpose", "var"}


def rule_for(target: Any) -> Rule | None:
    """The rule of an overload, or of all overloads of an operation."""
    space, _, name = getattr(target, "_name", "").partition("::")
    if space not in ("aten", "prims"):
        return None
    packet, _, overload = name.partition(".")
    if space == "prims" and packet in OTHER_PRIMS:
        return RULES.get(f"prims.{packet}")
    return RULES.get(f"{packet}.{overload or 'default'}") or RULES.get(packet)


class Lowering:
    """Builds the loops of one operation after the other in `g`. `out` is the fake tensor, or the tuple of them, that
    torch computed for the operation, `node` its node in torch's graph."""

    def __init__(self, g: GraphBuilder, eager_random: bool = False, products: str = "auto") -> None:
        self.g = g
        self.eager_random, self.products = eager_random, products
        self.out: Any = None
        self.node: Any = None
        self.dims: list[Value] = []
        self.extents: list[Size | None] = []
        self.ranges = Ranges()
        self.seeds: dict[str, Value] = {}
        self.streams = 0

    # --- what torch says of the result ------------------------------------------------------------------------
    @property
    def shape(self) -> tuple[Size, ...]:
        return sizes_of(self.out.shape)

    @property
    def elem(self) -> dtype:
        return element_of(self.out.dtype)

    @staticmethod
    def elem_of(fake: Any) -> dtype:
        return element_of(fake.dtype)

    # --- loops ------------------------------------------------------------------------------------------------
    @contextmanager
    def _nest(
        self, values: Sequence[Value], extents: Sequence[Size | None]
    ) -> Generator[list[Expr]]:
        """Count `values` among the indices that expressions name, for the body of an op."""
        depth, saved = len(self.dims), self.ranges
        self._push(values, extents)
        try:
            yield [dim(depth + k) for k in range(len(values))]
        finally:
            del self.dims[depth:], self.extents[depth:]
            self.ranges = saved

    def _push(self, values: Sequence[Value], extents: Sequence[Size | None]) -> None:
        self.dims += values
        self.extents += extents
        known = enumerate(self.extents)
        self.ranges = Ranges({Dim(k): (0, n - 1) for k, n in known if n is not None})

    def _body(
        self, extents: Sequence[Size], body: Callable[[list[Expr]], Any]
    ) -> Callable[..., Any]:
        """A builder's body from one that takes expressions and gives scalars."""

        def inner(*values: Value) -> list[Value]:
            with self._nest(values, extents) as indices:
                return [x.value for x in several(body(indices))]

        return inner

    def loops(
        self, shape: Sequence[Size], body: Callable[[list[Expr]], Any], like: Any = None
    ) -> list[Tensor]:
        """Tensors of the scalars that `body` gives for each coordinate. `like`: their fake tensors, for strides."""
        strides = [sizes_of(o.stride()) for o in several(self.out if like is None else like)]
        return [whole(v) for v in self.g.loops(shape, self._body(shape, body), strides)]

    def loop(
        self, shape: Sequence[Size], body: Callable[[list[Expr]], Scalar], like: Any = None
    ) -> Tensor:
        (found,) = self.loops(shape, body, like)
        return found

    def map(self, body: Callable[[list[Expr]], Scalar]) -> Tensor:
        """A loop over the result's own shape."""
        return self.loop(self.shape, body)

    def inner(self, shape: Sequence[Size], body: Callable[[list[Expr]], Any]) -> list[Tensor]:
        """Tensors of no fake tensor's: row-major intermediate results."""
        return [whole(v) for v in self.g.loops(shape, self._body(shape, body))]

    def reduce(
        self, kind: str, extents: Sequence[Size], body: Callable[[list[Expr]], Scalar]
    ) -> Scalar:
        """The reduction of one scalar by "sum", "prod", "max", "min", "any", "all"."""
        return self.scalar(self.g.reduce(kind, extents, self._single(extents, body)))

    def _single(
        self, extents: Sequence[Size], body: Callable[[list[Expr]], Scalar]
    ) -> Callable[..., Value]:
        inner = self._body(extents, body)
        return lambda *values: inner(*values)[0]

    def arg_reduce(
        self,
        kind: str,
        extent: Size,
        body: Callable[[list[Expr]], Scalar],
        last_nan: bool = False,
    ) -> tuple[Scalar, Scalar]:
        value, index = self.g.arg_reduce(kind, extent, self._single([extent], body), last_nan)
        return self.scalar(value), self.scalar(index)

    def welford(
        self, extents: Sequence[Size], body: Callable[[list[Expr]], Scalar]
    ) -> list[Scalar]:
        """(mean, sum of squared deviations, count)."""
        return [self.scalar(v) for v in self.g.welford(extents, self._single(extents, body))]

    def scan_values(
        self,
        extent: Size,
        body: Callable[[list[Expr]], list[Scalar]],
        combine: Combine,
        identities: Sequence[Any],
    ) -> list[Value]:
        """Inclusive prefix combinations of several scalars, inside of a loop: one tensor of that extent for each."""
        return self.g.scans(extent, self._body([extent], body), combine, identities)

    def sort_values(
        self, extent: Size, body: Callable[[list[Expr]], list[Scalar]], descending: bool
    ) -> list[Value]:
        """What `body` gives, in the order of the first of them, inside of a loop."""
        return self.g.sort(extent, self._body([extent], body), descending)

    def inner_tensors(
        self,
        shape: Sequence[Size],
        body: Callable[[list[Expr]], Sequence[Value]],
        strides: Sequence[Sequence[Size] | None] = (),
    ) -> list[Tensor]:
        """Tensors of the tensors (or scalars) that `body` gives as values, row-major or in these strides."""

        def inner(*values: Value) -> Sequence[Value]:
            with self._nest(values, shape) as indices:
                return body(indices)

        return [whole(v) for v in self.g.loops(shape, inner, strides)]

    # --- scalars ------------------------------------------------------------------------------------------------
    def scalar(self, value: Value) -> Scalar:
        return Scalar(value, self.g.b)

    def const(self, number: Number, type: dtype) -> Scalar:
        return constant(self.g.b, number, type)

    def load(
        self,
        x: Tensor,
        indices: Sequence[Index],
        mask: Scalar | None = None,
        other: Number | Scalar | None = None,
    ) -> Scalar:
        """The element at a coordinate; `other`, or 0, where the mask is false."""
        if isinstance(x.elem, ForeignType):
            raise NotLowered(f"there are no kernels for {x.elem.name}")
        map = x.map.at(indices, len(self.dims)).simplify(self.ranges)
        used = sorted(set[int]().union(*(r.dims for r in map.results)))
        renamed: dict[Any, Expr | int] = {Dim(k): dim(n) for n, k in enumerate(used)}
        map = IndexMap(len(used), [r.subs(renamed) for r in map.results])
        fill = None
        if other is not None:
            fill = (other if isinstance(other, Scalar) else self.const(other, x.elem)).value
        given = [self.dims[k] for k in used]
        return self.scalar(self.g.load_at(x.value, map, given, mask.value if mask else None, fill))

    def position(self, index: Index, type: dtype = int64) -> Scalar:
        """An index expression as a number."""
        e = simplify(expr(index), self.ranges)
        if e.value is not None:
            return self.const(e.value, type)
        used = sorted(e.dims)
        e = e.subs({Dim(k): dim(n) for n, k in enumerate(used)})
        return self.scalar(self.g.index(e, *(self.dims[k] for k in used))).to(type)

    def within(self, index: Index, extent: Size) -> Scalar | None:
        """Whether 0 <= index < extent; None where that is known."""
        e = simplify(expr(index), self.ranges)
        found: Scalar | None = None
        if not is_nonnegative(e, self.ranges):
            found = self.position(e) >= 0
        if not is_less(e, extent, self.ranges):
            below = self.position(e) < self.position(extent)
            found = below if found is None else found & below
        return found

    def all_within(self, indices: Sequence[Index], extents: Sequence[Size]) -> Scalar | None:
        """Whether a coordinate is inside of a shape; None where that is known."""
        found: Scalar | None = None
        for index, extent in zip(indices, extents, strict=True):
            here = self.within(index, extent)
            found = (
                (found if here is None else here) if found is None or here is None else found & here
            )
        return found

    def indirect(self, index: Scalar, extent: Size, checked: bool = True) -> Expr:
        """A computed index, which counts from the end when it is negative, for use in coordinates. `checked`: one out
        of range ends the call with an error."""
        index, end = index.to(int64), self.position(extent)
        index = where(index < 0, index + end, index)
        if checked:
            message = f"{self.node.target}: an index is out of range for a dimension of {extent}"
            index = index.checked((index >= 0) & (index < end), message)
        return self.computed(index)

    def computed(self, index: Scalar) -> Expr:
        """An int64 scalar that is not negative, for use in coordinates."""
        self._push([index.value], [None])
        return dim(len(self.dims) - 1)


def several(found: Any) -> list[Any]:
    return list(found) if isinstance(found, (list, tuple)) else [found]


def placed(value: Value, like: Any) -> Value:
    """The value with the strides of a fake tensor, where they are not row-major."""
    value.type = value.type.with_strides(sizes_of(like.stride()))
    return value


def with_strides(x: Tensor, like: Any) -> Tensor:
    """The tensor with the strides of torch's own."""
    return replace(x, strides=sizes_of(like.stride()))


def broadcast(x: Tensor, indices: Sequence[Index]) -> list[Index]:
    """The coordinate in x for one in a shape that x is broadcast to."""
    last = list(indices)[len(indices) - x.rank :] if x.rank else []
    return [0 if n == 1 else i for n, i in zip(x.shape, last, strict=True)]


def dims_of(dims: Sequence[int] | int | None, rank: int) -> list[int]:
    """Dimensions counted from the front; all for None or an empty list."""
    if isinstance(dims, int):
        dims = [dims]
    if not dims:
        return list(range(rank))
    return sorted({d % max(rank, 1) for d in dims}) if rank else []


def is_tensor(x: Any) -> bool:
    return isinstance(x, Tensor)
