"""Evaluates, in native code, the grid of a launch, asks for the stream and starts the kernel."""

from __future__ import annotations

from typing import cast

from tessera.backends.llvm.subset import Pointer, array, i32, i64, integer, local, memcpy, native
from tessera.backends.llvm.subset_types import layout
from tessera.runtime.native import cpython as c
from tessera.runtime.native import timing
from tessera.runtime.native.cpython import List, Object, Sized, Tuple
from tessera.runtime.native.find import DONE, PYTHON, RAISED, call
from tessera.runtime.native.structures import (
    MAP_BYTES,
    Entry,
    Head,
    LaunchConfig,
    LaunchKernel,
    Run,
    RunGrid,
    Timing,
)

CONFIG_BYTES = layout(LaunchConfig).size
MOST_ALONG_X, MOST_ALONG_OTHERS = (1 << 31) - 1, 65535  # programs that every driver starts


@native
def read_grid(d: Head, grid: Object, values: Pointer[Object], extents: Pointer[i64]) -> i64:
    """Read the grid's extents, or those that a grid function returns for the arguments."""
    for i in range(3):
        extents[i] = 1
    if grid.type is d.tuple or grid.type is d.list:
        return read_extents(d, grid, extents)
    if c.PyCallable_Check(grid) == 0:
        return PYTHON
    made = call_grid(d, grid, values)
    if made is None:
        if c.PyErr_Occurred() is not d.key_error:
            return RAISED
        c.PyErr_Clear()
        return PYTHON  # which calls the function again, and says what names there are
    code = PYTHON
    if made.type is d.tuple or made.type is d.list:
        code = read_extents(d, made, extents)
    c.Py_DecRef(made)
    return code


@native
def read_extents(d: Head, grid: Object, extents: Pointer[i64]) -> i64:
    fixed = grid.type is d.tuple
    items = cast(Tuple, grid).items if fixed else cast(List, grid).items
    count = cast(Sized, grid).size
    if not 1 <= count <= 3:
        return PYTHON
    for i in range(count):
        # only exact ints: other items run code that could change the sequence
        if items[i].type is not d.int and not fixed:
            return PYTHON
        extents[i] = c.PyLong_AsLongLong(items[i])
        # Python reports what exceeds all drivers' limits
        if not 0 <= extents[i] <= (MOST_ALONG_X if i == 0 else MOST_ALONG_OTHERS):
            c.PyErr_Clear()
            return PYTHON
    return DONE


@native
def call_grid(d: Head, f: Object, values: Pointer[Object]) -> Object | None:
    """Return f(dictionary of the arguments by name)."""
    given = c.PyDict_New()
    if given is None:
        return None
    found: Object | None = None
    count = 0
    while count < d.count and c.PyDict_SetItem(given, d.names[count], values[count]) == 0:
        count += 1
    if count == d.count:
        found = call(f, given)
    c.Py_DecRef(given)
    return found


@native
def current_stream(d: Head, e: Entry, run: Run) -> i64:
    run.stream = 0
    ask = e.stream
    if ask is None:
        # made without torch: its stream counts once it is imported
        return DONE if c.PyDict_GetItemWithError(d.modules, d.torch) is None else PYTHON
    answer = call(ask, e.device)
    if answer is None:
        return RAISED
    run.stream = c.PyLong_AsVoidPtr(answer)
    c.Py_DecRef(answer)
    return RAISED if run.stream == 0 and c.PyErr_Occurred() is not None else DONE


@native
def call_enter(
    d: Head, hook: Object, extents: Pointer[i64], stream: i64, values: Pointer[Object]
) -> Object | None:
    """Return the result of the hook before a launch."""
    args = array(Object, d.count + 4)
    there = 0
    while there < 4:
        x = c.PyLong_FromLong(extents[there]) if there < 3 else c.PyLong_FromVoidPtr(stream)
        if x is None:
            break
        args[there] = x
        there += 1
    memcpy(args + 4, values, 8 * d.count)
    found: Object | None = None
    if there == 4:
        found = c.PyObject_Vectorcall(hook, args, d.count + 4, None)
    for i in range(there):
        c.Py_DecRef(args[i])
    return found


@native
def start_timed(e: Entry, t: Timing, run: Run, slots: Pointer[i64]) -> i32:
    """Start, and fill a row with the times."""
    number = timing.begin(e, t, run)
    status = start(e, run, slots)
    return timing.end(t, number, run.stream) if status == 0 else status


@native
def start(e: Entry, run: Run, slots: Pointer[i64]) -> i32:
    """Start with the picked slots in order, then the tensor maps. Return the driver's or the thread pool's status."""
    count = e.picks_count
    picks = e.picks
    packed = array(i64, count + run.map_count, 16)
    launch_kernel = e.launch_kernel
    if launch_kernel is not None:
        for i in range(count):
            packed[i] = integer(slots + picks[i])
        for i in range(run.map_count):
            packed[count + i] = integer(run.maps + MAP_BYTES * i)
        return start_on_gpu(
            launch_kernel, run.function, run.config, run.extents, run.stream, packed
        )
    for i in range(count):
        packed[i] = slots[picks[i]]
    run_grid = e.run_grid
    if run_grid is None:
        return -1
    return start_on_cpu(run_grid, e.pool, run.function, packed, run.extents, run.config)


@native
def enqueue(
    launch_kernel: LaunchKernel,
    function: i64,
    template: i64,
    extents: Pointer[i64],
    stream: i64,
    arguments: Pointer[i64],
) -> i32:
    """Launch by a copy of the template with the stream and the grid's extents, each times the CTAs of a program."""
    config = local(LaunchConfig)
    memcpy(config, cast(LaunchConfig, template), CONFIG_BYTES)
    for k in range(3):
        config.extents[k] *= i32(extents[k])
    config.stream = stream
    return launch_kernel(config, function, arguments, None)


@native
def start_on_gpu(
    launch_kernel: LaunchKernel,
    function: i64,
    template: i64,
    extents: Pointer[i64],
    stream: i64,
    arguments: Pointer[i64],
) -> i32:
    state = c.PyEval_SaveThread()
    code = enqueue(launch_kernel, function, template, extents, stream, arguments)
    c.PyEval_RestoreThread(state)
    return code


@native
def start_on_cpu(
    run_grid: RunGrid, pool: i64, function: i64, args: Pointer[i64], extents: Pointer[i64], scratch: i64
) -> i32:  # fmt: skip
    state = c.PyEval_SaveThread()
    x = i32(extents[0])
    code = run_grid(pool, function, args, x, i32(extents[1]), i32(extents[2]), scratch)
    c.PyEval_RestoreThread(state)
    return code
