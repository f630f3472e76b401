"""Loads, stores, masks, atomics, block pointers and descriptors."""

from __future__ import annotations

import numpy as np
import pytest

import tessera
import tessera.language as tl
from tests.lang.kit import FLOATS, INTS, sample

N = 64


# --- loads and stores ----------------------------------------------------------------------------------------
@tessera.jit
def masked_copy(x, out, n, OTHER: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, N)
    mask = i < n
    if OTHER is None:
        a = tl.load(x + i, mask=mask)
    else:
        a = tl.load(x + i, mask=mask, other=OTHER)
    tl.store(out + i, a)


@pytest.mark.parametrize("dtype", ["i1", *INTS, *FLOATS])
def test_masked_load(device, dtype):
    x = sample(dtype, (N,))
    for other in (None, 1):
        out = device.zeros(N, dtype)
        masked_copy[(1,)](device.array(x, dtype), out, 40, OTHER=other, N=N)
        want = np.where(np.arange(N) < 40, x, np.full_like(x, 0 if other is None else other))
        np.testing.assert_array_equal(device.numpy(out), want)


@tessera.jit
def masked_store(x, out, n, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out + i, tl.load(x + i), mask=i < n)


@pytest.mark.parametrize("dtype", ["i1", "i8", "u16", "fp16", "bf16", "fp32", "fp64", "i64"])
def test_masked_store_leaves_the_rest(device, dtype):
    x = sample(dtype, (N,))
    out = device.full(N, 1, dtype)
    masked_store[(1,)](device.array(x, dtype), out, 23, N=N)
    want = np.where(np.arange(N) < 23, x, np.ones_like(x))
    np.testing.assert_array_equal(device.numpy(out), want)


@tessera.jit
def casting_store(x, out, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out + i, tl.load(x + i) * 10)
    tl.store(out + N + i, 7)
    tl.store(out + 2 * N, 2.9)


def test_store_casts_and_spreads(device):
    x = sample("fp32", (N,))
    out = device.zeros(2 * N + 1, "i32")
    casting_store[(1,)](device.array(x), out, N=N)
    got = device.numpy(out)
    np.testing.assert_array_equal(got[:N], np.trunc(x * np.float32(10)).astype(np.int32))
    assert set(got[N : 2 * N].tolist()) == {7}
    assert got[2 * N] == 2


@tessera.jit
def broadcast_load(x, out, N: tl.constexpr):
    i = tl.arange(0, N)
    rows = tl.load(x + i[:, None], mask=(i < N)[None, :])
    tl.store(out + i[:, None] * N + i[None, :], rows)


def test_a_mask_may_enlarge_the_pointer(device):
    x = sample("i32", (16,))
    out = device.zeros((16, 16), "i32")
    broadcast_load[(1,)](device.array(x), out, N=16)
    np.testing.assert_array_equal(device.numpy(out), np.repeat(x[:, None], 16, 1))


@tessera.jit
def scalar_kernel(x, out):
    pid = tl.program_id(0)
    a = tl.load(x + pid)
    tl.store(out + pid, a + tl.num_programs(0), mask=pid != 2)


def test_scalars(device):
    x = np.arange(4, dtype=np.float32)
    out = device.zeros(4)
    scalar_kernel[(4,)](device.array(x), out)
    assert device.numpy(out).tolist() == [4, 5, 0, 7]


@tessera.jit
def offset_kernel(x, out, N: tl.constexpr, KIND: tl.constexpr):
    i = tl.arange(0, N).to(KIND)
    tl.store(out + tl.arange(0, N), tl.load((x + N) - (N - i.to(tl.int64)) + 0 * i))


@pytest.mark.parametrize(
    "kind", [tl.int8, tl.uint8, tl.int16, tl.uint16, tl.uint32, tl.int64, tl.uint64], ids=str
)
def test_offsets_of_any_width(device, kind):
    x = sample("fp16", (64,))
    out = device.zeros(64, "fp16")
    offset_kernel[(1,)](device.array(x), out, N=64, KIND=kind)
    np.testing.assert_array_equal(device.numpy(out), x)


@tessera.jit
def wide_offset_kernel(x, out):
    # 200 as an unsigned byte is not -56
    tl.store(out, tl.load(x + tl.full((), 200, tl.uint8)))
    tl.store(out + 1, tl.load(x + 100 + tl.full((), -56, tl.int8)))


def test_offsets_extend_by_their_signedness(device):
    x = np.arange(256, dtype=np.int32)
    out = device.zeros(2, "i32")
    wide_offset_kernel[(1,)](device.array(x), out)
    assert device.numpy(out).tolist() == [200, 44]


# --- atomics -------------------------------------------------------------------------------------------------
@tessera.jit
def atomic_kernel(x, cells, old, OP: tl.constexpr, N: tl.constexpr, CELLS: tl.constexpr):
    i = tl.program_id(0) * N + tl.arange(0, N)
    a = tl.load(x + i)
    p = cells + i % CELLS
    if OP == "add":
        r = tl.atomic_add(p, a, mask=i % 3 != 0)
    elif OP == "max":
        r = tl.atomic_max(p, a)
    elif OP == "min":
        r = tl.atomic_min(p, a)
    elif OP == "and":
        r = tl.atomic_and(p, a)
    elif OP == "or":
        r = tl.atomic_or(p, a)
    elif OP == "xor":
        r = tl.atomic_xor(p, a, sem="relaxed", scope="gpu")
    tl.store(old + i, r)


def atomics(device, op, x, cells, dtype):
    held, old = device.array(cells, dtype), device.zeros(x.size, dtype)
    atomic_kernel[(2,)](device.array(x, dtype), held, old, OP=op, N=x.size // 2, CELLS=cells.size)
    return device.numpy(held)


ATOMIC = {
    "max": np.maximum,
    "min": np.minimum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}


@pytest.mark.parametrize("dtype", ["i32", "u32", "i64", "u64"])
@pytest.mark.parametrize("op", ["add", *ATOMIC])
def test_atomics_of_ints(device, op, dtype):
    x, cells = sample(dtype, (128,)), sample(dtype, (8,), seed=3)
    want = cells.copy()
    for i, v in enumerate(x):
        if op == "add":
            if i % 3:
                with np.errstate(over="ignore"):
                    want[i % 8] += v
        else:
            want[i % 8] = ATOMIC[op](want[i % 8], v)
    np.testing.assert_array_equal(atomics(device, op, x, cells, dtype), want)


@pytest.mark.parametrize("dtype", ["fp16", "bf16", "fp32", "fp64"])
def test_atomic_add_of_floats(device, dtype):
    x = (np.arange(128) % 5 - 2).astype(np.float32)
    got = atomics(device, "add", x, np.ones(8, np.float32), dtype)
    want = np.ones(8)
    for i, v in enumerate(x):
        want[i % 8] += v if i % 3 else 0
    np.testing.assert_array_equal(got, want)


@tessera.jit
def sums_kernel(x, sums, m, n, ROWS: tl.constexpr, COLS: tl.constexpr):
    """Sums whose old values nobody reads, of whole tiles that reach past the end."""
    row = tl.arange(0, ROWS)[:, None]
    col = tl.arange(0, COLS)[None, :]
    n = tl.multiple_of(n, 8)
    inside = (row < m) & (col < n)
    values = tl.load(x + tl.program_id(0) * m * n + row * n + col, inside, other=0.0)
    tl.atomic_add(sums + row * n + col, values, inside)


@pytest.mark.parametrize("dtype", ["fp16", "bf16", "fp32", "fp64"])
@pytest.mark.parametrize(("m", "n"), [(8, 64), (5, 40), (3, 8)])
def test_sums_of_neighbours(device, dtype, m, n):
    x = (np.arange(3 * m * n) % 7 - 3).astype(np.float32)
    sums = device.full(m * n, 1, dtype)
    sums_kernel[(3,)](device.array(x, dtype), sums, m, n, ROWS=8, COLS=64)
    np.testing.assert_array_equal(device.numpy(sums), 1 + x.reshape(3, -1).sum(0))


@pytest.mark.parametrize("dtype", ["fp32", "fp64"])
@pytest.mark.parametrize("op", ["max", "min"])
def test_atomic_extrema_of_floats(device, op, dtype):
    x, cells = sample(dtype, (128,)), sample(dtype, (8,), seed=3)
    rows = np.concatenate([cells[None], x.reshape(16, 8)])
    np.testing.assert_array_equal(atomics(device, op, x, cells, dtype), getattr(rows, op)(0))


@tessera.jit
def scalar_atomic_kernel(counter, order):
    ticket = tl.atomic_add(counter, 1)
    tl.store(order + ticket, tl.program_id(0))


def test_a_scalar_atomic_acts_once_per_program(device):
    counter, order = device.zeros(1, "i32"), device.full(16, -1, "i32")
    scalar_atomic_kernel[(16,)](counter, order)
    assert device.numpy(counter)[0] == 16
    assert sorted(device.numpy(order).tolist()) == list(range(16))


@tessera.jit
def exchange_kernel(x, old, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(old + i, tl.atomic_xchg(x + i, i))


@pytest.mark.parametrize("dtype", ["i32", "u64", "fp32", "fp64"])
def test_exchange(device, dtype):
    x = sample(dtype, (16,))
    held, old = device.array(x, dtype), device.zeros(16, dtype)
    exchange_kernel[(1,)](held, old, N=16)
    np.testing.assert_array_equal(device.numpy(held), np.arange(16))
    np.testing.assert_array_equal(device.numpy(old), x)


@tessera.jit
def lock_kernel(lock, total, x):
    while tl.atomic_cas(lock, 0, 1) == 1:
        pass
    tl.store(total, tl.load(total) + tl.load(x + tl.program_id(0)))
    tl.debug_barrier()
    tl.atomic_xchg(lock, 0)


@pytest.mark.parametrize("dtype", ["i32", "u32"])
def test_compare_and_swap_makes_a_lock(device, dtype):
    """Bits are compared: the numbers may be signed where the lock is not."""
    x = np.arange(1, 33, dtype=np.float32)
    lock, total = device.zeros(1, dtype), device.zeros(1)
    lock_kernel[(32,)](lock, total, device.array(x))
    assert device.numpy(total)[0] == x.sum()
    assert device.numpy(lock)[0] == 0


@tessera.jit
def cas_kernel(x, expected, value, old, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(old + i, tl.atomic_cas(x + i, tl.load(expected + i), tl.load(value + i)))


@pytest.mark.parametrize("dtype", ["i32", "u64", "fp32", "i16"])
def test_compare_and_swap_of_tiles(device, dtype):
    x, value = sample(dtype, (16,)), sample(dtype, (16,), seed=5)
    expected = np.where(np.arange(16) % 2 == 0, x, x + 1).astype(x.dtype)
    held, old = device.array(x, dtype), device.zeros(16, dtype)
    cas_kernel[(1,)](held, device.array(expected, dtype), device.array(value, dtype), old, N=16)
    np.testing.assert_array_equal(device.numpy(held), np.where(np.arange(16) % 2 == 0, value, x))
    np.testing.assert_array_equal(device.numpy(old), x)


# --- block pointers --------------------------------------------------------------------------------------------
@tessera.jit
def block_copy(x, out, m, n, M: tl.constexpr, N: tl.constexpr, PADDING: tl.constexpr):
    source = tl.make_block_ptr(x, (m, n), (n, 1), (0, 0), (M, N), (1, 0))
    target = tl.make_block_ptr(out, (M, 3 * N), (3 * N, 1), (0, 0), (M, N), (1, 0))
    for _ in range(0, n, N):
        a = tl.load(source, boundary_check=(0, 1), padding_option=PADDING)
        tl.store(target, a + 1, boundary_check=(0, 1))
        source = tl.advance(source, (0, N))
        target = target.advance((0, N))


@pytest.mark.filterwarnings("ignore:make_block_ptr is deprecated")
@pytest.mark.parametrize("padding", ["zero", "nan"])
def test_block_pointers(device, padding):
    x = sample("fp32", (13, 40))
    out = device.full((16, 48), -1)
    block_copy[(1,)](device.array(x), out, 13, 40, M=16, N=16, PADDING=padding)
    want = np.full((16, 48), np.nan if padding == "nan" else 0, np.float32)
    want[:13, :40] = x
    np.testing.assert_array_equal(device.numpy(out), want + 1)


@tessera.jit
def block_halves(x, out, other, N: tl.constexpr):
    source = tl.make_block_ptr(x, (N,), (1,), (0,), (N,), (0,))
    target = tl.make_block_ptr(out, (N,), (1,), (0,), (N,), (0,))
    tl.static_assert(target.type.element_ty == tl.block_type(tl.float16, [N]))
    tl.static_assert(target.dtype.element_ty.element_ty == tl.float16)
    v = tl.load(source) / 3
    tl.store(target, v.to(target.type.element_ty))
    tl.store(other + tl.arange(0, N), v.to(tl.load(target).type))


@pytest.mark.filterwarnings("ignore:make_block_ptr is deprecated")
def test_the_type_of_a_block_pointer_is_one_to_cast_to(device):
    x = sample("fp32", (32,))
    out, other = device.zeros(32, "fp16"), device.zeros(32, "fp16")
    block_halves[(1,)](device.array(x), out, other, N=32)
    for y in (out, other):
        np.testing.assert_allclose(device.numpy(y), x / 3, rtol=2e-3)


# --- descriptors -----------------------------------------------------------------------------------------------
@tessera.jit
def descriptor_copy(x, out, m, n, M: tl.constexpr, N: tl.constexpr):
    source = tl.make_tensor_descriptor(x, (m, n), (n, 1), (M, N))
    target = tl.make_tensor_descriptor(out, [m, n], [n, 1], [M, N])
    tl.static_assert(source.block_shape[0] == M)
    i = tl.program_id(0) * M
    j = tl.program_id(1) * N
    a = source.load([i, j])
    target.store([i, j], a * 2)


@pytest.mark.parametrize("dtype", ["fp32", "fp16", "i32"])
def test_descriptors_stop_at_the_edge(device, dtype):
    x = sample(dtype, (13, 48), small=True)
    out = device.zeros((13, 48), dtype)
    descriptor_copy[(2, 3)](device.array(x, dtype), out, 13, 48, M=8, N=16)
    np.testing.assert_array_equal(device.numpy(out), x * 2)


@tessera.jit
def descriptor_sum(x, out, m, n, M: tl.constexpr, N: tl.constexpr):
    d = tl.make_tensor_descriptor(x, (m, n), (n, 1), (M, N))
    total = tl.zeros((M, N), tl.float32)
    for j in range(0, n, N):
        total += d.load((0, j))
    o = tl.make_tensor_descriptor(out, (M, N), (N, 1), (M, N))
    o.atomic_add((0, 0), total)


def test_descriptor_atomics(device):
    x = sample("fp32", (6, 64))
    out = device.full((8, 16), 1)
    descriptor_sum[(1,)](device.array(x), out, 6, 64, M=8, N=16)
    want = np.ones((8, 16), np.float32)
    want[:6] += x.reshape(6, 4, 16).sum(1)
    np.testing.assert_allclose(device.numpy(out), want, rtol=1e-5, atol=1e-6)


@tessera.jit
def _equals(x, out, k, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out + i, (tl.load(x + i) == k).to(tl.int32))


@pytest.mark.parametrize("k", [-4, 0, 7])
def test_scalars_of_any_sign(device, k):
    x = np.arange(-16, 16)
    out = device.zeros(32, "i32")
    _equals[(1,)](device.array(x, "i32"), out, k, N=32)
    np.testing.assert_array_equal(device.numpy(out), x == k)


@tessera.jit
def turned_kernel(x, out, N: tl.constexpr):
    i = tl.arange(0, N)
    inside = (i[:, None] > 2) & (i[None, :] < 9)
    tl.store(out + i[:, None] * N + i[None, :], tl.load(x + i[:, None], mask=inside, other=0))


@pytest.mark.parametrize("dtype", ["i1", "i8", "fp16", "i64"])
def test_rows_read_along_columns(device, dtype):
    x = sample(dtype, (16,))
    out = device.full((16, 16), 1, dtype)
    turned_kernel[(1,)](device.array(x, dtype), out, N=16)
    i = np.arange(16)
    inside = (i[:, None] > 2) & (i[None, :] < 9)
    np.testing.assert_array_equal(device.numpy(out), np.where(inside, x[:, None], 0))


@tessera.jit
def edge_kernel(x, out, M, N, LD: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):
    desc = tl.make_tensor_descriptor(out, shape=[M, N], strides=[LD, 1], block_shape=[BM, BN])
    at = tl.arange(0, BM)[:, None] * BN + tl.arange(0, BN)[None, :]
    desc.store([0, 0], tl.load(x + at))


@pytest.mark.parametrize("dtype", ["i8", "fp16", "fp32", "i64"])
def test_descriptors_store_nothing_behind_their_rows(device, dtype):
    """The TMA unit of NVIDIA's GPUs stores whole 16 bytes: rows that end in between go another way."""
    x = sample(dtype, (16, 64), small=True)
    for n in (64, 63, 56, 49, 1):
        out = device.full((18, 80), 7, dtype)
        edge_kernel[(1,)](device.array(x), out, 15, n, LD=80, BM=16, BN=64)
        want = np.full((18, 80), 7, x.dtype)
        want[:15, :n] = x[:15, :n]
        np.testing.assert_array_equal(device.numpy(out), want)


@tessera.jit
def adding_kernel(out, N, LD: tl.constexpr, BN: tl.constexpr):
    desc = tl.make_tensor_descriptor(out, shape=[4, N], strides=[LD, 1], block_shape=[4, BN])
    desc.atomic_add([0, 0], tl.full((4, BN), 1, tl.float32))


def test_descriptors_add_nothing_behind_their_rows(device):
    for n in (32, 31, 28):
        out = device.zeros((4, 40))
        adding_kernel[(1,)](out, n, LD=40, BN=32)
        want = np.zeros((4, 40), np.float32)
        want[:, :n] = 1
        np.testing.assert_array_equal(device.numpy(out), want)
