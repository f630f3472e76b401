"""Shared-memory layouts: hardware swizzles byte by byte, conflicts lane by lane, ldmatrix as in the PTX ISA."""

from __future__ import annotations

import itertools
import random

import pytest

from tessera.layout import (
    LayoutError,
    LinearLayout,
    back,
    bank_conflicts,
    blocked,
    box_layout,
    default_blocked,
    ldmatrix_plan,
    max_vector,
    mma_acc,
    mma_operand,
    offset_map,
    operand_depth,
    operand_rows,
    reordered,
    shared_linear,
    shared_swizzled,
    stmatrix_plan,
    swizzle_for,
    turned_lanes,
    vector_groups,
    wavefronts,
    wgmma_acc,
    wgmma_operand_a,
    widest_swizzle,
)
from tests.unit.layout_simulator import fill, transfers


def hardware_offset(row: int, column: int, rows: int, elem_bytes: int, span: int) -> int:
    """Byte address of an element: boxes of `span` bytes one after another, 16-byte chunks XORed as the manual says."""
    byte = column * elem_bytes
    box, within = divmod(byte, span)
    chunk, rest = divmod(within, 16)
    phase = {128: row & 7, 64: (row >> 1) & 3, 32: (row >> 2) & 1, 16: 0}[span]
    return box * rows * span + row * span + 16 * (chunk ^ phase) + rest


@pytest.mark.parametrize("span", [128, 64, 32, 16])
@pytest.mark.parametrize("elem_bytes", [1, 2, 4])
@pytest.mark.parametrize("rows", [8, 64])
def test_hardware_swizzle(span: int, elem_bytes: int, rows: int) -> None:
    columns = 2 * span // elem_bytes
    shared = shared_swizzled((rows, columns), (1, 0), 8 * elem_bytes, span)
    turned = shared_swizzled((columns, rows), (0, 1), 8 * elem_bytes, span)
    inverse = shared.invert()
    for row, column in itertools.product(range(rows), range(columns)):
        offset = inverse.apply({"index": row * columns + column})[0]
        assert offset * elem_bytes == hardware_offset(row, column, rows, elem_bytes, span)
        assert turned.apply({"offset": offset}) == (column, row)


def test_outer_dims_are_slowest() -> None:
    shared = shared_swizzled((2, 16, 128), (2, 1, 0), 16, 128)
    assert shared.is_bijective()
    assert shared.apply({"offset": 16 * 64}) == (0, 0, 64)
    assert shared.apply({"offset": 2 * 16 * 64}) == (1, 0, 0)


def test_swizzle_of_fewer_than_eight_rows_follows_the_address() -> None:
    """The hardware XORs address bits: with 4 rows in a box, bit 9 is the box number."""
    shared = shared_swizzled((4, 128), (1, 0), 16, 128)
    assert shared.apply({"offset": 4 * 64}) == (0, 64 + 32)


def test_widest_swizzle() -> None:
    assert widest_swizzle((64, 64), (1, 0), 16) == 128
    assert widest_swizzle((64, 16), (1, 0), 16) == 32
    assert widest_swizzle((64, 4), (1, 0), 16) == 0
    with pytest.raises(LayoutError, match="narrower than a swizzle"):
        shared_swizzled((64, 32), (1, 0), 16, 128)
    with pytest.raises(LayoutError, match="swizzle of 48 bytes"):
        shared_swizzled((64, 32), (1, 0), 16, 48)


def naive_wavefronts(dist: LinearLayout, shared: LinearLayout, elem_bits: int, vec: int) -> int:
    """Recount from element coordinates: find each lane's element in memory by search."""
    where = {shared.apply({"offset": o}): o for o in range(shared.size("offset"))}
    width = vec * elem_bits // 8
    lanes_per_pass = min(32, 128 // max(width, 4))
    passes = 0
    for start in range(0, 32, lanes_per_pass):
        words: dict[int, set[int]] = {}
        for lane in range(start, start + lanes_per_pass):
            first = where[dist.apply({"lane": lane})] * elem_bits // 8
            for byte in range(first, first + width):
                words.setdefault(byte // 4 % 32, set()).add(byte // 4)
        passes += max(len(w) for w in words.values())
    return passes


@pytest.mark.parametrize("elem_bits", [8, 16, 32])
@pytest.mark.parametrize("seed", range(8))
def test_wavefronts_against_a_recount(elem_bits: int, seed: int) -> None:
    rng = random.Random(seed)
    columns = [1 << i for i in range(11)]
    rng.shuffle(columns)
    dist = LinearLayout.packed((32, 64), {"lane": columns[:5], "register": columns[5:]})
    span = rng.choice([0, 16, 32])
    shared = shared_swizzled((32, 64), rng.choice([(0, 1), (1, 0)]), elem_bits, span)
    offsets = offset_map(dist, shared)
    vec = max_vector(offsets, elem_bits)
    expected = naive_wavefronts(dist, shared, elem_bits, vec)
    assert wavefronts(offsets, elem_bits, vec) == expected


def test_cp_async_writes_are_free_of_conflicts() -> None:
    """16-byte copies of row-major tiles into each hardware swizzle."""
    for columns, span in [(64, 128), (32, 64), (128, 128)]:
        shared = shared_swizzled((64, columns), (1, 0), 16, span)
        rows = default_blocked((64, columns), 4, 8)
        assert max_vector(offset_map(rows, shared), 16) == 8
        assert bank_conflicts(rows, shared, 16, 8) == 0
    plain = shared_linear((64, 64), (1, 0))
    down = blocked((64, 64), (1, 8), (32, 1), (1, 4), (0, 1))
    assert bank_conflicts(down, plain, 16, 8) == 28, "8 rows of 128 bytes in the same banks"


@pytest.mark.parametrize(
    ("dist", "order", "trans"),
    [
        (mma_operand((64, 64), 0, 16, 2, 2), (1, 0), False),
        (mma_operand((64, 64), 1, 16, 2, 2), (0, 1), False),
        (mma_operand((64, 64), 1, 16, 2, 2), (1, 0), True),
        (mma_operand((64, 64), 0, 16, 2, 2), (0, 1), True),
        (mma_acc((64, 64), 2, 2), (1, 0), False),
        (wgmma_acc((64, 64), 1, 64), (1, 0), False),
    ],
    ids=["a", "b-col", "b-row", "a-col", "acc", "wgmma"],
)
@pytest.mark.parametrize("span", [128, 64, 32])
def test_ldmatrix_on_swizzled_tiles(
    dist: LinearLayout, order: tuple[int, int], trans: bool, span: int
) -> None:
    """x4, conflict-free, and every register receives its element by the PTX definition."""
    shared = shared_swizzled((64, 64), order, 16, span)
    plan = ldmatrix_plan(dist, shared, 16)
    assert plan is not None
    assert plan.count == 4 and plan.trans == trans and plan.wavefronts == 4
    assert stmatrix_plan(dist, shared, 16) == plan
    elements = fill(dist)
    for warp, lane in itertools.product(range(dist.size("warp")), range(32)):
        seen = [pair for group in transfers(plan, lane, warp, 16) for pair in group]
        assert sorted(r for r, _ in seen) == list(range(dist.size("register")))
        for register, offset in seen:
            assert shared.apply_flat({"offset": offset}) == elements[warp, lane, register]


def test_ldmatrix_of_other_widths() -> None:
    for elem_bits, k in [(8, 128), (32, 32)]:
        shared = shared_swizzled((64, k), (1, 0), elem_bits, 128)
        plan = ldmatrix_plan(mma_operand((64, k), 0, elem_bits, 2, 2), shared, elem_bits)
        assert plan is not None and not plan.trans and plan.count == 4 and plan.wavefronts == 4
        wrong = shared_swizzled((k, 64), (1, 0), elem_bits, 16)
        assert ldmatrix_plan(mma_operand((k, 64), 1, elem_bits, 2, 2), wrong, elem_bits) is None
    small = ldmatrix_plan(
        mma_operand((16, 8), 1, 16, 1, 1), shared_swizzled((16, 8), (0, 1), 16, 16), 16
    )
    assert small is not None and small.count == 2


@pytest.mark.parametrize("rows", [64, 128, 256])
@pytest.mark.parametrize("groups", [1, 2])
def test_first_operand_that_lies_along_its_rows(rows: int, groups: int) -> None:
    """Pairs of 4-byte elements without bank conflicts; single bytes by ldmatrix.trans."""
    if rows < 64 * groups:
        return
    for elem_bits, k in [(32, 32), (8, 128)]:
        span = min(128, rows * elem_bits // 8)
        shared = shared_swizzled((rows, k), (0, 1), elem_bits, span)
        names = operand_rows(shared, elem_bits)
        assert sorted(names) == list(range(rows.bit_length() - 1))
        dist = wgmma_operand_a((rows, k), groups, elem_bits, rows=names)
        if elem_bits == 32:
            assert bank_conflicts(dist, shared, 32, 2) == 0
            continue
        plan = ldmatrix_plan(dist, shared, 8)
        assert plan is not None and plan.trans and plan.count == 4
        assert plan.wavefronts == 4 and len(plan.flips) == 1
        elements = fill(dist)
        for warp, lane in itertools.product(range(dist.size("warp")), range(32)):
            seen = [pair for group in transfers(plan, lane, warp, 8) for pair in group]
            assert sorted(r for r, _ in seen) == list(range(dist.size("register")))
            for register, offset in seen:
                assert shared.apply_flat({"offset": offset}) == elements[warp, lane, register]


@pytest.mark.parametrize("rows", [64, 128, 256])
def test_the_order_of_k_is_chosen_for_ldmatrix(rows: int) -> None:
    """An operand that lies along its rows is read without selections, and stored along K in an order of its own."""
    span = min(128, rows)
    shared = shared_swizzled((rows, 128), (0, 1), 8, span)
    names, depth = operand_rows(shared, 8), operand_depth(shared, 8)
    assert sorted(depth) == list(range(7)) and depth != tuple(range(7))
    dist = wgmma_operand_a((rows, 128), 1, 8, rows=names, depth=depth)
    read = ldmatrix_plan(dist, shared, 8)
    assert read is not None and read.trans and read.wavefronts == 4 and not read.flips
    stored = reordered(shared_swizzled((rows, 128), (1, 0), 8, 128), (names, depth))
    write = stmatrix_plan(dist, stored, 8)
    assert write is not None and not write.trans and write.wavefronts == 4 and not write.flips
    assert reordered(stored, (back(names), back(depth))) == shared_swizzled(
        (rows, 128), (1, 0), 8, 128
    )
    elements = fill(dist)
    for memory, plan in ((shared, read), (stored, write)):
        for warp, lane in itertools.product(range(dist.size("warp")), range(32)):
            for register, offset in [x for g in transfers(plan, lane, warp, 8) for x in g]:
                assert memory.apply_flat({"offset": offset}) == elements[warp, lane, register]


def test_words_have_no_order_of_k() -> None:
    assert operand_depth(shared_swizzled((64, 32), (0, 1), 32, 128), 32) == ()


def test_words_along_k_are_stored_without_conflicts() -> None:
    """Pairs of rows and the eight lanes that follow them: each matrix has rows of all eight phases of the swizzle."""
    names = operand_rows(shared_swizzled((128, 128), (0, 1), 8, 128), 8)
    dist = wgmma_operand_a((128, 128), 2, 8, rows=names)
    shared = shared_swizzled((128, 128), (1, 0), 8, 128)
    plan = stmatrix_plan(dist, shared, 8)
    assert plan is not None and not plan.trans and plan.wavefronts == 4 and len(plan.flips) == 1
    elements = fill(dist)
    for warp, lane in itertools.product(range(dist.size("warp")), range(32)):
        for register, offset in [x for group in transfers(plan, lane, warp, 8) for x in group]:
            assert shared.apply_flat({"offset": offset}) == elements[warp, lane, register]


def test_unswizzled_rows_conflict_in_ldmatrix() -> None:
    plan = ldmatrix_plan(mma_operand((64, 64), 0, 16, 2, 2), shared_linear((64, 64), (1, 0)), 16)
    assert plan is not None and plan.wavefronts == 16  # one lane bit picks another column


@pytest.mark.parametrize("shape", [(64, 128), (64, 64)])
def test_turned_lanes_write_to_banks_of_their_own(shape: tuple[int, int]) -> None:
    """An accumulator of fp32 on its way into swizzled boxes: every other row begins with another block of columns."""
    dist = wgmma_acc(shape, 1, shape[1] // 2, warpgroups_n=2)
    shared = box_layout(shape, 32)
    assert shared is not None
    assert bank_conflicts(dist, shared, 32, 2) == 2
    turned, turns = turned_lanes(dist, shared, 32, 64 * 32)
    assert bank_conflicts(turned, shared, 32, 2) == 0
    ((b, r),) = turns
    before, after = fill(dist), fill(turned)
    for lane, register in itertools.product(range(32), range(dist.size("register"))):
        held = before[:, lane, register ^ (lane >> b & 1) << r]
        assert (after[:, lane, register] == held).all()


def test_vector_groups_cover_each_register_once() -> None:
    dist = default_blocked((64, 64), 4, 8)
    offsets = offset_map(dist, shared_swizzled((64, 64), (1, 0), 16, 128))
    groups = vector_groups(offsets, 8)
    assert sorted(r for g in groups for r in g.registers) == list(range(32))
    for group, lane, warp in itertools.product(groups, range(32), range(4)):
        base = offsets.offset(group.registers[0], lane, warp)
        assert [offsets.offset(r, lane, warp) for r in group.registers] == [
            base + i for i in range(8)
        ]
        assert offsets.offset(0, lane, warp) ^ group.offset == base
    with pytest.raises(LayoutError, match="do not fill vectors"):
        vector_groups(offset_map(mma_acc((64, 64), 2, 2), shared_linear((64, 64), (1, 0))), 8)


@pytest.mark.parametrize("elem_bits", [16, 32, 64])
def test_computed_swizzle_of_a_transpose(elem_bits: int) -> None:
    """Row-wise writers and column-wise readers: no conflict on either side."""
    src = default_blocked((64, 64), 4, 128 // elem_bits)
    dst = default_blocked((64, 64), 4, 128 // elem_bits, (0, 1))
    shared = swizzle_for(src, dst, elem_bits)
    assert shared.is_bijective()
    for side in (src, dst):
        vec = max_vector(offset_map(side, shared), elem_bits)
        assert bank_conflicts(side, shared, elem_bits, vec) == 0


def test_computed_swizzle_keeps_vectors_of_both_sides() -> None:
    src = default_blocked((64, 64), 4, 4)
    dst = blocked((64, 64), (1, 4), (8, 4), (1, 4), (1, 0))
    shared = swizzle_for(src, dst, 32)
    for side in (src, dst):
        assert max_vector(offset_map(side, shared), 32) == 4
        assert bank_conflicts(side, shared, 32, 4) == 0
