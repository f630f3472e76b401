"""Expands warp roles (ops/roles.py): one region for each role, with rings of buffers and their barriers between them.

    for i:                                    consumers                     producer
      %t = descriptor_load %d, [%x, i]          for i:                        for i:
      %s = local_alloc %t                         wait full[s], phase           wait empty[s], 1 - phase
      ... %s ...                                  ... ring[s] ...               tensor_copy ring[s] -> full[s]
                                                  arrive empty[s]

`s` runs through a ring of buffers, and `phase` flips at each round; both are carried through all loops around, so that
the producer runs ahead into the next tile of a persistent program while the consumers still store the last one. It
waits for them before loops whose loads may see what the program does before (ordering.py). The producer repeats the
scalars that it needs: bounds, offsets, conditions. A buffer whose MMA runs on into the next iteration, or is late, is
released one iteration later."""

from __future__ import annotations

from tessera import ops
from tessera.analysis.machines import WARPGROUP
from tessera.dtypes import int1
from tessera.errors import IRError
from tessera.ir import Block, Builder, Module, Value
from tessera.ir.applications import Declined
from tessera.passes.gpu_loops.consumers import consume, consume_once
from tessera.passes.gpu_loops.producer import Needs, Producer, Split
from tessera.passes.gpu_loops.producer_acquire import AcquireFlags
from tessera.passes.gpu_loops.rings import Ring, copying_ctas, read_by_mmas, written
from tessera.passes.gpu_loops.shared_scalars import repeat_in_roles
from tessera.passes.gpu_loops.slots import Buffers, mbarriers, rows_of
from tessera.passes.gpu_loops.streams import is_met
from tessera.passes.gpu_loops.transpose_role import TransposeRole, drop_loaded
from tessera.passes.neutral.loops import const, const32


def expand_roles(module: Module, func: ops.FuncOp) -> None:
    """Split a function as its schedule says. Raises IRError if the producer cannot do what is asked of it."""
    attrs = func.attrs
    module.attrs["producer_warps"] = attrs["producer_warps"] + attrs.get("transpose_warps", 0)
    try:
        split = Split(func, written(func))
        if split.ordered:
            flags = AcquireFlags(func.body, split.ordered)
            split = Split(func, written(func))  # the code has changed
            split.acquire.flags = {op: _known(split, op, flag) for op, flag in flags.found.items()}
        _Expansion(split, module.attrs["num_warps"]).run()
    except Declined as reason:
        raise IRError(f"the kernel cannot be split into roles: {reason}") from None


def _known(split: Split, loop: ops.ForOp, flag: Value) -> Value:
    """Return whether the producer must wait for the consumers before a loop: it does if it cannot compute that."""
    known = is_met(Needs, split, [flag])
    return flag if known else const(Builder.before_op(loop), True, int1)


class _Expansion:
    def __init__(self, split: Split, num_warps: int):
        self.split, self.func, self.rings, self.warps = split, split.func, split.rings, num_warps
        attrs = self.func.attrs
        self.producer_warps: int = attrs.pop("producer_warps")
        self.registers = tuple(attrs.pop("role_registers", (0, 0, 0)))
        self.transpose_warps: int = attrs.pop("transpose_warps", 0)
        self.counts: dict[Value, int] = {}  # arrivals by row of barriers

    def run(self) -> None:
        split, func, rings = self.split, self.func, self.rings
        needs = Needs(split)
        rest = [op for op in func.body if op not in split.kept and not isinstance(op, ops.ReturnOp)]
        # Scalars that both roles use come first.
        for op in [op for op in func.body if op in split.kept]:
            op.move_before(rest[0])
        start = Builder.at_start(func.body)  # barriers are initialised early
        for r in rings:
            r.tiles = self._buffers(r, start) if r.first is None else r.first.tiles
        if split.acquire.loops:
            split.acquire.bars = self._barriers(start, 1, "ready", self.warps)
        counts = tuple(self.counts.values())
        start.insert(ops.MbarrierInitOp(list(self.counts), counts=counts, by_producer=True))
        start = Builder.before_op(rest[0])
        loading = [r for r in rings if r.role == "producer"]
        op = ops.WarpSpecializeOp(
            registers=self.registers,
            warps=self.producer_warps,
            transpose_warps=self.transpose_warps,
            ctas=max(r.tiles.ctas for r in rings),
            regions=[Block(), Producer(split, needs, loading).build(start), self._transpose_role(needs, start)],
            loc=func.loc,
        )  # fmt: skip
        start.insert(op)
        for x in rest:
            x.detach()
            op.consumers.append(x)
        Builder(op.consumers).insert(ops.YieldOp([]))
        split.acquire.arrive()
        self._consume(op, const32(Builder.before_op(op), 0))
        repeat_in_roles(op, [x for x in func.body if x in split.kept])

    def _transpose_role(self, needs: Needs, start: Builder) -> Block:
        """Return the code of the transpose role, if there is one."""
        filled = [r for r in self.rings if r.role == "transpose"]
        if filled:
            loaded = next(r for r in self.rings if r.release == "transpose")
            return TransposeRole(self.split, needs, loaded, filled[0]).build(start)
        block = Block()
        Builder(block, None, self.func.loc).insert(ops.YieldOp([]))
        return block

    def _consume(self, op: ops.WarpSpecializeOp, zero: Value) -> None:
        leads: dict[Ring, list[Ring]] = {}
        view = next((r.loads[0].shared for r in self.rings if r.role == "transpose"), None)
        for r in self.rings:
            if r.once:
                consume_once(r, zero)
            elif r.release != "transpose":
                leads.setdefault(r.lead, []).append(r)
        for rings in leads.values():
            consume(rings, op.consumers, zero)
        if view is not None:
            drop_loaded(next(r for r in self.rings if r.release == "transpose"), view)

    def _buffers(self, r: Ring, b: Builder) -> Buffers:
        """Allocate a ring's buffers and barriers. The transpose role has a fence already, for what it writes."""
        ring = Buffers(rows_of(b, r.allocs, r.stages), r.stages)
        ring.groups = r.release == "warpgroup"
        ring.read_by_threads = not (r.of_transpose or read_by_mmas([a.result for a in r.allocs]))
        filling = self.transpose_warps if r.role == "transpose" else 1
        ring.full = self._barriers(b, r.stages, "full", filling)
        if not r.once:
            if r.role == "producer":
                ring.ctas = max(map(copying_ctas, r.loads, r.allocs))
            releasing = {
                "transpose": self.transpose_warps, "warpgroup": self.warps // WARPGROUP, "warp": self.warps,
            }  # fmt: skip
            ring.empty = self._barriers(b, r.stages, "empty", releasing[r.release] * ring.ctas)
        return ring

    def _barriers(self, b: Builder, slots: int, name: str, count: int) -> Value:
        row = mbarriers(b, slots, name, "lasting")
        self.counts[row] = count
        return row
