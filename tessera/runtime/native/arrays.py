"""Reads, in native code, address, element type, device and size of an array.

A row of Head.rows says how, for each type: NumPy's arrays and torch's tensors by their fields (`torch_layout`), tensors
by torch's accessors if the fields' offsets are unknown, other arrays by a Python function.
"""

from __future__ import annotations

from typing import cast

from tessera.backends.llvm.subset import (
    Pointer,
    Struct,
    i64,
    integer,
    item,
    local,
    native,
    u8,
    u16,
    u64,
)
from tessera.runtime.arguments.aliasing import AT_MOST
from tessera.runtime.native import cpython as c
from tessera.runtime.native.cpython import NumpyArray, Object, Tuple
from tessera.runtime.native.find import call
from tessera.runtime.native.structures import (
    READ_INTEGER,
    READ_NUMPY,
    READ_ONLY,
    READ_REAL,
    READ_TENSOR,
    READ_TRUTH,
    STRIDED,
    ArrayType,
    Cursor,
    Head,
    Tag,
)

C_ORDER, WRITABLE = 1, 0x400  # flags of NumPy


class Memory(Struct):
    """The facts about an array."""

    address: i64
    dtype: i64
    device: i64  # 1: CUDA
    bytes: i64  # of the storage
    left: i64  # from the address to the end of the storage, plus AT_MOST if that is a bound
    flags: i64  # READ_ONLY and STRIDED


@native
def read_numpy(o: NumpyArray, found: Memory) -> bool:
    """Read a NumPy array; False if it is a view of something else than an array. The array at the root of views is
    contiguous, so its size is the largest product of an extent and its stride."""
    root = o
    while (base := root.base) is not None:
        if base.type is not o.type:
            return False
        root = cast(NumpyArray, base)
    size = 0
    for i in range(i64(root.rank)):
        extent = root.extents[i] * root.strides[i]
        size = extent if extent > size else size
    found.address = o.data
    found.dtype = o.dtype
    found.device = 0
    found.bytes = size
    found.left = root.data + size - o.data
    found.flags = (0 if o.flags & WRITABLE != 0 else READ_ONLY) | (
        0 if o.flags & C_ORDER != 0 else STRIDED
    )
    return True


@native(attributes="alwaysinline")
def word(base: i64, offset: i64) -> i64:
    return cast(Pointer[i64], base + offset)[0]


@native
def read_fields(o: Object, row: ArrayType, found: Memory) -> bool:
    """Read an ordinary torch tensor; False if the accessors must be asked."""
    at = row.layout
    if at is None:
        return False
    impl = word(integer(o), at.impl)
    if impl == 0:
        return False
    storage = word(impl, at.storage)
    if storage == 0:
        return False
    data = word(storage, at.data)
    size = word(storage, at.nbytes)
    code = i64(cast(Pointer[u16], impl + at.dtype)[0])
    place = i64(cast(Pointer[u8], impl + at.device)[0])
    if place != at.host_code and place != at.cuda_code:
        return False
    lazy = word(storage, at.deleter) == at.lazy_deleter
    if data == 0 or lazy or code > 255 or word(impl, at.numel) < 1:
        return False
    bytes_of = i64(at.itemsizes[code])
    if bytes_of == 0:
        return False
    skipped = bytes_of * word(impl, at.offset)
    found.address = data + skipped
    found.dtype = code
    found.device = i64(place == at.cuda_code)
    found.bytes = size
    found.left = size - skipped
    found.flags = 0
    return skipped <= size


@native
def read_by_accessors(d: Head, o: Object, row: ArrayType, found: Memory) -> bool:
    """Read address and size of an array by torch's accessors; the size is a bound."""
    address = row.data_ptr(o, None)
    if address is None:
        return False
    found.address = c.PyLong_AsVoidPtr(address)
    c.Py_DecRef(address)
    if found.address == 0 and c.PyErr_Occurred() is not None:
        return False
    kind = row.dtype(o, row.dtype_closure)
    if kind is None:
        return False
    c.Py_DecRef(kind)
    found.dtype = integer(kind)
    on_cuda = row.is_cuda(o, row.is_cuda_closure)
    if on_cuda is None:
        return False
    c.Py_DecRef(on_cuda)
    found.device = i64(on_cuda is d.true)
    storage = row.storage(o, None)
    if storage is None:
        return False
    size = row.nbytes(storage, None)
    c.Py_DecRef(storage)
    if size is None:
        return False
    found.bytes = c.PyLong_AsLongLong(size)
    c.Py_DecRef(size)
    found.left = found.bytes | AT_MOST
    found.flags = 0
    # a size without memory: a meta tensor
    return found.bytes == 0 or (found.bytes > 0 and found.address != 0)


@native
def read_by_python(d: Head, o: Object, found: Memory) -> bool:
    told = call(d.reader, o)
    if told is None:
        return False
    items = cast(Tuple, told).items
    found.address = c.PyLong_AsVoidPtr(items[0])
    found.dtype = integer(items[1])
    found.device = i64(items[2] is d.true)
    found.bytes = c.PyLong_AsLongLong(items[3])
    found.left = c.PyLong_AsLongLong(items[4])
    found.flags = c.PyLong_AsLongLong(items[5])
    c.Py_DecRef(told)
    return c.PyErr_Occurred() is None


@native
def read_array(d: Head, o: Object, row: ArrayType, found: Memory) -> bool:
    if row.kind == READ_NUMPY and read_numpy(cast(NumpyArray, o), found):
        return True
    if row.kind == READ_TENSOR:
        known = read_fields(o, row, found) or read_by_accessors(d, o, row, found)
    else:
        known = read_by_python(d, o, found)
    if not known:
        c.PyErr_Clear()
    return known


@native
def place_array(d: Head, o: Object, cursor: Cursor) -> bool:
    """Write key words, address and size of an array; the first one decides the place. False if its type is unknown."""
    row = d.rows
    while row.type is not o.type:
        if integer(row.type) == 0:
            return False
        row = item(row, 1)
    found = local(Memory)
    if not read_array(d, o, row, found):
        return False
    units = u64(found.bytes) >> 31
    width = i64(units) if units < 15 else 15
    aligned = i64(found.address & 15 == 0)
    cursor.key[0] = Tag.ARRAY | aligned | found.device << 1 | found.flags & READ_ONLY | width << 8
    cursor.key[1] = found.dtype
    cursor.slot[0] = found.address
    cursor.size[0] = found.left
    cursor.strided |= found.flags & STRIDED
    if cursor.place == 0:
        cursor.place = found.device + 1
    return True


@native
def number(d: Head, o: Object) -> Object | None:
    """Return the Python number of a NumPy scalar, a new reference; None for other objects."""
    row = d.numbers
    while row.type is not o.type:
        if integer(row.type) == 0:
            return None
        row = item(row, 1)
    found = read_number(o, row.kind)
    if found is None:
        c.PyErr_Clear()
    return found


@native
def read_number(o: Object, kind: i64) -> Object | None:
    if kind == READ_INTEGER:
        return c.PyNumber_Index(o)
    if kind == READ_TRUTH:
        return c.PyBool_FromLong(i64(c.PyObject_IsTrue(o)))
    if kind == READ_REAL:
        x = c.PyFloat_AsDouble(o)
        return c.PyFloat_FromDouble(x) if c.PyErr_Occurred() is None else None
    return None
