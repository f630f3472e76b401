"""Implements the native launcher: it converts Python arguments of known types, releases the GIL and starts a kernel.

The same code serves every signature. What differs is data in the `Launcher`, the builtin function's `self`, which ends
in a kind for each argument. So a new signature costs microseconds, not a compilation.
"""

from __future__ import annotations

from typing import cast

from tessera.backends.llvm.subset import Pointer, array, i32, i64, integer, native
from tessera.runtime.native import cpython as c
from tessera.runtime.native.convert import convert
from tessera.runtime.native.cpython import Object
from tessera.runtime.native.start import start_on_cpu, start_on_gpu
from tessera.runtime.native.structures import Kind, Launcher

GRID, STREAM, FUNCTION, CONFIG, LEADING = 0, 3, 4, 5, 6  # arguments in front of the kernel's


@native
def read_leading(d: Launcher, objects: Pointer[Object], given: i64, leading: Pointer[i64]) -> bool:
    """Read the leading arguments. False, here and below: an exception is set."""
    if given != d.count + LEADING:
        text = b"the launcher takes %zd arguments, but got %zd"
        c.PyErr_Format(d.type_error, text, d.count + LEADING, given)
        return False
    for i in range(STREAM):
        leading[i] = c.PyLong_AsLongLong(objects[i])
        if not 0 <= leading[i] <= 0x7FFFFFFF:
            if c.PyErr_Occurred() is None:
                text = b"the grid's extents must be in 0 ... 2147483647, not %R"
                c.PyErr_Format(d.value_error, text, objects[i])
            return False
    for i in range(STREAM, LEADING):
        leading[i] = c.PyLong_AsVoidPtr(objects[i])
        if leading[i] == 0 and c.PyErr_Occurred() is not None:
            return False
    return True


@native
def convert_all(
    d: Launcher, objects: Pointer[Object], slots: Pointer[i64], places: Pointer[i64]
) -> bool:
    """Convert arguments into slots; places[i]: the address of argument i's value."""
    for i in range(d.count):
        kind = i64(d.kinds[i])
        places[i] = integer(slots + i)
        if kind == Kind.MEMORY:
            places[i] = c.PyLong_AsVoidPtr(objects[i])
            if places[i] == 0 and c.PyErr_Occurred() is not None:
                return False
        elif not convert(d, objects[i], kind, slots + i, i):
            return False
    return True


@native(exported=True)
def launch(self: Object, objects: Pointer[Object], given: i64) -> Object | None:
    """Launch: builtin(grid x, y, z, stream or pool, function, launch template or bytes of scratch, *arguments). Return
    the status."""
    d = cast(Launcher, c.PyBytes_AsString(self))
    leading = array(i64, LEADING)
    if not read_leading(d, objects, given, leading):
        return None
    slots = array(i64, d.count, 16)
    places = array(i64, d.count, 16)
    if not convert_all(d, objects + LEADING, slots, places):
        return None
    if leading[0] == 0 or leading[1] == 0 or leading[2] == 0:
        return c.PyLong_FromLong(0)
    stream = leading[STREAM]
    function = leading[FUNCTION]
    launch_kernel = d.launch_kernel
    run_grid = d.run_grid
    code = i32(0)
    if launch_kernel is not None:
        code = start_on_gpu(launch_kernel, function, leading[CONFIG], leading, stream, places)
    elif run_grid is not None:
        code = start_on_cpu(run_grid, stream, function, slots, leading, leading[CONFIG])
        if code != 0 and c.PyErr_Occurred() is not None:
            return None  # interrupted
    return c.PyLong_FromLong(i64(code))
