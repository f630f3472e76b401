"""PTX of kernels: run by a GPU, and on every other device by operations of the language, with the same results."""

from __future__ import annotations

import numpy as np
import pytest

import tessera
import tessera.language as tl
from tessera.dtypes import ALL_DTYPES
from tessera.errors import CompilationError, UnsupportedLanguageConstruct
from tessera.interp.numerics import to_storage
from tests.lang.kit import sample

N = 64
DTYPES = {d.name: d for d in ALL_DTYPES}
CLOSE = 2.0**-10  # what approximate instructions of GPUs are within


@tessera.jit
def run(
    x,
    y,
    out,
    TEXT: tl.constexpr,
    RULES: tl.constexpr,
    T: tl.constexpr,
    PACK: tl.constexpr,
    N: tl.constexpr,
):
    i = tl.arange(0, N)
    given = [tl.load(x + i), tl.load(y + i)]
    tl.store(out + i, tl.inline_asm_elementwise(TEXT, RULES, given, dtype=T, is_pure=True, pack=PACK))  # fmt: skip


def result(device, text, rules, x, y, kind, type, pack=1):
    """`x` and `y` are (values, dtype); `kind` is the dtype of the results, `type` that of the language."""
    out = device.zeros(N, kind)
    run[(1,)](device.array(*x), device.array(*y), out, TEXT=text, RULES=rules, T=type, PACK=pack, N=N)  # fmt: skip
    return device.numpy(out)


X, Y = (sample("i32", (N,), seed=s) for s in (1, 2))
A, B = X.view(np.uint32).astype(np.uint64), Y.view(np.uint32).astype(np.uint64)
F, G = (np.linspace(a, b, N, dtype=np.float32) for a, b in ((-3.5, 4.0), (2.25, -1.0)))


def low(values: np.ndarray) -> np.ndarray:
    return (values & 0xFFFFFFFF).astype(np.uint32).view(np.int32)


def field(values: np.ndarray, at: int, bits: int, signed: bool) -> np.ndarray:
    found = (values.astype(np.int64) >> at) & ((1 << bits) - 1)
    return found - (signed * (found >> (bits - 1)) << bits)


INTS = {
    "add.s32 $0, $1, $2;": low(A + B), "sub.u32 $0, $1, $2;": low(A - B), "mul.lo.s32 $0, $1, $2;": low(A * B),
    "mul.hi.u32 $0, $1, $2;": low(A * B >> 32), "mad.lo.s32 $0, $1, $2, -7;": low(A * B - 7),
    "min.s32 $0, $1, $2;": np.minimum(X, Y), "max.u32 $0, $1, $2;": low(np.maximum(A, B)),
    "neg.s32 $0, $1;": -X, "not.b32 $0, $1;": ~X, "and.b32 $0, $1, $2;": X & Y, "xor.b32 $0, $1, $2;": X ^ Y,
    "lop3.b32 $0, $1, $2, 0x0f0f, 0xea;": (X & Y) | 0x0F0F, "lop3.b32 $0, $1, $2, $1, 0x3c;": X ^ Y,
    "prmt.b32 $0, $1, $2, 0x5410;": low((A & 0xFFFF) | (B << 16)),
    "prmt.b32 $0, $1, $2, 0xb3b3;": low((A >> 31) * 0xFF00FF00 | (A >> 24) * 0x00010001),
    "shl.b32 $0, $1, 5;": low(A << 5), "shl.b32 $0, $1, 32;": np.zeros(N, np.int32),
    "shr.s32 $0, $1, 99;": X >> 31, "shr.u32 $0, $1, 9;": low(A >> 9),
    "shf.l.wrap.b32 $0, $1, $2, 37;": low(B << 5 | A >> 27), "shf.r.wrap.b32 $0, $1, $2, 5;": low(A >> 5 | B << 27),
    "bfe.s32 $0, $1, 4, 7;": field(X, 4, 7, True), "bfe.u32 $0, $1, 28, 3;": field(X, 28, 3, False),
    "bfi.b32 $0, $1, $2, 8, 4;": low((B & 0xFFFFF0FF) | (A & 15) << 8), "bfe.u32 $0, $1, 3, 0;": np.zeros(N),
    "popc.b32 $0, $1;": np.array([int(v).bit_count() for v in A]),
    "clz.b32 $0, $1;": np.array([32 - int(v).bit_length() for v in A]),
    "brev.b32 $0, $1;": low(np.array([int(f"{int(v):032b}"[::-1], 2) for v in A], np.uint64)),
    "{ .reg .pred p; setp.lt.s32 p, $1, $2; selp.b32 $0, $1, 3, p; }": np.where(X < Y, X, 3),
    "{ .reg .pred %p; setp.hi.u32 %p, $1, $2; mov.b32 $0, $2; @!%p add.s32 $0, $0, 1; }":
        np.where(A > B, Y, low(B + 1)),
    "{ .reg .b16 a, b; mov.b32 {a, b}, $1; /* halves */ mov.b32 $0, {b, a}; }": low(A << 16 | A >> 16),
    "{ .reg .b64 w; .reg .b32 l; mul.wide.s32 w, $1, $2; mov.b64 {l, $0}, w; }":
        (X.astype(np.int64) * Y >> 32).astype(np.int32),
    "{ .reg .s8 b; cvt.sat.s8.s32 b, $1; cvt.s32.s8 $0, b; }": np.clip(X, -128, 127),
    "cvt.u32.u8 $0, $1;": X & 255, "mov.b32 $0, -2; // for all": np.full(N, -2),
}  # fmt: skip


@pytest.mark.parametrize("text", INTS)
def test_whole_numbers(device, text):
    found = result(device, text, "=r,r,r", (X, "i32"), (Y, "i32"), "i32", tl.int32)
    np.testing.assert_array_equal(found, INTS[text])


FLOATS = {
    "add.rn.f32 $0, $1, $2;": F + G, "sub.f32 $0, $1, 0f3F800000;": F - 1, "fma.rn.f32 $0, $1, $2, 0.5;": F * G + 0.5,
    "mul.ftz.f32 $0, $1, $2;": F * G, "min.f32 $0, $1, $2;": np.minimum(F, G), "abs.f32 $0, $1;": np.abs(F),
    "mad.rn.sat.f32 $0, $1, $2, 0.0;": np.clip(F * G, 0, 1), "div.full.f32 $0, $1, $2;": F / G, "mov.f32 $0, $1;": F,
    "tanh.approx.f32 $0, $1;": np.tanh(F), "ex2.approx.ftz.f32 $0, $1;": np.exp2(F), "neg.f32 $0, $1;": -F,
    "rcp.approx.ftz.f32 $0, $1;": 1 / F, "sin.approx.f32 $0, $1;": np.sin(F), "cos.approx.ftz.f32 $0, $1;": np.cos(F),
    "copysign.f32 $0, $1, $2;": np.copysign(G, F), "cvt.rni.f32.f32 $0, $1;": np.rint(F),
    "cvt.rpi.f32.f32 $0, $1;": np.ceil(F),
    "{ .reg .f32 t; abs.f32 t, $1; lg2.approx.f32 t, t; rsqrt.approx.f32 $0, 0f40800000; add.f32 $0, $0, t; }":
        np.log2(np.abs(F)) + 0.5,
    "{ .reg .pred p; setp.gt.f32 p, $1, 1.0; mov.f32 $0, $2; @p mov.f32 $0, 2.0; }": np.where(F > 1, 2, G),
}  # fmt: skip


@pytest.mark.parametrize("text", FLOATS)
def test_floating_point_numbers(device, text):
    found = result(device, text, "=f,f,f", (F, "fp32"), (G, "fp32"), "fp32", tl.float32)
    np.testing.assert_allclose(found, FLOATS[text], rtol=CLOSE, atol=CLOSE)


@pytest.mark.parametrize(
    ("mode", "rounding"), [("rni", np.rint), ("rzi", np.trunc), ("rmi", np.floor), ("rpi", np.ceil)]
)
def test_numbers_become_whole(device, mode, rounding):
    text = f"cvt.{mode}.s32.f32 $0, $1;"
    found = result(device, text, "=r,f,f", (F, "fp32"), (G, "fp32"), "i32", tl.int32)
    np.testing.assert_array_equal(found, rounding(F))


def test_directed_rounding(device):
    tiny = np.full(N, 2.0**-30, np.float32)
    ones = np.ones(N, np.float32)
    for mode, want in ("rp", np.nextafter(ones, np.float32(2))), ("rz", ones), ("rm", ones):
        text = f"add.{mode}.f32 $0, $1, $2;"
        found = result(device, text, "=f,f,f", (ones, "fp32"), (tiny, "fp32"), "fp32", tl.float32)
        np.testing.assert_array_equal(found, want)


def test_pairs_of_halves(device):
    x, y = F.astype(np.float16), G.astype(np.float16)
    text = "fma.rn.f16x2 $0, $1, $2, $1;"
    found = result(device, text, "=r,r,r", (x, "fp16"), (y, "fp16"), "fp16", tl.float16, 2)
    want = (x.astype(np.float64) * y + x).astype(np.float16)
    np.testing.assert_array_equal(found, want)


def test_two_numbers_become_a_pair(device):
    text = "cvt.rn.f16x2.f32 $0, $2, $1;"
    found = result(device, text, "=r,r,r,r,r", (F, "fp32"), (G, "fp32"), "fp16", tl.float16, 2)
    np.testing.assert_array_equal(found, F.astype(np.float16))


@pytest.mark.parametrize("kind", ["fp16", "bf16", "fp8e4nv", "fp8e5"])
def test_two_numbers_become_bits_of_a_pair(device, kind):
    """The first operand becomes the upper half; what is too large for fp8 becomes its largest number."""
    to = {
        "fp16": "rn.f16x2",
        "bf16": "rn.bf16x2",
        "fp8e4nv": "rn.satfinite.e4m3x2",
        "fp8e5": "rn.satfinite.e5m2x2",
    }[kind]
    x, narrow = (
        np.concatenate([F[8:], [0.0, -0.0, 1e-3, -2e-2, 1e6, -1e6, np.inf, 0.3]]),
        kind[:3] == "fp8",
    )
    most = {"fp8e4nv": 448.0, "fp8e5": 57344.0}.get(kind, np.inf)
    found = result(
        device, f"cvt.{to}.f32 $0, $2, $1;", "=h,f,f" if narrow else "=r,f,f", (x.astype(np.float32), "fp32"),
        (G, "fp32"), "i16" if narrow else "i32", tl.int16 if narrow else tl.int32,
    )  # fmt: skip
    with np.errstate(over="ignore"):  # of fp16
        halves = [np.clip(v.astype(np.float32), -most, most) for v in (x, G)]
        stored = [to_storage(v, DTYPES[kind]) for v in halves]
    np.testing.assert_array_equal(found.view(np.uint8), np.stack(stored, 1).ravel().view(np.uint8))


# Sums of four bytes without a carry from one into the next. (Which elements share a register is the
# layout's choice, so that a program may not depend on it.)
SUMS_OF_BYTES = """{
    .reg .b32 a, b;
    and.b32 a, $1, 0x7f7f7f7f; and.b32 b, $2, 0x7f7f7f7f; add.u32 a, a, b;
    xor.b32 b, $1, $2; and.b32 b, b, 0x80808080; xor.b32 $0, a, b;
}"""


def test_four_bytes_fill_a_register(device):
    x, y = X.view(np.uint8)[:N].copy(), Y.view(np.uint8)[:N].copy()
    found = result(device, SUMS_OF_BYTES, "=r,r,r", (x, "u8"), (y, "u8"), "u8", tl.uint8, 4)
    np.testing.assert_array_equal(found, x + y)


@tessera.jit
def several(x, lo, hi, one, N: tl.constexpr):
    i = tl.arange(0, N)
    a, b = tl.inline_asm_elementwise(
        "{ .reg .b64 w; mul.wide.s32 w, $2, $3; mov.b64 {$0, $1}, w; }", "=r,=r,r,r", [tl.load(x + i), 7],
        dtype=(tl.int32, tl.int32), is_pure=False, pack=1,
    )  # fmt: skip
    tl.store(lo + i, a)
    tl.store(hi + i, b)
    # The input is the output's register. A scalar stands for all that are taken at a time.
    c = tl.inline_asm_elementwise("add.s32 $0, $0, 1;", "=r,0", [tl.load(x)], tl.int32, True, 1)
    d = tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [c.to(tl.int16)], tl.int16, True, 2)
    tl.store(one, d)


def test_several_results_and_ties(device):
    x = np.arange(-30, N - 30, dtype=np.int32) * 100_000_007
    lo, hi, one = device.zeros(N, "i32"), device.zeros(N, "i32"), device.zeros(1, "i16")
    several[(1,)](device.array(x, "i32"), lo, hi, one, N=N)
    both = x.astype(np.int64) * 7
    np.testing.assert_array_equal(device.numpy(lo), both.astype(np.int32))
    np.testing.assert_array_equal(device.numpy(hi), both >> 32)
    assert device.numpy(one)[0] == (x[0] + 1).astype(np.int16)


REFUSED = {
    "mov.u32 $0, %laneid;": "mov.u32 $0, %laneid", "bar.sync 0;": "bar.sync 0",
    "add.sat.s32 $0, $1, $2;": "add.sat.s32", "again: add.s32 $0, $1, $2; bra again;": "again: add.s32",
    "ld.global.u32 $0, [$1];": "ld.global.u32",
    "add.rn.rn.f32 $0, $1, $2;": "add.rn.rn.f32", "mul.lo.hi.u32 $0, $1, $2;": "mul.lo.hi.u32",
    "cvt.rn.rz.f16.f32 $0, $1;": "cvt.rn.rz.f16.f32",
    "add.cc.u32 $0, $1, $2;": "add.cc.u32", "cvt.rp.f16.f32 $0, $1;": "cvt.rp.f16.f32",
}  # fmt: skip


@pytest.mark.parametrize("text", REFUSED)
def test_what_has_no_meaning_is_named(device, text):
    if device.is_cuda:
        pytest.skip("it may be right there")
    with pytest.raises(UnsupportedLanguageConstruct, match="known on NVIDIA GPUs only") as caught:
        result(device, text, "=r,r,r", (X, "i32"), (Y, "i32"), "i32", tl.int32)
    assert REFUSED[text] in str(caught.value) and "test_assembly.py" in str(caught.value)


@pytest.mark.parametrize(
    ("rules", "words"), [("=r,r", "for 1 inputs"), ("=r,=r,r,r", "for 2 outputs"), ("=r,r,q", "constraint 'q'")]
)  # fmt: skip
def test_constraints_must_fit(device, rules, words):
    with pytest.raises(CompilationError, match=words):
        result(device, "add.s32 $0, $1, $2;", rules, (X, "i32"), (Y, "i32"), "i32", tl.int32)
