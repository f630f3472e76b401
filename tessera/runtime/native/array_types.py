"""Describes the array types that native launches know, and how Python reads objects of other types for them."""

from __future__ import annotations

import ctypes
import sys
import threading
import types
from collections.abc import Iterable
from typing import Any, cast

from tessera.backends.llvm.subset_types import layout
from tessera.backends.process_singleton import process_singleton
from tessera.dtypes import dtype
from tessera.runtime.arguments.aliasing import UNKNOWN, memory_range
from tessera.runtime.arguments.checks import strided, why_read_only
from tessera.runtime.arguments.dlpack import memory_of, on_cuda, speaks_dlpack
from tessera.runtime.arguments.specialize import storage_bytes
from tessera.runtime.arguments.tensors import element_type, is_numpy
from tessera.runtime.arguments.torch_layout import Layout, find_layout, tells_the_truth
from tessera.runtime.native.structures import (
    READ_INTEGER,
    READ_NUMPY,
    READ_ONLY,
    READ_PYTHON,
    READ_REAL,
    READ_TENSOR,
    READ_TRUTH,
    STRIDED,
    ArrayType,
    Number,
)
from tessera.utilities import number

METH_NOARGS = 0x04  # CPython's flag of a method without arguments
MOST_TYPES = 64  # types of arrays that native code learns; others go through Python
# Element type as an array library gives it → ours, which is never freed.
_ELEMENTS: dict[object, dtype] = {}

Words = ctypes.Array[ctypes.c_uint64]

ROW_WORDS, NUMBER_WORDS = len(layout(ArrayType).fields), len(layout(Number).fields)
_READINGS = {int: READ_INTEGER, float: READ_REAL, bool: READ_TRUTH}


def words(*values: int) -> Words:
    """Return a ctypes array of 8-byte words, at least one."""
    return (ctypes.c_uint64 * max(1, len(values)))(*(v & (1 << 64) - 1 for v in values))


class ArrayTypes:
    """The process's table of array types, ended by a row of zeros: NumPy's at first, others as they appear."""

    def __init__(self) -> None:
        self.rows = (ctypes.c_uint64 * (ROW_WORDS * (MOST_TYPES + 1)))()
        self.numbers = (ctypes.c_uint64 * (NUMBER_WORDS * (MOST_TYPES + 1)))()
        self.scalars: list[type] = []
        self.context = words(0)
        self.known: dict[type, object] = {}
        self.layout: Layout | None = None
        self._learning = threading.Lock()  # held while torch is inspected
        self.learn_numpy()

    def add(
        self, kind: type, reading: int, fields: tuple[int, ...] = (), keep: object = None
    ) -> None:
        """Add a type; `fields`: what follows type and kind in an ArrayType."""
        if kind in self.known or len(self.known) >= MOST_TYPES:
            return
        at = len(self.known) * ROW_WORDS
        rest = (*fields, *(0,) * (ROW_WORDS - 2 - len(fields)))
        self.rows[at : at + ROW_WORDS] = words(id(kind), reading, *rest)
        self.known[kind] = keep

    def learn_numpy(self) -> None:
        """Add NumPy's arrays if NumPy has been imported."""
        numpy = sys.modules.get("numpy")
        if numpy is not None and numpy.ndarray not in self.known:
            self.add(numpy.ndarray, READ_NUMPY)
            for code in numpy.typecodes["AllInteger"] + numpy.typecodes["Float"] + "?":
                self._add_number(numpy.dtype(code).type(0))

    def learn_numbers(self, values: Iterable[object]) -> None:
        """Add the types of other packages' scalars (ml_dtypes) among values, also those in tuples."""
        for x in values:
            if isinstance(x, tuple):
                self.learn_numbers(cast("tuple[object, ...]", x))
            elif number(x) is not x:
                self._add_number(x)

    def _add_number(self, x: object) -> None:
        kind = type(x)
        if kind in self.scalars or len(self.scalars) >= MOST_TYPES:
            return
        at = len(self.scalars) * NUMBER_WORDS
        self.scalars.append(kind)
        self.numbers[at + 1] = _READINGS[type(number(x))]
        self.numbers[at] = id(kind)

    def learn(self, x: object) -> bool:
        """Add the type of an array; return False for other objects."""
        kind = type(x)
        if kind in self.known:
            return True
        if not self._learning.acquire(blocking=False):
            # Torch is being inspected, by another thread or by this one: a library may replace the very operations that
            # make its tensors with kernels, whose launches come here. Python runs those launches.
            return False
        try:
            return self._learn(x, kind)
        finally:
            self._learning.release()

    def _learn(self, x: object, kind: type) -> bool:
        readers = _c_functions(x)
        if readers is not None:
            members, addresses = readers
            self.add(kind, READ_TENSOR, (self._layout(x), *addresses), members)
        elif _readable(x):
            self.add(kind, READ_PYTHON)
        return kind in self.known

    def _layout(self, x: object) -> int:
        """Return the address of the TensorLayout of torch's tensors if it is right for `x`, else 0."""
        torch = sys.modules.get("torch")
        if torch is None or type(x) not in (torch.Tensor, torch.nn.Parameter):
            return 0
        if self.layout is None:
            self.layout = find_layout(torch)
        if self.layout is None or not tells_the_truth(self.layout, x):
            return 0
        return self.layout.address


def _c_functions(x: Any) -> tuple[list[object], list[int]] | None:
    """Return the accessors of a torch tensor and their C functions; None if some are not C functions."""
    kind = type(cast("object", x))
    storage: object = x.untyped_storage() if hasattr(x, "untyped_storage") else None
    members: list[object] = [
        getattr(kind, "data_ptr", None), getattr(kind, "dtype", None), getattr(kind, "is_cuda", None),
        getattr(kind, "untyped_storage", None), getattr(type(storage), "nbytes", None),
    ]  # fmt: skip
    addresses: list[int] = []
    for member in members:
        found = _c_function(member)
        if found is None:
            return None
        addresses += found
    return members, addresses


def _c_function(member: object) -> list[int] | None:
    """Return the C function of a method without arguments, or getter and closure of an attribute, else None."""
    # PyMethodDescrObject and PyGetSetDescrObject: the C definition follows three words after the object's head.
    definition = id(member) + object.__basicsize__ + 24
    if isinstance(member, types.GetSetDescriptorType):
        return [_pointer(_pointer(definition) + 8), _pointer(_pointer(definition) + 32)]
    if not isinstance(member, types.MethodDescriptorType):
        return None
    flags = ctypes.c_int.from_address(_pointer(definition) + 16).value
    return [_pointer(_pointer(definition) + 8)] if flags & 0xF == METH_NOARGS else None


def _pointer(address: int) -> int:
    return ctypes.c_uint64.from_address(address).value


@process_singleton
def array_types() -> ArrayTypes:
    return ArrayTypes()


# --- by Python -------------------------------------------------------------------------------------------------------
def read_array(x: Any) -> tuple[int, dtype, bool, int, int, int]:
    """Read any array: (address, element type, on CUDA, bytes of the storage, bytes from the address to its end,
    READ_ONLY and STRIDED if they hold).

    TypeError for other objects."""
    flags = READ_ONLY * (why_read_only(x) is not None) | STRIDED * (strided(x) is not None)
    if hasattr(x, "data_ptr") or is_numpy(x):
        address, left = memory_range(x)
        return address, _element(x.dtype), _on_cuda(x), storage_bytes(x), left, flags
    interface = getattr(x, "__cuda_array_interface__", None)
    if interface is not None:
        kind = _element(_numpy_type(interface["typestr"]))
        return interface["data"][0], kind, True, storage_bytes(x), UNKNOWN, flags
    if not speaks_dlpack(x):
        raise TypeError(f"an object of type {type(x).__name__} is no array")
    memory = memory_of(x)
    size = memory.nbytes
    return memory.address, _element(memory.dtype), memory.on_cuda, size, size, flags


def _numpy_type(typestr: str) -> str:
    """Return "float32" for "<f4"."""
    names = {"f": "float", "i": "int", "u": "uint"}
    if typestr[1] == "b":
        return "bool"
    if typestr[0] == ">" or typestr[1] not in names:
        raise TypeError(f"no kernel type has elements {typestr}")
    return f"{names[typestr[1]]}{8 * int(typestr[2:])}"


def _element(kind: object) -> dtype:
    found = _ELEMENTS.get(kind)
    if found is None:
        found = element_type(kind)
        if found is None:
            raise TypeError(f"no kernel type has elements {kind}")
        _ELEMENTS[kind] = found
    return found


def place_of(x: object) -> str | None:
    """Return "cpu" or "cuda" for an array, or for the first one in a tuple; None for other objects."""
    if is_numpy(x):
        return "cpu"
    if isinstance(x, tuple):
        return next(filter(None, map(place_of, cast("tuple[object, ...]", x))), None)
    on_gpu = getattr(x, "is_cuda", None)
    if isinstance(on_gpu, bool):
        return "cuda" if on_gpu else "cpu"
    if hasattr(x, "__cuda_array_interface__"):
        return "cuda"
    if speaks_dlpack(x):
        return "cuda" if on_cuda(x) else "cpu"
    base = getattr(x, "base", None)
    return None if base is None else place_of(base)


def _on_cuda(x: object) -> bool:
    place = place_of(x)
    if place is None:
        raise TypeError(f"nothing tells where an object of type {type(x).__name__} lies")
    return place == "cuda"


def _readable(x: object) -> bool:
    try:
        read_array(x)
    except Exception:  # whatever a foreign object raises: Python runs its launches
        return False
    return True
