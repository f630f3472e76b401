"""A model of one CTA's registers and shared memory that carries out conversion plans on element numbers."""

from __future__ import annotations

import numpy as np

from tessera.layout import (
    Access,
    Identity,
    LaneSwap,
    LinearLayout,
    MatrixAccess,
    Plan,
    RegisterPermute,
    SharedExchange,
    VectorAccess,
    WarpShuffle,
    apply,
    parity,
)


def fill(layout: LinearLayout) -> np.ndarray:
    """Element number in [warp, lane, register]."""
    sizes = [layout.size(name) for name in ("warp", "lane", "register")]
    state = np.empty(sizes, dtype=np.int64)
    for warp in range(sizes[0]):
        for lane in range(sizes[1]):
            for register in range(sizes[2]):
                state[warp, lane, register] = layout.apply_flat(
                    {"warp": warp, "lane": lane, "register": register}
                )
    return state


def run(plan: Plan, state: np.ndarray, elem_bits: int) -> np.ndarray:
    """Registers after the plan, in [warp, lane, register]."""
    if isinstance(plan, Identity):
        return state
    if isinstance(plan, RegisterPermute):
        return state[:, :, list(plan.sources)]
    if isinstance(plan, WarpShuffle):
        return np.stack([_shuffle(plan, state[w], w, elem_bits) for w in range(state.shape[0])])
    return _exchange(plan, state, elem_bits)


def _swap(swaps: tuple[LaneSwap, ...], registers: np.ndarray, warp: int) -> np.ndarray:
    for swap in swaps:
        exchanged = registers[:, np.arange(registers.shape[1]) ^ swap.register_xor]
        for lane in range(registers.shape[0]):
            if parity(lane & swap.lane_mask) ^ parity(warp & swap.warp_mask):
                registers[lane] = exchanged[lane]
    return registers


def _shuffle(plan: WarpShuffle, state: np.ndarray, warp: int, elem_bits: int) -> np.ndarray:
    registers = _swap(plan.before, state.copy(), warp)
    lanes = registers.shape[0]
    slots = np.full((lanes, len(plan.outputs)), -1, dtype=np.int64)
    own = [apply(plan.source_lane, lane) ^ apply(plan.source_warp, warp) for lane in range(lanes)]
    for step in plan.rounds:
        assert len(step.send) == len(step.receive) <= max(1, 32 // elem_bits)
        sources = [lane ^ step.lane_xor for lane in own]
        if plan.stays(step):
            assert sources == list(range(lanes))
        for send, receive in zip(step.send, step.receive, strict=True):
            slots[:, receive] = registers[sources, send]
    return _swap(plan.after, slots, warp)[:, list(plan.outputs)]


def address(access: Access, lane: int, warp: int, offset: int) -> int:
    """Element offset as the lowering computes it: XOR within the thread's mask, addition outside of it."""
    base = apply(access.lane, lane) ^ apply(access.warp, warp)
    mask = access.thread_mask
    return (base ^ (offset & mask)) + (offset & ~mask)


def transfers(access: Access, lane: int, warp: int, elem_bits: int) -> list[list[tuple[int, int]]]:
    """For each group the (register, element offset) pairs that a thread moves, by the rules of the PTX ISA."""
    if isinstance(access, VectorAccess):
        moved: list[list[tuple[int, int]]] = []
        for group in access.groups:
            base = address(access, lane, warp, group.offset)
            assert base % access.vec == 0 and len(group.registers) == access.vec
            moved.append([(r, base + i) for i, r in enumerate(group.registers)])
        return moved
    return [_matrix(access, g, lane, warp, elem_bits) for g in range(len(access.groups))]


def _matrix(
    access: MatrixAccess, number: int, lane: int, warp: int, elem_bits: int
) -> list[tuple[int, int]]:
    group = access.groups[number]
    width = 32 // elem_bits
    moved: list[tuple[int, int]] = []
    assert len(group.reg32) == access.count
    flip = 0
    for bit, mask in access.flips:
        flip ^= mask if lane >> bit & 1 else 0
    for matrix in range(access.count):
        registers = group.reg32[matrix ^ flip]
        rows = [address(access, 8 * matrix + row, warp, group.offset) for row in range(8)]
        assert all(row * elem_bits % 128 == 0 for row in rows)
        assert len(registers) == width
        if access.trans:
            per = width // 2  # elements of 16 bits
            cells = [(2 * (lane & 3) + i // per, per * (lane >> 2) + i % per) for i in range(width)]
        else:
            cells = [(lane >> 2, width * (lane & 3) + i) for i in range(width)]
        moved += [(r, rows[i] + j) for r, (i, j) in zip(registers, cells, strict=True)]
    return moved


def _exchange(plan: SharedExchange, state: np.ndarray, elem_bits: int) -> np.ndarray:
    warps, lanes, _ = state.shape
    result = np.full((warps, lanes, len(plan.load_registers)), -1, dtype=np.int64)
    for step in plan.rounds:
        memory = np.full(plan.bytes * 8 // max(8, elem_bits), -1, dtype=np.int64)
        owner = np.full(memory.size, -1)
        for warp in range(warps):
            for lane in range(lanes):
                copies = (lane & plan.store_lane_free) or (warp & plan.store_warp_free)
                if copies and not plan.stmatrix:
                    continue
                for group in transfers(step.store, lane, warp, max(8, elem_bits)):
                    for register, offset in group:
                        memory[offset] = state[warp, lane, register]
                        assert not plan.within_warps or owner[offset] in (-1, warp)
                        owner[offset] = warp
        for warp in range(warps):
            for lane in range(lanes):
                for group in transfers(step.load, lane, warp, max(8, elem_bits)):
                    for register, offset in group:
                        result[warp, lane, register] = memory[offset]
                        assert not plan.within_warps or owner[offset] == warp
    return result[:, :, list(plan.load_registers)]
