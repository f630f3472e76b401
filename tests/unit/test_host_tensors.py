"""Stand-ins, typed views and descriptors over NumPy arrays; the integer helpers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera import dtypes
from tessera.runtime.arguments.tensors import MockTensor, TensorWrapper, reinterpret, to_numpy
from tessera.tools.tensor_descriptor import TensorDescriptor
from tessera.utilities import cdiv, next_power_of_2


@given(st.integers(0, 1 << 40), st.integers(1, 1 << 20))
def test_cdiv_covers_with_no_block_to_spare(x: int, y: int):
    blocks = cdiv(x, y)
    assert (blocks - 1) * y < x <= blocks * y or (x == blocks == 0)


@given(st.integers(1, 1 << 62))
def test_next_power_of_2_is_the_smallest_one(n: int):
    p = next_power_of_2(n)
    assert p & (p - 1) == 0
    assert n <= p < 2 * n


def test_next_power_of_2_of_zero_is_zero():
    assert next_power_of_2(0) == 0


def test_mock_tensor_looks_aligned_and_contiguous():
    mock = MockTensor(dtypes.float16, [2, 3, 4])
    assert mock.data_ptr() == mock.ptr_range() == 0
    assert mock.stride() == (12, 4, 1)
    assert mock.stride(0) == 12
    assert mock.element_size() == 2
    assert MockTensor(dtypes.int8).shape == [1]
    assert MockTensor(np.float16, [2]).element_size() == 2  # the class of its scalars


def test_only_torch_dtypes_become_mock_tensors():
    torch_dtype = type("dtype", (), {"__module__": "torch", "__str__": lambda s: "torch.float16"})()
    wrapped = MockTensor.wrap_dtype(torch_dtype)
    assert isinstance(wrapped, MockTensor)
    assert wrapped.element_size() == 2
    assert MockTensor.wrap_dtype(np.dtype("float16")) == np.dtype("float16")


def test_the_data_of_a_view_can_be_set():
    view = reinterpret(np.zeros(3, np.uint16), dtypes.bfloat16)
    bits = np.array([[0x3F80, 0xC000]], np.uint16)
    for value in (bits, reinterpret(bits, dtypes.float16)):
        view.data = value
        assert (view.data_ptr(), view.shape, view.dtype) == (
            bits.ctypes.data,
            (1, 2),
            dtypes.bfloat16,
        )
        assert view.data is bits
    np.testing.assert_array_equal(to_numpy(view), [[1.0, -2.0]])


def test_reinterpret_views_and_unwraps():
    bits = np.array([0x3F80, 0xC000], np.uint16)
    view = reinterpret(bits, dtypes.bfloat16)
    assert isinstance(view, TensorWrapper)
    assert view.data_ptr() == bits.ctypes.data
    assert (view.shape, view.stride(), view.element_size(), view.numel()) == ((2,), (1,), 2, 2)
    np.testing.assert_array_equal(to_numpy(view), [1.0, -2.0])
    assert reinterpret(view, dtypes.uint16) is bits
    again = reinterpret(view, dtypes.float16)
    assert again.base is bits
    with pytest.raises(TypeError, match="Cannot reinterpret a <class 'list'>"):
        reinterpret([1.0], dtypes.float16)


def test_wrapper_copies_and_zeroes_memory():
    view = reinterpret(np.array([[1, 2], [3, 4]], np.uint8).T, dtypes.float8e5)
    assert view.stride() == (1, 2)
    assert view.stride(1) == 2
    copy = view.clone()
    view.zero_()
    assert not view.base.any()
    view.copy_(copy)
    np.testing.assert_array_equal(view.base, [[1, 3], [2, 4]])
    assert view.cpu().base is view.base
    assert view.new_empty((5,)).base.dtype == np.uint8


def aligned(shape: tuple[int, ...], dtype: Any = np.float32) -> np.ndarray:
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    raw = np.zeros(size + 16, np.uint8)
    start = -raw.ctypes.data % 16
    return raw[start : start + size].view(dtype).reshape(shape)


def test_descriptor_of_a_whole_array():
    base = aligned((8, 16))
    desc = TensorDescriptor.from_tensor(base, [4, 8])
    assert (desc.shape, desc.strides, desc.block_shape) == ([8, 16], [16, 1], [4, 8])
    assert desc.base is base
    assert desc.padding == "zero"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"strides": [16]}, "rank mismatch"),
        ({"block_shape": [4]}, "rank mismatch"),
        ({"shape": [], "strides": [], "block_shape": []}, "rank must be 1 to 5"),
        ({"block_shape": [3, 8]}, "powers of two: 3"),
        ({"block_shape": [2048, 1024]}, "2\\*\\*20"),
        ({"strides": [15, 1]}, "strides must be 16-byte aligned"),
        ({"strides": [16, 2]}, "Last dimension must be contiguous"),
        ({"shape": [0, 16]}, "shape must be positive"),
        ({"padding": "one"}, "zero' or 'nan"),
        ({"base": aligned((8, 16), np.int32), "padding": "nan"}, "floating-point"),
        ({"base": aligned((8, 16), np.float64), "round_f32_to_tf32": True}, "needs float32"),
        ({"base": aligned((9, 16))[:, 1:]}, "base must be 16-byte aligned"),
    ],
)
def test_descriptor_refuses(change: dict[str, Any], message: str):
    good: dict[str, Any] = {
        "base": aligned((8, 16)), "shape": [8, 16], "strides": [16, 1], "block_shape": [4, 8],
    }  # fmt: skip
    TensorDescriptor(**good)
    with pytest.raises(AssertionError, match=message):
        TensorDescriptor(**{**good, **change})
