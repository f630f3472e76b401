"""Classifies, in native code, arguments of one or several units: plain values, tuples and descriptors.

A tuple is a unit with its length and type, then its items, which are compile-time values if the parameter is. A
descriptor of rank r is 1 + 2 r units, which all reach the binary: the base with its element type, the extents with
those of the block, the strides. The key words of its first stride's unit hold padding and rounding, too.
"""

from __future__ import annotations

from typing import cast

from tessera.backends.llvm.subset import Pointer, Struct, array, i32, i64, integer, local, native
from tessera.runtime.native import cpython as c
from tessera.runtime.native.arrays import place_array
from tessera.runtime.native.classify import classify, held
from tessera.runtime.native.cpython import TUPLE_FLAG, List, Object, Sized, Tuple
from tessera.runtime.native.structures import DESCRIPTOR_FIELDS, Cursor, Head, Mode, Tag

FIELDS = len(DESCRIPTOR_FIELDS)
MOST = (1 << 31) - 1


@native
def unit(cursor: Cursor, tag: i64, word: i64, value: i64) -> None:
    """Write a unit that is not a pointer."""
    cursor.key[0] = tag
    cursor.key[1] = word
    cursor.slot[0] = value
    cursor.size[0] = -1
    advance(cursor)


@native(attributes="alwaysinline")
def advance(cursor: Cursor) -> None:
    cursor.key += 2
    cursor.slot += 1
    cursor.size += 1
    cursor.room -= 1


@native
def argument(d: Head, o: Object, mode: i64, cursor: Cursor) -> bool:
    """Write the units of one argument. False if Python must handle it."""
    if cursor.room < 1:
        return False
    rule = mode & 255
    if rule == Mode.CONSTANT:
        value = held(d, o)
        if value.type is d.tuple:
            return place_tuple(d, cast(Tuple, value), rule, cursor)
        o = value
    if classify(d, o, mode, cursor):
        advance(cursor)
        return True
    if rule != Mode.DEFAULT:
        return False
    if o.type is d.descriptor:
        return place_descriptor(d, o, cursor)
    return is_tuple(o) and place_tuple(d, cast(Tuple, o), rule, cursor)


@native
def is_tuple(o: Object) -> bool:
    return c.PyType_GetFlags(o.type) & TUPLE_FLAG != 0


@native
def place_tuple(d: Head, o: Tuple, mode: i64, cursor: Cursor) -> bool:
    """Write a tuple's units; `mode` is that of the items."""
    unit(cursor, o.size << 8 | Tag.TUPLE, integer(o.type), 0)
    for i in range(o.size):
        if not argument(d, o.items[i], mode, cursor):
            return False
    return True


class Sequence(Struct):
    items: Pointer[Object]
    length: i64


@native
def sequence(d: Head, o: Object, found: Sequence) -> bool:
    """Read items and length of a list or tuple."""
    found.length = cast(Sized, o).size
    if o.type is d.list:
        found.items = cast(List, o).items
        return True
    found.items = cast(Tuple, o).items
    return is_tuple(o)


@native
def extent(d: Head, x: Object) -> i64:
    """Return an int; -1 for other values and those of more than 64 bits."""
    overflow = array(i32, 1)
    return c.PyLong_AsLongLongAndOverflow(x, overflow) if x.type is d.int else -1


@native
def place_descriptor(d: Head, o: Object, cursor: Cursor) -> bool:
    fields = array(Object, FIELDS)
    count = 0
    placed = False
    while count < FIELDS:
        field = c.PyObject_GetAttr(o, d.attributes[count])
        if field is None:
            c.PyErr_Clear()
            break
        fields[count] = field
        count += 1
    if count == FIELDS:
        placed = place_fields(d, fields, cursor)
    for i in range(count):
        c.Py_DecRef(fields[i])
    return placed


@native
def place_fields(d: Head, fields: Pointer[Object], cursor: Cursor) -> bool:
    """Write the units of a descriptor with these fields."""
    first = cursor.key
    if not place_array(d, fields[0], cursor):
        return False
    # After place_array, which may call Python: from here on nothing can change the lists.
    shape = local(Sequence)
    strides = local(Sequence)
    block = local(Sequence)
    lists = sequence(d, fields[1], shape) and sequence(d, fields[2], strides)
    if not (lists and sequence(d, fields[3], block)):
        return False
    rank = shape.length
    if rank < 1 or rank != strides.length or rank != block.length or cursor.room <= 2 * rank:
        return False
    rounded = fields[5]
    if rounded.type is not d.true.type:
        return False
    first[0] = first[0] & 6 | rank << 8 | Tag.DESCRIPTOR
    advance(cursor)
    for i in range(rank):
        n = extent(d, shape.items[i])
        width = extent(d, block.items[i])
        if not (0 <= n <= MOST and 0 <= width <= MOST):
            return False
        unit(cursor, Tag.BLOCK, width, n)
    for i in range(rank):
        step = extent(d, strides.items[i])
        if step < 0:
            return False
        padding = integer(fields[4]) if i == 0 else 0
        unit(cursor, i64(rounded is d.true) << 8 | Tag.STRIDE, padding, step)
    return True
