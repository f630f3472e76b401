"""Lets the TMA unit load tiles for MMAs that loops load through pointers.

    p = a + rows[:, None] * stride + ks          %d = make_descriptor %a, [%m, 2^31 - 1], [%stride, 1]
    for k in range(0, n, 64):              →     for k in range(0, n, 64):
        x = load(p); p += 64                         x = descriptor_load %d, [%row, k]

A tile of pointers that is a strided view of an array (analysis/strided_views.py) is described by a tensor map, as if
the kernel's author had written a descriptor. The TMA unit requires more than pointers do: strides in multiples of 16
bytes, and coordinates from 0 on. Whether that holds is only known with the arguments and the grid: the module's
`precondition` has the checks, and `host_code` the expressions that they test. The launcher evaluates them before each
launch, and if one fails it runs the kernel that was compiled without this pass.

Only loops that can be split into roles (gpu_loops/plan_roles.py) are changed, and all loads for their MMAs or none.
Loads must see earlier writes of the program to overlapping arrays: they are `ordered`, unless the precondition
ensures that what is read and what is written do not overlap."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tessera.analysis.axis import AxisAnalysis
from tessera.analysis.host_code import HostCode
from tessera.analysis.memory_ranges import memory_range, range_of_view
from tessera.analysis.polynomials import Poly
from tessera.analysis.provenance import argument_of
from tessera.analysis.strided_views import Side, StridedView, StridedViews
from tessera.dtypes import dtype, int1, int32, int64
from tessera.ir import Builder, Effect, Module, Op, TileType, Value, elem_of, pass_
from tessera.ir.applications import Declined, apply
from tessera.layout import box_layout
from tessera.ops import (
    AddOp,
    AtomicRmwOp,
    BarrierOp,
    CastOp,
    ConstOp,
    DescriptorLoadOp,
    DotOp,
    ForOp,
    FuncOp,
    LoadOp,
    MakeDescriptorOp,
    MulOp,
    RemOp,
    StoreOp,
    TransOp,
)  # fmt: skip
from tessera.passes.gpu_facts import GpuFacts
from tessera.passes.gpu_loops.plan_roles import check_split
from tessera.passes.gpu_movement.memory_effects import precedes, waits_for_others, writes
from tessera.passes.gpu_movement.tensor_maps import ALIGNMENT, ENDLESS
from tessera.passes.gpu_scheduling.profitability import ctas_after_split, split_pays
from tessera.passes.neutral.canonicalize import canonicalize
from tessera.passes.neutral.fold import is_zero
from tessera.passes.neutral.remarks import remark

LAST_ADDRESS = (1 << 63) - 1  # of a signed 64-bit integer
STRIDE_BYTES = 1 << 40  # strides must be less than this
MOST_DIMENSIONS = 5  # of a tensor map (CUDA, tensor maps)
CACHED = ("", ".ca", ".cg")
FEWEST_STAGES = 2  # a ring of one buffer copies nothing ahead


@dataclass(slots=True)
class Chosen:
    """An access that the TMA unit is to make."""

    access: LoadOp | StoreOp
    view: StridedView
    ordered: bool = False  # arrays that were written before may overlap with this one

    @property
    def order(self) -> list[int]:
        """The tile's dimensions in the order of the array: the contiguous one last."""
        last = self.view.contiguous
        return [*[d for d in range(len(self.view.sides)) if d != last], last]

    @property
    def sides(self) -> list[Side]:
        return [*self.view.further, *[self.view.sides[d] for d in self.order]]


@pass_("pointer-to-tma", optimization="pointer-to-tma", counts=True)
def pointer_to_tma(module: Module, facts: GpuFacts, no_alias: bool = True) -> None:
    """Load tiles of MMAs through tensor maps where a launch can check that this is correct.

    Takes: tile IR without layouts, before `descriptor-to-pointer`. With `no_alias` a launch also makes sure that
        nothing writes to the arrays that are loaded.
    Gives: descriptors for strided views of arrays, and the module's `precondition` over `host_code`: where a check
        fails, the launcher runs the variant that was compiled without this pass.
    Needs: a GPU with a TMA unit (sm_90).
    Raises: nothing.
    Example: `window` of tests/filecheck/pointer-to-tma.tir
        for { load; dot } → make_descriptor {mapped=True}; for { descriptor_load; dot }
    Compare: LLVM LoopVersioning, for the variant; CUDA Driver API, `cuTensorMapEncodeTiled`, for the conditions.
    """
    if not facts.has_tma:
        return
    changed = False
    for func in module.body:
        assert isinstance(func, FuncOp)
        if func.kernel and any(isinstance(op, DotOp) for op in func.walk()):
            changed |= PointerToTma(module, func, facts, no_alias).run()
    if changed:
        canonicalize(module)


class PointerToTma:
    """The accesses of one function that the TMA unit is to make, and what a launch must check for them."""

    def __init__(self, module: Module, func: FuncOp, facts: GpuFacts, no_alias: bool = True):
        self.module, self.func, self.facts, self.no_alias = module, func, facts, no_alias
        self.code = HostCode(func, module.attrs.get("host_code", ()))
        self.checks: dict[tuple[int, int, int, int], None] = dict.fromkeys(
            module.attrs.get("precondition", ())
        )
        self.emitted: list[Op] = []
        blocks = func.all_blocks()
        values = [
            v for block in blocks for v in (*block.args, *(r for op in block for r in op.results))
        ]
        self.numbers: dict[Any, int] = {v: i for i, v in enumerate(values)}
        self.assumes_no_alias = False  # whether the checks say so

    def run(self) -> bool:
        default: int = self.module.attrs.get("num_stages", 1)
        loops = [op for op in self.func.walk() if isinstance(op, ForOp)]
        loops = [op for op in loops if (op.num_stages or default) >= FEWEST_STAGES]
        wanted = {loop: found for loop in loops if (found := _loads(loop))}
        if not wanted:
            return False
        written = [op for op in self.func.walk() if writes(op)]
        views = StridedViews(self.func, AxisAnalysis(self.func), self.code)
        chosen: list[Chosen] = []
        for loop, loads in wanted.items():
            before = [op for op in written if precedes(op, loop)]
            try:
                if any(op.is_inside(loop) for op in written):
                    raise Declined("it writes to memory, too: arrays that overlap would be seen")
                if before and self._estimate(loads, ctas_after_split) > 1:
                    raise Declined("CTAs that share an SM hide what lies between loops")
                here = [self.chosen(load, views) for load in loads]
            except Declined as reason:
                self._remark(loop, str(reason))
                continue
            if self._estimate(loads, split_pays) and apply("pointer-to-tma", loop):
                chosen += here
                self._order(here, before, views)
            else:
                self._remark(loop, "a role of its own for loads would leave fewer programs")
        return bool(chosen) and self._replace(chosen)

    def _remark(self, loop: ForOp, reason: str) -> None:
        where = f" at {loop.loc.short()}" if loop.loc is not None else ""
        remark(self.module, f"pointers for the tiles of the loop{where}: {reason}")

    def _estimate(self, loads: list[LoadOp], how: Callable[..., int]) -> int:
        """Return the estimate of passes/gpu_scheduling/profitability.py for a loop."""
        loop = loads[0].parent_op()
        assert isinstance(loop, ForOp)
        stages: int = loop.num_stages or self.module.attrs["num_stages"]
        warps: int = self.module.attrs["num_warps"]
        mmas = [op for op in loop.walk() if isinstance(op, DotOp)]
        return how(mmas, stages * sum(_bytes(x) for x in loads), warps, self.facts)

    # --- what may be promoted ----------------------------------------------------------------------------------
    def chosen(self, access: LoadOp | StoreOp, views: StridedViews) -> Chosen:
        """Return the access with its strided view, and add its checks. Raises Declined if TMA cannot make the
        access."""
        t: Any = access.result.type if isinstance(access, LoadOp) else access.value.type
        if t.elem is int1 or _is_special(access):
            raise Declined(f"the {access.opcode} is special")
        if isinstance(access, LoadOp) and access.other is not None and not is_zero(access.other):
            raise Declined("masked elements are no zeros")
        found = Chosen(access, views.of(access))
        block = tuple(t.shape[d] for d in found.order)
        size: int = t.elem.storage_bytes
        facts = dict(self.func.arg_attrs[found.view.base.index]) if self.func.arg_attrs else {}
        fits = (
            len(found.sides) <= MOST_DIMENSIONS
            and size in (1, 2, 4, 8)
            and box_layout(block, t.elem.storage_bits) is not None
            and facts.get("divisibility", 1) % ALIGNMENT == 0
            and views.divisor(found.sides[-1].start) * size % ALIGNMENT == 0
        )
        if not fits:
            raise Declined("the TMA unit cannot move the tile")
        self._add_precondition(found, size)
        return found

    def _add_precondition(self, found: Chosen, size: int) -> None:
        """Add the checks that a map describes the array, and that its coordinates are those of the pointers."""
        self.check(self.code.value(found.view.base), 1, LAST_ADDRESS, ALIGNMENT)
        whole = ALIGNMENT // size
        for side in found.sides:
            if side is not found.sides[-1]:
                stride = side.stride if side.stride.terms else Poly.constant(whole)
                self.check(self.code.poly(stride), 1, STRIDE_BYTES // size - 1, whole)
            least = -ENDLESS if side.from_zero else 0
            self.check(self.code.poly(side.start), least, ENDLESS - side.extent, 1)
            if side.bound is not None:
                ends = side is found.sides[-1] and isinstance(found.access, StoreOp)
                self.check(self.code.poly(side.bound), 1, ENDLESS, whole if ends else 1)
            if side.period is not None:
                self.check(self.code.poly(side.period), 1, ENDLESS, side.extent)

    def _order(self, here: list[Chosen], before: list[Op], views: StridedViews) -> None:
        """Order the loads after earlier writes, unless the launch can check that these go elsewhere. What the program
        waits for is handled by ordering.py."""
        before = [op for op in before if not (waits_for_others(op) or isinstance(op, BarrierOp))]
        numbers = [self._distance(c, op, views) for op in before for c in here]
        if None in numbers:
            for c in here:
                c.ordered = True
            return
        self.assumes_no_alias |= bool(numbers)
        self.checks |= {(n, 1, LAST_ADDRESS, 1): None for n in numbers if n is not None}

    def _distance(self, c: Chosen, op: Op, views: StridedViews) -> int | None:
        """Return the distance of what is read and written; None within one array, or if the host cannot tell."""
        if not isinstance(op, StoreOp | AtomicRmwOp) or not self.no_alias:
            return None
        if argument_of(op.ptr) is c.view.base:
            return None
        size = elem_of(c.access.ptr.type).element_ty.storage_bytes
        read, written = range_of_view(self.code, c.view, size), memory_range(views, op)
        if read is None or written is None:
            return None
        return self.code.add("distance", read, written)

    def check(self, number: int | None, low: int, high: int, divisor: int) -> None:
        if number is None:
            raise Declined("the host does not know a coordinate's range")
        if self.code.code[number][0] == "const":
            value = self.code.code[number][1]
            if not low <= value <= high or value % divisor:
                raise Declined("the array is no array of the TMA unit")
            return
        self.checks[number, low, high, divisor] = None

    # --- the change ----------------------------------------------------------------------------------------------
    def _replace(self, chosen: list[Chosen]) -> bool:
        tiles = [self._tile(c) for c in chosen]
        try:
            check_split(self.module, self.func)
        except Declined:
            for op in reversed(self.emitted):
                op.erase()
            return False
        for c, tile in zip(chosen, tiles, strict=True):
            c.access.replace_by([tile])
        self.note()
        return True

    def note(self) -> None:
        """Record the checks in the module."""
        self.module.attrs["precondition"] = tuple(self.checks)
        self.module.attrs["host_code"] = tuple(self.code.code)
        if self.assumes_no_alias:
            self.module.attrs["assumes_no_alias"] = True

    def _tile(self, c: Chosen) -> Value:
        """Return the tile loaded through a descriptor, next to the load that it will replace."""
        load: Any = c.access
        desc = self.descriptor(c)
        b = Builder.before_op(load)
        tile = self._emit(
            b,
            DescriptorLoadOp(
                desc, self.offsets(b, c), cache=load.cache, eviction=load.eviction,
                dropped=len(c.view.further), ordered=c.ordered,
            ),
        )  # fmt: skip
        if c.order != sorted(c.order):
            back = tuple(c.order.index(d) for d in range(len(c.order)))
            tile = self._emit(b, TransOp(tile, order=back))
        return tile

    def descriptor(self, c: Chosen) -> Value:
        """Make the descriptor of an access, before the op of the function's body that contains the access."""
        t: Any = c.access.ptr.type
        elem: Any = elem_of(t).element_ty
        block = (*[1] * len(c.view.further), *[t.shape[d] for d in c.order])
        b = Builder.before_op(_top(c.access))
        extents = [self._scalar(b, s.bound or Poly.constant(ENDLESS), int32) for s in c.sides]
        whole = Poly.constant(ALIGNMENT // elem.storage_bytes)
        strides = [self._scalar(b, s.stride if s.stride.terms else whole, int64) for s in c.sides]
        made = MakeDescriptorOp(c.view.base, extents, strides, block_shape=block)
        desc = self._emit(b, made)
        made.attrs["mapped"] = True
        return desc

    def offsets(self, b: Builder, c: Chosen) -> list[Value]:
        """Return the coordinates of an access."""
        return [self._offset(b, s) for s in c.sides]

    def _offset(self, b: Builder, side: Side) -> Value:
        start = self._scalar(b, side.start, int32)
        if side.period is None:
            return start
        return self._emit(b, RemOp(start, self._scalar(b, side.period, int32)))

    def _scalar(self, b: Builder, p: Poly, t: dtype) -> Value:
        """Emit code for a polynomial."""
        total: Value | None = None
        for m, c in p.terms.items():
            term: Value | None = None
            for atom, power in sorted(m, key=lambda factor: self._number(factor[0])):
                assert isinstance(atom, Value)
                x = atom if atom.type == t else self._emit(b, CastOp(atom, results=[t]))
                for _ in range(power):
                    term = x if term is None else self._emit(b, MulOp(term, x))
            if term is None or c != 1:
                number = self._emit(b, ConstOp(value=c, results=[t]))
                term = number if term is None else self._emit(b, MulOp(term, number))
            total = term if total is None else self._emit(b, AddOp(total, term))
        return total if total is not None else self._emit(b, ConstOp(value=0, results=[t]))

    def _number(self, atom: object) -> int:
        """Return where in the function a factor is defined: factors are unordered, but code must be deterministic."""
        return self.numbers.get(atom, len(self.numbers))

    def _emit(self, b: Builder, op: Op) -> Value:
        self.emitted.append(op)
        return b.emit(op)


def _is_special(access: LoadOp | StoreOp) -> bool:
    if isinstance(access, StoreOp):
        return bool(access.cache or access.eviction)
    return access.volatile or access.cache not in CACHED


def _loads(loop: ForOp) -> list[LoadOp]:
    """Return the loads of a loop that its MMAs read."""
    loads = [
        op for op in loop.body if isinstance(op, LoadOp) and isinstance(op.result.type, TileType)
    ]
    return [op for op in loads if _feeds_mma(op.result)]


def _feeds_mma(v: Value) -> bool:
    todo, seen = [v], {v}
    while todo:
        x = todo.pop()
        for op, index in x.uses:
            if isinstance(op, DotOp) and index < 2:
                return True
            if op.effects is Effect.NONE and not op.regions and not isinstance(op, DotOp):
                todo += [r for r in op.results if r not in seen]
                seen.update(op.results)
    return False


def _top(op: Op) -> Op:
    """Return the op of the function's body that is or contains `op`."""
    parent = op.parent_op()
    while parent is not None and not isinstance(parent, FuncOp):
        op, parent = parent, parent.parent_op()
    return op


def _bytes(load: LoadOp) -> int:
    t: Any = load.result.type
    return t.numel * elem_of(t).storage_bytes
