"""The algebra of linear layouts against direct computation on coordinates."""

from __future__ import annotations

import itertools
import pickle
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tessera.layout import (
    LayoutError,
    LinearLayout,
    blocked,
    broadcast_map,
    default_blocked,
    identity1d,
    invert_and_compose,
    mma_acc,
    parse_layout,
    register_map,
    shared_swizzled,
    source_map,
    zeros1d,
)
from tests.unit.layout_simulator import fill

ACC = LinearLayout((8, 8), {"register": [[0, 1]], "lane": [[0, 2], [0, 4], [1, 0], [2, 0], [4, 0]]})


@st.composite
def layouts(draw: st.DrawFn, rank: int = 3) -> LinearLayout:
    """Any linear map, surjective or not."""
    shape = tuple(draw(st.lists(st.sampled_from([1, 2, 4, 8]), min_size=rank, max_size=rank)))
    size = int(np.prod(shape))
    column = st.integers(0, size - 1)
    bases = {name: draw(st.lists(column, max_size=3)) for name in ("register", "lane", "warp")}
    return LinearLayout.packed(shape, bases)


def holders(layout: LinearLayout) -> list[dict[str, int]]:
    sizes = [range(layout.size(name)) for name in ("register", "lane", "warp")]
    return [{"register": r, "lane": lane, "warp": w} for r, lane, w in itertools.product(*sizes)]


def test_worked_example_of_the_module() -> None:
    assert ACC.apply({"register": 1, "lane": 13}) == (3, 3)
    assert ACC.is_bijective() and ACC.in_dims == ("register", "lane")
    assert ACC.size("warp") == 1 and ACC.free_masks()["lane"] == 0
    assert str(ACC) == "ll<[8,8] register=[[0,1]] lane=[[0,2],[0,4],[1,0],[2,0],[4,0]]>"


def test_value_semantics() -> None:
    fallback = LinearLayout.packed((8, 8), {"lane": [2, 4, 8, 16, 32], "register": [1], "warp": []})
    assert fallback == ACC and hash(fallback) == hash(ACC)
    assert pickle.loads(pickle.dumps(ACC)) == ACC
    assert ACC.reshape((64,)) != ACC
    with pytest.raises(AttributeError, match="immutable"):
        ACC.shape = (1,)


@pytest.mark.parametrize(
    ("shape", "bases", "message"),
    [
        ((3,), {}, "3 is not a power of two"),
        ((4,), {"register": [[4]]}, "outside of the shape"),
        ((4,), {"register": [[1, 1]]}, "rank of the shape"),
        ((4,), {"thread": [[1]]}, "unknown in-dim 'thread'"),
    ],
)
def test_invalid_layouts(shape: tuple[int, ...], bases: dict, message: str) -> None:
    with pytest.raises(LayoutError, match=message):
        LinearLayout(shape, bases)


@given(layouts())
def test_text_round_trip(layout: LinearLayout) -> None:
    text = layout.text()
    assert parse_layout(text) == layout
    assert not set(text) & set("#%\n")


def test_text_of_a_scalar() -> None:
    layout = default_blocked((), 4)
    assert parse_layout(layout.text()) == layout


@pytest.mark.parametrize(
    "text", ["", "ll<>", "ll<[4] register=[[1]]", "ll<[4] register=[1]>", "ll<[4] lane=[[1]] x>"]
)
def test_malformed_text(text: str) -> None:
    with pytest.raises(LayoutError):
        parse_layout(text)


@given(layouts(), st.permutations([0, 1, 2]))
def test_trans(layout: LinearLayout, order: list[int]) -> None:
    moved = layout.trans(order)
    for index in holders(layout):
        coords = layout.apply(index)
        assert moved.apply(index) == tuple(coords[i] for i in order)


@given(layouts())
def test_reshape_and_expand(layout: LinearLayout) -> None:
    a, b, c = layout.shape
    for shape in [(a * b, c), (a, b * c), (a * b * c,), (1, a, b, 1, c)]:
        seen = layout.reshape(shape)
        for index in holders(layout):
            flat = np.ravel_multi_index(layout.apply(index), layout.shape)
            assert seen.apply(index) == tuple(np.unravel_index(flat, shape))
    assert layout.expand_dim(1).shape == (a, 1, b, c)
    with pytest.raises(LayoutError, match="cannot reshape"):
        layout.reshape((2 * a, b, c))


@given(layouts(), st.integers(0, 2))
def test_drop_dim_and_restrict(layout: LinearLayout, axis: int) -> None:
    dropped = layout.drop_dim(axis)
    shape = [1 if i == axis else n for i, n in enumerate(layout.shape)]
    operand = layout.restrict(shape)
    for index in holders(layout):
        coords = list(layout.apply(index))
        assert dropped.apply(index) == tuple(coords[:axis] + coords[axis + 1 :])
        coords[axis] = 0
        assert operand.apply(index) == tuple(coords)


@given(layouts())
def test_join_and_split(layout: LinearLayout) -> None:
    joined = layout.join()
    for index in holders(joined):
        half = {**index, "register": index["register"] >> 1}
        assert joined.apply(index) == (*layout.apply(half), index["register"] & 1)
    assert joined.split_bit() == 0 and joined.split() == layout


def test_split_needs_a_register() -> None:
    layout = LinearLayout((4, 2), {"register": [[1, 0], [2, 0]], "lane": [[0, 1]]})
    assert layout.split_bit() is None
    with pytest.raises(LayoutError, match="convert before splitting"):
        layout.split()
    later = LinearLayout((4, 2), {"register": [[1, 0], [2, 0], [0, 1]]})
    assert later.split_bit() == 2 and later.split() == LinearLayout((4,), {"register": [[1], [2]]})


@given(layouts(rank=2), layouts(rank=2))
def test_product_tiles(inner: LinearLayout, outer: LinearLayout) -> None:
    product = inner * outer
    rng = random.Random(0)
    for _ in range(10):
        low = {n: rng.randrange(inner.size(n)) for n in ("register", "lane", "warp")}
        high = {n: rng.randrange(outer.size(n)) for n in ("register", "lane", "warp")}
        index = {n: low[n] | high[n] << inner.bits(n) for n in low}
        expected = tuple(
            a + b * s
            for a, b, s in zip(inner.apply(low), outer.apply(high), inner.shape, strict=True)
        )
        assert product.apply(index) == expected


def test_one_dimensional_pieces() -> None:
    layout = identity1d(4, "register") * identity1d(32, "lane") * zeros1d(4, "warp")
    assert layout.shape == (128,) and layout.apply({"register": 3, "lane": 5, "warp": 2}) == (23,)
    assert layout.free_masks()["warp"] == 3


def test_invert() -> None:
    inverse = ACC.invert()
    assert inverse.shape == (32, 2)
    for index in holders(ACC):
        flat = ACC.apply_flat(index)
        assert inverse.apply({"index": flat}) == (index["lane"], index["register"])
    again = ACC.compose(inverse)
    assert again.apply({"lane": 7, "register": 1}) == (7, 1)
    with pytest.raises(LayoutError, match="not bijective"):
        zeros1d(4, "lane").invert()


@settings(max_examples=200)
@given(layouts(rank=2))
def test_free_masks_leave_one_holder_of_each_element(layout: LinearLayout) -> None:
    masks = layout.free_masks()
    kept = [i for i in holders(layout) if not any(i[n] & masks.get(n, 0) for n in i)]
    elements = [layout.apply_flat(index) for index in kept]
    assert len(set(elements)) == len(elements)
    assert set(elements) == {layout.apply_flat(index) for index in holders(layout)}
    assert layout.is_surjective() == (len(elements) == layout.num_elements)


@given(layouts(rank=2))
def test_unique_registers(layout: LinearLayout) -> None:
    first = layout.register_representatives()
    for register, kept in enumerate(first):
        assert layout.apply({"register": register}) == layout.apply({"register": kept})
    assert len(set(first)) == layout.unique_registers().size("register")


@settings(max_examples=200)
@given(layouts(rank=2), st.sampled_from([(0, 1), (1, 0)]))
def test_contiguity(layout: LinearLayout, order: tuple[int, int]) -> None:
    """The promised vector is real and aligned in every thread, and twice its width is not."""

    def holds(vec: int) -> bool:
        if vec > layout.size("register"):
            return False
        for index in holders(layout):
            base = layout.apply({**index, "register": index["register"] & -vec})
            here = layout.apply(index)
            wanted = list(base)
            wanted[order[0]] += index["register"] % vec
            if base[order[0]] % vec or list(here) != wanted:
                return False
        return True

    vec = layout.contiguity(order)
    assert holds(vec) and not holds(2 * vec)


def test_contiguity_of_named_layouts() -> None:
    assert blocked((64, 64), (1, 8), (4, 8), (4, 1), (1, 0)).contiguity((1, 0)) == 8
    assert default_blocked((128, 64), 4, 8, (0, 1)).contiguity((0, 1)) == 8
    assert default_blocked((128, 64), 4, 8, (0, 1)).contiguity((1, 0)) == 1
    assert mma_acc((64, 64), 2, 2).contiguity((1, 0)) == 2


def test_axis_bits() -> None:
    assert ACC.axis_bits("lane", 1) == 0b00011 and ACC.axis_bits("lane", 0) == 0b11100
    assert ACC.is_axis_separable(0) and ACC.is_axis_separable(1)
    mixed = LinearLayout((2, 2), {"lane": [[1, 1], [0, 1]]})
    assert not mixed.is_axis_separable(0)


def test_sources_stay_local() -> None:
    """A copy in the own lane is preferred to one elsewhere."""
    src = LinearLayout.packed((4,), {"register": [1], "lane": [2, 0], "warp": [1]})
    found = source_map(src, src)
    for index in holders(src):
        where = (index["register"], index["lane"], index["warp"])
        register, lane, warp = found.source(*where)
        assert (lane, warp) == where[1:]
        assert src.apply({"register": register, "lane": lane, "warp": warp}) == src.apply(index)


def test_invert_and_compose_finds_every_element() -> None:
    src, dst = mma_acc((32, 32), 2, 2), default_blocked((32, 32), 4, 4)
    found = invert_and_compose(src, dst)
    assert found.shape == (4, 32, src.size("register"))
    start, wanted = fill(src), fill(dst)
    for index in holders(dst):
        expected = wanted[index["warp"], index["lane"], index["register"]]
        assert start[found.apply(index)] == expected


def test_broadcast_is_free_in_the_restricted_layout() -> None:
    result = default_blocked((64, 64), 4, 4)
    operand = result.restrict((64, 1))
    same = broadcast_map(operand, result)
    assert same is not None
    held = operand.register_representatives()
    assert [held[i] for i in same] == [held[i] for i in range(result.size("register"))]
    slim = operand.unique_registers()
    sources = broadcast_map(slim, result)
    assert sources is not None and max(sources) < slim.size("register")
    for register, source in enumerate(sources):
        assert slim.apply({"register": source}) == operand.apply({"register": register})
    assert broadcast_map(default_blocked((64, 1), 4), result) is None
    with pytest.raises(LayoutError, match="does not broadcast"):
        result.restrict((32, 1))


def test_register_map_refuses_data_of_other_threads() -> None:
    assert register_map(ACC, ACC) == (0, 1)
    assert register_map(ACC, ACC.trans((1, 0))) is None


def test_shared_inverse_is_its_address() -> None:
    shared = shared_swizzled((16, 64), (1, 0), 16, 128)
    inverse = shared.invert()
    for row, column in itertools.product(range(16), range(64)):
        offset = inverse.apply({"index": row * 64 + column})[0]
        assert shared.apply({"offset": offset}) == (row, column)
