"""Defines the concatenation of tensors, and says which of them kernels may write where they lie in the whole.

a = loop (s0, 4) …, b = loop (s0, 8) …;  y = concat a, b along 1        y: (s0, 12), strides (12, 1)
a lies in y from element 0, b from element 4, both with strides (12, 1): then nothing is copied
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from math import gcd

from tessera.graph.index import Dim, Expr, expr, size
from tessera.graph.ir.ops import (
    AttentionBase,
    ExternOp,
    GraphOp,
    LoadOp,
    LoopOp,
    MatmulOp,
    ViewOp,
)
from tessera.graph.ir.types import TensorType
from tessera.ir import Block, Module, Op, Value, attr, operand, pass_, require
from tessera.ir.applications import apply

Size = int | Expr
ALIGNMENT = 16  # bytes: kernels rely on tensors that begin at multiples of it
# Functions of the library that read rows of any distance without a copy.
READ_STRIDED = frozenset(
    f"aten.{name}.default" for name in ("mm", "addmm", "bmm", "baddbmm", "mv", "addmv")
)


class ConcatOp(GraphOp, opcode="graph.concat"):
    """Tensors that differ in the size of dimension `along` alone, one behind the other in it."""

    parts: tuple[Value, ...] = operand(variadic=True)
    along: int = attr()

    def value_types(self) -> Sequence[TensorType]:
        first: TensorType = self.parts[0].type
        shape = list(first.shape)
        shape[self.along] = size(sum((expr(x.type.shape[self.along]) for x in self.parts), expr(0)))
        return [TensorType(shape, first.elem, device=first.device)]

    def verify(self) -> None:
        types = [x.type for x in self.parts]
        ok = bool(types) and all(isinstance(t, TensorType) for t in types)
        require(ok, self, "the parts are no tensors")
        require(0 <= self.along < types[0].rank, self, "there is no such dimension")
        kinds = {(self._others(t), t.elem, t.device) for t in types}
        require(len(kinds) == 1, self, "the parts differ in more than the size of one dimension")

    def _others(self, t: TensorType) -> tuple[Size, ...]:
        return (*t.shape[: self.along], *t.shape[self.along + 1 :])

    def starts(self) -> list[Expr]:
        """Where each part begins along the dimension."""
        found = [expr(0)]
        for x in self.parts:
            found.append(found[-1] + x.type.shape[self.along])
        return found[:-1]


@dataclass(frozen=True, slots=True)
class Spot:
    """Where a tensor lies in the memory of `root`: the offset of its first element, in elements, and its strides."""

    root: Value
    offset: Size
    strides: tuple[Size, ...]


def spots(op: ConcatOp, within: Spot | None = None) -> list[Spot]:
    """Where each part lies. `within`: where the result does, if not in memory of its own."""
    whole = within or Spot(op.result, 0, op.result.type.all_strides)
    step = whole.strides[op.along]
    return [
        Spot(whole.root, size(expr(whole.offset) + start * step), whole.strides)
        for start in op.starts()
    ]


def behind_views(v: Value, spot: Spot) -> tuple[Value, Spot] | None:
    """The tensor that a part is a view of, and where it lies if the part is at `spot`; None where strides cannot say
    that, or elements of it are missing in the part."""
    while isinstance(v.op, ViewOp):
        x, shape = v.op.x, v.type.shape
        used: list[int] = []
        strides: list[Size] = []
        for e, n in zip(v.op.index_map.results, x.type.shape, strict=True):
            d = e.atom
            if isinstance(d, Dim) and d.position not in used and shape[d.position] == n:
                used.append(d.position)
                strides.append(spot.strides[d.position])
            elif n == 1 and e.value == 0:
                strides.append(1)
            else:
                return None
        if any(n != 1 for k, n in enumerate(shape) if k not in used):
            return None
        v, spot = x, Spot(spot.root, spot.offset, tuple(strides))
    return v, spot


def placements(body: Block, accept: Callable[[Value], bool] = lambda v: True) -> dict[Value, Spot]:
    """The tensors that may be computed where they lie in a concatenation, each in one, as far as they are accepted."""
    found: dict[Value, Spot] = {}
    for op in reversed(list(body)):
        if isinstance(op, ConcatOp):
            for part, spot in zip(op.parts, spots(op, found.get(op.result)), strict=True):
                behind = behind_views(part, spot)
                if behind is not None and behind[0] not in found:
                    v, at = behind
                    if is_aligned(at.offset, v.type) and may_lie_inside(v, body) and accept(v):
                        found[v] = at
    return found


def is_aligned(offset: Size, t: TensorType) -> bool:
    """Whether what is so many elements behind the beginning of memory begins at a multiple of `ALIGNMENT` bytes."""
    factor = reduce(gcd, (c for _, c in expr(offset).terms), 0)
    return factor * t.elem.storage_bytes % ALIGNMENT == 0


def may_lie_inside(v: Value, body: Block) -> bool:
    """Whether a tensor may have strides of our choice and neighbours between its rows: a kernel makes it, and whoever
    reads it is told how it lies."""
    made = isinstance(v.op, LoopOp | MatmulOp | AttentionBase | ConcatOp) and v.op.parent is body
    return made and all(_reads_any_strides(user) for user in v.users())


def _reads_any_strides(user: Op) -> bool:
    if isinstance(user, ViewOp):
        return all(map(_reads_any_strides, user.result.users()))
    if isinstance(user, ExternOp):
        return user.pure and user.target in READ_STRIDED
    return isinstance(user, LoadOp | MatmulOp | AttentionBase | ConcatOp)


def place_parts(body: Block) -> dict[Value, Spot]:
    """Give the tensors that are computed where they lie in a concatenation the strides of it. Where they lie."""
    found = placements(body, lambda v: apply("graph-place-parts", v.op))
    for v, at in found.items():
        t: TensorType = v.type
        v.type = TensorType(t.shape, t.elem, at.strides, t.device)
    return found


@pass_("graph-place-parts")
def place_all_parts(module: Module) -> None:
    """Let the types of tensors say that they lie in concatenations, where kernels may write them there. The planner
    does the same for its function."""
    for function in module.functions:
        place_parts(function.regions[0])
