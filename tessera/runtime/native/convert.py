"""Converts, in native code, Python objects to the values of kernel arguments whose types are known."""

from __future__ import annotations

from typing import cast

from tessera.backends.llvm.subset import (
    Pointer,
    array,
    f32,
    f64,
    i16,
    i32,
    i64,
    integer,
    native,
    u32,
    u64,
)
from tessera.runtime.native import cpython as c
from tessera.runtime.native.cpython import Object
from tessera.runtime.native.structures import Converter, Kind

HALF_INFINITY = 31744  # the bits of infinity in fp16: 0x7C00
DEVICE_POINTER = 3  # CU_POINTER_ATTRIBUTE_DEVICE_POINTER
SUCCESS, INVALID_VALUE = 0, 1  # CUresult


@native
def convert(d: Converter, o: Object, kind: i64, slot: Pointer[i64], index: i64) -> bool:
    """Write the value of argument number `index` to *slot. False: an exception is set."""
    if kind == Kind.POINTER:
        return pointer(d, o, slot, index)
    if kind == Kind.I64:
        slot[0] = c.PyLong_AsLongLong(o)
        return slot[0] != -1 or c.PyErr_Occurred() is None
    if kind == Kind.U64:
        number = c.PyNumber_Index(o)
        if number is None:
            return False
        slot[0] = i64(c.PyLong_AsUnsignedLongLong(number))
        c.Py_DecRef(number)
        return slot[0] != -1 or c.PyErr_Occurred() is None
    if kind == Kind.I1:
        truth = c.PyObject_IsTrue(o)
        slot[0] = i64(truth)
        return truth >= 0
    if kind < Kind.I1:
        return real(o, kind, slot)
    return narrow(d, o, kind, slot, index)


@native
def narrow(d: Converter, o: Object, kind: i64, slot: Pointer[i64], index: i64) -> bool:
    """Convert an integer of 8, 16 or 32 bits."""
    given = c.PyLong_AsLongLong(o)
    if given == -1 and c.PyErr_Occurred() is not None:
        return False
    bits = kind & 63
    rest = 64 - bits
    up = given << rest
    signed = kind & Kind.SIGNED != 0
    back = up >> rest if signed else i64(u64(up) >> u64(rest))
    slot[0] = back
    if back == given:
        return True
    sign = b"int" if signed else b"uint"
    c.PyErr_Format(d.overflow, b"argument %zd: %R does not fit in %s%d", index, o, sign, i32(bits))
    return False


@native
def real(o: Object, kind: i64, slot: Pointer[i64]) -> bool:
    x = c.PyFloat_AsDouble(o)
    if x == -1.0 and c.PyErr_Occurred() is not None:
        return False
    slot[0] = 0
    if kind == Kind.F64:
        cast(Pointer[f64], slot)[0] = x
    elif kind == Kind.F16:
        if c.PyFloat_Pack2(x, slot, 1) < 0:
            # too large to be finite: IEEE rounding gives infinity, Python raises
            c.PyErr_Clear()
            infinity = i16(HALF_INFINITY - (1 << 15) if x < 0.0 else HALF_INFINITY)
            cast(Pointer[i16], integer(slot))[0] = infinity
    else:
        cast(Pointer[f32], slot)[0] = f32(x)
        if kind == Kind.BF16:
            cast(Pointer[u32], integer(slot))[0] >>= 16
    return True


@native
def pointer(d: Converter, o: Object, slot: Pointer[i64], index: i64) -> bool:
    """Write the address of a pointer-like object."""
    if o is d.none:
        slot[0] = 0
        return True
    if o.type is d.int:
        slot[0] = c.PyLong_AsVoidPtr(o)
        return slot[0] != 0 or c.PyErr_Occurred() is None
    receiver = array(Object, 1)
    receiver[0] = o
    found = c.PyObject_VectorcallMethod(d.data_ptr, receiver, 1, None)
    if found is None:
        return False
    slot[0] = c.PyLong_AsVoidPtr(found)
    c.Py_DecRef(found)
    if slot[0] == 0:
        return c.PyErr_Occurred() is None
    return reachable(d, slot, index)


@native
def reachable(d: Converter, slot: Pointer[i64], index: i64) -> bool:
    """Replace an address with the one that the GPU uses; an error if the GPU reaches no memory there. The launch
    reports other failures (no context in this thread)."""
    check = d.check
    if check is not None:
        mapped = array(i64, 1)
        code = check(mapped, DEVICE_POINTER, slot[0])
        if code == SUCCESS:
            slot[0] = mapped[0]
        elif code == INVALID_VALUE:
            c.PyErr_Format(
                d.host,
                b"Pointer argument (at %zd) cannot be accessed from the GPU (cpu tensor?)",
                index,
            )
            return False
    return True
