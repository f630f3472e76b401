"""Gives the transposition of operands in a loop to a warp role of its own (expand_roles.py), so that the
consumers only multiply.

    consumers, for each i                     consumers                     transpose role
      %t = descriptor_load ...                  wait full[s]                  wait loaded[l], empty[s]
      %x = local_alloc %t                       wgmma %a, ring[s]             %r = local_load loads[l]
      %r = local_load %x                 →      arrive empty[s]               local_store %r -> ring[s]
      %s = local_alloc %r                                                     arrive full[s], free[l]
      wgmma %a, %s, %acc

The transpose role walks through the loops as the producer does. The producer fills a ring of loaded tiles for it,
and it fills a ring of transposed tiles for the consumers. Shared memory is then read and written while MMAs run, and
the consumers' warpgroups need not synchronise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tessera import ops
from tessera.analysis.allocation import scratch_beside
from tessera.analysis.machines import WARPGROUP
from tessera.analysis.provenance import untransposed
from tessera.dtypes import int1
from tessera.ir import Builder, TileType, Value
from tessera.ir.applications import is_enabled
from tessera.layout import LinearLayout
from tessera.passes.gpu_facts import GpuFacts
from tessera.passes.gpu_loops.producer import Needs, Producer, Split, States
from tessera.passes.gpu_loops.rings import SLACK, Ring, copying_ctas, filled_by
from tessera.passes.gpu_loops.warp_roles import WarpRoles, roles_with_transpose
from tessera.passes.neutral.loops import const, only_accumulates

BUFFERS = 3  # of the transposed operand: one written, one read, one being released
FEWEST_STAGES = 2  # a ring of one buffer copies nothing ahead
FEWEST_WARPS = 8  # of consumers: a single warpgroup has none to synchronise with


@dataclass(frozen=True, slots=True)
class Transposition:
    """A tile that is loaded, read to registers and written to shared memory again for an MMA."""

    load: ops.DescriptorLoadOp
    alloc: ops.LocalAllocOp
    read: ops.LocalLoadOp
    transposed: ops.LocalAllocOp
    mma: ops.WgmmaOp
    roles: WarpRoles


def transposed_operand(loop: ops.ForOp) -> ops.LocalAllocOp | None:
    """Return the buffer of a transposed operand, if the loop's only MMA just accumulates over its iterations."""
    mmas = [op for op in loop.walk() if isinstance(op, ops.WgmmaOp)]
    if len(mmas) != 1:
        return None
    mma = mmas[0]
    alloc = mma.right.op
    if not isinstance(alloc, ops.LocalAllocOp) or alloc.parent is not loop.body:
        return None
    if alloc.init is None or not isinstance(alloc.init.op, ops.LocalLoadOp):
        return None
    return alloc if only_accumulates(loop, mma) and len(alloc.result.uses) == 1 else None


def room_for_transposed(
    func: ops.FuncOp, loop: ops.ForOp, transposed: ops.LocalAllocOp, num_warps: int, facts: GpuFacts
) -> bool:
    """Whether the buffers fit beside two stages of the tiles that the loop loads."""
    need = SLACK + BUFFERS * transposed.bytes
    for op in func.walk():
        if isinstance(op, ops.LocalAllocOp) and op is not transposed:
            need += op.bytes * (FEWEST_STAGES if op.parent is loop.body else 1)
    return need + scratch_beside(func.walk(), num_warps, facts) <= facts.max_shared_bytes


def transposition_of(func: ops.FuncOp, num_warps: int, facts: GpuFacts) -> Transposition | None:
    """Return the work of a transpose role in the only loop that loads through tensor maps, if registers are left."""
    if not (is_enabled("transpose-role") and is_enabled("warp-specialize")):
        return None
    loads = [op for op in func.walk() if isinstance(op, ops.DescriptorLoadOp)]
    blocks = {op.parent for op in loads}
    loop = loads[0].parent_op() if len(blocks) == 1 else None
    if not facts.has_tma or num_warps < FEWEST_WARPS or not isinstance(loop, ops.ForOp):
        return None
    transposed = transposed_operand(loop)
    if transposed is None or not room_for_transposed(func, loop, transposed, num_warps, facts):
        return None
    assert transposed.init is not None
    read: Any = transposed.init.op
    alloc: Any = untransposed(read.shared).op
    mma = transposed.result.users()[0]
    load = alloc.init.op if isinstance(alloc, ops.LocalAllocOp) and alloc.init is not None else None
    if not isinstance(load, ops.DescriptorLoadOp) or filled_by(load) is not alloc:
        return None
    if copying_ctas(load, alloc) > 1:  # the transpose roles of all CTAs would have to release it
        return None
    alone = len(alloc.result.uses) == len(read.shared.uses) == len(read.result.uses) == 1
    roles = roles_with_transpose(facts, num_warps, func)
    if not alone or roles is None or not isinstance(mma, ops.WgmmaOp):
        return None
    return Transposition(load, alloc, read, transposed, mma, roles)


class TransposeRole(Producer):
    """Writes the code of the transpose role: the loops around a tile that it transposes from the ring `loaded` to the
    ring `transposed`."""

    def __init__(self, split: Split, needs: Needs, loaded: Ring, transposed: Ring):
        super().__init__(split, needs, [loaded, transposed])
        self.loaded, self.transposed = loaded, transposed

    def fill(self, r: Ring, b: Builder, states: States) -> None:
        """Transpose an iteration's tile at the point where it was read."""
        if r is self.loaded:
            return
        (read,) = self.transposed.loads
        loaded, transposed = self.loaded.tiles, self.transposed.tiles
        slot, to = states[self.loaded][0], states[self.transposed][0]
        loaded.wait_full(b, states[self.loaded])
        (source,) = loaded.views(b, slot)
        view: Any = _shifted_view(b, read.shared, source)
        tile = b.emit(ops.LocalLoadOp(view, results=[_of_fewer_warps(read.result.type)]))
        transposed.wait_empty(b, states[self.transposed])
        (target,) = transposed.views(b, to)
        b.insert(ops.LocalStoreOp(tile, target))
        yes = const(b, True, int1)
        b.insert(ops.MbarrierArriveOp(transposed.full, to, yes, [], proxy=True))
        loaded.release(b, slot, yes)
        for ring in (self.loaded, self.transposed):
            states[ring] = ring.tiles.advance(b, states[ring])


def _of_fewer_warps(t: TileType) -> TileType:
    """Return the type of the tile held by one warpgroup: elements of further warps are in further registers."""
    layout: LinearLayout = t.layout
    kept = WARPGROUP.bit_length() - 1
    warps = layout.columns("warp")
    columns = {
        "register": (*layout.columns("register"), *[c for c in warps[kept:] if c]),
        "lane": layout.columns("lane"),
        "warp": warps[:kept],
    }
    return t.with_layout(LinearLayout.packed(layout.shape, columns))


def drop_loaded(loaded: Ring, view: Value) -> None:
    """Erase what the consumers no longer do with a ring, once `view` is no longer read."""
    _drop_view(view)
    loaded.allocs[0].erase()
    loaded.loads[0].erase()


def _shifted_view(b: Builder, view: Value, root: Value) -> Value:
    """Return the same view (transposes) of another buffer."""
    op = view.op
    if not isinstance(op, ops.LocalTransOp):
        return root
    return b.insert(op.clone({op.x: _shifted_view(b, op.x, root)})).result


def _drop_view(view: Value) -> None:
    """Erase the ops of a view that has no uses left."""
    while isinstance(view.op, ops.SharedView) and not view.uses:
        op = view.op
        view = op.operands[0]
        op.erase()
