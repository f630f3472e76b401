"""Lowers dots to matrix instructions of warpgroups (four warps), which read their operands from shared memory.

    %d = dot %a, %b, %c      →      %dl = wgmma %as, %bs, %cl        %as, %bs: swizzled shared memory

The first operand may come from registers: one that was computed there (the weights of attention) stays there.
Only 16-bit elements may be in shared memory in either order; of other types the instruction reads rows along K. An
operand that is contiguous along M or N then also comes from registers, as the first one:

    a along K,  b along N                 dᵀ = bᵀ aᵀ: wgmma {transposed} %as, (local_load %bs), %cl
    a along M,  b along K                 wgmma (local_load %as), %bs, %cl
        a along M,  b along N                 either: the smaller operand goes through registers to a buffer along K

The rows of the tile that become rows of the instruction are chosen so that these reads have no bank conflicts
(layout/mma.py). Here every MMA waits for its result; the pipeline lets the MMAs of a loop run on into the next
iteration where it can."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

from tessera.analysis.machines import REGISTER_GRAIN, WARPGROUP
from tessera.dtypes import float32
from tessera.ir import Builder, SharedType, Value, elem_of, shape_of
from tessera.ir.applications import apply, is_enabled
from tessera.layout import (
    LinearLayout,
    operand_depth,
    operand_rows,
    reordered,
    shared_swizzled,
    wgmma_acc,
    wgmma_operand_a,
    widest_swizzle,
)
from tessera.ops import ConvertLayoutOp, DotOp, LocalAllocOp, LocalLoadOp, TileLoad, WgmmaOp
from tessera.passes.gpu_facts import GpuFacts, WgmmaRow
from tessera.passes.gpu_layout.mma_operands import (
    computed_order,
    drop_unused,
    memory_order,
    shared_view,
    source_of,
    transposed,
)

ROWS = 64  # of one instruction
MIN_COLUMNS = 8  # of one instruction (PTX, wgmma shapes)
ACC_REG32 = (
    208  # registers of accumulators beyond which a thread has no room left to work (tools/fit)
)
INSTRUCTION_WORK = (
    26  # registers that ptxas wants beside those of the accumulators of one instruction
)
MOST_GROUPS = 4  # warpgroups up to which a CTA may get a producer
SWIZZLES = (128, 64, 32)
NEAR = 4  # bits of a column whose permutation keeps adjacent results of a warp adjacent
Rows = tuple[int, ...]


def use_warpgroups(op: DotOp, facts: GpuFacts, num_warps: int, chained: bool) -> bool:
    """Replace the dot if an instruction of warpgroups can do it. `chained`: its operands or its result are those of
    other MMAs, which must use the same rows."""
    if num_warps % WARPGROUP or len(shape_of(op.acc.type)) != 2:
        return False
    found = [
        plan
        for transposed in ((False,) if chained else (False, True))
        if (plan := _plan(op, facts, num_warps // WARPGROUP, transposed)) is not None
    ]
    if not found or not apply("wgmma", op):
        return False
    _Rewriting(op, min(found, key=lambda plan: plan.transposed_bytes)).run()
    return True


def why_no_warpgroups(op: DotOp, facts: GpuFacts, num_warps: int) -> str:
    """Return why `use_warpgroups` has left a dot; "" if that is no matter of the kernel."""
    rows, cols = shape_of(op.acc.type)[-2:]
    if num_warps % WARPGROUP:
        return f"{num_warps} warps are no warpgroups, of four warps each"
    if len(shape_of(op.acc.type)) != 2:
        return "it is a product of batches"
    if max(rows, cols) < ROWS:
        return f"its tile is {rows}x{cols}, an instruction has {ROWS} rows"
    a, b, acc = (elem_of(v.type) for v in op.operands)
    groups, k = num_warps // WARPGROUP, shape_of(op.a.type)[-1]
    tf32 = "tf32" if a is float32 else ""
    if (tf32 and op.precision != "tf32") or facts.find_wgmma(a, b, acc, k, tf32) is None:
        return f"no instruction takes {a} and {b} with {k} elements along K, for results of {acc}"
    registers = rows * cols // (groups * WARPGROUP * facts.warp_size)
    if registers > min(ACC_REG32, _registers(facts, groups) - INSTRUCTION_WORK):
        return f"its results take {registers} registers of a thread"
    return (
        ""
        if _plan(op, facts, groups, False)
        else "its operands do not fill a swizzle of shared memory"
    )


@dataclass(frozen=True, slots=True)
class Plan:
    """How a dot is computed: by which row, whether as dᵀ = bᵀ aᵀ, and over how many warpgroups along rows and columns;
    and the bytes of the second operand if it must be transposed first."""

    row: WgmmaRow
    transposed: bool
    warpgroups: tuple[int, int]
    transposed_bytes: int


def _plan(op: DotOp, facts: GpuFacts, groups: int, transposed: bool) -> Plan | None:
    a, b = (_Operand(op.a, 1), _Operand(op.b, 0))
    left, right = (b, a) if transposed else (a, b)
    rows, cols = (v.shape[1 - v.depth] for v in (left, right))
    if rows < ROWS:
        return None
    along_m, along_n = _warpgroups(rows, groups)
    reg32 = prod((rows, cols)) // (groups * 128)
    room = min(ACC_REG32, _registers(facts, groups) - INSTRUCTION_WORK)
    if rows % (ROWS * along_m) or cols // along_n < MIN_COLUMNS or reg32 > room:
        return None
    tf32 = "tf32" if left.elem is float32 else ""
    if tf32 and op.precision != "tf32":
        return None
    row = facts.find_wgmma(
        left.elem, right.elem, elem_of(op.acc.type), left.shape[left.depth], tf32
    )
    if row is None or not (left.fits(1) and right.fits(along_n if right.direct(row) else 1)):
        return None
    size = 0 if right.direct(row) else prod(right.shape) * right.elem.storage_bytes
    return Plan(row, transposed, (along_m, along_n), size)


def _registers(facts: GpuFacts, groups: int) -> int:
    """Return the registers of each thread, beside a producer of four warps if the CTA is small enough for one."""
    groups += groups <= MOST_GROUPS
    return (
        facts.register_file
        // (groups * WARPGROUP * facts.warp_size)
        // REGISTER_GRAIN
        * REGISTER_GRAIN
    )


def _warpgroups(rows: int, groups: int) -> tuple[int, int]:
    """Return the warpgroups (along M, along N), each with at least 64 rows."""
    along_m = min(groups, rows // ROWS)
    return along_m, groups // along_m


class _Operand:
    """One operand of a dot: `depth` is its dimension K, `order` its order in shared memory, where it is or would be.
    `is_transposed`: it is the transpose of a tile in registers, which is written as it is and read transposed."""

    def __init__(self, v: Value, depth: int):
        self.value, self.depth = v, depth
        self.shape, self.elem = shape_of(v.type), elem_of(v.type)
        self.source, self.orders = source_of(v)
        self.loaded = isinstance(self.source.op, TileLoad)
        self.order: tuple[int, ...] = (depth, 1 - depth)
        self.is_transposed = not self.loaded and self.elem.bits == 16 and bool(self.orders)
        if isinstance(self.source.op, TileLoad):
            self.order = memory_order(self.source.op)
        elif self.elem.bits == 16:
            self.order = _written_order(self.source)
        if self.loaded or self.is_transposed:
            for permutation in reversed(self.orders):
                self.order = tuple([permutation.index(d) for d in self.order])

    def direct(self, row: WgmmaRow) -> bool:
        """Whether the instruction can read it from shared memory."""
        return self.order[0] == self.depth or row.transposable

    def fits(self, parts: int) -> bool:
        """Whether rows fill a swizzle, and the parts for several warpgroups begin at whole rows of the swizzle."""
        bits = self.elem.storage_bits
        width = widest_swizzle(self.shape, self.order, bits)
        if width not in SWIZZLES or self.shape[self.order[1]] < 8:
            return False
        return (
            self.order[0] == self.depth or self.shape[self.order[0]] // parts * bits // 8 >= width
        )

    def shared(self, b: Builder) -> Value:
        """Return a view of it in shared memory in the hardware's swizzle."""
        if isinstance(self.source.op, TileLoad):
            layout = _swizzled(self.source.type, memory_order(self.source.op))
            return shared_view(self.source, self.orders, layout, exact=True)
        if self.is_transposed:
            return transposed(self.stored(b, self.source, _written_order(self.source)), self.orders)
        return self.stored(b, self.value, self.order)

    def stored(
        self, b: Builder, tile: Value, order: tuple[int, ...], orders: tuple[Rows, ...] = ((), ())
    ) -> Value:
        """Return a buffer filled with a tile from registers; `orders` are those of its rows and columns there."""
        layout = reordered(_swizzled(tile.type, order), orders)
        shared = SharedType(tile.type.shape, tile.type.elem, layout)
        return b.emit(LocalAllocOp(tile, results=[shared], names=[tile.name]))


class _Rewriting:
    """Rewrites one dot."""

    def __init__(self, op: DotOp, plan: Plan):
        self.op, self.plan, self.row = op, plan, plan.row
        self.b = Builder.before_op(op)
        a, b = (_Operand(op.a, 1), _Operand(op.b, 0))
        self.left, self.right = (b, a) if plan.transposed else (a, b)
        self.depth: Rows = ()
        self.columns: Rows = ()

    def run(self) -> None:
        op, plan = self.op, self.plan
        if plan.transposed_bytes:
            self._choose_orders()
        right = self._transposed() if plan.transposed_bytes else self.right.shared(self.b)
        left, rows = self._left()
        acc = self.b.emit(ConvertLayoutOp(op.acc, results=[self._accumulators(rows)]))
        a, b = (right, left) if plan.transposed else (left, right)
        mma = WgmmaOp(
            a, b, acc, instruction=self.row.name, warpgroups=plan.warpgroups,
            transposed=plan.transposed, depth=self.depth, columns=self.columns,
        )  # fmt: skip
        acc = self.b.emit(mma)
        acc.name = op.result.name
        sources = [op.a, op.b]
        op.replace_by([self.b.emit(ConvertLayoutOp(acc, results=[acc.type.with_layout(None)]))])
        for v in sources:
            drop_unused(v)

    def _accumulators(self, rows: tuple[int, ...]) -> Any:
        t, (along_m, along_n) = self.op.acc.type, self.plan.warpgroups
        shape: Any = (t.shape[1], t.shape[0]) if self.plan.transposed else t.shape
        n = min(shape[1] // along_n, self.row.max_n)
        layout = wgmma_acc(shape, along_m, n, warpgroups_n=along_n, rows=rows, columns=self.columns)
        return t.with_layout(layout.trans((1, 0)) if self.plan.transposed else layout)

    def _left(self) -> tuple[Value, tuple[int, ...]]:
        """Return the first operand, and which rows of the tile are rows of the instruction."""
        v = self.left
        if v.loaded and v.direct(self.row):
            return v.shared(self.b), ()
        if v.is_transposed:  # it would go through shared memory to other threads anyway
            return v.shared(self.b), ()
        if not v.loaded:
            held = v.value.type.with_layout(self._held(v, ()))
            return self.b.emit(ConvertLayoutOp(v.value, results=[held])), ()
        view = v.shared(self.b)
        rows = self._rows(v, view)
        held = v.value.type.with_layout(self._held(v, rows))
        return self.b.emit(LocalLoadOp(view, results=[held])), rows

    def _rows(self, v: _Operand, view: Value) -> tuple[int, ...]:
        layout: LinearLayout = view.type.layout
        return operand_rows(layout if v.depth == 1 else layout.trans((1, 0)), v.elem.storage_bits)

    def _held(self, v: _Operand, rows: tuple[int, ...]) -> LinearLayout:
        """Return the layout of an operand that is the first one, in registers."""
        shape: Any = v.shape if v.depth == 1 else (v.shape[1], v.shape[0])
        along_m, along_n = self.plan.warpgroups
        layout = wgmma_operand_a(
            shape, along_m, v.elem.bits, warpgroups_n=along_n, rows=rows, depth=self.depth
        )
        return layout if v.depth == 1 else layout.trans((1, 0))

    def _choose_orders(self) -> None:
        """If both operands are read to registers, choose the order of K and of the columns that suits these reads."""
        left, right = self.left, self.right
        if not left.loaded or left.direct(self.row) or right.shape[1 - right.depth] < ROWS:
            return
        view: LinearLayout = left.shared(self.b).type.layout
        by_rows = view if left.depth == 1 else view.trans((1, 0))
        self.depth = operand_depth(by_rows, left.elem.storage_bits)
        columns = self._rows(right, right.shared(self.b))
        if max(columns[:NEAR]) < NEAR:
            self.columns = columns

    def _transposed(self) -> Value:
        """Read the second operand to registers as if it were the first, and write it to another buffer along K."""
        v, tile = self.right, self.right.value
        shape: Any = v.shape if v.depth == 1 else (v.shape[1], v.shape[0])
        if shape[0] >= ROWS:
            view, groups = v.shared(self.b), prod(self.plan.warpgroups)
            along_m, along_n = _warpgroups(shape[0], groups)
            layout = wgmma_operand_a(
                shape, along_m, v.elem.bits, warpgroups_n=along_n,
                rows=self._rows(v, view), depth=self.depth,
            )  # fmt: skip
            held = tile.type.with_layout(layout if v.depth == 1 else layout.trans((1, 0)))
            tile = self.b.emit(LocalLoadOp(view, results=[held]))
        v.order = (v.depth, 1 - v.depth)
        orders = (self.columns, self.depth) if v.depth == 1 else (self.depth, self.columns)
        return v.stored(self.b, tile, v.order, orders)


def _written_order(v: Value) -> tuple[int, ...]:
    """Return the order in which a tile of 16-bit elements is written from registers: the one that its threads hold
    neighbours in."""
    known = computed_order(v) if is_enabled("operand-order") else None
    return known if known is not None and apply("operand-order", v.op) else (1, 0)


def _swizzled(t: Any, order: tuple[int, ...]) -> LinearLayout:
    bits = t.elem.storage_bits
    return shared_swizzled(t.shape, order, bits, widest_swizzle(t.shape, order, bits))
