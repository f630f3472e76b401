"""The SIMT lowering: what instructions it chooses, and what they compute over all threads (in the simulator)."""

# pyright: basic
from __future__ import annotations

import re

import numpy as np
import pytest

import tessera
import tessera.language as tl
from tessera.backends.nvidia.backend import fewer_ctas
from tessera.language.extra import libdevice
from tests.simt_kit import Compiled

C = "constexpr"
RNG = np.random.default_rng(5)


@tessera.jit
def add_kernel(x, y, out, n, N: tl.constexpr):
    i = tl.program_id(0) * N + tl.arange(0, N)
    mask = i < n
    tl.store(out + i, tl.load(x + i, mask) + tl.load(y + i, mask), mask)


def compile_add(elem: str, n_type: str = "i32", **options) -> Compiled:
    p = f"*{elem}"
    signature = {"x": p, "y": p, "out": p, "n": n_type, "N": C}
    return Compiled(add_kernel, signature, {"N": 1024}, **options)


@pytest.mark.parametrize(
    ("elem", "width"), [("fp32", "v4"), ("fp16", "v4"), ("i64", "v2"), ("i8", "v4")]
)
def test_unmasked_tiles_move_in_vectors(elem, width):
    signature = {"x": f"*{elem}", "out": f"*{elem}", "N": C}
    found = Compiled(copy_kernel, signature, {"N": 2048})
    bits = "b64" if elem == "i64" else "b32"
    assert (
        found.count(rf"ld\.global\.{width}\.{bits}")
        == found.count(rf"st\.global\.{width}\.{bits}")
        > 0
    )
    assert found.count(r"ld\.global") == found.count(rf"ld\.global\.{width}")


@tessera.jit
def undefined_in_llvm_kernel(x, y, out, N: tl.constexpr):
    i = tl.arange(0, N)
    a, b = tl.load(x + i), tl.load(y + i)
    tl.store(out + i, a // b)
    tl.store(out + N + i, a % b)
    tl.store(out + 2 * N + i, a << b)
    tl.store(out + 3 * N + i, a >> b)


@pytest.mark.parametrize("elem", ["i8", "u8", "i32", "u32", "i64", "u64"])
def test_division_by_zero_and_wide_shifts_are_defined(elem):
    """tests/lang/test_corner_cases.py goes through all numbers; this is what other targets do, at PTX's price."""
    signed, bits = elem[0] == "i", int(elem[1:])
    dtype = np.dtype(f"{elem[0]}{bits // 8}")
    least = np.iinfo(dtype).min
    x = np.array([7, 7, least, least, 100, 100, 5, least], np.int64 if signed else np.uint64)
    y = np.array(
        [0, 2, 0, -1 if signed else 3, bits, bits + 1, 200 if bits > 8 else 100, bits], np.int64
    )
    x, y = x.astype(dtype), y.astype(dtype)
    found = np.zeros(4 * len(x), dtype)
    p = f"*{elem}"
    signature = {"x": p, "y": p, "out": p, "N": C}
    compiled = Compiled(undefined_in_llvm_kernel, signature, {"N": len(x)})
    compiled.run(x, y, found)
    quotient, rest, left, right = found.reshape(4, -1)
    np.testing.assert_array_equal(quotient[:4], np.array([0, 3, 0, least], dtype))
    np.testing.assert_array_equal(rest[:3], np.array([7, 1, least], dtype))
    np.testing.assert_array_equal(left[4:], np.zeros(4, dtype))
    np.testing.assert_array_equal(right[4:], np.array([0, 0, 0, -1 if signed else 0]).astype(dtype))
    assert compiled.count(r"div\.[su]32") == 1  # the remainder's too; of 64 bits that fit into 32
    assert compiled.count("rem") == 0


@tessera.jit
def rest_kernel(x, y, out, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out + i, tl.load(x + i) % tl.load(y + i))


def test_the_rest_of_64_bits_is_not_made_of_a_quotient():
    """The divisors that LLVM has no rest for give 0 by -1, as by 1, and by 0 the dividend."""
    p = "*i64"
    compiled = Compiled(rest_kernel, {"x": p, "y": p, "out": p, "N": C}, {"N": 8})
    least = np.iinfo(np.int64).min
    x = np.array([7, -7, least, least, 5, -(2**40) - 1, 2**62, 0], np.int64)
    y = np.array([0, 2, -1, 0, -3, 2**33, -7, 0], np.int64)
    found = np.zeros_like(x)
    compiled.run(x, y, found)
    want = [7, -1, 0, least, 2, -(2**40) % -(2**33) - 1, 2**62 % 7, 0]
    np.testing.assert_array_equal(found, want)
    assert compiled.count(r"rem\.s64") >= 1
    assert compiled.count(r"sub\.s64") == 0


@tessera.jit
def every_other_kernel(x, out, N: tl.constexpr):
    i = tl.arange(0, N)
    v = tl.load(x + i)
    w = tl.where(i % 2 == 0, v, -v)
    a = tl.where(i % 2 == 0, w, tl.abs(w))
    tl.store(out + i, w + w)
    tl.store(out + N + i, a + a)


@pytest.mark.parametrize("elem", ["fp16", "bf16"])
def test_signs_of_single_halves_are_bits(elem):
    """ptxas 12.8 makes {2x, 0} of {x, -y} + {x, -y}."""
    done = Compiled(every_other_kernel, {"x": f"*{elem}", "out": f"*{elem}", "N": C}, {"N": 256})
    assert not re.search(r"(neg|abs)\.b?f16", done.ptx)
    assert "xor.b16" in done.ptx and re.search(r"add(\.rn)?\.b?f16x2", done.ptx)


@tessera.jit
def copy_kernel(x, out, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out + i, tl.load(x + i))


@pytest.mark.parametrize("cc", [80, 90])
def test_vector_add_has_no_local_memory_and_shares_addresses(cc):
    found = compile_add("fp32", cc=cc)
    done = found.assemble()
    assert (done.stack, done.spill_stores, done.spill_loads, done.smem) == (0, 0, 0, 0)
    # one base an array: the distance between a thread's vectors is in the instructions
    assert found.count(r"add\.s64") <= 4
    assert found.count(r"\[%rd\d+ \+ 2048\]") == 3


@pytest.mark.parametrize("n", [0, 1, 1000, 1024, 2047])
@pytest.mark.parametrize("elem", ["fp32", "fp16", "i8", "i64", "fp64"])
def test_masked_tail(elem, n):
    dtype = {"fp32": "f4", "fp16": "f2", "i8": "i1", "i64": "i8", "fp64": "f8"}[elem]
    x, y = ((RNG.standard_normal(2048) * 20).astype(dtype) for _ in range(2))
    out = np.full(2048, 7, dtype)
    compile_add(elem).run(x, y, out, n, grid=(2, 1, 1))
    want = np.where(np.arange(2048) < n, x + y, np.full(2048, 7, dtype))
    np.testing.assert_array_equal(out, want)


@tessera.jit
def row_sums(x, out, M: tl.constexpr, N: tl.constexpr):
    i, j = tl.arange(0, M), tl.arange(0, N)
    tl.store(out + i, tl.sum(tl.load(x + i[:, None] * N + j[None, :]), axis=1))


@pytest.mark.parametrize(("rows", "shuffles"), [(2, 10), (4, 6), (8, 9), (64, 62)])
def test_lanes_share_the_work_of_many_rows(rows, shuffles):
    """Of four rows and more, a lane combines half as many after each of five steps."""
    p = {"x": "*fp32", "out": "*fp32", "M": C, "N": C}
    found = Compiled(row_sums, p, {"M": rows, "N": 128}, num_warps=1)
    x, out = RNG.standard_normal((rows, 128)).astype("f4"), np.zeros(rows, "f4")
    found.run(x, out)
    np.testing.assert_allclose(out, x.sum(1), rtol=1e-5, atol=1e-5)
    assert found.ptx.count("shfl.sync.bfly") == shuffles


def test_each_element_is_stored_once():
    """A reduced tile lies in many threads: all but one hold copies, and stay silent."""
    found = Compiled(row_sums, {"x": "*fp32", "out": "*fp32", "M": C, "N": C}, {"M": 8, "N": 256})
    x, out = RNG.standard_normal((8, 256)).astype("f4"), np.zeros(8, "f4")
    sim = found.run(x, out)
    np.testing.assert_allclose(out, x.sum(1), rtol=2e-6, atol=1e-5)
    assert sim.written["global"] == out.nbytes


def test_shuffles_of_a_reduction():
    """8 rows of 128 in 4 warps: two rows a warp, five shuffles each."""
    found = Compiled(row_sums, {"x": "*fp32", "out": "*fp32", "M": C, "N": C}, {"M": 8, "N": 128})
    rows_a_warp, lanes = 2, 5
    assert found.count(r"shfl\.sync\.bfly") == rows_a_warp * lanes


@tessera.jit
def extremes_kernel(x, sums, place, M: tl.constexpr, N: tl.constexpr):
    i, j = tl.arange(0, M), tl.arange(0, N)
    tile = tl.load(x + i[:, None] * N + j[None, :])
    tl.store(sums + i, tl.sum(tile, axis=1))
    tl.store(place, tl.argmax(tl.reshape(tile, (M * N,)), axis=0))


@pytest.mark.parametrize(("m", "n"), [(1, 1024), (2, 2048), (1, 16)])
@pytest.mark.parametrize(("warps", "single"), [(8, False), (16, True), (32, True)])
def test_parts_of_many_warps_are_read_by_lanes(m, n, warps, single):
    signature = {"x": "*fp32", "sums": "*fp32", "place": "*i32", "M": C, "N": C}
    found = Compiled(extremes_kernel, signature, {"M": m, "N": n}, num_warps=warps)
    x = RNG.standard_normal((m, n)).astype("f4")
    x.reshape(-1)[[3, 11]] = 9
    sums, place = np.zeros(m, "f4"), np.zeros(1, "i4")
    found.run(x, sums, place)
    np.testing.assert_allclose(sums, x.sum(1), rtol=2e-6, atol=1e-4)
    assert place[0] == 3  # of equals the first
    if n == 1024:
        assert (found.count(r"ld\.shared\.v4") == 0) == single


@tessera.jit
def total_kernel(x, out, n, N: tl.constexpr):
    acc = tl.zeros((N,), tl.float32)
    p = x + tl.arange(0, N)
    for start in range(0, n, N):
        acc += tl.load(p, tl.arange(0, N) < n - start, 0.0)
        p += N
    tl.store(out + tl.program_id(0), tl.sum(acc, 0))


def test_loop_carries_one_address():
    found = Compiled(total_kernel, {"x": "*fp32", "out": "*fp32", "n": "i32", "N": C}, {"N": 1024})
    assert found.ir.count("phi ptr addrspace(1)") == 1
    x, out = RNG.standard_normal(5000).astype("f4"), np.zeros(1, "f4")
    sim = found.run(x, out, 4500)
    np.testing.assert_allclose(out[0], x[:4500].sum(dtype="f8"), rtol=1e-5)
    assert sim.written["global"] == 4  # the scalar is stored by one thread


def test_room_for_programs():
    """Straight code leaves room for many programs, loops for fewer; where registers spill, for fewer still."""
    p = {"x": "*fp32", "out": "*fp32", "n": "i32", "N": C}
    assert re.search(r"minnctapersm 12$", compile_add("fp32", num_warps=4).ptx, re.M)
    narrow = compile_add("fp32", num_warps=1)  # an SM holds no more
    assert re.search(r"minnctapersm 32$", narrow.ptx, re.M)
    loop = Compiled(total_kernel, p, {"N": 1024}, num_warps=4)
    assert re.search(r"minnctapersm 4$", loop.ptx, re.M)
    large = Compiled(total_kernel, p, {"N": 1024}, num_warps=16)
    assert re.search(r"minnctapersm 1$", large.ptx, re.M)
    counted = Compiled(total_kernel, {**p, "n": C}, {"N": 1024, "n": 8192}, num_warps=16)
    assert "minnctapersm" not in counted.ptx
    text, blocks = ".maxntid 256\n.minnctapersm 6\n.x", []
    while (looser := fewer_ctas(text)) != text:
        text = looser
        blocks.append(int(text.split()[3]))
    assert blocks == [4, 2, 1]
    text, blocks = text.replace("256", "128").replace("ctapersm 1", "ctapersm 12"), []
    while (looser := fewer_ctas(text)) != text:
        text = looser
        blocks.append(int(text.split()[3]))
    assert blocks == [8, 4, 3, 1]


@tessera.jit
def control_kernel(x, out, n, N: tl.constexpr):
    i = tl.arange(0, N)
    a = tl.load(x + i)
    k = 0
    while k < n:
        if k % 2 == 0:
            a = a + k
        else:
            a = a * 0.5
        k += 1
    for t in range(10, 0, -3):
        a += t
    tl.store(out + i, a)


@pytest.mark.parametrize("n", [0, 1, 6])
def test_nested_control_flow(n):
    found = Compiled(control_kernel, {"x": "*fp32", "out": "*fp32", "n": "i32", "N": C}, {"N": 128})
    x, out = RNG.standard_normal(128).astype("f4"), np.zeros(128, "f4")
    found.run(x, out, n)
    want = x
    for k in range(n):
        want = want + np.float32(k) if k % 2 == 0 else want * np.float32(0.5)
    np.testing.assert_allclose(out, want + 22, rtol=1e-6)


@tessera.jit
def scan_kernel(x, out, back, M: tl.constexpr, N: tl.constexpr):
    at = tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]
    a = tl.load(x + at)
    tl.store(out + at, tl.cumsum(a, 1))
    tl.store(back + at, tl.cumsum(a, 0, reverse=True))


@pytest.mark.parametrize(
    ("m", "n", "warps"), [(32, 64, 4), (4, 512, 4), (256, 8, 8), (1, 16, 2), (2, 2, 1)]
)
def test_scan_over_registers_lanes_and_warps(m, n, warps):
    signature = {"x": "*fp32", "out": "*fp32", "back": "*fp32", "M": C, "N": C}
    found = Compiled(scan_kernel, signature, {"M": m, "N": n}, num_warps=warps)
    x = RNG.integers(-9, 9, (m, n)).astype("f4")  # sums are exact
    out, back = np.zeros_like(x), np.zeros_like(x)
    found.run(x, out, back)
    np.testing.assert_array_equal(out, np.cumsum(x, 1))
    np.testing.assert_array_equal(back, np.cumsum(x[::-1], 0)[::-1])


@tessera.jit
def counter_kernel(counter, out):
    old = tl.atomic_add(counter, 5)
    tl.store(out + old, tl.atomic_xchg(counter + 1, old))


def test_scalar_atomics_act_once_and_all_threads_see_the_result():
    counter, out = np.array([3, 70, 0], "i4"), np.zeros(32, "i4")
    Compiled(counter_kernel, {"counter": "*i32", "out": "*i32"}, {}).run(
        counter, out, grid=(2, 1, 1)
    )
    assert counter.tolist() == [13, 8, 0]
    assert (out[3], out[8], out.sum()) == (70, 3, 73)


@tessera.jit
def tail_kernel(x, out, n, N: tl.constexpr):
    n = tl.multiple_of(n, 8)
    i = tl.arange(0, N)
    value = tl.load(x + i, i < n, other=1.0)
    tl.store(out + i, tl.where(i < n, value - 3, 0.0))


@pytest.mark.parametrize("n", [0, 8, 1016, 1024])
def test_masks_are_compared_once_for_a_run_of_equal_elements(n):
    found = Compiled(tail_kernel, {"x": "*fp16", "out": "*fp16", "n": "i32", "N": C}, {"N": 1024})
    assert found.count(r"setp\.") == 1
    x, out = RNG.standard_normal(1024).astype("f2"), np.ones(1024, "f2")
    found.run(x, out, n)
    np.testing.assert_array_equal(out, np.where(np.arange(1024) < n, x - np.float16(3), 0))


@tessera.jit
def product_kernel(x, y, high, low, N: tl.constexpr):
    i = tl.arange(0, N)
    a, b = tl.load(x + i), tl.load(y + i)
    tl.store(high + i, tl.umulhi(a, b))
    tl.store(low + i, b * a)


@pytest.mark.parametrize("dtype", ["u4", "i4"])
def test_both_halves_of_a_product_by_one_instruction(dtype):
    kind = "*u32" if dtype == "u4" else "*i32"
    signature = {**dict.fromkeys(("x", "y", "high", "low"), kind), "N": C}
    found = Compiled(product_kernel, signature, {"N": 128}, num_warps=4)
    if dtype == "u4":
        assert found.count(r"mul\.wide\.u32\s+%rd\d+, %r\d+, %r\d+") == 1
        assert found.count(r"mul\.(hi|lo)") == 0
    x, y = RNG.integers(0, 2**32, (2, 128), dtype="u8")
    high, low = np.zeros((2, 128), dtype)
    found.run(x.astype("u4").view(dtype), y.astype("u4").view(dtype), high, low)
    np.testing.assert_array_equal(high.view("u4"), (x * y >> 32).astype("u4"))
    np.testing.assert_array_equal(low.view("u4"), (x * y).astype("u4"))


@tessera.jit
def summing_kernel(x, sums, N: tl.constexpr, SEM: tl.constexpr, SCOPE: tl.constexpr):
    i = tl.arange(0, N)
    tl.atomic_add(sums + i, tl.load(x + i), sem=SEM, scope=SCOPE)


@pytest.mark.parametrize(
    ("cc", "dtype", "sem", "instruction", "times", "fences"),
    [
        (90, "fp32", "acq_rel", r"red\.relaxed\.gpu\.global\.add\.v4\.f32", 2, 2),
        (90, "fp16", "release", r"red\.relaxed\.gpu\.global\.add\.noftz\.v8\.f16", 1, 1),
        (90, "bf16", "relaxed", r"red\.relaxed\.gpu\.global\.add\.noftz\.v8\.bf16", 1, 0),
        (80, "fp32", "acquire", r"red\.relaxed\.gpu\.global\.add\.f32", 8, 1),
        (90, "i32", "acq_rel", r"red\.relaxed\.gpu\.global\.add\.u32", 8, 2),
    ],
)
def test_sums_nobody_reads_are_vectors_behind_one_fence(cc, dtype, sem, instruction, times, fences):
    signature = {"x": f"*{dtype}", "sums": f"*{dtype}", "N": C, "SEM": C, "SCOPE": C}
    constants = {"N": 1024, "SEM": sem, "SCOPE": "gpu"}
    found = Compiled(summing_kernel, signature, constants, cc=cc, num_warps=4)
    assert found.count(instruction) == times
    assert found.count(r"fence\.acq_rel\.gpu") == fences
    assert found.assemble().warnings == ()


@tessera.jit
def narrow_atomics(target, old, x, K: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, N)
    a = tl.load(x + i)
    if K == "max":
        r = tl.atomic_max(target + i % 8, a)
    else:
        r = tl.atomic_min(target + i % 8, a)
    tl.store(old + i, r)


@pytest.mark.parametrize("kind", ["max", "min"])
@pytest.mark.parametrize("n", [16, 256])
def test_float_extremes_by_integer_atomics(kind, n):
    x = (RNG.standard_normal(n) * 3).astype("f4")
    target, old = np.full(8, 0.25, "f4"), np.zeros(n, "f4")
    signature = {"target": "*fp32", "old": "*fp32", "x": "*fp32", "K": C, "N": C}
    Compiled(narrow_atomics, signature, {"K": kind, "N": n}).run(target, old, x)
    reduce = np.max if kind == "max" else np.min
    want = [reduce(np.append(x[i::8], np.float32(0.25))) for i in range(8)]
    np.testing.assert_array_equal(target, np.array(want))
    # every old value is the start value or one of the values of its place
    assert all(v == np.float32(0.25) or v in x[i % 8 :: 8] for i, v in enumerate(old))


@tessera.jit
def fused_kernel(x, out, N: tl.constexpr):
    i = tl.arange(0, N)
    a = tl.load(x + i)
    tl.store(out + i, a * a + a)


@pytest.mark.parametrize("fused", [True, False])
def test_contraction_follows_the_option(fused):
    found = Compiled(
        fused_kernel, {"x": "*fp32", "out": "*fp32", "N": C}, {"N": 128}, enable_fp_fusion=fused
    )
    assert (found.count(r"fma\.rn\.f32") > 0) == fused
    assert (found.count(r"mul\.rn\.f32") > 0) != fused


@pytest.mark.parametrize("cc", [80, 90])
def test_pairs_of_fp16_share_an_instruction(cc):
    found = compile_add("fp16", cc=cc)
    assert found.count(r"add(\.rn)?\.f16x2") == 4
    assert found.count(r"add(\.rn)?\.f16 ") == 0


def test_options_and_targets_are_checked():
    with pytest.raises(tessera.TesseraError, match="num_ctas > 1 requires"):
        compile_add("fp32", cc=80, num_ctas=2)
    with pytest.raises(tessera.TesseraError, match="not supported"):
        compile_add("fp32", cc=75)


@tessera.jit
def rows_by_index(x, at, out, n, N: tl.constexpr):
    j = tl.arange(0, N)
    total = tl.zeros([N], tl.float32)
    for k in tl.static_range(3):
        row = tl.load(at + k)
        tl.device_assert((row >= 0) & (row < n), "index out of bounds")
        total += tl.load(x + row * N + j).to(tl.float32)
    tl.store(out + j, total)


def test_what_fails_an_assertion_does_not_come_back():
    """So ptxas need not wait for loads in front of an assertion, nor expect warps that have come apart after it."""
    signature = {"x": "*fp16", "at": "*i32", "out": "*fp32", "n": "i32", "N": C}
    found = Compiled(rows_by_index, signature, {"N": 512}, debug=True)
    calls = found.ptx.split("__assertfail, (")[1:]
    assert len(calls) >= 3
    assert all(re.match(r"[^;]*;\s*\}[^;]*\strap;", after) for after in calls)


@tessera.jit
def exp_kernel(x, out, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out + i, libdevice.exp(tl.load(x + i)))


def test_exp_of_the_library_is_short():
    found = Compiled(exp_kernel, {"x": "*fp32", "out": "*fp32", "N": C}, {"N": 1024})
    assert not found.count("f64")
    assert not found.count(r"cvt\.")
    assert found.count(r"ex2\.approx") == 8


@tessera.jit
def gather_rows(table, at, out, N: tl.constexpr):
    i = tl.program_id(0) * N + tl.arange(0, N)
    row = tl.load(at + i // 192)
    tl.store(out + i, tl.load(table + row * 192 + i % 192))


def test_an_index_of_many_elements_is_read_once():
    """Quotients by 192 are equal in runs of 64: a thread's eight elements have one index and lie side by side."""
    signature = {"table": "*fp16", "at": "*i32", "out": "*fp16", "N": C}
    found = Compiled(gather_rows, signature, {"N": 1024})
    assert found.count(r"ld\.global\.b32 ") == 1
    assert found.count(r"ld\.global\.v4\.b32") == found.count(r"st\.global\.v4\.b32") == 1
    table = RNG.standard_normal((16, 192)).astype("f2")
    at = RNG.integers(0, 16, 32).astype("i4")
    out = np.zeros(32 * 192, "f2")
    found.run(table, at, out, grid=(6, 1, 1))
    np.testing.assert_array_equal(out.reshape(32, 192), table[at])
