"""Arrays of any library that speaks DLPack (jax, tensorflow, paddle, mxnet …) as kernel arguments."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_int32, c_int64, c_uint8, c_uint16, c_uint64, c_void_p
from typing import Any, NamedTuple

from tessera.errors import SpecializationError

CPU_DEVICES = (1, 3)  # host, pinned host
CUDA_DEVICES = (2, 13)  # CUDA, CUDA managed
KINDS = {0: "int", 1: "uint", 2: "float", 4: "bfloat", 6: "bool"}
LEGACY_STREAM = 1  # of the consumer: the library makes its default stream's work visible to it


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


class Memory(NamedTuple):
    """What a kernel needs to know of an array. The array's owner must outlive the use of `address`."""

    address: int
    dtype: str  # as NumPy spells it; "bfloat16"
    nbytes: int
    on_cuda: bool


def speaks_dlpack(x: Any) -> bool:
    """Whether `x` exports its memory by DLPack and by no cheaper way."""
    return (
        hasattr(x, "__dlpack__") and hasattr(x, "__dlpack_device__") and not hasattr(x, "data_ptr")
    )


def on_cuda(x: Any) -> bool:
    return int(x.__dlpack_device__()[0]) in CUDA_DEVICES


def memory_of(x: Any) -> Memory:
    """Address, element type and size of an array. SpecializationError for a device or type that kernels lack."""
    kind = int(x.__dlpack_device__()[0])
    if kind not in (*CPU_DEVICES, *CUDA_DEVICES):
        raise SpecializationError(type=f"{type(x).__name__} on DLPack device {kind}")
    capsule = x.__dlpack__(stream=LEGACY_STREAM) if kind in CUDA_DEVICES else x.__dlpack__()
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = c_void_p, [ctypes.py_object, ctypes.c_char_p]
    tensor = DLTensor.from_address(pointer(capsule, b"dltensor"))
    count = 1
    for i in range(tensor.ndim):
        count *= tensor.shape[i]
    name = KINDS.get(tensor.code)
    if name is None or tensor.lanes != 1:
        raise SpecializationError(
            type=f"{type(x).__name__} of DLPack type {tensor.code}, {tensor.lanes} lanes"
        )
    dtype = "bool" if name == "bool" else f"{name}{tensor.bits}"
    address = (tensor.data or 0) + tensor.byte_offset
    # The capsule was not consumed: its destruction gives the export back, the array itself keeps the memory.
    return Memory(address, dtype, count * tensor.bits // 8, kind in CUDA_DEVICES)
