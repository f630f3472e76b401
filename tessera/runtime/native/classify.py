"""Classifies, in native code, one launch argument: its key words, and its value as the kernel gets it."""

from __future__ import annotations

from typing import cast

from tessera.backends.llvm.subset import Pointer, array, f32, f64, i32, i64, integer, native
from tessera.runtime.arguments.aliasing import UNKNOWN
from tessera.runtime.native import cpython as c
from tessera.runtime.native.arrays import number, place_array
from tessera.runtime.native.convert import convert
from tessera.runtime.native.cpython import Constexpr, Object
from tessera.runtime.native.structures import Cursor, Head, Mode, Tag


@native
def interned(name: Object) -> Object:
    """Return the object that Python interned for a string, to be compared only: this gives no reference. Strings are
    other objects if they were read from a file, or made by `split`, like keys of a `**config`."""
    found = array(Object, 1)
    found[0] = name
    c.Py_IncRef(name)
    c.PyUnicode_InternInPlace(found)
    c.Py_DecRef(found[0])
    return found[0]


@native
def held(d: Head, o: Object) -> Object:
    """Return what a `tl.constexpr` holds, other objects unchanged; no reference."""
    if o.type is d.constexpr:
        value = cast(Constexpr, o).value
        return value if integer(value) != 0 else o
    return o


@native
def constant(d: Head, o: Object, key: Pointer[i64]) -> bool:
    """Write two key words of a compile-time value; False if native code cannot compare such values."""
    if o.type is d.int:
        overflow = array(i32, 1)
        key[0] = Tag.C_INT
        key[1] = c.PyLong_AsLongLongAndOverflow(o, overflow)
        return overflow[0] == 0
    if o.type is d.float:
        key[0] = Tag.C_FLOAT
        cast(Pointer[f64], key)[1] = c.PyFloat_AsDouble(o)
        return True
    plain = number(d, o)
    if plain is not None:
        known = constant(d, plain, key)
        c.Py_DecRef(plain)
        return known
    key[0] = Tag.C_OBJECT
    key[1] = integer(interned(o) if o.type is d.str else o)
    return True


@native
def classify(d: Head, o: Object, mode: i64, cursor: Cursor) -> bool:
    """Write key words, slot and size of one argument; the size is that of the memory behind a pointer (Memory.left), -1
    for other arguments. False if Python must handle it."""
    rule = mode & 255
    if rule == Mode.CONSTANT:
        cursor.size[0] = -1
        return constant(d, o, cursor.key)
    cursor.key[1] = 0
    cursor.size[0] = -1
    if o is d.none:
        cursor.key[0] = Tag.NONE
        cursor.slot[0] = 0
        return rule != Mode.KEYED
    if rule >= Mode.KEYED:
        return annotated(d, o, mode, cursor)
    if o.type is d.int:
        return integral(o, rule, cursor)
    if o.type is d.float:
        return rule != Mode.POINTER and real(o, cursor)
    if o.type is d.true.type:
        cursor.key[0] = Tag.BOOL
        cursor.slot[0] = i64(o is d.true)
        return rule != Mode.POINTER
    if place_array(d, o, cursor):
        if rule != Mode.DEFAULT:
            cursor.key[0] &= -2  # only the default rules use alignment
        return True
    return other_scalar(d, o, mode, cursor)


@native
def other_scalar(d: Head, o: Object, mode: i64, cursor: Cursor) -> bool:
    """Classify a number of another type than Python's own: a scalar of NumPy counts as the Python number that it holds,
    an object of a subclass of float as a float."""
    plain = number(d, o)
    if plain is not None:
        known = classify(d, plain, mode, cursor)
        c.Py_DecRef(plain)
        return known
    return (
        mode & 255 != Mode.POINTER and c.PyType_IsSubtype(o.type, d.float) != 0 and real(o, cursor)
    )


@native
def integral(o: Object, rule: i64, cursor: Cursor) -> bool:
    overflow = array(i32, 1)
    value = c.PyLong_AsLongLongAndOverflow(o, overflow)
    cursor.slot[0] = value
    if overflow[0] != 0:
        return False
    if rule == Mode.POINTER:
        cursor.size[0] = UNKNOWN
        cursor.key[0] = Tag.ANY
    elif value == 1 and rule != Mode.FIXED:
        cursor.key[0] = Tag.ONE
    else:
        divisible = i64(value & 15 == 0 and rule == Mode.DEFAULT)
        cursor.key[0] = (Tag.I32 if i64(i32(value)) == value else Tag.I64) | divisible
    return True


@native
def real(o: Object, cursor: Cursor) -> bool:
    cursor.slot[0] = 0
    cast(Pointer[f32], cursor.slot)[0] = f32(c.PyFloat_AsDouble(o))
    cursor.key[0] = Tag.FLOAT
    return True


@native
def annotated(d: Head, o: Object, mode: i64, cursor: Cursor) -> bool:
    """Classify a number for a parameter whose annotation determines the type."""
    if o.type is not d.int and o.type is not d.float:
        plain = number(d, o)
        if plain is not None:
            known = annotated(d, plain, mode, cursor)
            c.Py_DecRef(plain)
            return known
    if not convert(d, o, mode >> 8, cursor.slot, 0):
        c.PyErr_Clear()
        return False
    keyed = mode & 255 == Mode.KEYED and o.type is d.int
    cursor.key[0] = Tag.ANY
    cursor.key[1] = i64(keyed and cursor.slot[0] & 15 == 0)
    return True
