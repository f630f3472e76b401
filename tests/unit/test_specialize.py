"""Specialisation of launch arguments, rule by rule."""

# ruff: noqa: F722, F821, UP037  annotations of kernels name types in texts
# annotations of kernels name dtypes
# pyright: reportInvalidTypeForm=false, reportUndefinedVariable=false
from __future__ import annotations

from collections import namedtuple
from typing import Any

import numpy as np
import pytest

import tessera
import tessera.language as tl
from tessera.errors import SpecializationError
from tessera.runtime.arguments.descriptor import TensorDescriptor
from tessera.runtime.arguments.specialize import (
    constants_and_attrs,
    flatten_runtime,
    specialize,
    specializer,
)
from tessera.runtime.arguments.tensors import MockTensor, reinterpret


def aligned(dtype: Any = np.float32, offset: int = 0) -> Any:
    """An array whose address is 16-byte aligned, plus `offset` elements."""
    raw = np.zeros(256, np.uint8)
    start = -raw.ctypes.data % 16
    return raw[start : start + 128].view(dtype)[offset:]


@tessera.jit
def helper(x):
    return x


@tessera.constexpr_function
def constant_helper(x):
    return x


Point = namedtuple("Point", "x y")  # noqa: PYI024  what kernels are given


@pytest.mark.parametrize(
    ("value", "kind", "key"),
    [
        (None, "constexpr", None), (1, "constexpr", 1), (0, "i32", "D"), (16, "i32", "D"), (-16, "i32", "D"),
        (2, "i32", ""), (17, "i32", ""), (2**31 - 1, "i32", ""), (-(2**31), "i32", "D"), (2**31, "i64", "D"),
        (2**31 + 1, "i64", ""),
        (-(2**31) - 1, "i64", ""), (2**63 - 1, "i64", ""), (2**63, "u64", "D"), (2**64 - 1, "u64", ""),
        (True, "u1", None), (False, "u1", None), (1.0, "fp32", None), (np.float64(2.5), "fp32", None),
    ],
)  # fmt: skip
def test_scalars(value: Any, kind: str, key: Any):
    assert specialize(value) == (kind, key)


@pytest.mark.parametrize(
    ("dtype", "short"),
    [
        (np.float16, "fp16"), (np.float32, "fp32"), (np.float64, "fp64"), (np.int8, "i8"), (np.int16, "i16"),
        (np.int32, "i32"), (np.int64, "i64"), (np.uint8, "u8"), (np.uint16, "u16"), (np.uint32, "u32"),
        (np.uint64, "u64"), (np.bool_, "u1"),
    ],
)  # fmt: skip
def test_arrays(dtype: Any, short: str):
    assert specialize(aligned(dtype)) == (f"*{short}", "D")
    if np.dtype(dtype).itemsize < 16:
        assert specialize(aligned(dtype, 1)) == (f"*{short}", "")


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("torch.bfloat16", "bf16"), ("torch.half", "fp16"), ("torch.float8_e4m3fn", "fp8e4nv"),
        ("torch.float8_e4m3fnuz", "fp8e4b8"), ("torch.float8_e5m2", "fp8e5"), ("torch.float8_e5m2fnuz", "fp8e5b16"),
        ("float", "fp32"), ("double", "fp64"), ("torch.bool", "u1"), ("int1", "u1"),
    ],
)  # fmt: skip
def test_names_of_element_types(name: str, short: str):
    class Duck:
        def __str__(self) -> str:
            return name

    assert specialize(MockTensor(Duck())) == (f"*{short}", "D")


def test_bits_of_other_types():
    assert specialize(reinterpret(aligned(np.uint16), tl.bfloat16)) == ("*bf16", "D")


def test_compile_time_objects():
    assert specialize(tl.constexpr(7)) == ("constexpr", 7)
    assert specialize(helper) == ("constexpr", helper)
    assert specialize(constant_helper) == ("constexpr", constant_helper)


def test_tuples():
    assert specialize(()) == ((), ())
    assert specialize((1, 2, None)) == (("constexpr", "i32", "constexpr"), (1, "", None))
    kinds, keys = specialize(Point(16, (1.5, True)))
    assert kinds == Point("i32", ("fp32", "u1"))
    assert isinstance(kinds, Point)
    assert isinstance(keys, Point)


def test_descriptors():
    base = aligned(np.float16)
    made = TensorDescriptor(base, [8, 8], [8, 1], [4, 8])
    assert specialize(made)[0] == "tensordesc<fp16[4, 8]>"
    nan = TensorDescriptor(base, [8, 8], [8, 1], [4, 8], padding="nan")
    assert specialize(nan)[1] != specialize(made)[1]
    assert flatten_runtime(("tensordesc<fp16[4, 8]>",), (made,)) == [base, 8, 8, 8, 1]


@pytest.mark.parametrize(
    "value", ["text", [1], tl.float32, np.complex64(3), np.str_("a"), object(), {1: 2}, 3j]
)
def test_what_cannot_be_passed(value: Any):
    with pytest.raises(SpecializationError, match="failed to specialize argument of type"):
        specialize(value)
    with pytest.raises(TypeError):
        specialize(value)


@pytest.mark.parametrize("value", [2**64, -(2**63) - 1, 2**70])
def test_integers_that_do_not_fit(value: int):
    with pytest.raises(OverflowError):
        specialize(value)


@tessera.jit(do_not_specialize=["fixed", 1], do_not_specialize_on_alignment=["loose"])
def kernel(
    fixed, by_index, loose, plain, c: tl.constexpr, i: tl.int64, u: "tl.uint8", f: tl.float16, g: float, b: bool,
    n: int, p: "*fp32", q: "const *fp16", k: tl.const, anything: "whatever",
):  # fmt: skip
    pass


def spec(name: str, value: Any) -> Any:
    param = next(p for p in kernel.params if p.name == name)
    return specializer(param)(value)


def test_do_not_specialize():
    for name in ("fixed", "by_index"):
        assert spec(name, 1) == ("i32", None)
        assert spec(name, 16) == ("i32", None)
        assert spec(name, 2**40) == ("i64", None)
        assert spec(name, aligned()) == ("*fp32", None)
        assert spec(name, True) == ("u1", None)
        assert spec(name, 2.0) == ("fp32", None)
        assert spec(name, None) == ("constexpr", None)


def test_do_not_specialize_on_alignment():
    assert spec("loose", 1) == ("constexpr", 1)
    assert spec("loose", 16) == ("i32", "")
    assert spec("loose", aligned()) == ("*fp32", "")


def test_annotations():
    assert spec("c", 3) == ("constexpr", 3)
    assert spec("c", tl.constexpr(3)) == ("constexpr", 3)
    assert spec("i", 1) == ("i64", "")  # keyed, but 1 stays a run-time value
    assert spec("i", 32) == ("i64", "D")
    assert spec("u", 3) == ("u8", "")
    assert spec("f", 1.5) == ("fp16", None)
    assert spec("g", 1.5) == ("fp32", None)
    assert spec("b", True) == ("u1", None)
    assert spec("n", 48) == ("i32", "D")
    assert spec("p", aligned()) == ("*fp32", None)
    assert spec("p", None) == ("constexpr", None)
    assert spec("q", aligned(np.float16)) == ("*kfp16", None)
    assert spec("k", aligned()) == ("*kfp32", "D")
    assert spec("anything", 1) == ("constexpr", 1)
    assert spec("plain", 1) == ("constexpr", 1)


def test_constants_and_attributes_by_path():
    pairs = [specialize(x) for x in (16, (1, 32, (None, 3)), 2)]
    kinds, keys = tuple(p[0] for p in pairs), tuple(p[1] for p in pairs)
    constants, attrs = constants_and_attrs(kinds, keys)
    assert constants == {(1, 0): 1, (1, 2, 0): None}
    assert attrs == {(0,): [["tt.divisibility", 16]], (1, 1): [["tt.divisibility", 16]]}
