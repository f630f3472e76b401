"""Conversion plans carried out on a model of the registers give exactly the destination layout."""

from __future__ import annotations

import random
from typing import cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tessera.layout import (
    Access,
    Identity,
    LayoutError,
    LinearLayout,
    MatrixAccess,
    RegisterPermute,
    SharedExchange,
    VectorAccess,
    WarpShuffle,
    blocked,
    default_blocked,
    mma_acc,
    mma_operand,
    plan_conversion,
    plan_shared,
    plan_shuffle,
    wgmma_acc,
    wgmma_operand_a,
)
from tests.unit.layout_simulator import fill, run

ALL_CHECKS = cast("list[HealthCheck]", list(HealthCheck))


def vector_of(access: Access) -> int:
    """Elements of one access that is no matrix read or write."""
    assert isinstance(access, VectorAccess)
    return access.vec


def random_layout(rng: random.Random, bits: int, lanes: int, warps: int, mix: int) -> LinearLayout:
    """A surjective layout of 2**bits elements; `mix` random XORs of columns into others."""
    columns = [1 << i for i in range(bits)]
    rng.shuffle(columns)
    for _ in range(mix):
        a, b = rng.sample(range(bits), 2)
        columns[a] ^= columns[b]
    threads = [0] * (lanes + warps)
    holders = rng.sample(range(lanes + warps), min(bits, rng.randint(0, lanes + warps)))
    for holder in holders:
        threads[holder] = columns.pop()
    if rng.random() < 0.3:
        zero = [i for i, c in enumerate(threads) if c == 0]
        for i in zero:
            threads[i] = rng.choice([0, *threads])
    if rng.random() < 0.2:
        columns.insert(rng.randint(0, len(columns)), 0)
    shape = (1 << (bits // 2), 1 << (bits - bits // 2))
    return LinearLayout.packed(
        shape, {"register": columns, "lane": threads[:lanes], "warp": threads[lanes:]}
    )


def check(src: LinearLayout, dst: LinearLayout, elem_bits: int, **options: object) -> None:
    expected = fill(dst)
    start = fill(src)
    plan = plan_conversion(src, dst, elem_bits, **options)  # type: ignore[arg-type]
    assert (run(plan, start, elem_bits) == expected).all()
    shuffle = plan_shuffle(src, dst, max(8, elem_bits))
    if shuffle is not None:
        assert (run(shuffle, start, elem_bits) == expected).all()
    shared = plan_shared(src, dst, elem_bits, **options)  # type: ignore[arg-type]
    assert (run(shared, start, elem_bits) == expected).all()


@settings(max_examples=150, deadline=None, suppress_health_check=ALL_CHECKS)
@given(
    st.integers(0, 2**32),
    st.integers(2, 9),
    st.sampled_from([8, 16, 32, 64]),
    st.sampled_from([0, 0, 3, 20]),
)
def test_random_pairs(seed: int, bits: int, elem_bits: int, mix: int) -> None:
    rng = random.Random(seed)
    src = random_layout(rng, bits, 5, 1, mix)
    dst = random_layout(rng, bits, 5, 1, mix)
    limit = rng.choice([None, 64, 256])
    check(src, dst, elem_bits, max_bytes=limit)


@settings(max_examples=150, deadline=None, suppress_health_check=ALL_CHECKS)
@given(st.integers(0, 2**32), st.integers(2, 8), st.sampled_from([0, 4]))
def test_random_within_warp(seed: int, bits: int, mix: int) -> None:
    """The same warp bases on both sides, so that shuffles apply."""
    rng = random.Random(seed)
    src = random_layout(rng, bits, 5, 0, mix)
    dst = random_layout(rng, bits, 5, 0, mix)
    shuffle = plan_shuffle(src, dst, 32)
    assert shuffle is not None
    assert (run(shuffle, fill(src), 32) == fill(dst)).all()


def named(shape: tuple[int, int], elem_bits: int) -> dict[str, LinearLayout]:
    layouts = {
        "rows": default_blocked(shape, 4, 128 // elem_bits),
        "columns": default_blocked(shape, 4, 128 // elem_bits, (0, 1)),
        "square": blocked(shape, (2, 2), (4, 8), (2, 2), (1, 0)),
        "acc": mma_acc(shape, 2, 2),
        "acc_tall": mma_acc(shape, 4, 1),
        "a": mma_operand(shape, 0, elem_bits, 2, 2),
        "b": mma_operand(shape, 1, elem_bits, 2, 2),
        "b_wide": mma_operand(shape, 1, elem_bits, 1, 4),
    }
    if shape[0] >= 64 and elem_bits <= 32:
        layouts["wgmma"] = wgmma_acc(shape, 1, min(shape[1], 256))
        layouts["wgmma_a"] = wgmma_operand_a(shape, 1, elem_bits)
    return layouts


@pytest.mark.parametrize("elem_bits", [8, 16, 32])
@pytest.mark.parametrize("shape", [(32, 32), (64, 32), (64, 64)])
def test_named_pairs(shape: tuple[int, int], elem_bits: int) -> None:
    layouts = named(shape, elem_bits)
    filled = {name: fill(layout) for name, layout in layouts.items()}
    for first, src in layouts.items():
        for second, dst in layouts.items():
            plan = plan_conversion(src, dst, elem_bits)
            assert (run(plan, filled[first], elem_bits) == filled[second]).all(), (first, second)


def test_rounds_keep_within_the_limit() -> None:
    src = default_blocked((64, 128), 4, 8)
    dst = mma_acc((64, 128), 2, 2)
    whole = plan_shared(src, dst, 32)
    split = plan_shared(src, dst, 32, max_bytes=8192)
    assert whole.bytes == 32768 and len(whole.rounds) == 1
    assert split.bytes == 8192 and len(split.rounds) == 4
    assert (run(split, fill(src), 32) == fill(dst)).all()
    matrix = plan_shared(src, dst, 16, max_bytes=8192, ldmatrix=True, stmatrix=True)
    assert matrix.bytes == 8192 and (run(matrix, fill(src), 16) == fill(dst)).all()


def test_equal_layouts_need_nothing() -> None:
    layout = mma_acc((64, 64), 2, 2)
    assert plan_conversion(layout, layout, 16) == Identity()


def test_accumulator_is_already_an_operand() -> None:
    """P of attention: the accumulators of one product are the A fragments of the next."""
    acc = wgmma_acc((64, 128), 1, 128)
    assert plan_conversion(acc, wgmma_operand_a((64, 128), 1, 16), 16) == Identity()
    assert mma_acc((64, 64), 4, 1) == mma_operand((64, 64), 0, 16, 4, 1)


def test_register_permutation() -> None:
    src = LinearLayout.packed((4, 32), {"register": [32, 64], "lane": [1, 2, 4, 8, 16]})
    dst = src.map_columns("register", [64, 32])
    assert plan_conversion(src, dst, 32) == RegisterPermute((0, 2, 1, 3))


def test_small_moves_within_a_warp_use_shuffles() -> None:
    src = LinearLayout.packed((2, 32), {"register": [32], "lane": [1, 2, 4, 8, 16]})
    dst = LinearLayout.packed((2, 32), {"register": [1], "lane": [32, 2, 4, 8, 16]})
    plan = plan_conversion(src, dst, 32)
    assert isinstance(plan, WarpShuffle) and plan.num_shuffles == 1 and plan.butterfly
    assert (run(plan, fill(src), 32) == fill(dst)).all()


def test_broadcast_source_selects_without_shuffles() -> None:
    src = LinearLayout.packed((32,), {"register": [1], "lane": [0, 2, 4, 8, 16]})
    dst = LinearLayout.packed((32,), {"lane": [1, 2, 4, 8, 16]})
    plan = plan_conversion(src, dst, 32)
    assert isinstance(plan, WarpShuffle) and plan.num_shuffles == 0
    assert (run(plan, fill(src), 32) == fill(dst)).all()


@pytest.mark.parametrize("elem_bits", [8, 16, 32])
def test_blocked_to_operand_is_vector_store_and_ldmatrix(elem_bits: int) -> None:
    src = default_blocked((128, 64), 4, 128 // elem_bits)
    plan = plan_conversion(src, mma_operand((128, 64), 0, elem_bits, 2, 2), elem_bits)
    assert isinstance(plan, SharedExchange)
    assert vector_of(plan.rounds[0].store) == 128 // elem_bits and plan.ldmatrix
    step = plan.rounds[0]
    assert step.store.wavefronts == 4 and step.load.wavefronts == 4


def test_row_major_b_operand_uses_transposed_ldmatrix() -> None:
    src = default_blocked((64, 128), 4, 8)
    plan = plan_conversion(src, mma_operand((64, 128), 1, 16, 2, 2), 16)
    assert isinstance(plan, SharedExchange)
    assert vector_of(plan.rounds[0].store) == 8 and plan.ldmatrix
    load = plan.rounds[0].load
    assert isinstance(load, MatrixAccess) and load.trans
    assert load.wavefronts == 4 and plan.rounds[0].store.wavefronts == 4


def test_accumulator_to_blocked_uses_stmatrix_if_there_is_one() -> None:
    src, dst = mma_acc((128, 128), 4, 1), default_blocked((128, 128), 4, 8)
    plan = plan_conversion(src, dst, 16)
    assert (
        isinstance(plan, SharedExchange) and plan.stmatrix and vector_of(plan.rounds[0].load) == 8
    )
    assert plan.rounds[0].store.wavefronts == 4 and plan.rounds[0].load.wavefronts == 4
    older = plan_conversion(src, dst, 16, stmatrix=False)
    assert isinstance(older, SharedExchange) and not older.stmatrix
    assert older.cost <= 1.25 * plan.cost, "vectors of gathered registers replace stmatrix"


@pytest.mark.parametrize("elem_bits", [8, 16, 32])
def test_within_warps(elem_bits: int) -> None:
    """Rows of a warpgroup's result become an operand in each warp alone; not so if another warp holds a copy of them,
    or if elements change warps. The simulator checks who stores where."""
    shape = (64, 128)
    src, dst = wgmma_acc(shape, 1, 128), wgmma_operand_a(shape, 1, elem_bits)
    alone = plan_shared(src, dst, elem_bits, warp_exchanges=True)
    together = plan_shared(src, dst, elem_bits)
    assert alone.within_warps and not together.within_warps and alone.cost < together.cost
    split = plan_shared(src, dst, elem_bits, warp_exchanges=True, max_bytes=alone.bytes // 2)
    assert split.within_warps and len(split.rounds) == 2
    for plan in (alone, together, split):
        assert (run(plan, fill(src), elem_bits) == fill(dst)).all()
    copied = default_blocked((16, 16), 4, 1)  # 256 elements in 128 threads: no copies
    few = default_blocked((8, 8), 4, 1)  # every element twice
    for first, second in ((src, default_blocked(shape, 4, 4)), (few, few), (copied, copied)):
        held_once = not first.free_masks().get("warp", 0)
        plan = plan_shared(first, second, elem_bits, warp_exchanges=True)
        assert plan.within_warps == (first is second and held_once)


def test_mismatched_layouts_are_refused() -> None:
    layout = default_blocked((64, 64), 4, 4)
    with pytest.raises(LayoutError, match="different shapes"):
        plan_conversion(layout, default_blocked((64, 32), 4, 4), 32)
    with pytest.raises(LayoutError, match="over 4 and 8 warps"):
        plan_conversion(layout, default_blocked((64, 64), 8, 4), 32)
