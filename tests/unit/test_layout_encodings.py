"""Named encodings against the formulas of the PTX ISA, written here independently as loops over lanes and registers."""

from __future__ import annotations

import itertools

import pytest

from tessera.layout import (
    LayoutError,
    LinearLayout,
    blocked,
    default_blocked,
    mma_acc,
    mma_operand,
    wgmma_acc,
    wgmma_operand_a,
)

LANES = range(32)


def at(layout: LinearLayout, register: int, lane: int, warp: int = 0) -> tuple[int, ...]:
    return layout.apply({"register": register, "lane": lane, "warp": warp})


# PTX ISA, "Matrix Fragments for mma.m16n8k*": (row, column) of element i of a lane.


def isa_a_16bit(lane: int, i: int) -> tuple[int, int]:
    group, member = lane >> 2, lane % 4
    row = group if 0 <= i < 2 or 4 <= i < 6 else group + 8
    column = member * 2 + (i & 1) if i < 4 else member * 2 + (i & 1) + 8
    return row, column


def isa_b_16bit(lane: int, i: int) -> tuple[int, int]:
    group, member = lane >> 2, lane % 4
    return (member * 2 + (i & 1) if i < 2 else member * 2 + (i & 1) + 8), group


def isa_a_8bit(lane: int, i: int) -> tuple[int, int]:
    group, member = lane >> 2, lane % 4
    row = group if 0 <= i < 4 or 8 <= i < 12 else group + 8
    column = member * 4 + (i & 3) if i < 8 else member * 4 + (i & 3) + 16
    return row, column


def isa_b_8bit(lane: int, i: int) -> tuple[int, int]:
    group, member = lane >> 2, lane % 4
    return (member * 4 + (i & 3) if i < 4 else member * 4 + (i & 3) + 16), group


def isa_a_tf32(lane: int, i: int) -> tuple[int, int]:
    group, member = lane >> 2, lane % 4
    return (group if i in (0, 2) else group + 8), (member if i in (0, 1) else member + 4)


def isa_b_tf32(lane: int, i: int) -> tuple[int, int]:
    group, member = lane >> 2, lane % 4
    return (member if i == 0 else member + 4), group


def isa_acc(lane: int, i: int) -> tuple[int, int]:
    group, member = lane >> 2, lane % 4
    return (group if i < 2 else group + 8), member * 2 + (i & 1)


@pytest.mark.parametrize(
    ("layout", "formula", "count"),
    [
        (mma_operand((16, 16), 0, 16, 1, 1), isa_a_16bit, 8),
        (mma_operand((16, 8), 1, 16, 1, 1), isa_b_16bit, 4),
        (mma_operand((16, 32), 0, 8, 1, 1), isa_a_8bit, 16),
        (mma_operand((32, 8), 1, 8, 1, 1), isa_b_8bit, 8),
        (mma_operand((16, 8), 0, 32, 1, 1), isa_a_tf32, 4),
        (mma_operand((8, 8), 1, 32, 1, 1), isa_b_tf32, 2),
        (mma_acc((16, 8), 1, 1), isa_acc, 4),
        (mma_operand((8, 4), 0, 64, 1, 1), lambda lane, i: (lane >> 2, lane % 4), 1),
        (mma_operand((4, 8), 1, 64, 1, 1), lambda lane, i: (lane % 4, lane >> 2), 1),
        (mma_acc((8, 8), 1, 1, instr_m=8), lambda lane, i: (lane >> 2, lane % 4 * 2 + i), 2),
    ],
    ids=["a16", "b16", "a8", "b8", "atf32", "btf32", "acc", "a64", "b64", "acc64"],
)
def test_instruction_fragments(layout: LinearLayout, formula, count: int) -> None:
    assert layout.size("register") == count and layout.is_bijective()
    for lane, i in itertools.product(LANES, range(count)):
        assert at(layout, i, lane) == formula(lane, i)


@pytest.mark.parametrize("elem_bits", [8, 16, 32, 64])
def test_operands_repeat_the_instruction(elem_bits: int) -> None:
    """Register r + count * (repetition) is the fragment shifted by whole instructions: K first, then M or N."""
    depth = 256 // elem_bits if elem_bits < 64 else 4
    rows = 16 if elem_bits < 64 else 8
    a = mma_operand((4 * rows, 2 * depth), 0, elem_bits, 2, 2)
    single = mma_operand((rows, depth), 0, elem_bits, 1, 1)
    count = single.size("register")
    for lane, register, warp in itertools.product(LANES, range(a.size("register")), range(4)):
        repeat, i = divmod(register, count)
        row, column = at(single, i, lane)
        row += rows * (warp & 1) + 2 * rows * (repeat >> 1)
        assert at(a, register, lane, warp) == (row, column + depth * (repeat & 1))
    b = mma_operand((2 * depth, 32), 1, elem_bits, 2, 2)
    single = mma_operand((depth, 8), 1, elem_bits, 1, 1)
    count = single.size("register")
    for lane, register, warp in itertools.product(LANES, range(b.size("register")), range(4)):
        repeat, i = divmod(register, count)
        row, column = at(single, i, lane)
        column += 8 * (repeat >> 1) + 16 * (warp >> 1)
        assert at(b, register, lane, warp) == (row + depth * (repeat & 1), column)


def test_accumulators_of_warps() -> None:
    acc = mma_acc((64, 32), 2, 2)
    assert acc.is_bijective()
    for lane, register, warp in itertools.product(LANES, range(16), range(4)):
        row, column = isa_acc(lane, register & 3)
        row += 16 * (warp & 1) + 32 * (register >> 3)
        column += 8 * (register >> 2 & 1) + 16 * (warp >> 1)
        assert at(acc, register, lane, warp) == (row, column)


def test_operand_and_accumulator_agree_on_warps() -> None:
    """A warp computes with the rows of A and columns of B that its accumulators stand in, also for small tiles."""
    for m, n, warps_m, warps_n in [(64, 64, 2, 2), (128, 32, 4, 1), (16, 64, 4, 2), (32, 8, 2, 4)]:
        acc = mma_acc((m, n), warps_m, warps_n)
        a = mma_operand((m, 32), 0, 16, warps_m, warps_n)
        b = mma_operand((32, n), 1, 16, warps_m, warps_n)
        assert acc.is_surjective() and a.is_surjective() and b.is_surjective()
        for warp in range(warps_m * warps_n):
            cells = [at(acc, r, 0, warp) for r in range(acc.size("register"))]
            assert {i & -8 for i, _ in cells} == {
                at(a, r, 0, warp)[0] & -8 for r in range(a.size("register"))
            }
            assert {j & -8 for _, j in cells} == {
                at(b, r, 0, warp)[1] & -8 for r in range(b.size("register"))
            }


def test_batched_fragments() -> None:
    acc = mma_acc((4, 32, 16), 2, 1, warps_b=2)
    flat = mma_acc((32, 16), 2, 1)
    assert acc.is_bijective() and acc.size("warp") == 4
    count = flat.size("register")
    for lane, register, warp in itertools.product(LANES, range(2 * count), range(4)):
        batch = (register // count) + 2 * (warp >> 1)
        assert at(acc, register, lane, warp) == (
            batch,
            *at(flat, register % count, lane, warp & 1),
        )
    operand = mma_operand((4, 32, 16), 0, 16, 2, 1, warps_b=2)
    assert operand.is_bijective() and operand.apply({"warp": 2}) == (2, 0, 0)
    with pytest.raises(LayoutError, match="rank 3"):
        mma_acc((32, 16), 2, 1, warps_b=2)


def test_wgmma_fragments() -> None:
    acc = wgmma_acc((128, 64), 2, 64)
    assert acc.is_bijective() and acc.size("warp") == 8
    for lane, warp, register in itertools.product(LANES, range(8), range(32)):
        j, i = divmod(register, 4)
        row = 64 * (warp >> 2) + 16 * (warp & 3) + (lane >> 2) + 8 * (i >> 1)
        assert at(acc, register, lane, warp) == (row, 8 * j + 2 * (lane & 3) + (i & 1))
    two = wgmma_acc((64, 256), 1, 128, warpgroups_n=2)
    assert two.is_bijective() and two.apply({"warp": 4}) == (0, 128)
    assert wgmma_acc((256, 64), 2, 64).apply({"register": 32}) == (64, 0)


@pytest.mark.parametrize(
    ("elem_bits", "formula"), [(8, isa_a_8bit), (16, isa_a_16bit), (32, isa_a_tf32)]
)
def test_wgmma_register_operand(elem_bits: int, formula) -> None:
    depth = 256 // elem_bits
    layout = wgmma_operand_a((64, 2 * depth), 1, elem_bits)
    count = 16 * depth // 32
    for lane, warp, register in itertools.product(LANES, range(4), range(2 * count)):
        row, column = formula(lane, register % count)
        expected = (row + 16 * warp, column + depth * (register // count))
        assert at(layout, register, lane, warp) == expected


def test_fragments_that_do_not_fit() -> None:
    with pytest.raises(LayoutError, match="K = 8 is below the 16"):
        mma_operand((16, 8), 0, 16, 1, 1)
    with pytest.raises(LayoutError, match="elements of 4 bits"):
        mma_operand((64, 64), 0, 4, 1, 1)
    with pytest.raises(LayoutError, match="at least 64 rows"):
        wgmma_acc((32, 64), 1, 64)
    with pytest.raises(LayoutError, match="no multiple"):
        wgmma_acc((64, 64), 1, 128)
    with pytest.raises(LayoutError, match="rank 2 or 3"):
        mma_acc((64,), 1, 1)


def test_blocked_against_its_definition() -> None:
    shape, per, threads, warps = (64, 64), (2, 4), (4, 8), (2, 2)
    layout = blocked(shape, per, threads, warps, (1, 0))
    assert layout.is_bijective()
    for register, lane, warp in itertools.product(range(32), LANES, range(4)):
        i = (register >> 2 & 1) + 2 * (lane >> 3) + 8 * (warp >> 1) + 16 * (register >> 3)
        j = (register & 3) + 4 * (lane & 7) + 32 * (warp & 1)
        assert at(layout, register, lane, warp) == (i, j)


def test_blocked_of_a_small_tile_broadcasts() -> None:
    layout = blocked((4, 8), (1, 4), (4, 8), (4, 1), (1, 0))
    assert layout.size("register") == 4 and layout.is_surjective()
    masks = layout.free_masks()
    assert masks["lane"] == 0b00110 and masks["warp"] == 0b11
    tiny = blocked((2,), (8,), (32,), (4,), (0,))
    assert tiny.size("register") == 2, "registers are not duplicated"


@pytest.mark.parametrize("shape", [(), (1,), (16,), (1024,), (1, 4096), (128, 64), (2, 8, 32)])
@pytest.mark.parametrize("num_warps", [1, 4, 8])
@pytest.mark.parametrize("vec", [1, 4, 16])
def test_default_blocked(shape: tuple[int, ...], num_warps: int, vec: int) -> None:
    layout = default_blocked(shape, num_warps, vec)
    assert layout.is_surjective()
    assert layout.size("lane") == 32 and layout.size("warp") == num_warps
    elements = layout.num_elements
    assert layout.size("register") == max(1, elements // (32 * num_warps))


def test_default_blocked_coalesces() -> None:
    layout = default_blocked((128, 64), 4, 8)
    assert layout.contiguity((1, 0)) == 8
    assert [at(layout, 0, lane) for lane in range(9)] == [(0, 8 * i) for i in range(8)] + [(1, 0)]
    turned = default_blocked((128, 64), 4, 8, (0, 1))
    assert turned.contiguity((0, 1)) == 8 and at(turned, 0, 1) == (8, 0)
    assert default_blocked((256,), 4, 16).contiguity((0,)) == 2, "all lanes have work first"
