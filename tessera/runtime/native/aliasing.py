"""Finds, in native code, which arrays of a launch alias each other (`arguments/aliasing`)."""

from __future__ import annotations

from tessera.backends.llvm.subset import Pointer, array, i64, native, u64
from tessera.runtime.arguments.aliasing import AT_MOST, MOST_PAIRS, PARTLY, SAME
from tessera.runtime.native import cpython as c
from tessera.runtime.native.cpython import Object
from tessera.runtime.native.structures import Head

IN_DOUBT = -(1 << 63)  # the sign bit of a word of relations


@native(attributes="alwaysinline")
def relation(x: u64, bytes_x: i64, y: u64, bytes_y: i64) -> i64:
    """Return how the memory behind two addresses overlaps; IN_DOUBT is set if only an upper bound of a size says so."""
    if x == 0 or y == 0:
        return 0
    if x == y:
        return SAME
    given = bytes_x if x < y else bytes_y
    distance = y - x if x < y else x - y
    if u64(given & ~AT_MOST) <= distance:
        return 0
    return PARTLY | IN_DOUBT if given & AT_MOST != 0 else PARTLY


@native(exported=True)
def fast_relations(slots: Pointer[i64], sizes: Pointer[i64], n: i64) -> i64:
    """Return the relations of all pairs of pointers (aliasing.relations); negative if some overlap only by size
    bounds."""
    starts = array(u64, n)
    lengths = array(i64, n)
    count = pair = bits = 0
    for j in range(n):
        size = sizes[j]
        if size >= 0:
            start = u64(slots[j])
            starts[count] = start
            lengths[count] = size
            for i in range(count):
                found = relation(starts[i], lengths[i], start, size)
                place = pair if pair < MOST_PAIRS - 1 else MOST_PAIRS - 1
                bits |= (found & 3) << 2 * place | found & IN_DOUBT
                pair += 1
            count += 1
    return bits


@native
def relate(
    d: Head, values: Pointer[Object], slots: Pointer[i64], sizes: Pointer[i64], n: i64, units: i64
) -> i64:
    """Return the relations of all pairs of pointers, exactly; negative if Python must find them."""
    coarse = fast_relations(slots, sizes, units)
    if coarse >= 0:
        return coarse
    found = c.PyObject_Vectorcall(d.relations, values, n, None)
    if found is None:
        c.PyErr_Clear()
        return -1
    exact = c.PyLong_AsLongLong(found)
    c.Py_DecRef(found)
    return exact
