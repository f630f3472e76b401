"""Finds, in native code, the entry of a launch by its key, and the tensor maps by theirs."""

from __future__ import annotations

from typing import cast

from tessera.backends.llvm.subset import Pointer, array, i64, item, memcpy, native, u64
from tessera.runtime.native import cpython as c
from tessera.runtime.native.cpython import Object
from tessera.runtime.native.structures import (
    MAP_BUCKETS,
    MAP_BYTES,
    Chained,
    Entry,
    MapEntry,
    Maps,
    Run,
)

DONE, PYTHON, RAISED = range(3)  # results: success, Python must handle it, an exception is set


@native(exported=True)
def fast_hash(key: Pointer[i64], words: i64) -> u64:
    """Return the hash of a key; Python, which inserts entries, calls it, too."""
    found = u64(words)
    for i in range(words):
        found = (found ^ u64(key[i])) * -7046029254386353131
        found ^= found >> 29
    return found


@native
def find(
    chains: Pointer[Chained | None], last_chain: i64, key: Pointer[i64], words: i64
) -> Chained | None:
    """Return the entry of a key in a hash table; `last_chain`: a power of two less one."""
    hashed = i64(fast_hash(key, words))
    e = chains[hashed & last_chain]
    while e is not None:
        if e.hash == hashed and e.words == words and c.memcmp(e.key, key, 8 * words) == 0:
            return e
        e = e.next
    return None


@native
def unchanged(e: Entry) -> bool:
    """Whether the objects that the kernel was compiled with are still where they were."""
    for i in range(e.globals_count):
        place = item(e.globals, i)
        name = place.name
        if name is None:
            now = c.PyCell_Get(place.scope)
            c.Py_DecRef(now)
        else:
            now = c.PyDict_GetItemWithError(place.scope, name)
        if now is not place.seen:
            return False
    return True


@native
def call(f: Object, x: Object) -> Object | None:
    args = array(Object, 1)
    args[0] = x
    return c.PyObject_Vectorcall(f, args, 1, None)


@native
def find_maps(
    maps: Maps, slots: Pointer[i64], picks: Pointer[i64], grid: Pointer[i64], run: Run
) -> i64:
    """Write a launch's tensor maps to `run`, also function, template and grid if another kernel is to be started."""
    count = maps.used + maps.extents
    key = array(i64, count)
    for i in range(maps.used):
        key[i] = slots[picks[maps.arguments[i]]]
    memcpy(key + maps.used, grid, 8 * maps.extents)
    found = find(maps.chains, MAP_BUCKETS - 1, key, count)
    if found is None:
        known = learn(maps, key, count)
        if known != DONE:
            return known
        found = find(maps.chains, MAP_BUCKETS - 1, key, count)
        if found is None:
            return PYTHON
    made = cast(MapEntry, found)
    if made.function != 0:
        run.function = made.function
        run.config = made.config
    if made.blocks != 0:
        run.extents[0] = made.blocks
        run.extents[1] = 1
        run.extents[2] = 1
    # A copy: other threads may drop the maps once the lock is released.
    memcpy(run.maps, made.data, MAP_BYTES * made.maps)
    run.map_count = made.maps
    return DONE


@native
def learn(maps: Maps, key: Pointer[i64], count: i64) -> i64:
    words = c.PyBytes_FromStringAndSize(key, 8 * count)
    if words is None:
        return RAISED
    answer = call(maps.learn, words)
    c.Py_DecRef(words)
    if answer is None:
        return RAISED
    there = c.PyObject_IsTrue(answer)
    c.Py_DecRef(answer)
    return DONE if there == 1 else PYTHON
