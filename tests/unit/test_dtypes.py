"""The scalar, pointer and block types: names, limits, predicates, identity."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tessera import dtypes as dt

ALL = pytest.mark.parametrize("t", dt.ALL_DTYPES, ids=str)
INTS = [t for t in dt.ALL_DTYPES if t.is_int()]


@ALL
def test_names_lead_back(t: dt.dtype) -> None:
    assert dt.by_short_name(t.short) is t
    assert dt.parse_scalar_type(t.short) is t
    assert dt.by_array_name(t.name) is t
    assert pickle.loads(pickle.dumps(t)) is t is copy.deepcopy(t)
    assert str(t) == t.name and repr(t).startswith("tessera.language.")


@ALL
def test_sizes(t: dt.dtype) -> None:
    assert t.primitive_bitwidth == t.bits and t.storage_bits == max(t.bits, 8)
    assert t.storage_bytes * 8 == t.storage_bits and t.scalar is t.element_ty is t
    kinds = (t.is_bool(), t.is_int() and not t.is_bool(), t.is_floating())
    assert kinds.index(True) == t.kind() and sum(kinds) == 1
    assert not t.is_ptr() and not t.is_block() and not t.is_void()


@pytest.mark.parametrize("t", [t for t in INTS if t.bits > 1], ids=str)
def test_integer_limits(t: dt.dtype) -> None:
    limits = np.iinfo(t.name)
    assert (t.get_int_min_value(), t.get_int_max_value()) == (limits.min, limits.max)
    assert t.is_int_signed() == (not t.is_int_unsigned()) == t.signed


def test_int1() -> None:
    assert (dt.int1.get_int_min_value(), dt.int1.get_int_max_value()) == (0, 1)
    assert dt.by_short_name("u1") is dt.int1 and dt.int1.is_int_unsigned()


@pytest.mark.parametrize(
    ("t", "theirs"),
    [
        (dt.float16, np.float16), (dt.float32, np.float32), (dt.float64, np.float64),
        (dt.bfloat16, ml_dtypes.bfloat16), (dt.float8e4nv, ml_dtypes.float8_e4m3fn),
        (dt.float8e5, ml_dtypes.float8_e5m2), (dt.float8e4b8, ml_dtypes.float8_e4m3fnuz),
        (dt.float8e5b16, ml_dtypes.float8_e5m2fnuz),
    ],
)  # fmt: skip
def test_float_formats(t: dt.dtype, theirs: Any) -> None:
    info = ml_dtypes.finfo(theirs)
    assert (t.bits, t.fp_mantissa_width) == (info.bits, info.nmant)
    assert 2.0 ** (1 - t.exponent_bias) == float(info.smallest_normal)
    assert dt.by_array_name(f"torch.{np.dtype(theirs).name}") is t
    assert t.is_fp8() == (t.bits == 8) and t.is_standard_floating() == (t.bits >= 16)


def test_names_of_arrays() -> None:
    assert dt.by_array_name("bool") is dt.int1 and dt.by_array_name("torch.half") is dt.float16
    assert dt.by_array_name("complex64") is None and dt.by_array_name("object") is None


def test_one_predicate_a_name() -> None:
    assert dt.float16.is_fp16() and not dt.float16.is_fp32()
    assert dt.uint8.is_uint8() and dt.int32.is_int32() and not dt.int32.is_uint32()
    assert (
        not dt.pointer_type(dt.float32).is_floating() and not dt.block_type(dt.int32, [2]).is_int()
    )
    for x in (dt.int32, dt.pointer_type(dt.int32), dt.block_type(dt.int32, [2])):
        with pytest.raises(AttributeError, match="no attribute 'shapes'"):
            x.shapes


class Constexpr:
    """Holds a value, as the language's constexpr does."""

    def __init__(self, value: Any):
        self.value = value


def test_equality_sees_through_constexpr() -> None:
    assert dt.float32 == Constexpr(dt.float32) and dt.float32 != Constexpr(dt.float16)
    assert dt.float32 != "fp32" and dt.int32 != dt.uint32
    assert dt.block_type(dt.int32, [Constexpr(4), 8]).shape == (4, 8)  # type: ignore[list-item]


def test_pointers() -> None:
    p = dt.pointer_type(dt.float32)
    assert p == dt.pointer_type(dt.float32) and p != dt.pointer_type(dt.float32, const=True)
    assert (p.short, p.name, p.mangle()) == ("*fp32", "pointer<fp32>", "Pfp32")
    q = dt.parse_scalar_type("*kfp32")
    assert q.is_const() and q.name == "const_pointer<fp32>" and q.short == "*kfp32"
    assert dt.parse_scalar_type("**i8") == dt.pointer_type(dt.pointer_type(dt.int8))
    assert (
        p.is_ptr()
        and p.scalar is p
        and p.storage_bytes == 8
        and p.with_element_ty(dt.int8) is dt.int8
    )
    assert pickle.loads(pickle.dumps(q)) == q and hash(pickle.loads(pickle.dumps(q))) == hash(q)
    assert dt.pi32_t == dt.pointer_type(dt.int32)


@pytest.mark.parametrize("text", ["fp33", "*", "*x", "", "i1*"])
def test_what_is_no_type(text: str) -> None:
    with pytest.raises(ValueError, match="is not a type of a kernel signature"):
        dt.parse_scalar_type(text)


def test_blocks() -> None:
    b = dt.block_type(dt.float16, [4, 8])
    assert (b.name, b.mangle(), b.numel) == ("<[4, 8], fp16>", "fp16S4_8S", 32)
    assert b == dt.block_type(dt.float16, (4, 8)) and b != dt.block_type(dt.float16, (8, 4))
    assert (
        b.is_block()
        and not b.is_ptr()
        and b.scalar is dt.float16
        and b.get_block_shapes() == (4, 8)
    )
    assert b.with_element_ty(dt.int8) == dt.block_type(dt.int8, (4, 8))
    with pytest.raises(TypeError, match="0d block_type is forbidden"):
        dt.block_type(dt.float16, [])


@pytest.mark.parametrize(
    ("n", "yes"), [(1, True), (2, True), (1024, True), (0, False), (3, False), (-4, False)]
)
def test_powers_of_two(n: int, yes: bool) -> None:
    assert dt.is_power_of_two(n) is yes


def test_types_are_had_by_their_names() -> None:
    for d in (dt.void, *dt.ALL_DTYPES):
        assert dt.dtype(d.name) is d
    with pytest.raises(ValueError, match="no type is named 'float32'"):
        dt.dtype("float32")


# --- encodings ---------------------------------------------------------------------------------------------------
ML = {
    "fp8e4nv": ml_dtypes.float8_e4m3fn, "fp8e5": ml_dtypes.float8_e5m2, "fp8e4b8": ml_dtypes.float8_e4m3fnuz,
    "fp8e5b16": ml_dtypes.float8_e5m2fnuz, "fp16": np.float16, "bf16": ml_dtypes.bfloat16, "fp32": np.float32,
    "fp64": np.float64,
}  # fmt: skip


@pytest.mark.parametrize("name", ML)
def test_limits_of_encodings(name: str) -> None:
    t, known = dt.by_short_name(name), ml_dtypes.finfo(ML[name])
    code = np.array(t.largest_code, f"uint{t.bits}").view(ML[name])
    assert t.largest == float(known.max) == float(code)
    following = np.array(t.largest_code + 1, f"uint{t.bits}").view(ML[name])
    assert np.isinf(following) == (t.nans is dt.NanEncoding.IEEE)
    assert np.isnan(np.array(t.nan_code, f"uint{t.bits}").view(ML[name]))
    minus_zero = np.array(1 << (t.bits - 1), f"uint{t.bits}").view(ML[name])
    assert np.isnan(minus_zero) == (t.nans is dt.NanEncoding.NEGATIVE_ZERO)


def test_a_format_without_nan() -> None:
    assert dt.float8e4b15.nans is dt.NanEncoding.NONE
    assert (dt.float8e4b15.largest, dt.float8e4b15.largest_code) == (1.75, 0x7E)
