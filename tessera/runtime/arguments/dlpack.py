"""Lets arrays of any library that supports DLPack (jax, tensorflow, paddle, mxnet …) be kernel arguments."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import POINTER, c_int32, c_int64, c_uint8, c_uint16, c_uint32, c_uint64, c_void_p
from math import prod
from typing import Any, NamedTuple

from tessera.errors import SpecializationError

CPU_DEVICES = (1, 3)  # host, pinned host
CUDA_DEVICES = (2, 13)  # CUDA, CUDA managed
KINDS = {0: "int", 1: "uint", 2: "float", 4: "bfloat", 6: "bool"}
VERSION = (1, 0)  # the newest version that this module reads
READ_ONLY = 1  # a flag of versioned capsules
LEGACY_STREAM = 1  # as the consumer's stream: the library orders its pending work before it


class DLTensor(ctypes.Structure):
    """The structure of dlpack.h that a capsule points at."""

    _fields_ = [
        ("data", c_void_p),
        ("device_type", c_int32),
        ("device_id", c_int32),
        ("ndim", c_int32),
        ("code", c_uint8),
        ("bits", c_uint8),
        ("lanes", c_uint16),
        ("shape", POINTER(c_int64)),
        ("strides", POINTER(c_int64)),
        ("byte_offset", c_uint64),
    ]


class Versioned(ctypes.Structure):
    """DLManagedTensorVersioned of dlpack.h."""

    _fields_ = [
        ("version", c_uint32 * 2),
        ("manager", c_void_p),
        ("deleter", c_void_p),
        ("flags", c_uint64),
        ("tensor", DLTensor),
    ]


class Memory(NamedTuple):
    """The facts about an array that a kernel needs. The array's owner must outlive the use of `address`."""

    address: int
    dtype: str  # as NumPy spells it; "bfloat16"
    nbytes: int  # from the address to the end of the last element
    on_cuda: bool
    read_only: bool = False
    shape: tuple[int, ...] = ()
    strides: tuple[int, ...] | None = None  # in elements; None: C order


def speaks_dlpack(x: object) -> bool:
    """Whether `x` exports its memory by DLPack and by no cheaper way."""
    return (
        hasattr(x, "__dlpack__") and hasattr(x, "__dlpack_device__") and not hasattr(x, "data_ptr")
    )


def on_cuda(x: Any) -> bool:
    return int(x.__dlpack_device__()[0]) in CUDA_DEVICES


def memory_of(x: Any) -> Memory:
    """Return address, element type and size of an array. SpecializationError for a device or type that kernels lack."""
    kind = int(x.__dlpack_device__()[0])
    if kind not in (*CPU_DEVICES, *CUDA_DEVICES):
        raise SpecializationError(type=f"{type(x).__name__} on DLPack device {kind}")
    capsule = _export(x, {"stream": LEGACY_STREAM} if kind in CUDA_DEVICES else {})
    tensor, flags = _opened(capsule)
    shape = tuple(tensor.shape[i] for i in range(tensor.ndim))
    strides = tuple(tensor.strides[i] for i in range(tensor.ndim)) if tensor.strides else None
    count = prod(shape)
    name = KINDS.get(tensor.code)
    if name is None or tensor.lanes != 1:
        raise SpecializationError(
            type=f"{type(x).__name__} of DLPack type {tensor.code}, {tensor.lanes} lanes"
        )
    dtype = "bool" if name == "bool" else f"{name}{tensor.bits}"
    address = (tensor.data or 0) + tensor.byte_offset
    # Nothing consumed the capsule: destroying it ends the export, and the array itself keeps the memory alive.
    if strides is not None and in_order(shape, strides):
        strides = None
    if strides is not None:
        count = 1 + sum(max(0, (n - 1) * s) for n, s in zip(shape, strides, strict=True))
    nbytes = count * tensor.bits // 8
    read_only = bool(flags & READ_ONLY)
    return Memory(address, dtype, nbytes, kind in CUDA_DEVICES, read_only, shape, strides)


def in_order(shape: Sequence[int], strides: Sequence[int], element: int = 1) -> bool:
    """Whether elements are contiguous in C order; dimensions of extent 1 do not count. `element` is the size of an
    element in the unit of the strides."""
    expected = element
    for extent, stride in zip(reversed(shape), reversed(strides), strict=True):
        if extent > 1 and stride != expected:
            return 0 in shape
        expected *= extent
    return True


def _export(x: Any, about: dict[str, Any]) -> Any:
    """Return the capsule of an array: if possible a versioned one, which also says whether it may be written."""
    try:
        return x.__dlpack__(**about, max_version=VERSION)
    except TypeError:  # a library that exports the first version only
        return x.__dlpack__(**about)


def _opened(capsule: object) -> tuple[DLTensor, int]:
    """Return the tensor in a capsule, and its flags."""
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = c_void_p, [ctypes.py_object, ctypes.c_char_p]
    is_versioned = ctypes.pythonapi.PyCapsule_IsValid
    is_versioned.argtypes = [ctypes.py_object, ctypes.c_char_p]
    if is_versioned(capsule, b"dltensor_versioned"):
        managed = Versioned.from_address(pointer(capsule, b"dltensor_versioned"))
        return managed.tensor, managed.flags
    return DLTensor.from_address(pointer(capsule, b"dltensor")), 0
