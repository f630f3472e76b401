"""Finds the offsets at which torch stores address, size, element type and device of a tensor, by probing tensors.

Five of torch's own accessors cost 0.2 µs a tensor; reading the fields behind them costs a few ns. Their offsets depend
on the version of torch, so each process searches them once: an offset counts if it is the only one at which all
probes, which differ in every respect, hold the value that torch's accessors return. Without exactly one such offset
the accessors stay in use. They also do for any unusual tensor: empty, without memory, of an element type or on a
device that was not probed, or sharing its memory until it is written (copy on write).

    tensor object ─impl→ TensorImpl ─storage→ StorageImpl ─data→ memory
                         offset, numel, dtype, device      nbytes, deleter
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any

from tessera.backends.llvm.subset import Pointer, Struct, i64, u8
from tessera.backends.llvm.subset_types import words_of


class TensorLayout(Struct):
    """What native code (native/arrays) reads: offsets in bytes, then values to compare with."""

    impl: i64
    storage: i64
    offset: i64
    numel: i64
    dtype: i64
    device: i64
    data: i64
    nbytes: i64
    deleter: i64
    lazy_deleter: i64
    host_code: i64
    cuda_code: i64
    itemsizes: Pointer[u8]  # by the value at `dtype`; 0: not probed


TENSOR_BYTES, STORAGE_BYTES = 176, 64  # of the C++ objects, at least, in all versions since 2.0
ITEM_TYPES = (
    "bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64",
    "float8_e4m3fn", "float8_e5m2", "uint16", "uint32", "uint64",
)  # fmt: skip
MOST_CODES = 256  # codes of torch's dtypes that are looked up


class Layout:
    """The offsets found: a TensorLayout, as a ctypes array at `address`."""

    def __init__(self, fields: dict[str, int], sizes: Any) -> None:
        self.fields = {**fields, "itemsizes": ctypes.addressof(sizes)}
        self.sizes = sizes  # bytes of an element by the value at `dtype`, 0: not probed
        self.words = words_of(TensorLayout, self.fields)
        self.address = ctypes.addressof(self.words)


def find_layout(torch: ModuleType) -> Layout | None:
    """Return the offsets at which this version of torch stores the fields; None if they cannot be determined."""
    try:
        return _find(torch)
    except (AttributeError, RuntimeError, TypeError, NotImplementedError):
        return None


def _find(torch: ModuleType) -> Layout | None:
    probes = [
        torch.zeros(40, dtype=torch.float32, device="cpu").reshape(5, 8)[1:, 2:5],
        torch.zeros(77, dtype=torch.int16, device="cpu")[3:9],
        torch.zeros(21, dtype=torch.float64, device="cpu").reshape(3, 7)[2:, :5],
        torch.zeros(123, dtype=torch.uint8, device="cpu")[17:],
        torch.frombuffer(bytearray(88), dtype=torch.int64)[1:],  # the owner differs from the memory
    ]
    if any(type(p) is not torch.Tensor for p in probes):
        return None  # under a mode that makes tensors of other classes
    impl = _only(
        range(16, torch.Tensor.__basicsize__, 8),
        lambda at: all(_word(id(p) + at) == p._cdata for p in probes),
    )
    storages = [p.untyped_storage() for p in probes]
    tensors = range(16, TENSOR_BYTES, 8)
    found = {
        "impl": impl,
        "storage": _shared(tensors, probes, [s._cdata for s in storages]),
        "offset": _shared(tensors, probes, [p.storage_offset() for p in probes]),
        "numel": _shared(tensors, probes, [p.numel() for p in probes]),
    }
    memory = range(16, STORAGE_BYTES, 8)
    found["data"] = _shared(memory, storages, [s.data_ptr() for s in storages])
    found["nbytes"] = _shared(memory, storages, [s.nbytes() for s in storages])
    found["dtype"], sizes = _element_types(torch)
    found["device"], found["host_code"], found["cuda_code"] = _devices(torch, probes)
    if None in found.values():
        return None
    found["deleter"], found["lazy_deleter"] = _lazy_deleter(torch, probes, found["data"])
    return Layout(found, sizes)


def _word(address: int) -> int:
    return ctypes.c_uint64.from_address(address).value


def _only(candidates: Iterable[int], fits: Callable[[int], bool]) -> Any:
    found = [at for at in candidates if fits(at)]
    return found[0] if len(found) == 1 else None


def _shared(offsets: Iterable[int], owners: list[Any], values: list[int]) -> Any:
    """Return the only offset at which the C++ objects of all owners hold these values."""
    pairs = [(owner._cdata, value) for owner, value in zip(owners, values, strict=True)]
    return _only(offsets, lambda at: all(_word(base + at) == value for base, value in pairs))


def _element_types(torch: ModuleType) -> tuple[Any, Any]:
    """Return (offset of the two bytes that identify the element type, bytes of an element by their value)."""
    types = [getattr(torch, name) for name in ITEM_TYPES if hasattr(torch, name)]
    groups = [
        [torch.empty(shape, dtype=t, device="cpu") for shape in ((3,), (2, 5))] for t in types
    ]

    def code(x: Any, at: int) -> int:
        return ctypes.c_uint16.from_address(x._cdata + at).value

    def fits(at: int) -> bool:
        codes = [{code(x, at) for x in group} for group in groups]
        return all(len(c) == 1 for c in codes) and len(set[int]().union(*codes)) == len(types)

    at = _only(range(16, TENSOR_BYTES, 2), fits)
    sizes = (ctypes.c_uint8 * MOST_CODES)()
    if at is None:
        return None, sizes
    for group in groups:
        if code(group[0], at) >= MOST_CODES:
            return None, sizes
        sizes[code(group[0], at)] = group[0].element_size()
    return at, sizes


def _devices(torch: ModuleType, probes: list[Any]) -> tuple[Any, int, int]:
    """Return (offset of the byte that identifies the device, its value for the host, for CUDA)."""
    kinds = torch.autograd.DeviceType
    host, cuda, meta = int(kinds.CPU), int(kinds.CUDA), int(kinds.Meta)
    absent = [torch.empty(shape, device="meta") for shape in ((3,), (2, 5))]

    def fits(at: int) -> bool:
        here = {ctypes.c_uint8.from_address(p._cdata + at).value for p in probes}
        there = {ctypes.c_uint8.from_address(p._cdata + at).value for p in absent}
        return here == {host} and there == {meta}

    return _only(range(16, TENSOR_BYTES), fits), host, cuda


def _lazy_deleter(torch: ModuleType, probes: list[Any], data: int) -> tuple[int, int]:
    """Return (offset of the deleter of memory, the address of the deleter of copy-on-write memory).

    The address of the memory is followed by its owner and that function, in an order that the C++ compiler chose.
    """
    if not hasattr(torch, "_lazy_clone"):
        return data, 0
    kept = [torch.zeros(n, device="cpu") for n in (3, 4)]
    shared = [torch._lazy_clone(x) for x in kept]
    for at in (data + 8, data + 16):
        plain = {_word(p.untyped_storage()._cdata + at) for p in probes}
        lazy = {_word(x.untyped_storage()._cdata + at) for x in shared}
        if len(lazy) == 1 and not lazy & plain:
            return at, lazy.pop()
    raise RuntimeError("tensors that share memory until written cannot be told apart")


def tells_the_truth(layout: Layout, x: Any) -> bool:
    """Whether the fields of tensor `x` equal what its accessors return; also True if the accessors will be used."""
    f = layout.fields
    if _word(id(x) + f["impl"]) != x._cdata:
        return False
    storage = x.untyped_storage()
    if _word(x._cdata + f["storage"]) != storage._cdata:
        return False
    size = layout.sizes[ctypes.c_uint16.from_address(x._cdata + f["dtype"]).value % MOST_CODES]
    device = ctypes.c_uint8.from_address(x._cdata + f["device"]).value
    start = _word(storage._cdata + f["data"]) + size * _word(x._cdata + f["offset"])
    asked = size == 0 or x.numel() == 0 or _word(storage._cdata + f["deleter"]) == f["lazy_deleter"]
    return (
        size in (0, x.element_size())
        and (device == f["cuda_code"]) == x.is_cuda
        and _word(storage._cdata + f["nbytes"]) == storage.nbytes()
        and _word(x._cdata + f["numel"]) == x.numel()
        and (asked or start == x.data_ptr())
    )
