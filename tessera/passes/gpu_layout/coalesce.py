"""Chooses a layout for every access to global memory, and records it in the op's attribute `layout`.

The dimension along which addresses are contiguous runs fastest over registers and lanes; where none is known to be,
that with the nearest neighbours (optimisation `nearest-dimension`). A thread takes as many
neighbours as one 16-byte access holds, if address and mask allow. Accesses of one shape and order get one
layout, the widest: an element-wise kernel then needs no conversion, and a thread reads wide elements by several
accesses, which find the rest of a sector in the cache. Writes would send each sector once per access, so the layout is
no wider than one access of the widest element written; what is read to compute it is then read 8 or 4 bytes at a
time. Example: bf16 that is stored as fp32 is read in fours, one half of an MMA of bf16 in eights.

A load that will be copied ahead for dots is `partial` where its mask may end within a vector (optimisation
`partial-copies`): `cp.async` reads the bytes in front of that end and writes zeros for the others."""

from __future__ import annotations

from math import gcd

from tessera.analysis.axis import AxisAnalysis
from tessera.analysis.prefixes import prefix_width
from tessera.analysis.steps import NeighbourPlaces
from tessera.ir import Module, Op, TileType, Value, elem_of, pass_, shape_of
from tessera.ir.applications import apply
from tessera.layout import default_blocked
from tessera.ops import (
    Atomic,
    DescriptorLoadOp,
    DescriptorStoreOp,
    ForOp,
    FuncOp,
    LoadOp,
    Matmul,
    PointerAccess,
    PointerWrite,
    ReduceOp,
    TileLoad,
    TransOp,
)
from tessera.passes.gpu_facts import GpuFacts
from tessera.passes.gpu_layout.anchors import groups_of
from tessera.passes.gpu_layout.rules import is_pointwise
from tessera.passes.neutral.fold import is_zero

Group = tuple[tuple[int, ...], tuple[int, ...]]


@pass_("coalesce")
def coalesce(module: Module, facts: GpuFacts) -> None:
    """Choose the layout of each access to global memory.

    Takes: tile IR without layouts, with pointers as the author wrote them; `num_warps`.
    Gives: the attribute `layout` on loads, stores, atomics and descriptor accesses of tiles, and `partial` on loads;
        nothing else changes.
    Needs: any GPU.
    Raises: nothing.
    Example: `aligned` of tests/filecheck/coalesce.tir
        load %q → load %q {layout=…}
    Compare: Triton `tritongpu-coalesce`; CUDA C++ Best Practices Guide, "Coalesced Access to Global Memory".
    """
    num_warps: int = module.attrs["num_warps"]
    num_stages: int = module.attrs.get("num_stages", 1)
    for func in module.body:
        assert isinstance(func, FuncOp)
        axis = AxisAnalysis(func)
        near = NeighbourPlaces(func, axis)
        wanted = [w for op in func.walk() if (w := _wanted(op, axis, near, facts, num_stages))]
        widest: dict[Group, int] = {}
        for op, group, vec in wanted:
            # Descriptor accesses go through shared memory, where any layout will do.
            if isinstance(op, PointerAccess):
                widest[group] = max(widest.get(group, 1), vec)
        flows = Flows(func)
        written: dict[tuple[Value, Group], int] = {}  # the most elements of one access
        for op, group, _ in wanted:
            if isinstance(op, PointerWrite):
                size = elem_of(op.ptr.type).element_ty.storage_bytes
                of, most = (flows.of(op), group), facts.max_vector_bytes
                written[of] = min(written.get(of, most), most // size)
        for op, group, vec in wanted:
            shape, order = group
            alone = isinstance(op, Atomic)
            wide = widest.get(group, vec)
            width = vec if alone else min(wide, written.get((flows.of(op), group), wide))
            op.attrs["layout"] = default_blocked(shape, num_warps, width, order, facts.warp_size)


class Flows:
    """Sets of loads and writes connected by element-wise ops on tiles of one shape, also by way of what reductions make
    of these tiles: `x / broadcast(sum(x))`. `of` returns the name of a set."""

    def __init__(self, func: FuncOp) -> None:
        self.parents: dict[Value, Value] = {}
        reduced: set[Value] = set()
        for op in func.walk():
            if is_pointwise(op) or isinstance(op, ReduceOp):
                narrow = isinstance(op, ReduceOp)
                for v in [v for v in op.operands if v in self.parents]:
                    # Loaded rows and columns go with tiles that have nothing else in common.
                    if narrow or v in reduced or shape_of(v.type) == shape_of(op.results[0].type):
                        for r in op.results:
                            self._join(r, v)
                if narrow or any(v in reduced for v in op.operands):
                    reduced.update(op.results)
            elif isinstance(op, TileLoad):
                self.parents.setdefault(op.result, op.result)
            for group in groups_of(op):
                for v in group.phis:
                    self._join(v, group.phis[0])
        for op in func.walk():
            for group in groups_of(op):
                for v in group.sources():
                    if v in self.parents:
                        self._join(v, group.phis[0])

    def of(self, op: Op) -> Value:
        """Return the set of an access: a load is in that of its result, a write in that of its value."""
        if isinstance(op, PointerWrite | DescriptorStoreOp):
            return self._root(op.value)
        return self._root(op.results[0])

    def _root(self, v: Value) -> Value:
        while (above := self.parents.setdefault(v, v)) is not v:
            self.parents[v] = self.parents[above]
            v = above
        return v

    def _join(self, a: Value, b: Value) -> None:
        self.parents[self._root(a)] = self._root(b)


def _wanted(
    op: Op, axis: AxisAnalysis, near: NeighbourPlaces, facts: GpuFacts, num_stages: int
) -> tuple[Op, Group, int] | None:
    """Return (op, (shape, order), elements of one access) for an access to a tile."""
    if isinstance(op, DescriptorLoadOp | DescriptorStoreOp):
        t = op.result.type if isinstance(op, DescriptorLoadOp) else op.value.type
        if not isinstance(t, TileType):
            return None
        order = tuple(reversed(range(len(t.shape))))
        return op, (t.shape, order), facts.max_vector_bytes // t.elem.storage_bytes
    if not isinstance(op, PointerAccess) or not isinstance(op.ptr.type, TileType):
        return None
    order = access_order(axis, near, op, facts.warp_size)
    vec = access_width(axis, op.ptr, op.mask, order[0], facts.max_vector_bytes)
    if _copies_partially(op, facts, num_stages):
        wide = access_width(axis, op.ptr, op.mask, order[0], facts.max_vector_bytes, partial=True)
        if wide > vec and apply("partial-copies", op):
            op.attrs["partial"] = True
            vec = wide
    return op, (op.ptr.type.shape, order), vec


def access_order(
    axis: AxisAnalysis, near: NeighbourPlaces, op: PointerAccess, lanes: int
) -> tuple[int, ...]:
    """Return the dimensions, the one with the longest contiguous addresses first; of equals, the one along which
    lanes access the fewest sectors, or neighbours are nearest, and if that is not known or has no elements for all
    `lanes` of a warp, the last one."""
    contiguity = axis.facts(op.ptr).contiguity
    last = sorted(range(len(contiguity)), key=lambda d: (-contiguity[d], -d))
    is_tie = contiguity.count(contiguity[last[0]]) > 1
    if (costs := near.costs(op.ptr) if is_tie else None) is None:
        return tuple(last)
    nearest = sorted(last, key=lambda d: (-contiguity[d], costs[d]))
    first = nearest[0]
    if first == last[0] or shape_of(op.ptr.type)[first] < lanes:
        return tuple(last)
    return tuple(nearest if apply("nearest-dimension", op) else last)


def access_width(
    axis: AxisAnalysis,
    ptr: Value,
    mask: Value | None,
    dim: int,
    max_bytes: int,
    partial: bool = False,
) -> int:
    """Return how many elements along `dim` one access may move; with `partial` its mask may end within them."""
    size = elem_of(ptr.type).element_ty.storage_bytes
    masked = (prefix_width if partial else AxisAnalysis.mask_width)(axis, mask, dim)
    return max(1, gcd(axis.vector_width(ptr, dim), masked, max_bytes // size))


def _copies_partially(op: PointerAccess, facts: GpuFacts, num_stages: int) -> bool:
    """Whether a load may become a copy ahead of its iteration for dots alone, which zeros do not change."""
    loop = op.parent.parent if op.parent is not None else None
    if not isinstance(op, LoadOp) or not isinstance(loop, ForOp) or not facts.has_cp_async:
        return False
    plain = not op.volatile and (op.other is None or is_zero(op.other))
    return plain and (loop.num_stages or num_stages) > 1 and _feeds_dots(op.result)


def _feeds_dots(v: Value) -> bool:
    users = v.users()
    return bool(users) and all(
        _feeds_dots(x.result) if isinstance(x, TransOp) else isinstance(x, Matmul) for x in users
    )
