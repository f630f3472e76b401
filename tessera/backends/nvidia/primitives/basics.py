"""Lists the instructions that identify a thread, exchange between lanes, compute and convert."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np

from tessera.backends.elements.literals import decode_float8
from tessera.backends.nvidia.primitives.lanes import FLOAT, mask_int, round_bf16, signed, to_raw
from tessera.backends.nvidia.primitives.row import Action, Lanes, Machine, row
from tessera.dtypes import dtype, float8e4nv, float8e5
from tessera.ops import DIRECTED, DIRECTIONS


# --- where a thread is ---------------------------------------------------------------------------------------
def _place(what: str, axis: int = 0) -> Action:
    return lambda m: m.place(what, axis)


row(
    "thread_index", (), "i32", "llvm.nvvm.read.ptx.sreg.tid.x",
    machine=_place("thread"),
)  # fmt: skip
for _i, _axis in enumerate("xyz"):
    row(
        f"program_id_{_axis}", (), "i32", f"llvm.nvvm.read.ptx.sreg.ctaid.{_axis}",
        machine=_place("program", _i),
    )  # fmt: skip
    row(
        f"num_programs_{_axis}", (), "i32", f"llvm.nvvm.read.ptx.sreg.nctaid.{_axis}",
        machine=_place("programs", _i),
    )  # fmt: skip
row(
    "cluster_id", (), "i32", "llvm.nvvm.read.ptx.sreg.clusterid.x",
    machine=_place("program"),
)  # fmt: skip
row(
    "num_clusters", (), "i32", "llvm.nvvm.read.ptx.sreg.nclusterid.x",
    machine=_place("programs"),
)  # fmt: skip
row(
    "cta_rank", (), "i32", "llvm.nvvm.read.ptx.sreg.cluster.ctarank",
    machine=_place("rank"),
)  # fmt: skip
row(
    "globaltimer", (), "i64", "mov.u64 $0, %globaltimer;", "=l", pure=False,
    machine=_place("time"),
)  # fmt: skip
row("smid", (), "i32", "mov.u32 $0, %smid;", "=r", pure=False, machine=_place("smid"))
row("clock", (), "i32", "mov.u32 $0, %clock;", "=r,~{memory}", pure=False, machine=_place("clock"))

# --- exchange ---------------------------------------------------------------------------------------------------
SHUFFLE = ("i32", "i32", "i32", "i32")  # members, value, lane or mask, clamp


def _xor(m: Machine, members: Lanes, x: Lanes, mask: Lanes, clamp: Lanes) -> Lanes:
    m.whole_warps("shfl.sync")
    return x[np.arange(len(x)) ^ mask.astype(np.int64)]


def _index(m: Machine, members: Lanes, x: Lanes, lane: Lanes, clamp: Lanes) -> Lanes:
    m.whole_warps("shfl.sync")
    return x[np.arange(len(x)) // 32 * 32 + (lane & np.uint64(31)).astype(np.int64)]


row("shuffle_xor", SHUFFLE, "i32", "llvm.nvvm.shfl.sync.bfly.i32", pure=False, machine=_xor)
row("shuffle_index", SHUFFLE, "i32", "llvm.nvvm.shfl.sync.idx.i32", pure=False, machine=_index)


def _of_warps(combine: Callable[..., np.ndarray], is_signed: bool) -> Action:
    def reduce(m: Machine, x: Lanes, members: Lanes) -> Lanes:
        m.whole_warps("redux.sync")
        words = (signed(x, 32) if is_signed else x).reshape(-1, 32)
        return mask_int(np.repeat(combine(words, axis=1), 32).view(np.uint64), 32)

    return reduce


for _name, _combine, _is_signed in (
    ("add", np.sum, False), ("umin", np.min, False), ("umax", np.max, False), ("min", np.min, True),
    ("max", np.max, True), ("and", np.bitwise_and.reduce, False), ("or", np.bitwise_or.reduce, False),
    ("xor", np.bitwise_xor.reduce, False),
):  # fmt: skip
    row(
        f"reduce_{_name}", ("i32", "i32"), "i32", f"llvm.nvvm.redux.sync.{_name}", pure=False,
        machine=_of_warps(_combine, _is_signed),
    )  # fmt: skip

# --- arithmetic -------------------------------------------------------------------------------------------------
_F, _D = "float", "double"


def _pair(high: np.ndarray, low: np.ndarray) -> np.ndarray:
    return np.stack([low, high], axis=1)


row(
    "pair.half", (_F, _F), "<2 x half>", "llvm.nvvm.ff2f16x2.rn",
    meaning=lambda high, low: _pair(high, low).astype(np.float16),
)  # fmt: skip
row(
    "pair.bfloat", (_F, _F), "<2 x bfloat>", "llvm.nvvm.ff2bf16x2.rn",
    meaning=lambda high, low: round_bf16(_pair(high, low)),
)  # fmt: skip
row("exp2.float", (_F,), _F, "ex2.approx.ftz.f32 $0, $1;", "=f,f", meaning=np.exp2)
row("fast_log2.float", (_F,), _F, "lg2.approx.f32 $0, $1;", "=f,f", meaning=np.log2)
row(
    "normal_log2.float", (_F,), _F, "lg2.approx.ftz.f32 $0, $1;", "=f,f",
    meaning=lambda x: np.log2(np.where(np.abs(x) < np.finfo(np.float32).tiny, np.abs(x) * 0, x)),
)  # fmt: skip
row("fast_sin.float", (_F,), _F, "sin.approx.ftz.f32 $0, $1;", "=f,f", meaning=np.sin)
row("fast_cos.float", (_F,), _F, "cos.approx.ftz.f32 $0, $1;", "=f,f", meaning=np.cos)
row(
    "rsqrt.float", (_F,), _F, "rsqrt.approx.ftz.f32 $0, $1;", "=f,f",
    meaning=lambda x: 1 / np.sqrt(x),
)  # fmt: skip
row("sqrt.float", (_F,), _F, "sqrt.approx.ftz.f32 $0, $1;", "=f,f", meaning=np.sqrt)
row("sqrt_rn.float", (_F,), _F, "sqrt.rn.f32 $0, $1;", "=f,f", meaning=np.sqrt)
row("sqrt_rn.double", (_D,), _D, "sqrt.rn.f64 $0, $1;", "=d,d", meaning=np.sqrt)


def _directed(name: str, direction: str) -> Action:
    def act(m: Machine, *args: Lanes) -> Lanes:
        return m.directed(name, direction, *args)

    return act


for _name, _operands in DIRECTED.items():
    for _direction, _suffix in zip(DIRECTIONS, ("rz", "rm", "rp"), strict=True):
        for _type, _register, _bits in ((_F, "f", 32), (_D, "d", 64)):
            _places = ", ".join(f"${i}" for i in range(_operands + 1))
            row(
                f"{_name}_{_direction}.{_type}", (_type,) * _operands, _type,
                f"{_name}.{_suffix}.f{_bits} {_places};", f"={_register}{f',{_register}' * _operands}",
                machine=_directed(_name, _direction),
            )  # fmt: skip
row("div.float", (_F, _F), _F, "div.full.f32 $0, $1, $2;", "=f,f,f", meaning=np.divide)


def _truncated(low: int, high: int) -> Callable[[np.ndarray], np.ndarray]:
    def truncate(x: np.ndarray) -> np.ndarray:
        inside = np.clip(np.trunc(np.nan_to_num(x.astype(np.float64), nan=0.0)), low, high)
        return mask_int(inside.astype(np.int64).view(np.uint64), 32)

    return truncate


# LLVM's own saturating conversions compare and select before the instruction, which saturates by itself.
row("truncate_s.float", (_F,), "i32", "llvm.nvvm.f2i.rz", meaning=_truncated(-(2**31), 2**31 - 1))
row("truncate_u.float", (_F,), "i32", "llvm.nvvm.f2ui.rz", meaning=_truncated(0, 2**32 - 1))


def _truncated64(low: int, high: int) -> Callable[[np.ndarray], np.ndarray]:
    def truncate(x: np.ndarray) -> np.ndarray:
        wide = np.clip(x.astype(np.float64), -(2.0**64), 2.0**64).ravel().tolist()
        found = [1 << 63 if v != v else min(max(int(v), low), high) % 2**64 for v in wide]
        return np.array(found, np.uint64).reshape(x.shape)

    return truncate


# NaN gives the sign bit (PTX ISA, cvt).
row(
    "truncate_s64.float",
    (_F,),
    "i64",
    "llvm.nvvm.f2ll.rz",
    meaning=_truncated64(-(2**63), 2**63 - 1),
)
row("truncate_u64.float", (_F,), "i64", "llvm.nvvm.f2ull.rz", meaning=_truncated64(0, 2**64 - 1))
row("rcp.float", (_F,), _F, "rcp.approx.ftz.f32 $0, $1;", "=f,f", meaning=np.reciprocal)

# Integer instructions that LLVM's own cannot express. LLVM's quotient by zero and its shift by the type's width are
# undefined; these return some number, and zero or the sign.
_I, _L = "i32", "i64"


def _shifted(name: str, bits: int) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    def shift(x: np.ndarray, amount: np.ndarray) -> np.ndarray:
        if name == "ashr":
            by = np.minimum(amount, np.uint64(bits - 1)).astype(np.int64)
            return mask_int((signed(x, bits) >> by).view(np.uint64), bits)
        found = x << amount if name == "shl" else x >> amount
        return np.where(amount < bits, mask_int(found, bits), np.uint64(0))

    return shift


for _name, _ptx in (("shl", "shl.b"), ("lshr", "shr.u"), ("ashr", "shr.s")):
    row(
        f"{_name}.i32", (_I, _I), _I, f"{_ptx}32 $0, $1, $2;", "=r,r,r", meaning=_shifted(_name, 32)
    )
    row(
        f"{_name}.i64", (_L, _I), _L, f"{_ptx}64 $0, $1, $2;", "=l,l,r", meaning=_shifted(_name, 64)
    )


def _quotient(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the unsigned quotient; all ones where y is 0."""
    return np.where(y == 0, np.uint64(0xFFFFFFFF), x // np.where(y == 0, np.uint64(1), y))


def _signed_quotient(bits: int) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    def quotient(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        a, b = signed(x, bits), signed(y, bits)
        size = _quotient(np.abs(a).view(np.uint64), np.abs(b).view(np.uint64))
        negative = (a < 0) != (b < 0)
        return mask_int(np.where(negative, np.uint64(0) - size, size), bits)

    return quotient


row("udiv.i32", (_I, _I), _I, "div.u32 $0, $1, $2;", "=r,r,r", meaning=_quotient)
row("sdiv.i32", (_I, _I), _I, "div.s32 $0, $1, $2;", "=r,r,r", meaning=_signed_quotient(32))
row("udiv.i64", (_L, _L), _L, "div.u64 $0, $1, $2;", "=l,l,l", meaning=_quotient)
row("sdiv.i64", (_L, _L), _L, "div.s64 $0, $1, $2;", "=l,l,l", meaning=_signed_quotient(64))


def _wide_product(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return (signed(x, 32) * signed(y, 32)).view(np.uint64)


# LLVM loses sight of two signed factors once it knows that one is not negative, and multiplies in 64 bits.
row("mul_wide.i32", (_I, _I), _L, "mul.wide.s32 $0, $1, $2;", "=l,r,r", meaning=_wide_product)


# --- conversions ------------------------------------------------------------------------------------------------
def _toward_zero(type: str) -> Callable[[np.ndarray], np.ndarray]:
    def convert(x: np.ndarray) -> np.ndarray:
        if type == "bfloat":
            cut = (x.astype(np.float32).view(np.uint32) & 0xFFFF0000).view(np.float32)
            return np.where(np.isnan(x), np.float32(np.nan), cut)
        near = x.astype(FLOAT[type])
        over = np.abs(near.astype(x.dtype)) > np.abs(x)
        return np.where(over, np.nextafter(near, FLOAT[type](0)), near)

    return convert


def _tf32(x: np.ndarray) -> np.ndarray:
    """Round to nearest, ties away from zero."""
    return ((x.view(np.uint32) + np.uint32(0x1000)) & np.uint32(0xFFFFE000)).view(np.float32)


def _tf32_even(x: np.ndarray) -> np.ndarray:
    """Round to nearest, ties to even."""
    bits = x.view(np.uint32)
    near = (bits + np.uint32(0xFFF) + (bits >> 13 & 1)) & np.uint32(0xFFFFE000)
    return np.where(np.isnan(x), np.float32(np.nan), near.view(np.float32))


def _rtz(name: str, source: str, target: str, ptx: str, letters: str) -> None:
    text = f"cvt.rz.{ptx} $0, $1;"
    row(name, (source,), target, text, letters, meaning=_toward_zero(target))


_rtz("to_fp16_rtz.float", _F, "half", "f16.f32", "=h,f")
_rtz("to_bf16_rtz.float", _F, "bfloat", "bf16.f32", "=h,f")
_rtz("to_fp32_rtz.double", _D, _F, "f32.f64", "=f,d")
_rtz("to_fp16_rtz.double", _D, "half", "f16.f64", "=h,d")
# The sign of a 16-bit float is flipped by an integer instruction that LLVM does not turn into `neg`: ptxas 12.8 turns
# {x, -y} + {x, -y} into {2x, 0}, and does the same to `abs`.
row(
    "flip_sign.i16", ("i16",), "i16", "xor.b16 $0, $1, 0x8000;", "=h,h",
    meaning=lambda x: x ^ np.uint64(0x8000),
)  # fmt: skip
row("to_tf32", (_F,), _F, "cvt.rna.tf32.f32 $0, $1;", "=f,f", meaning=_tf32)
# One instruction, where the one above is three: ptxas keeps infinities and NaN apart. From sm_90 on.
row("to_tf32_even", (_F,), _F, "cvt.rn.tf32.f32 $0, $1;", "=f,f", meaning=_tf32_even)


@cache
def float8_values(type: dtype) -> np.ndarray:
    """Return the values of all codes, as float64."""
    return np.array([decode_float8(c, type) for c in range(256)])


def _narrow8(type: dtype, x: np.ndarray) -> np.ndarray:
    """Return the nearest code, ties to even, saturating."""
    table = float8_values(type)[:128]
    codes = np.flatnonzero(np.isfinite(table))
    values = table[codes]
    size = np.minimum(np.abs(x.astype(np.float64)), values[-1])
    above = np.clip(np.searchsorted(values, size), 1, len(codes) - 1)
    down, up = size - values[above - 1], values[above] - size
    upper = (down > up) | ((down == up) & (codes[above] % 2 == 0))
    code = codes[np.where(upper, above, above - 1)] | np.where(np.signbit(x), 0x80, 0)
    return np.where(np.isnan(x), 0x7F, code).astype(np.uint64)


def _two_narrowed(type: dtype) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    return lambda high, low: _narrow8(type, low) | _narrow8(type, high) << np.uint64(8)


def _two_widened(type: dtype) -> Callable[[np.ndarray], np.ndarray]:
    def convert(pair: np.ndarray) -> np.ndarray:
        table = float8_values(type).astype(np.float16)
        low, high = (
            to_raw("half", table[mask_int(pair >> np.uint64(8 * i), 8).astype(np.int64)])
            for i in range(2)
        )
        return low | high << np.uint64(16)

    return convert


# Two 8-bit floats at a time: the first operand of the narrowing becomes the high byte.
for _name, _fp8, _type in (("fp8e4nv", "e4m3", float8e4nv), ("fp8e5", "e5m2", float8e5)):
    row(
        f"to_{_name}", (_F, _F), "i16", f"cvt.rn.satfinite.{_fp8}x2.f32 $0, $1, $2;", "=h,f,f",
        meaning=_two_narrowed(_type),
    )  # fmt: skip
    row(
        f"from_{_name}", ("i16",), "i32", f"cvt.rn.f16x2.{_fp8}x2 $0, $1;", "=r,h",
        meaning=_two_widened(_type),
    )  # fmt: skip
