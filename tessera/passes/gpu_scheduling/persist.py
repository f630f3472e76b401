"""Makes kernels persistent: a CTA runs several programs one after another, by a loop around all of a program.

    %i = program_id                            for %t = cta_id, ... while %t < num_programs, += num_ctas:
    for k: ... descriptor_load ...       →         for k: ... descriptor_load ...
    store %p, %acc, %mask                          descriptor_store %d, [...], %acc

While a CTA stores its result, and until the first tiles of the next one arrive, its SM does not multiply, unless
another CTA shares the SM. A CTA that is alone does better to continue with the next program: of its two
roles (gpu_loops/plan_roles.py), one loads the tiles of the next program while the other one stores.

The result must be stored through a tensor map, as the buffers never become free for rearranging it there.
As many CTAs are launched as fit; the launcher passes on the grid that was asked for. Programs must not wait
for one another, which split ones do not, and should take equally long: CTAs take a fixed share each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tessera import ops
from tessera.analysis.axis import AxisAnalysis
from tessera.analysis.provenance import reached
from tessera.analysis.scratch import MAX_CONVERSION_BYTES, STAGING_BYTES
from tessera.analysis.strided_views import StridedViews
from tessera.dtypes import int32
from tessera.ir import Block, Builder, Effect, Module, Op, SharedType, TileType, Value, pass_
from tessera.ir.applications import Declined, apply
from tessera.passes.gpu_facts import GpuFacts
from tessera.passes.gpu_loops.rings import SLACK
from tessera.passes.gpu_movement.memory_effects import writes
from tessera.passes.gpu_movement.tensor_maps import ENDLESS
from tessera.passes.gpu_scheduling.pointer_to_tma import PointerToTma
from tessera.passes.gpu_scheduling.profitability import ctas_after_split
from tessera.passes.neutral.canonicalize import canonicalize
from tessera.passes.neutral.remarks import remark

AXES = 3  # of a grid
WIDE = 64  # bits of the integers that count programs


@pass_("persist", optimization="persistent-programs", counts=True)
def persist(module: Module, facts: GpuFacts) -> None:
    """Let CTAs run several programs one after another, where a CTA is alone on its SM.

    Takes: tile IR after `pointer-to-tma`, of kernels with a `precondition`.
    Gives: a loop over programs around all of the kernel, a store through a tensor map at its end, and the module's
        `persistent`; or a remark.
    Needs: a GPU with a TMA unit (sm_90).
    Raises: nothing.
    Example: `several_programs` of tests/filecheck/persist.tir
        program_id; for { dot }; store → cta_id; num_ctas; num_programs; for { for { dot }; descriptor_store }
    Compare: persistent tile schedulers of CUTLASS 3; K. Gupta et al., "A study of persistent threads", InPar 2012.
    """
    if "precondition" not in module.attrs:
        return
    for func in module.body:
        assert isinstance(func, ops.FuncOp)
        if func.kernel and any(isinstance(op, ops.DescriptorLoadOp) for op in func.walk()):
            try:
                _Persistence(module, func, facts).run()
            except Declined as reason:
                remark(module, f"one program a CTA: {reason}")
            else:
                canonicalize(module)


class _Persistence:
    """Rewrites one function so that one CTA runs several of its programs one after another."""

    def __init__(self, module: Module, func: ops.FuncOp, facts: GpuFacts):
        self.module, self.func, self.facts = module, func, facts
        self.ids = [op for op in func.walk() if isinstance(op, ops.ProgramIdOp)]

    def run(self) -> None:
        store = self._store()
        self._look_for_room(store)
        if not self.ids:
            raise Declined("all programs are the same")
        if any(_depends(_length(op), set(self.ids)) for op in self.func.walk()):
            raise Declined("programs are not equally long, and are dealt out better as CTAs end")
        rewrite = PointerToTma(self.module, self.func, self.facts)
        code = rewrite.code
        found = rewrite.chosen(store, StridedViews(self.func, AxisAnalysis(self.func), code))
        if found.view.further or found.order != sorted(found.order):
            raise Declined("the result's rows are not contiguous")
        total = code.add("const", 1)
        for axis in range(AXES):
            count = code.add("count", axis)
            total = code.add("mul", total, count, WIDE)
            if axis not in self._axes():
                rewrite.check(count, 1, 1, 1)
        rewrite.check(total, 1, ENDLESS // 2, 1)  # so that adding the CTAs does not overflow
        if not apply("persistent-programs", self.func):
            raise Declined("persistent programs are switched off")
        desc = rewrite.descriptor(found)
        b = Builder.before_op(store)
        b.insert(ops.DescriptorStoreOp(desc, rewrite.offsets(b, found), store.value, loc=store.loc))
        store.erase()
        rewrite.note()
        self._wrap()
        self.module.attrs["persistent"] = True

    def _axes(self) -> list[int]:
        return sorted({op.axis for op in self.ids})

    def _store(self) -> ops.StoreOp:
        """Return the only store of the function."""
        written = [op for op in self.func.walk() if writes(op)]
        if len(written) != 1 or not isinstance(written[0], ops.StoreOp):
            raise Declined("the program does not end with a single store")
        store = written[0]
        if store.parent is not self.func.body or not isinstance(store.value.type, TileType):
            raise Declined("the store is conditional, in a loop, or of a single element")
        return store

    def _look_for_room(self, store: ops.StoreOp) -> None:
        """Decline unless CTAs are alone, and buffers for the result fit beside those of the loops."""
        tile: Any = store.value.type
        result = min(STAGING_BYTES, _bytes(tile)) + self._rearranged(tile)
        warps: int = self.module.attrs["num_warps"]
        for loop in [op for op in self.func.walk() if isinstance(op, ops.ForOp)]:
            loads = [op for op in loop.body if isinstance(op, ops.DescriptorLoadOp)]
            if not loads:
                continue
            stages: int = loop.num_stages or self.module.attrs["num_stages"]
            size = stages * sum(_bytes(x.result.type) for x in loads)
            mmas = [op for op in loop.walk() if isinstance(op, ops.DotOp)]
            if ctas_after_split(mmas, size, warps, self.facts) > 1:
                raise Declined("several CTAs share an SM")
            if size + result + SLACK > self.facts.max_shared_bytes:
                raise Declined("there is no shared memory for the result beside the buffers")

    def _rearranged(self, tile: TileType) -> int:
        """Return the bytes for converting tiles that are loaded after the loops to the layout of the result."""
        loads = [op.result.type for op in self.func.body if isinstance(op, ops.LoadOp)]
        whole = [_bytes(t) for t in loads if isinstance(t, TileType) and t.shape == tile.shape]
        return min(MAX_CONVERSION_BYTES, max(whole, default=0))

    def _wrap(self) -> None:
        """Put a loop over programs around all that depends on the program id."""
        inside = self._dependent()
        b = Builder.before_op(inside[0])
        first, step = b.emit(ops.CtaIdOp()), b.emit(ops.NumCtasOp())
        counts = {axis: b.emit(ops.NumProgramsOp(axis=axis)) for axis in self._axes()}
        last: Value | None = None
        for count in counts.values():
            last = count if last is None else b.emit(ops.MulOp(last, count))
        assert last is not None
        body = Block([int32])
        loop = ops.ForOp(first, last, step, [], regions=[body], loc=self.func.loc)
        loop.num_stages = 1
        b.insert(loop)
        start = Builder(body, None, self.func.loc)
        places = self._places(start, body.args[0], counts)
        for op in inside:
            op.detach()
            body.append(op)
        start.insert(ops.YieldOp([]))
        for op in self.ids:
            op.replace_by([places[op.axis]])

    def _places(self, b: Builder, number: Value, counts: dict[int, Value]) -> dict[int, Value]:
        """Return the program ids along each axis, of which the first varies fastest."""
        places: dict[int, Value] = {}
        for axis in list(counts)[:-1]:
            places[axis] = b.emit(ops.RemOp(number, counts[axis]))
            number = b.emit(ops.DivOp(number, counts[axis]))
        return places | {list(counts)[-1]: number}

    def _dependent(self) -> list[Op]:
        """Return all ops but scalars and descriptors that are the same in all programs, which move to the front."""
        outside: dict[Op, None] = {}
        inside: list[Op] = []
        for op in self.func.body:
            if op.terminator:
                break
            pure = op.effects is Effect.NONE and not op.regions and op not in self.ids
            scalar = all(not isinstance(r.type, TileType | SharedType) for r in op.results)
            if pure and scalar and all(v.op is None or v.op in outside for v in op.operands):
                outside[op] = None
            else:
                inside.append(op)
        for op in outside:
            op.move_before(inside[0])
        return inside


def _length(op: Op) -> Sequence[Value]:
    """Return the values that decide how long an op runs."""
    if isinstance(op, ops.ForOp):
        return op.lb, op.ub, op.step
    if isinstance(op, ops.WhileOp):
        return [*op.operands, *op.before.terminator.operands]
    return [op.condition] if isinstance(op, ops.IfOp) else []


def _depends(values: Sequence[Value], on: set[Op]) -> bool:
    """Whether values are computed from the results of some ops."""

    def sources(v: Value) -> list[Value]:
        op = v.owner.parent if isinstance(v.owner, Block) else v.owner
        if op is None or isinstance(op, ops.FuncOp):
            return []
        return [*op.operands, *[x for b in op.regions for x in b.terminator.operands]]

    return any(v.op in on for v in reached(values, sources))


def _bytes(t: Any) -> int:
    return t.numel * t.elem.storage_bytes
