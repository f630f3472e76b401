"""Implements a repeated launch in native code: it binds the arguments, finds the kernel and launches it.

Equal keys (structures) mean the same kernel. What this code does not handle (another argument type, a new key, hooks, a
changed knob) goes to `fallback(key or None, grid, *args, **kwargs)`, the complete path in Python, which may add or
renew the entry of the key.
"""

from __future__ import annotations

from typing import cast

from tessera.backends.llvm.subset import (
    Pointer,
    array,
    i8,
    i32,
    i64,
    integer,
    local,
    memcpy,
    native,
)
from tessera.runtime.native import cpython as c
from tessera.runtime.native.aliasing import relate
from tessera.runtime.native.classify import constant, held, interned
from tessera.runtime.native.compound import argument
from tessera.runtime.native.cpython import Object, Sized, Tuple
from tessera.runtime.native.find import DONE, PYTHON, RAISED, call, find, find_maps, unchanged
from tessera.runtime.native.start import call_enter, current_stream, read_grid, start, start_timed
from tessera.runtime.native.structures import (
    BUCKETS,
    DEVICE_PLACE,
    EXTRA_UNITS,
    HOST_PLACE,
    MAP_BYTES,
    Cursor,
    Entry,
    Head,
    Run,
)
from tessera.runtime.native.timing import is_full

OPTION_WORDS = 3  # in the key: name and two words of the value


@native
def repeat(
    d: Head, e: Entry, objects: Pointer[Object], values: Pointer[Object], slots: Pointer[i64]
) -> i64:
    """Run a launch whose entry is known."""
    if cast(Sized, d.hooks).size != 0 or not unchanged(e):
        return PYTHON
    grid = array(i64, 3)
    code = read_grid(d, objects[0], values, grid)
    if code != DONE or grid[0] == 0 or grid[1] == 0 or grid[2] == 0:
        return code
    run = local(Run)
    run.function = e.function
    run.config = e.config
    run.stream = 0
    run.map_count = 0
    memcpy(run.extents, grid, 24)
    if e.launch_kernel is not None:
        maps = e.maps
        if maps is not None:
            run.maps = array(i8, MAP_BYTES * maps.maps, 64)
            code = find_maps(maps, slots, e.picks, grid, run)
            if code != DONE:
                return code
        code = current_stream(d, e, run)
        if code != DONE:
            return code
    timing = e.timing
    if timing is not None:
        if is_full(e):  # a grid function has launched
            return PYTHON
        status = start_timed(e, timing, run, slots)
        return failed(e, status) if status != 0 else DONE
    enter = e.enter
    leave = e.leave  # `enter` and other threads may renew the entry for other hooks
    if enter is None:
        status = start(e, run, slots)
        return failed(e, status) if status != 0 else DONE
    about = call_enter(d, enter, grid, run.stream, values)
    if about is None:
        return RAISED
    status = start(e, run, slots)
    left = call(leave, about) if status == 0 else None
    c.Py_DecRef(about)
    if status != 0:
        return failed(e, status)
    c.Py_DecRef(left)
    return RAISED if left is None else DONE


@native(attributes="noinline cold")
def failed(e: Entry, status: i32) -> i64:
    """Let Python raise the error of a status; an interrupted launch has raised already."""
    code = c.PyLong_FromLong(i64(status)) if c.PyErr_Occurred() is None else None
    if code is None:
        return RAISED
    forgiven = call(e.fail, code)
    c.Py_DecRef(code)
    c.Py_DecRef(forgiven)
    return RAISED if forgiven is None else DONE


@native
def explained(d: Head, values: Pointer[Object]) -> bool:
    """Whether the kernel gets the strides of its strided arrays."""
    answer = c.PyObject_Vectorcall(d.strides, values, d.count, None)
    if answer is None:
        c.PyErr_Clear()
        return False
    c.Py_DecRef(answer)
    return answer is d.true


@native
def slow(
    d: Head, key: Object, objects: Pointer[Object], given: i64, names: Object | None
) -> Object | None:
    """Return fallback(key, *objects)."""
    count = given + (c.PyTuple_Size(names) if names is not None else 0)
    args = array(Object, count + 1)
    args[0] = key
    memcpy(args + 1, objects, 8 * count)
    return c.PyObject_Vectorcall(d.fallback, args, given + 1, names)


@native
def bind_keywords(
    d: Head,
    names: Tuple,
    given: Pointer[Object],
    positional: i64,
    values: Pointer[Object],
    options: Pointer[i64],
) -> i64:
    """Bind keyword arguments into `values` by parameter, or as words of options. Return the number of words, or -1 if
    Python must handle it."""
    used = 0
    for k in range(names.size):
        words = bind_keyword(d, names.items[k], given[k], positional, values, options + used)
        if words < 0:
            name = interned(names.items[k])
            words = bind_keyword(d, name, given[k], positional, values, options + used)
            if words < 0:
                return -1
        used += words
    return used


@native
def bind_keyword(
    d: Head,
    name: Object,
    value: Object,
    positional: i64,
    values: Pointer[Object],
    option: Pointer[i64],
) -> i64:
    """Bind one keyword argument, whose name is found by identity. Return the number of words, or -1."""
    j = positional
    while j < d.count and d.names[j] is not name:
        j += 1
    if j < d.count:
        values[j] = value
        return 0
    known = d.options
    while known[0] is not name:
        if integer(known[0]) == 0:
            return -1
        known += 1
    option[0] = integer(name)
    return OPTION_WORDS if constant(d, held(d, value), option + 1) else -1


@native(exported=True)
def fast_launch(
    self: Object, objects: Pointer[Object], given: i64, names: Tuple | None
) -> Object | None:
    """Launch: builtin(grid, *args, **kwargs)."""
    d = cast(Head, c.PyBytes_AsString(self))
    positional = given - 1
    if not 0 <= positional <= d.count:
        return slow(d, d.none, objects, given, names)
    keywords = names.size if names is not None else 0
    values = array(Object, d.count)
    units = d.count + EXTRA_UNITS
    slots = array(i64, units)
    sizes = array(i64, units)
    key = array(i64, 2 + 2 * units + OPTION_WORDS * keywords)
    options = array(i64, OPTION_WORDS * keywords)
    memcpy(values, objects + 1, 8 * positional)
    memcpy(values + positional, d.defaults + positional, 8 * (d.count - positional))
    used = 0
    if names is not None:
        used = bind_keywords(d, names, objects + given, positional, values, options)
        if used < 0:
            return slow(d, d.none, objects, given, names)
    cursor = local(Cursor)
    cursor.key = key + 2
    cursor.slot = slots
    cursor.size = sizes
    cursor.place = 0
    cursor.room = units
    cursor.strided = 0
    if not bind(d, values, slots, sizes, key, cursor):
        return slow(d, d.none, objects, given, names)
    memcpy(cursor.key, options, 8 * used)
    words = 2 + 2 * (units - cursor.room) + used
    found = find(d.table, BUCKETS - 1, key, words)
    if found is None or cast(Entry, found).made != d.epoch[0]:
        return miss(d, key, words, objects, given, names)
    e = cast(Entry, found)
    if is_full(e):
        return miss(d, key, words, objects, given, names)
    # Grid functions and other threads may renew or drop the entry: what it points at must outlive the launch.
    parts = e.parts
    compiled = e.compiled
    c.Py_IncRef(parts)
    c.Py_IncRef(compiled)
    code = repeat(d, e, objects, values, slots)
    c.Py_DecRef(parts)
    if code == DONE:
        return compiled
    c.Py_DecRef(compiled)
    return slow(d, d.none, objects, given, names) if code == PYTHON else None


@native
def bind(
    d: Head, values: Pointer[Object], slots: Pointer[i64], sizes: Pointer[i64], key: Pointer[i64], cursor: Cursor
) -> bool:  # fmt: skip
    """Write the units of all arguments, and the words in front of them. False if Python must handle it."""
    for j in range(d.count):
        if integer(values[j]) == 0 or not argument(d, values[j], d.modes[j], cursor):
            return False
    if cursor.strided != 0 and not explained(d, values):
        return False
    related = 0
    if cursor.place != DEVICE_PLACE:
        related = relate(d, values, slots, sizes, d.count, d.count + EXTRA_UNITS - cursor.room)
        if related < 0:
            return False
    key[0] = cursor.place | related << 8
    key[1] = 0
    if cursor.place != HOST_PLACE and integer(d.context[0]) != 0:
        d.context[0](key + 1)
    return True


@native
def miss(
    d: Head, key: Pointer[i64], words: i64, objects: Pointer[Object], given: i64, names: Object | None
) -> Object | None:  # fmt: skip
    """Call the fallback for a key without a valid entry."""
    told = c.PyBytes_FromStringAndSize(key, 8 * words)
    if told is None:
        return None
    answer = slow(d, told, objects, given, names)
    c.Py_DecRef(told)
    return answer
