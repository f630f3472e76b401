"""Turns dots into matrix instructions that the target has, with operands in the instruction's layouts.

    %d = dot %a, %b, %c

becomes, for operands that were loaded from global memory,

    %as = local_alloc %a             right after the load; swizzled, in the order in which memory was read
    %al = local_load %as             in the layout of operand A (ldmatrix)
    %cl = convert_layout %c          in the layout of the accumulator
    %dl = mma %al, %bl, %cl {instruction="mma.m16n8k16.f32.f16.f16"}
        %d  = convert_layout %dl         without a layout: users may take the accumulator's

Operands computed in registers are converted; the accumulator of an earlier MMA becomes operand A without
leaving the thread. Warps are arranged along rows and columns so that each reads little; in chains of MMAs
(attention) all are along the rows, so that reductions along the columns stay inside a warp. fp32 operands are
handled by their precision: rounded to tf32, as sums of parts ("tf32x3", "bf16x3", "bf16x6"), or ("ieee") by FMAs.
In that last case the dot stays, on operands of the accumulator's type."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any, TypeGuard

from tessera import ops
from tessera.dtypes import bfloat16, float16, float32, int32
from tessera.ir import Builder, Module, Op, TileType, Value, elem_of, pass_, shape_of, with_elem
from tessera.ir.applications import apply
from tessera.layout import LinearLayout, mma_acc, mma_operand
from tessera.ops.arith import Elementwise
from tessera.passes.gpu_facts import GpuFacts, MmaRow
from tessera.passes.gpu_layout.computed_operands import computable
from tessera.passes.gpu_layout.mma_operands import (
    Orders,
    computed_order,
    drop_unused,
    inverse,
    loop_between,
    memory_order,
    owner,
    shared_layout,
    shared_view,
    source_of,
)  # fmt: skip
from tessera.passes.gpu_layout.rules import fma_acc, fma_operand, is_pointwise
from tessera.passes.gpu_layout.warpgroup import use_warpgroups, why_no_warpgroups
from tessera.passes.neutral.loops import const
from tessera.passes.neutral.remarks import place_of, remark

# An operand that a loop does not change is kept in at most this many registers of 32 bits, if the thread's results of
# all MMAs in the loop leave room for it.
HELD_OPERAND_REGISTERS = 32
HELD_WITH_RESULTS = 128  # the same together with the registers of the MMA's results
# Up to so many elements of an operand FMAs read from where they were loaded in any case; of more only those that copies
# of 16 bytes bring for this product alone. Others would be copied piece by piece, or be read with bank conflicts.
FEW_ELEMENTS = 128
COPY_BYTES = 16  # of the widest asynchronous copy
TF32_MASK = -(1 << 13)  # the bits of an fp32 number that tf32 keeps
SPLIT_MMAS = {  # parts of a times parts of b, smallest first
    "tf32x3": ((1, 0), (0, 1), (0, 0)),
    "bf16x3": ((1, 0), (0, 1), (0, 0)),
    "bf16x6": ((2, 0), (0, 2), (1, 1), (1, 0), (0, 1), (0, 0)),
}


@dataclass(frozen=True, slots=True)
class Choice:
    """A row, the type to cast operands to first, and how fp32 operands are split into parts ("" = not at all)."""

    row: MmaRow
    cast: Any = None
    split: str = ""


def choose(op: ops.DotOp, facts: GpuFacts) -> Choice | None:
    """Return the matrix instruction for a dot; None if it must be computed by FMAs."""
    a, b, acc = (elem_of(v.type) for v in op.operands)
    k = shape_of(op.a.type)[-1]
    if a is float32 and b is float32:
        if op.precision in ("tf32", "tf32x3"):
            row = facts.find_mma(a, b, acc, k, "tf32")
        elif op.precision in SPLIT_MMAS:
            row = facts.find_mma(bfloat16, bfloat16, acc, k)
        else:
            return None
        return (
            Choice(row, split=op.precision if op.precision in SPLIT_MMAS else "")
            if row is not None
            else None
        )
    row = facts.find_mma(a, b, acc, k)
    if row is not None:
        return Choice(row)
    if a.is_fp8() or b.is_fp8():  # every 8-bit float is an fp16 number
        row = facts.find_mma(float16, float16, acc, k)
        return Choice(row, cast=float16) if row is not None else None
    return None


def _without_instruction(op: ops.DotOp) -> str:
    """Return why no matrix instruction computes a dot."""
    a, b, acc = (elem_of(v.type) for v in op.operands)
    if a is float32 and op.precision == "ieee":
        return 'its precision is "ieee"'
    k = shape_of(op.a.type)[-1]
    return f"no instruction takes {a} and {b} with {k} elements along K, for results of {acc}"


def warps_for(
    m: int, n: int, num_warps: int, chained: bool, tile_m: int, rows_first: bool = False
) -> tuple[int, int]:
    """Arrange warps along M and N so that their parts are nearly square; in a chain of MMAs, along M. `rows_first`:
    along M where both would do."""
    if chained:
        along = min(num_warps, max(1, m // tile_m))
        return along, num_warps // along
    wm = wn = 1
    while wm * wn < num_warps:
        part_m, part_n = m // wm, n // wn
        if part_m > tile_m and (part_m > part_n - rows_first or part_n <= 8):
            wm *= 2
        else:
            wn *= 2
    return wm, wn


@pass_("accelerate")
def accelerate(module: Module, facts: GpuFacts) -> None:
    """Replace dots by the matrix instructions of the target.

    Takes: tile IR after `coalesce`, whose orders of loads it reads; `num_warps`.
    Gives: `wgmma` or `mma`, with operands in shared memory or registers in the instruction's layouts; `dot` stays where
        there is no instruction, on operands of the accumulator's type, with a remark.
    Needs: any GPU (`facts`: its instructions).
    Raises: nothing.
    Example: `half` of tests/filecheck/accelerate.gir
        load; load; dot → load; local_alloc; load; local_alloc; convert_layout; wgmma {instruction=…}; convert_layout
    Compare: Triton `tritongpu-accelerate-matmul`; PTX ISA, "Warp Level Matrix Instructions".
    """
    num_warps: int = module.attrs["num_warps"]
    for func in module.body:
        assert isinstance(func, ops.FuncOp)
        dots = [op for op in func.walk() if isinstance(op, ops.DotOp)]
        chained = _chains(dots)
        for op in dots:
            place = place_of(op)
            if use_warpgroups(op, facts, num_warps, op in chained):
                continue
            choice = choose(op, facts)
            if choice is None:
                remark(
                    module, f"the product{place} is computed by FMAs: {_without_instruction(op)}"
                )
            elif facts.wgmma and (why := why_no_warpgroups(op, facts, num_warps)):
                remark(module, f"the product{place} is of single warps, not of warpgroups: {why}")
            if choice is None or not apply("mma", op):
                _prepare_fma(op)
                _place_operands(op, num_warps, facts.warp_size)
            else:
                _Acceleration(op, choice, num_warps, op in chained).run()


def _chains(dots: list[ops.DotOp]) -> set[Op]:
    """Return dots whose result is, after element-wise work, an operand of another dot, those other dots, and dots that
    add to the sum of one of these."""
    found: set[Op] = set()
    for dot in dots:
        for user in _reached(dot):
            found |= {dot, user}
    for dot in (*dots, *reversed(dots)):
        if isinstance(dot.acc.op, ops.DotOp) and (dot in found or dot.acc.op in found):
            found |= {dot, dot.acc.op}
    return found


def _gives_rows(dot: ops.DotOp) -> bool:
    """Whether the result, behind the loop that adds it up, too, is the first operand of another dot, which takes it
    from its own warp, if warps are along its rows: 16 bits as they are."""
    seen: set[Value] = set()
    work = [dot.result]
    while work:
        v = work.pop()
        if v in seen:
            continue
        seen.add(v)
        for user, index in v.uses:
            if isinstance(user, ops.DotOp):
                if index == 0:
                    return True
            elif is_pointwise(user):
                work.extend(user.results)
            elif isinstance(user, ops.YieldOp) and isinstance(loop := user.parent_op(), ops.ForOp):
                work.append(loop.results[index])
    return False


def _reached(dot: ops.DotOp) -> Iterator[ops.DotOp]:
    seen: set[Op] = set()
    work = [dot.result]
    while work:
        v = work.pop()
        for user, index in v.uses:
            if isinstance(user, ops.DotOp):
                if index < 2 and user is not dot:
                    yield user
            elif user not in seen and is_pointwise(user):
                seen.add(user)
                work.extend(user.results)


def _reads_narrowed(op: Op | None, layout: LinearLayout) -> TypeGuard[ops.CastOp]:
    """Whether an operand is a cast of what is loaded to a narrower type, and warps rather read the wide elements in its
    `layout`, a few of them each, than write the narrow ones to shared memory and read those. Only dots use it."""
    if not isinstance(op, ops.CastOp):
        return False
    source, _ = source_of(op.x)
    wide, narrow = (elem_of(v.type).storage_bits for v in (op.x, op.result))
    if narrow >= wide or not isinstance(source.op, ops.TileLoad):
        return False
    behind = (ops.CastOp, ops.TransOp, ops.LocalAllocOp)
    if not all(isinstance(u, ops.DotOp | ops.TransOp) for u in op.result.users()):
        return False
    copies = prod(layout.size(dim) for dim in layout.in_dims) // prod(layout.shape)
    written = wide + narrow  # what is read for the cast, and written behind it
    return (
        all(isinstance(u, behind) for u in source.users()) and copies * (wide - narrow) <= written
    )


def _prepare_fma(op: ops.DotOp) -> None:
    """Cast the operands to the accumulator's type, the only one in the FMA loop."""
    builder = Builder.before_op(op)
    for i, v in enumerate((op.a, op.b)):
        if elem_of(v.type) != elem_of(op.acc.type):
            op.set_operand(
                i, builder.emit(ops.CastOp(v, results=[with_elem(v.type, elem_of(op.acc.type))]))
            )


def _place_operands(op: ops.DotOp, num_warps: int, lanes: int) -> None:
    """Let FMAs read operands that are loaded from the shared memory that the loads fill, as MMAs do: copies then run
    ahead, and nothing goes through registers to scratch memory."""
    found = [source_of(v) for v in (op.a, op.b)]
    acc, depth = fma_acc(shape_of(op.acc.type), num_warps, lanes), shape_of(op.a.type)[-1]
    layouts = [fma_operand(acc, depth, index) for index in (0, 1)]
    few = all(layout.size("register") <= FEW_ELEMENTS for layout in layouts)
    loaded = all(isinstance(source.op, ops.TileLoad) for source, _ in found)
    loaded = loaded and (few or all(_is_copied_for(op, source) for source, _ in found))
    if not loaded or not apply("fma-in-place", op):
        return
    values = [op.a, op.b]
    for index, ((source, orders), layout) in enumerate(zip(found, layouts, strict=True)):
        view = _buffer(source, orders, layout)
        read = ops.LocalLoadOp(view, results=[values[index].type.with_layout(layout)])
        op.set_operand(index, Builder.before_op(op).emit(read))
    op.in_place = True
    for v in values:
        drop_unused(v)


def _is_copied_for(dot: ops.DotOp, source: Value) -> bool:
    """Whether copies of 16 bytes bring a loaded tile, and nothing else reads it."""
    load, users = source.op, source.users()
    while len(users) == 1 and isinstance(users[0], ops.TransOp):
        users = users[0].result.users()
    assert isinstance(load, ops.TileLoad)
    layout: LinearLayout | None = load.attrs.get("layout")
    if layout is None:  # of the TMA unit
        return users == [dot]
    fastest = memory_order(load)[0]
    bits = [b[fastest] for b in layout.bases("register")]
    run = next((i for i, b in enumerate(bits) if b != 1 << i), len(bits))
    return users == [dot] and elem_of(source.type).storage_bytes << run >= COPY_BYTES


def _buffer(source: Value, orders: Orders, layout: LinearLayout) -> Value:
    """Return a view of the shared memory that a tile is written to where it is made, which is read in `layout`."""
    reader = layout
    for order in orders:
        reader = reader.trans(inverse(order))
    loaded = source.op if isinstance(source.op, ops.TileLoad) else None
    # The TMA unit only has its own swizzles.
    rotatable = loaded is None or isinstance(loaded, ops.LoadOp)
    order = computed_order(source) if loaded is None else memory_order(loaded)
    order = order or tuple(reversed(range(len(shape_of(source.type)))))
    place = shared_layout(source.type, order, reader, rotatable)
    return shared_view(source, orders, place, exact=False)


class _Acceleration:
    """Rewrites one dot."""

    def __init__(self, op: ops.DotOp, choice: Choice, num_warps: int, chained: bool):
        self.op, self.choice, self.row = op, choice, choice.row
        self.shape = shape_of(op.acc.type)
        batch = self.shape[0] if len(self.shape) == 3 else 1
        self.wb = min(num_warps, batch)
        rows, cols = self.shape[-2:]
        gives = _gives_rows(op)
        self.wm, self.wn = warps_for(rows, cols, num_warps // self.wb, chained, self.row.m, gives)
        self.builder = Builder.before_op(op)

    def run(self) -> None:
        op, b = self.op, self.builder
        acc_layout = mma_acc(self.shape, self.wm, self.wn, instr_m=self.row.m, warps_b=self.wb)
        acc = b.emit(ops.ConvertLayoutOp(op.acc, results=[op.acc.type.with_layout(acc_layout)]))
        parts = [self._parts(v, i) for i, v in enumerate((op.a, op.b))]
        for i, j in SPLIT_MMAS.get(self.choice.split, ((0, 0),)):
            acc = b.emit(ops.MmaOp(parts[0][i], parts[1][j], acc, instruction=self.row.name))
        acc.name = op.result.name
        out = b.emit(ops.ConvertLayoutOp(acc, results=[acc.type.with_layout(None)]))
        sources = [op.a, op.b]
        op.replace_by([out])
        for v in sources:
            drop_unused(v)

    def _parts(self, v: Value, index: int) -> list[Value]:
        """Return operand `index` in its layout, split as the precision says (most significant part first)."""
        if self.choice.cast is not None and elem_of(v.type) != self.choice.cast:
            v = self.builder.emit(ops.CastOp(v, results=[with_elem(v.type, self.choice.cast)]))
        layout = mma_operand(
            shape_of(v.type), index, self.row.operand_bits, self.wm, self.wn, warps_b=self.wb
        )
        x = self._place(v, layout)
        if self.choice.split == "tf32x3":
            return _split_tf32(self.builder, x)
        if self.choice.split:
            return _split_bf16(self.builder, x, 3 if self.choice.split == "bf16x6" else 2)
        return [x]

    def _results(self, loop: Op) -> int:
        """Return how many registers of a thread the results of all MMAs in a loop take."""
        mmas: list[Any] = [
            op.result.type for op in loop.walk() if isinstance(op, ops.DotOp | ops.MmaOp)
        ]
        threads = 32 * self.wm * self.wn * self.wb
        return sum(t.numel * t.elem.bits // 32 // threads for t in mmas)

    def _place(self, v: Value, layout: LinearLayout) -> Value:
        """Return `v` in `layout`: through shared memory if it was loaded, or if a loop does not change it and there are
        no registers for it; else by a conversion."""
        source, orders = source_of(v)
        result = v.type.with_layout(layout)
        made = source.op
        loop = loop_between(self.op, made) if made is not None else None
        # What a loop does not change is not cast in each of its iterations.
        if loop is None and _reads_narrowed(made, layout) and apply("operand-casts", made):
            return self._compute(v, layout)
        if computable(self.op, v, layout) and apply("computed-operands", self.op):
            return self._compute(v, layout)
        again = loop is not None and not self._holds(loop, v, layout)
        loaded = isinstance(made, ops.TileLoad)
        if not loaded and not (again and apply("shared-operands", made)):
            return self.builder.emit(ops.ConvertLayoutOp(v, results=[result]))
        view = _buffer(source, orders, layout)
        if loop is None or again:
            return self.builder.emit(ops.LocalLoadOp(view, results=[result]))
        last = owner(view)
        while isinstance(
            last.next, ops.LocalLoadOp
        ):  # another dot may hold the same operand already
            last = last.next
            if last.shared is view and last.result.type == result:
                return last.result
        return Builder.after_op(owner(view)).emit(ops.LocalLoadOp(view, results=[result]))

    def _compute(self, v: Value, layout: LinearLayout) -> Value:
        """Compute an operand in `layout` from what is loaded."""
        source, orders = source_of(v)
        made, result = source.op, v.type.with_layout(layout)
        if isinstance(made, ops.TileLoad):
            view = _buffer(source, orders, layout)
            return self.builder.emit(ops.LocalLoadOp(view, results=[result]))
        if not isinstance(made, Elementwise):
            return self.builder.emit(ops.ConvertLayoutOp(v, results=[result]))
        operands = dict.fromkeys(made.operands)
        found = {x: self._compute(self._turned(x, orders), layout) for x in operands}
        new = self.builder.insert(made.clone(found)).results[0]
        new.type = result
        return new

    def _holds(self, loop: Op, v: Value, layout: LinearLayout) -> bool:
        """Whether an operand that a loop does not change is kept in registers."""
        reg32 = layout.size("register") * elem_of(v.type).storage_bits // 32
        return reg32 <= HELD_OPERAND_REGISTERS and reg32 + self._results(loop) <= HELD_WITH_RESULTS

    def _turned(self, v: Value, orders: Orders) -> Value:
        for order in reversed(orders):
            shape = tuple([shape_of(v.type)[d] for d in order])
            v = self.builder.emit(
                ops.TransOp(v, order=order, results=[TileType(shape, elem_of(v.type))])
            )
        return v


# --- fp32 numbers as sums -----------------------------------------------------------------------------------
def _split_tf32(b: Builder, x: Value) -> list[Value]:
    """x = high + low; both survive rounding to tf32 but for bits below 2^-22 of x."""
    bits_type: TileType = with_elem(x.type, int32)
    mask = const(b, TF32_MASK, bits_type)
    bits = b.emit(ops.BitcastOp(x, results=[bits_type]))
    high = b.emit(ops.BitcastOp(b.emit(ops.AndOp(bits, mask)), results=[x.type]))
    return [high, b.emit(ops.SubOp(x, high))]


def _split_bf16(b: Builder, x: Value, count: int) -> list[Value]:
    """x = sum of `count` bf16 numbers, each the rounding of what the earlier ones leave."""
    parts: list[Value] = []
    narrow, wide = with_elem(x.type, bfloat16), x.type
    for i in range(count):
        parts.append(b.emit(ops.CastOp(x, results=[narrow])))
        if i + 1 < count:
            x = b.emit(ops.SubOp(x, b.emit(ops.CastOp(parts[-1], results=[wide]))))
    return parts
