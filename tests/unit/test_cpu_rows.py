"""What rows cost on the CPU: masks, divisions, reductions of many rows, rows fetched ahead; counts of instructions."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import tessera
import tessera.language as tl
from tessera.backends.compiler import GPUTarget
from tessera.compiler import ASTSource
from tests.unit.cpu_kit import agree, floats, native


@tessera.jit
def softmax(x, out, stride, n, B: tl.constexpr):
    at = tl.arange(0, B)
    row = tl.program_id(0) * stride
    inside = at < n
    v = tl.load(x + row + at, mask=inside, other=-float("inf"))
    powers = tl.exp(v - tl.max(v, axis=0))
    tl.store(out + row + at, powers / tl.sum(powers, axis=0), mask=inside)


def assembly(kernel: Any, kinds: dict[str, str], arch: str = "avx512", **constants: Any) -> str:
    signature = {**kinds, **dict.fromkeys(constants, "constexpr")}
    attrs = {(i,): [["tt.divisibility", 16]] for i in range(len(kinds))}
    source = ASTSource(kernel, signature, constants, attrs)
    return tessera.compile(source, target=GPUTarget("cpu", arch, 1)).asm["asm"]


SOFTMAX = {"x": "*fp32", "out": "*fp32", "stride": "i32", "n": "i32"}


def test_a_row_asks_for_the_next():
    """A line for each of the four vectors of a trip, and those of the first trip before the loop: short rows into the
    first cache, long ones into the second."""
    assert assembly(softmax, SOFTMAX, B=1024).count("\tprefetcht0\t") == 8
    assert assembly(softmax, SOFTMAX, B=4096).count("\tprefetcht1\t") == 8
    assert "prefetch" not in assembly(softmax, SOFTMAX, B=64)


@tessera.jit
def running(x, out, n, B: tl.constexpr):
    at = tl.program_id(0) * n + tl.arange(0, B)
    tl.store(out + at, tl.cumsum(tl.load(x + at), axis=0))


def test_scans_ask_for_the_next_row_and_carry_one_vector():
    """The sum so far is in all lanes: a vector waits for one addition of the one before, which moves no lane."""
    kinds = {"x": "*fp32", "out": "*fp32", "n": "i32"}
    text = assembly(running, kinds, B=1024)
    assert text.count("\tprefetcht0\t") == 1 and "vaddss" not in text
    loop = text[text.index("\tprefetcht0\t") :]
    assert re.split(r"\tj\w+\t", loop)[0].count("\tvaddps\t") == 4 + 2
    assert "prefetch" not in assembly(running, kinds, B=64)
    x = floats(5, 1024)
    out = np.zeros_like(x)
    native(running, (5,), x, out, 1024, B=1024)
    np.testing.assert_allclose(out, x.cumsum(1, dtype=np.float64), rtol=1e-4, atol=1e-4)


@tessera.jit
def second_rows(x, y, places, out, n, WHERE: tl.constexpr, B: tl.constexpr):
    at = tl.arange(0, B)
    program = tl.program_id(0)
    v = tl.load(x + program * n + at)
    powers = tl.exp(v - tl.max(v, axis=0))
    total = tl.sum(powers, axis=0)
    if WHERE == "program":
        row = y + program // 2 * n
    elif WHERE == "memory":
        row = y + tl.load(places + program) * n
    else:
        row = y + tl.argmax(v, axis=0) % 4 * n
    tl.store(out + program * n + at, powers / total * tl.load(row + at))


@pytest.mark.parametrize("where", ["program", "memory", "reduction"])
def test_rows_whose_place_is_known_late_are_not_asked_for(where):
    """The pointers of `y` are computed behind the reductions, which may prefetch: they have no value there yet."""
    n, programs = 1024, 7
    x, y = floats(programs, n), floats(8, n)
    places = np.array([3, 1, 4, 1, 5, 2, 6], np.int32)
    out = np.zeros((programs, n), np.float32)
    native(second_rows, (programs,), x, y, places, out, n, WHERE=where, B=n)
    rows = {"program": np.arange(programs) // 2, "memory": places, "reduction": x.argmax(1) % 4}
    powers = np.exp(x.astype(np.float64) - x.max(axis=1, keepdims=True))
    expected = powers / powers.sum(axis=1, keepdims=True) * y[rows[where]]
    np.testing.assert_allclose(out, expected, rtol=3e-6)
    kinds = {"x": "*fp32", "y": "*fp32", "places": "*i32", "out": "*fp32", "n": "i32"}
    text = assembly(second_rows, kinds, WHERE=where, B=n)
    assert text.count("\tprefetcht0\t") == 8  # those of x


def test_rows_are_not_divided_vector_by_vector():
    text = assembly(softmax, SOFTMAX, B=1024)
    assert "vdivps\t%zmm" not in text


@pytest.mark.parametrize("n", [1024, 1000, 65, 64, 3])
def test_masked_rows(n):
    x, out = floats(7, n), np.zeros((7, n), np.float32)
    native(softmax, (7,), x, out, n, n, B=1024)
    powers = np.exp(x.astype(np.float64) - x.max(axis=1, keepdims=True))
    np.testing.assert_allclose(out, powers / powers.sum(axis=1, keepdims=True), rtol=2e-6)


@pytest.mark.parametrize("columns", [2048, 2000])
def test_large_rows_go_past_the_caches(columns):
    """28 MiB written; rows of 2000 columns do not all begin at a cache line."""
    assert assembly(softmax, SOFTMAX, B=2048).count("vmovntps") == 4
    x = np.broadcast_to(floats(1, columns), (3584, columns))
    store = np.zeros(3584 * columns + 64, np.float32)
    out = store[16 - store.ctypes.data % 64 // 4 :][: 3584 * columns].reshape(3584, columns)
    native(softmax, (3584,), np.ascontiguousarray(x), out, columns, columns, B=2048)
    powers = np.exp(x[0].astype(np.float64) - x[0].max())
    np.testing.assert_allclose(out, np.broadcast_to(powers / powers.sum(), x.shape), rtol=2e-6)


@tessera.jit
def scaled_rows(x, w, out, n, B: tl.constexpr):
    at = tl.arange(0, B)
    inside = at < n
    row = tl.program_id(0) * n + at
    v = tl.load(x + row, mask=inside, other=0.0)
    scale = 1.0 / tl.sqrt(tl.sum(v * v, axis=0) / n)
    tl.store(out + row, (v * scale * tl.load(w + at, mask=inside)).to(out.dtype.element_ty), inside)


@tessera.jit
def whole_rows(x, w, out, n, B: tl.constexpr):
    at = tl.arange(0, B)
    row = tl.program_id(0) * n + at
    tl.store(out + row, (tl.load(x + row) * tl.load(w + at)).to(out.dtype.element_ty))


@pytest.mark.parametrize("kernel", [scaled_rows, whole_rows])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("offset", [0, 1, 7, 15, 16, 23])
def test_rows_that_begin_anywhere(kernel, dtype, offset):
    """Vectors of the output lie at multiples of their size; nothing beside the rows is written."""
    n = 257 if kernel is scaled_rows else 512
    x, w = floats(5, n), floats(1, n, seed=1)[0]
    store = np.full(5 * n + 64, 7, dtype)
    agree(kernel, (5,), x, w, store[offset : offset + 5 * n], n, B=512, rtol=1e-6)
    native(kernel, (5,), x, w, store[offset : offset + 5 * n], n, B=512)
    assert (store[:offset] == 7).all() and (store[offset + 5 * n :] == 7).all()


@pytest.mark.parametrize("offset", [0, 3])
def test_rows_that_begin_anywhere_in_place(offset):
    x, w = floats(1, 4 * 300 + 8)[0], floats(1, 300, seed=1)[0]
    rows = x[offset : offset + 4 * 300].copy()
    native(scaled_rows, (4,), x[offset:], w, x[offset:], 300, B=512)
    wide = rows.reshape(4, 300).astype(np.float64)
    expected = wide / np.sqrt((wide * wide).mean(axis=1, keepdims=True)) * w
    np.testing.assert_allclose(x[offset : offset + 1200], expected.ravel(), rtol=2e-6)


@pytest.mark.parametrize("grid", [1, 2, 5])
def test_rows_in_any_distance(grid):
    """The guess where the next row lies may be anywhere."""
    order = np.array([3, 0, 4, 1, 2], np.int32)
    x, out = floats(5, 512), np.zeros((5, 512), np.float32)
    native(permuted, (grid,), x, order, out, B=512)
    np.testing.assert_allclose(
        out[order[:grid]], x[order[:grid]] - x[order[:grid]].max(axis=1)[:, None]
    )


@tessera.jit
def permuted(x, order, out, B: tl.constexpr):
    at = tl.load(order + tl.program_id(0)) * B + tl.arange(0, B)
    v = tl.load(x + at)
    tl.store(out + at, v - tl.max(v, axis=0))


@tessera.jit
def divide(x, by, out, B: tl.constexpr):
    at = tl.arange(0, B)
    tl.store(out + at, tl.load(x + at) / tl.load(by))


SPECIAL = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -1e-40, 3e38, -3.4e38, 1.2e-38, 1.0, -1.0]


@pytest.mark.parametrize("by", [*SPECIAL, 3.0, -7.1, 1e-30, 2.5e30, 1.9999999, 0.3])
def test_division_by_one_number_rounds_like_a_division(by):
    random = np.random.default_rng(1)
    bits = random.integers(0, 1 << 32, 1012, dtype=np.uint64).astype(np.uint32).view(np.float32)
    x = np.concatenate([np.array(SPECIAL, np.float32), bits]).astype(np.float32)
    out, divisor = np.zeros_like(x), np.array([by], np.float32)
    native(divide, (1,), x, divisor, out, B=1024)
    with np.errstate(all="ignore"):
        expected = x / divisor
    # Below 2^-100 the correction loses bits: within one step there.
    small = (np.abs(x) < 2.0**-100) | (np.abs(expected) < 2.0**-100)
    np.testing.assert_array_equal(out[~small], expected[~small])
    steps = np.abs(out[small].view(np.int32).astype(np.int64) - expected[small].view(np.int32))
    both_zero = (out[small] == 0) & (expected[small] == 0)
    assert (steps[~both_zero] <= 1).all() or (np.abs(out[small] - expected[small]) <= 2e-45).all()


@tessera.jit
def row_maxima(x, out, where, R: tl.constexpr, C: tl.constexpr):
    i, j = tl.arange(0, R), tl.arange(0, C)
    v = tl.load(x + i[:, None] * C + j[None, :])
    best, place = tl.max(v, axis=1, return_indices=True)
    tl.store(out + i, best + tl.sum(v, axis=1))
    tl.store(where + i, place)


@pytest.mark.parametrize(("rows", "columns"), [(16, 16), (32, 64), (128, 32), (8, 128), (64, 1024)])
def test_many_rows_at_once(rows, columns):
    x = floats(rows, columns)
    x[:, columns // 2] = x[:, 1]  # ties
    x[rows // 2, 3] = np.nan
    out, where = np.zeros(rows, np.float32), np.zeros(rows, np.int32)
    agree(row_maxima, (1,), x, out, where, R=rows, C=columns, rtol=1e-5, atol=1e-4)


@tessera.jit
def attention(q, k, v, out, N, BM: tl.constexpr, BN: tl.constexpr, D: tl.constexpr):
    rows, dims, keys = tl.arange(0, BM), tl.arange(0, D), tl.arange(0, BN)
    queries = tl.load(q + rows[:, None] * D + dims[None, :])
    acc, total = tl.zeros((BM, D), tl.float32), tl.zeros((BM,), tl.float32)
    peak = tl.full((BM,), -1e30, tl.float32)
    for start in range(0, N, BN):
        scores = tl.dot(queries, tl.load(k + (start + keys)[None, :] * D + dims[:, None]))
        higher = tl.maximum(peak, tl.max(scores, axis=1))
        weights = tl.exp2(scores - higher[:, None])
        shrink = tl.exp2(peak - higher)
        total = total * shrink + tl.sum(weights, axis=1)
        acc = acc * shrink[:, None]
        values = tl.load(v + (start + keys)[:, None] * D + dims[None, :])
        acc = tl.dot(weights.to(values.dtype), values, acc)
        peak = higher
    tl.store(out + rows[:, None] * D + dims[None, :], acc / total[:, None])


ATTENTION = {**dict.fromkeys("qkv", "*bf16"), "out": "*fp32", "N": "i32"}


@pytest.mark.parametrize(("arch", "most"), [("amx", 2400), ("avx512", 2900), ("avx2", 4500)])
def test_attention_is_little_code(arch, most):
    """Compile time follows the number of instructions; tiles of any size make loops."""
    small = assembly(attention, ATTENTION, arch, BM=64, BN=64, D=64).count("\n")
    large = assembly(attention, ATTENTION, arch, BM=128, BN=128, D=64).count("\n")
    assert large < most
    assert large < 1.3 * small


def test_scaled_sums_stay_in_their_buffer():
    """The sums of attention are scaled in place and added to: they are copied nowhere."""
    signature = {**ATTENTION, "BM": "constexpr", "BN": "constexpr", "D": "constexpr"}
    source = ASTSource(attention, signature, {"BM": 64, "BN": 32, "D": 128})
    text = tessera.compile(source, target=GPUTarget("cpu", "amx", 1)).asm["llir"]
    assert text.count(f"alloca [{64 * 128} x float]") == 1


def llir(
    kernel: Any, kinds: dict[str, str], arch: str, options: Any = None, **constants: Any
) -> str:
    source = ASTSource(kernel, {**kinds, **dict.fromkeys(constants, "constexpr")}, constants)
    return tessera.compile(source, target=GPUTarget("cpu", arch, 1), options=options).asm["llir"]


def test_transposed_operands_are_packed_once():
    """K is read along its rows where its panels are made, and nowhere else: no transposed copy of it."""
    text = llir(attention, ATTENTION, "amx", BM=64, BN=64, D=64)
    assert text.count("load <32 x i16>") == 16
    assert text.count("shufflevector <16 x i16>") == 2  # V's rows are woven


def test_only_the_narrow_form_of_weights_is_kept():
    text = llir(attention, ATTENTION, "amx", BM=32, BN=128, D=64)
    assert text.count(f"alloca [{32 * 128} x float]") == 1  # the scores
    assert text.count(f"alloca [{32 * 128} x i16]") == 1


@tessera.jit
def narrow_sums(x, y, sums, out, also, N: tl.constexpr, BOTH: tl.constexpr):
    at = tl.arange(0, N)
    powers = tl.exp(tl.load(x + at))
    total = tl.sum(powers, axis=0)
    tl.store(sums, total)
    tl.store(out + at, powers.to(tl.float16) * tl.load(y + at))
    if BOTH:
        tl.store(also + at, powers - total)


@pytest.mark.parametrize("both", [False, True])
def test_values_that_are_needed_narrow_only(both):
    x, y = floats(512), floats(512, seed=1).astype(np.float16)
    sums, out, also = np.zeros(1, np.float32), np.zeros(512, np.float16), floats(512)
    agree(narrow_sums, (1,), x, y, sums, out, also, N=512, BOTH=both, rtol=1e-6, atol=1e-6)


@tessera.jit
def change_some(x, out, limit, both, C: tl.constexpr):
    i = tl.arange(0, 32)[:, None] * C + tl.arange(0, C)[None, :]
    product = tl.dot(tl.load(x + i), tl.trans(tl.load(x + i)))
    again = product
    if tl.program_id(0) < limit:
        cols = tl.arange(0, 32)
        product = tl.where(cols[:, None] < cols[None, :], 0.0, product)
        if both:
            again = product + again
    at = tl.program_id(0) * 1024 + tl.arange(0, 32)[:, None] * 32 + tl.arange(0, 32)[None, :]
    tl.store(out + at, product * tl.sum(again, axis=1)[:, None] + tl.max(product, axis=0)[None, :])


@pytest.mark.parametrize("both", [0, 1])
def test_tiles_that_one_side_of_an_if_hands_on(both):
    """They stay where they are; the other side changes them there, unless they are needed as they were."""
    x, out = np.round(floats(32, 64)), np.zeros((4, 32, 32), np.float32)
    agree(change_some, (4,), x, out, 2, both, C=64)


@tessera.jit
def swap_some(x, out, limit, C: tl.constexpr):
    i = tl.arange(0, 32)[:, None] * C + tl.arange(0, C)[None, :]
    a, b = tl.load(x + i), tl.load(x + 32 * C + i)
    p, q = tl.dot(a, tl.trans(b)), tl.dot(b, tl.trans(a))
    if tl.program_id(0) < limit:
        p, q = q, p
    at = tl.program_id(0) * 1024 + tl.arange(0, 32)[:, None] * 32 + tl.arange(0, 32)[None, :]
    tl.store(out + at, p + tl.sum(q, axis=0)[None, :] * tl.sum(p, axis=1)[:, None])


def test_tiles_that_change_places_in_an_if():
    x, out = np.round(floats(64, 64)), np.zeros((2, 32, 32), np.float32)
    agree(swap_some, (2,), x, out, 1, C=64)


@tessera.jit
def masked_later(q, k, v, out, N, BM: tl.constexpr, BN: tl.constexpr, D: tl.constexpr):
    rows, dims, keys = tl.arange(0, BM), tl.arange(0, D), tl.arange(0, BN)
    queries = tl.load(q + rows[:, None] * D + dims[None, :])
    acc = tl.zeros((BM, D), tl.float32)
    for start in range(0, N, BN):
        scores = tl.dot(queries, tl.load(k + (start + keys)[None, :] * D + dims[:, None]))
        if start + BN > BM:
            scores = tl.where((start + keys)[None, :] <= rows[:, None], scores, 0.0)
        acc = tl.dot(
            scores.to(tl.bfloat16), tl.load(v + (start + keys)[:, None] * D + dims[None, :]), acc
        )
    tl.store(out + rows[:, None] * D + dims[None, :], acc)


def test_masks_behind_a_condition_change_scores_in_place():
    text = llir(masked_later, ATTENTION, "amx", BM=64, BN=128, D=64)
    assert text.count(f"alloca [{64 * 128} x float]") == 1


@tessera.jit
def narrow_products(x, w, sums, out, R: tl.constexpr, C: tl.constexpr):
    rows, cols = tl.arange(0, R), tl.arange(0, C)
    at = rows[:, None] * C + cols[None, :]
    powers = tl.exp(tl.load(x + at))
    tl.store(sums + rows, tl.sum(powers * tl.exp(tl.load(w + cols))[None, :], axis=1))
    tl.store(out + at, powers.to(tl.float16))


def test_narrow_values_beside_others_that_are_kept():
    x, w = floats(32, 64), floats(64, seed=1)
    sums, out = np.zeros(32, np.float32), np.zeros((32, 64), np.float16)
    agree(narrow_products, (1,), x, w, sums, out, R=32, C=64, rtol=1e-6)


@tessera.jit
def sums_down_columns(x, y, z, first, second, C: tl.constexpr, R: tl.constexpr):
    """As the gradients of a layer norm's weights: memory runs along the dimension that is kept."""
    cols, rows = tl.arange(0, C), tl.arange(0, R)
    at = cols[:, None] + C * rows[None, :]
    total = tl.load(x + at) + tl.load(y + at) + tl.exp(tl.load(z + at))
    tl.store(first + cols, tl.sum(total * tl.load(z + at), axis=1))
    tl.store(second + cols, tl.sum(total, axis=1))


def test_what_later_sums_need_is_computed_by_the_first():
    x, y, z = floats(32, 64), floats(32, 64, seed=1), floats(32, 64, seed=2)
    first, second = np.zeros(64, np.float32), np.zeros(64, np.float32)
    agree(sums_down_columns, (1,), x, y, z, first, second, C=64, R=32, rtol=1e-5)


@tessera.jit
def weighted(a, x, out, M, N, B: tl.constexpr):
    row = tl.program_id(0) + tl.arange(0, 1)
    at = tl.arange(0, B)
    inside = (row[:, None] < M) & (at[None, :] < N)
    tile = tl.load(a + row[:, None] * N + at[None, :], inside, other=0.0)
    tl.store(out + row, tl.sum(tile * tl.load(x + at)[None, :], axis=1))


WEIGHTED = {"a": "*fp32", "x": "*fp32", "out": "*fp32", "M": "i32", "N": "i32"}


def test_a_mask_of_rows_is_not_tested_by_each_vector():
    """Whole vectors of rows that are there have a loop without masks: with AVX2 a masked load of what is in no cache
    takes more than twice as long."""
    blocks = llir(weighted, WEIGHTED, "avx2", B=1024).split("\n  br ")
    assert any("fmul" in b and "masked" not in b for b in blocks)
    options = {"disable_optimizations": "mask-split"}
    blocks = llir(weighted, WEIGHTED, "avx2", options, B=1024).split("\n  br ")
    assert not any("fmul" in b and "masked" not in b for b in blocks)


@pytest.mark.parametrize("n", [1024, 1000, 40, 3])
def test_rows_behind_the_last_one_are_masked(n):
    a, x = floats(5, n), floats(1024)
    out = np.full(8, 7.0, np.float32)
    native(weighted, (8,), a, x, out, 5, n, B=1024)
    np.testing.assert_allclose(out[:5], (a * x[:n]).sum(1), rtol=1e-4, atol=1e-4)
    assert (out[5:] == 0).all()


@tessera.jit
def chosen_rows(x, out, n, first, row, R: tl.constexpr, B: tl.constexpr, SAME: tl.constexpr):
    r, c = tl.arange(0, R)[:, None], tl.arange(0, B)[None, :]
    inside = (r + first == row) if SAME else (r + first != row)
    v = tl.load(x + r * n + c, inside & (first != 7) & (c < n), 0.0)
    tl.store(out + tl.arange(0, B), tl.sum(v, axis=0))
    tl.store(out + B + tl.arange(0, R), tl.sum(v, axis=1))


@pytest.mark.parametrize("n", [64, 40])
@pytest.mark.parametrize("first", [0, 1000, 7])
def test_masks_of_rows_may_compare_in_any_way(first, n):
    """Not only with what grows: rows that are equal to one, or are not, and a condition of the whole tile."""
    x = floats(32, n)
    for row, same in ((3, True), (3, False), (1003, True)):
        out = np.zeros(96, np.float32)
        native(chosen_rows, (1,), x, out, n, first, row, R=32, B=64, SAME=same)
        at = np.arange(32) + first
        kept = x * ((at == row) if same else (at != row))[:, None] * (first != 7)
        np.testing.assert_allclose(out[:n], kept.sum(0), atol=1e-4)
        np.testing.assert_allclose(out[64:], kept.sum(1), atol=1e-4)
