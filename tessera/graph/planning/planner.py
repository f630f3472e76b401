"""Makes the plan of a graph function: a kernel for each nest, calls of the array library, views that cost nothing."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

from tessera.config import knobs
from tessera.dtypes import int64
from tessera.graph.emit.accesses import through_views
from tessera.graph.emit.attention import emit_attention
from tessera.graph.emit.attention_grads import emit_attention_grad
from tessera.graph.emit.kernel import KernelCode, emit
from tessera.graph.emit.matmul import emit_matmul
from tessera.graph.emit.tiles import CannotEmit
from tessera.graph.emit.tiling import Machine
from tessera.graph.index import Expr, IndexMap, dim, expr, size
from tessera.graph.ir.concat import ConcatOp, Spot, behind_views, place_parts, spots
from tessera.graph.ir.ops import (
    AttentionBase,
    AttentionGradOp,
    AttentionOp,
    CombiningOp,
    ExternOp,
    LoadOp,
    LoopOp,
    MatmulOp,
    ScatterOp,
    SortOp,
    ViewOp,
    WriteOp,
    donated_arguments,
)
from tessera.graph.ir.types import TensorType
from tessera.graph.passes import cost
from tessera.graph.passes.expand_scatter import expand_scatters_of
from tessera.graph.passes.expand_sort import expand_sorts_of
from tessera.graph.passes.facts import captured
from tessera.graph.passes.lift import lift_scans
from tessera.graph.passes.moments import take_moments_twice
from tessera.graph.passes.split import split_reductions
from tessera.graph.passes.split_attention import split_attention
from tessera.graph.passes.split_scan import split_scans
from tessera.graph.passes.walk_rows import reduce_columns_with_rows
from tessera.graph.planning.plan import Extern, Interpret, Launch, Plan, View, strided
from tessera.graph.planning.products import products_of
from tessera.ir import Block, Builder, Op, Value, print_op
from tessera.ops import FuncOp, YieldOp

Size = int | Expr
LOOK_THROUGH = (
    LoadOp,
    ViewOp,
    MatmulOp,
    AttentionBase,
    WriteOp,
    ConcatOp,
)  # ops that read through views


class KernelWarning(UserWarning):
    """A part of a graph runs without a kernel of its own, slowly."""


def instead(op: Op, error: Exception, reproducer: Path | None = None) -> Interpret:
    """What runs in place of a kernel that could not be made, with a warning; under TESSERA_STRICT=1 the error."""
    if knobs.compilation.strict:
        raise error
    reason = f"{type(error).__name__}: {error}".splitlines()[0]
    shown = f"; {reproducer} reproduces it" if reproducer else ""
    warnings.warn(
        f"no kernel was made for a part of a graph ({reason}); it runs slowly{shown}:\n{print_op(op)}",
        KernelWarning,
        stacklevel=2,
    )
    return Interpret(op, reason)


class Planner:
    """Plans one function. `wide`: whether offsets need 64 bits; `saved`: the numbers of the results that nobody gets
    but the backward graph of the same program."""

    def __init__(
        self, function: FuncOp, machine: Machine, wide: bool = False, saved: Collection[int] = ()
    ):
        self.function, self.machine, self.wide = function, machine, wide
        expand_sorts_of(function.body)
        expand_scatters_of(function.body)
        self.spots = place_parts(function.body)
        self.products, self.inside = products_of(function.body, machine)
        likely, taken = cost.sizes({}), {*self.products, *self.inside}
        split_reductions(
            function, machine, reduce_columns_with_rows(function, machine, likely, taken)
        )
        split_scans(function, machine)
        take_moments_twice(function, machine)
        split_attention(function, machine)
        results = list(function.body.terminator.operands)
        self.plan = Plan(list(function.body.args), results, [], {}, wide=wide)
        self.plan.donated = frozenset(donated_arguments(function.body))
        shown = {v for k, v in enumerate(results) if k not in saved}
        self.plan.saved = frozenset(results) - shown
        self.plan.views |= {
            v: View(at.root, at.offset, v.type.shape, at.strides) for v, at in self.spots.items()
        }
        self.writes: list[WriteOp] = []

    def run(self) -> Plan:
        """The plan, without the places of tensors: these depend on the compiled kernels (`Plan.settle`)."""
        for op in list(self.function.body):
            self._op(op)
        self._write_arguments()
        return self.plan

    def _op(self, op: Op) -> None:
        if op in self.inside and op not in self.products:
            return
        if isinstance(op, ViewOp):
            self._view(op)
        elif isinstance(op, WriteOp):
            self.writes.append(op)
        elif isinstance(op, ExternOp):
            self.plan.steps.append(Extern(op))
        elif isinstance(op, ScatterOp):
            self._scatter(op)
        elif isinstance(op, ConcatOp):
            self._concat(op)
        elif isinstance(op, LoopOp | CombiningOp | SortOp | MatmulOp | AttentionBase):
            self._launch(op)

    def _launch(self, op: Op) -> None:
        parts = self.products[op].ops if op in self.products else [op]
        try:
            self.plan.steps.append(Launch(self._code(op), op if len(parts) == 1 else None))
        except CannotEmit as error:
            lifted = lift_scans(op) if isinstance(op, LoopOp) else []
            for loop in lifted:
                self._launch(loop)
            if lifted:
                self._launch(op)
            else:
                self._interpret([Interpret(x, error.message) for x in parts])
        except Exception as error:
            self._interpret([instead(x, error) for x in parts])

    def _interpret(self, steps: Sequence[Interpret]) -> None:
        """Compute results in memory of their own."""
        for step in steps:
            self.plan.steps.append(step)
            for r in step.op.results:
                if r in self.spots:
                    del self.plan.views[r], self.spots[r]

    def _code(self, op: Op) -> KernelCode:
        found = self.products.get(op)
        if found is not None:
            code = emit_matmul(found, self.machine, self.wide)
        elif isinstance(op, AttentionOp):
            code = emit_attention(op, self.machine, self.wide)
        elif isinstance(op, AttentionGradOp):
            code = emit_attention_grad(op, self.machine, self.wide)
        else:
            code = emit(op, self.machine, self.wide)
        types = [p.type for p in code.parameters if isinstance(p, Value)]
        devices = {t.device for t in types if isinstance(t, TensorType)}
        assert len(devices) < 2, f"{code.name} has tensors on {', '.join(sorted(devices))}"
        return code

    def _view(self, op: ViewOp) -> None:
        """A part of another tensor's memory if strides can say which, else a copy of its elements for those who need
        a real tensor: loops look through views."""
        rank = op.result.type.rank
        root, at = through_views(op.result, [dim(k) for k in range(rank)])
        found = strided(root, at, rank)
        if found is None or any(isinstance(s, int) and s < 0 for s in found[1]):
            if not all(isinstance(user, LOOK_THROUGH) for user in op.result.users()):
                self._copy(op.result, op.x, op.index_map)
        else:
            t: TensorType = op.result.type
            # How far apart the elements of one are is the type's to say: nothing follows from the map.
            given = zip(t.shape, found[1], t.all_strides, strict=True)
            steps = tuple(exact if n == 1 else step for n, step, exact in given)
            home = self.plan.view(root)
            self.plan.views[op.result] = View(
                home.root, size(expr(home.offset) + found[0]), t.shape, steps
            )

    def _concat(self, op: ConcatOp) -> None:
        """Copy the parts that are not computed where they lie in the whole."""
        whole = self.plan.view(op.result)
        for part, at in zip(
            op.parts, spots(op, Spot(whole.root, whole.offset, whole.strides)), strict=True
        ):
            behind = behind_views(part, at)
            if behind is None or self.spots.get(behind[0]) != behind[1]:
                t: TensorType = part.type
                made = self._copy(None, part, strides=at.strides)
                self.plan.views[made] = View(at.root, at.offset, t.shape, at.strides)

    def _copy(
        self,
        to: Value | None,
        source: Value,
        map: IndexMap | None = None,
        strides: Sequence[Size] | None = None,
    ) -> Value:
        """Copy the elements of a tensor, at `map` of each index, to the memory of another: `to`, or a new one of these
        strides."""
        given: TensorType = source.type
        t = TensorType(given.shape, given.elem, strides, given.device) if to is None else to.type
        body = Block([int64] * t.rank)
        b = Builder(body)
        x = b.emit(LoadOp(source, list(body.args), None, None, index_map=map))
        b.insert(YieldOp([x]))
        loop = LoopOp(extents=t.shape, regions=[body], results=[t])
        code = self._code(loop)
        made = loop.result if to is None else to
        parameters = tuple(made if p is loop.result else p for p in code.parameters)
        loop.regions[0].last.drop_operands()  # type: ignore[union-attr]
        copies = (made, source) if map is None else None
        self.plan.steps.append(Launch(replace(code, parameters=parameters), copies=copies))
        for inner in (x.op,):
            if inner is not None:
                inner.drop_operands()
        return made

    def _scatter(self, op: ScatterOp) -> None:
        """In the memory of its base if nobody needs that afterwards, else in a copy of it."""
        try:
            code = self._code(op)
        except CannotEmit as error:
            self.plan.steps.append(Interpret(op, error.message))
            return
        base = op.base
        fresh = any(base in step.writes for step in self.plan.steps if isinstance(step, Launch))
        alone = len(base.uses) == 1 and base not in captured_by_body(op)
        same_type = base.type.all_strides == op.result.type.all_strides
        if fresh and alone and same_type:
            self.plan.same[base] = op.result
        else:
            self._copy(op.result, base)
        self.plan.steps.append(Launch(code))

    def _write_arguments(self) -> None:
        """What the graph leaves in its arguments is written when all else is done; what lies in the memory of arguments
        that are written before, or in that of the same one, is copied first."""
        targets = set[Value]()
        values: list[Value] = []
        for op in self.writes:
            targets.add(op.target)
            root, _ = through_views(op.value, [dim(k) for k in range(op.value.type.rank)])
            in_danger = self.plan.root(root) in targets and op.value is not op.target
            values.append(self._copy(None, op.value) if in_danger else op.value)
        for op, value in zip(self.writes, values, strict=True):
            self._copy(op.target, value)


def captured_by_body(op: Op) -> set[Value]:
    """What the regions of an op use from outside, its own operands left out."""
    found = set[Value]()
    for block in op.regions:
        for x in block:
            found |= set(captured(x))
    return found
