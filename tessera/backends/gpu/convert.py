"""Lowers `convert_layout`: registers are renamed, exchanged within warps by shuffles, or go through shared memory.

The plan (layout/convert.py) holds all lanes, registers and addresses as linear maps; here they become instructions.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tessera import layout as layouts
from tessera.analysis.scratch import conversion_plan
from tessera.backends.gpu.access import fixed_place, read, write
from tessera.backends.gpu.lowering import FunctionLowering, lowers
from tessera.backends.gpu.packing import (
    PackedShape,
    from_reg32,
    pack,
    packed_shape,
    to_reg32,
    unpack,
)
from tessera.backends.gpu.types import llvm_type, memory_bits
from tessera.dtypes import int1
from tessera.ir import ElementType, elem_of
from tessera.layout.shuffle import REG32_BITS
from tessera.ops import ConvertLayoutOp


@lowers(ConvertLayoutOp)
def _convert(fl: FunctionLowering, op: ConvertLayoutOp) -> None:
    elem = elem_of(op.x.type)
    plan = conversion_plan(op, fl.target.facts())
    names = fl.get(op.x)
    if isinstance(plan, layouts.Identity):
        fl.set(op.result, names)
    elif isinstance(plan, layouts.RegisterPermute):
        fl.set(op.result, [names[i] for i in plan.sources])
    elif isinstance(plan, layouts.WarpShuffle):
        fl.set(op.result, shuffle(fl, elem, plan, names))
    else:
        fl.set(op.result, exchange(fl, elem, plan, names, op.attrs["scratch"]))


# --- within warps ------------------------------------------------------------------------------------------
def shuffle(
    fl: FunctionLowering, elem: ElementType, plan: layouts.WarpShuffle, names: Sequence[str]
) -> list[str]:
    """The registers after an exchange within each warp."""
    registers = list(names)
    for swap, groups in zip(plan.before, _before(plan), strict=True):
        registers = _swap(fl, elem, swap, registers, groups)
    slots = [""] * len(plan.outputs)
    for step in plan.rounds:
        sent = [registers[i] for i in step.send]
        received = sent if plan.stays(step) else _send(fl, elem, plan, step, sent)
        for slot, name in zip(step.receive, received, strict=True):
            slots[slot] = name
    for swap in plan.after:
        slots = _swap(fl, elem, swap, slots, [step.receive for step in plan.rounds])
    return [slots[i] for i in plan.outputs]


def _before(plan: layouts.WarpShuffle) -> list[list[tuple[int, ...]]]:
    """The registers that each exchange before the shuffles must give, for those after it: what is sent, at the last."""
    needed = [step.send for step in plan.rounds]
    result: list[list[tuple[int, ...]]] = []
    for swap in reversed(plan.before):
        result.insert(0, needed)
        others = [tuple(sorted(i ^ swap.register_xor for i in group)) for group in needed]
        needed = list(dict.fromkeys([*needed, *others]))
    return result


def _swap(
    fl: FunctionLowering,
    elem: ElementType,
    step: layouts.LaneSwap,
    names: list[str],
    groups: Iterable[tuple[int, ...]],
) -> list[str]:
    """Exchange registers r and r ^ register_xor where the parity of some thread bits is odd. `groups`: registers that
    share one of 32 bits in a shuffle, and so a select. Other registers are left out."""
    odd = thread_parity(fl, step.lane_mask | step.warp_mask << 5)
    result = [""] * len(names)
    for group in groups:
        own = [names[i] for i in group]
        other = [names[i ^ step.register_xor] or names[i] for i in group]
        for i, name in zip(group, _chosen(fl, elem, odd, other, own), strict=True):
            result[i] = name
    return result


def _chosen(
    fl: FunctionLowering, elem: ElementType, odd: str, other: list[str], own: list[str]
) -> list[str]:
    """`other` in threads where `odd`, else `own`: narrow numbers by one select of the register that they fill."""
    if other == own:
        return own
    if len(own) * memory_bits(elem) != REG32_BITS or len(own) == 1 or elem is int1:
        t = llvm_type(elem)
        return [o if n == o else _select(fl, t, odd, n, o) for n, o in zip(other, own, strict=True)]
    shape = packed_shape(elem, len(own))
    (there,), (here,) = pack(fl, elem, other, shape), pack(fl, elem, own, shape)
    return unpack(fl, elem, [_select(fl, shape.type, odd, there, here)], shape)


def _select(fl: FunctionLowering, type: str, odd: str, there: str, here: str) -> str:
    """A select, which looks through selects by the same condition: of a pair that was exchanged before, one is sent,
    and the other one is needed as it was."""
    chosen = fl.w.chosen
    there = chosen.get((odd, there), (there, there))[0]
    here = chosen.get((odd, here), (here, here))[1]
    if there == here:
        return here
    name = fl.w.pure(f"select i1 {odd}, {type} {there}, {type} {here}")
    chosen[odd, name] = (there, here)
    return name


def thread_parity(fl: FunctionLowering, mask: int) -> str:
    """i1: an odd number of the masked bits of the thread index is set."""
    w, thread = fl.w, fl.thread
    with w.hoist():
        bits = w.pure(f"and i32 {thread}, {mask}")
        if mask & (mask - 1):
            count = w.call("i32", "llvm.ctpop.i32", [f"i32 {bits}"])
            bits = w.pure(f"and i32 {count}, 1")
        return w.pure(f"icmp ne i32 {bits}, 0")


def _send(
    fl: FunctionLowering,
    elem: ElementType,
    plan: layouts.WarpShuffle,
    step: layouts.ShuffleRound,
    names: list[str],
) -> list[str]:
    """One round: these registers of the lane that the plan names."""
    if len(names) == 1:
        regs = [_shuffled(fl, plan, step, reg) for reg in to_reg32(fl, elem, names[0])]
        return [from_reg32(fl, elem, regs)]
    shape = PackedShape("i32", 32, 1, 32 // memory_bits(elem))
    padded = names + names[:1] * (shape.per_reg - len(names))
    regs = [_shuffled(fl, plan, step, reg) for reg in pack(fl, elem, padded, shape)]
    return unpack(fl, elem, regs, shape)[: len(names)]


def _shuffled(
    fl: FunctionLowering, plan: layouts.WarpShuffle, step: layouts.ShuffleRound, reg: str
) -> str:
    w = fl.w
    if plan.butterfly:
        return fl.target.shuffle_xor(w, reg, step.lane_xor)
    source = fl.thread_sum(fl.thread_columns(plan.source_lane, plan.source_warp))
    with w.hoist():
        lane = w.xor("i32", source or "0", str(step.lane_xor))
    return fl.target.shuffle_index(w, reg, lane)


# --- through shared memory -----------------------------------------------------------------------------------
def exchange(
    fl: FunctionLowering,
    elem: ElementType,
    plan: layouts.SharedExchange,
    names: Sequence[str],
    scratch: int,
) -> list[str]:
    """The registers after a trip through shared memory at byte `scratch`, which is free on entry; before an exchange
    within warps, others of the same warp may still read there."""
    meet = fl.target.warp_barrier if plan.within_warps else fl.target.barrier
    place = fixed_place(fl, scratch)
    # Copies in other lanes are written along: lanes that write one word cost no pass. Whole warps are left out.
    mask = "true"
    if plan.store_warp_free:
        thread = fl.thread
        with fl.w.hoist():
            bits = fl.w.pure(f"and i32 {thread}, {plan.store_warp_free << 5}")
            mask = fl.w.pure(f"icmp eq i32 {bits}, 0")
    out = [""] * len(plan.load_registers)
    for number, step in enumerate(plan.rounds):
        if number or plan.within_warps:
            meet(fl.w)
        write(fl, elem, step.store, place, names, mask)
        meet(fl.w)
        read(fl, elem, step.load, place, out)
    return [out[i] for i in plan.load_registers]
