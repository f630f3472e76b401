"""Launches a sequence of kernels in native code: what a compiled graph does between two calls of the array library.

One piece of code serves every graph. What differs lies in a `Sequence`, the builtin function's `self`, and in the
numbers that each call brings: grids, offsets and sizes, which Python computes once for each set of sizes. Argument j
of a launch is the sum of the word of an object and of a number: the address of an array and an offset, a scalar and 0,
or no object and a size.
"""

from __future__ import annotations

from typing import cast

from tessera.backends.llvm.subset import (
    Pointer,
    Struct,
    array,
    i8,
    i32,
    i64,
    integer,
    item,
    local,
    native,
    u8,
)
from tessera.backends.llvm.subset_types import layout
from tessera.runtime.native import cpython as c
from tessera.runtime.native.arrays import Memory, read_fields
from tessera.runtime.native.convert import convert
from tessera.runtime.native.cpython import NumpyArray, Object
from tessera.runtime.native.find import DONE, RAISED, call, find_maps
from tessera.runtime.native.start import enqueue
from tessera.runtime.native.structures import (
    MAP_BYTES,
    READ_NUMPY,
    READ_TENSOR,
    ArrayType,
    Converter,
    Kind,
    LaunchKernel,
    Maps,
    Run,
    RunGrid,
)

LEADING = 2  # arguments in front of the objects
RUN_WORDS = layout(Run).size // 8
FIRST_BY_PYTHON = 1 << 62  # of a result: Python has to launch all kernels


class SequenceLaunch(Struct):
    """One kernel. `terms`: for each argument the number of its object, 0 for none, and that of its number."""

    function: i64
    config: i64  # cuda: the launch template; cpu: bytes of scratch per thread
    grid: i64  # which of the numbers is the grid's extent
    count: i64
    terms: Pointer[i64]
    maps: Maps | None


class Sequence(Converter):
    """`count` of the base class: the objects of a call."""

    rows: ArrayType  # ended by a row of zeros
    address: Object  # address(array) → int, for arrays of other types
    launch_kernel: LaunchKernel | None  # one of the two
    run_grid: RunGrid | None
    type_error: Object
    kinds: Pointer[u8]  # of the objects
    picks: Pointer[i64]  # 0, 1, 2 and so on
    launches: SequenceLaunch
    launch_count: i64
    slots: i64  # arguments of all launches
    maps: i64  # tensor maps of all launches
    most: i64  # arguments and tensor maps of one launch, at most


@native
def word_of(d: Sequence, o: Object, index: i64, slot: Pointer[i64]) -> bool:
    """The address of an array, or the bytes of a scalar. False: an exception is set."""
    kind = i64(d.kinds[index])
    if kind != Kind.POINTER or o.type is d.int:
        return convert(d, o, kind, slot, index)
    row = d.rows
    while row.type is not o.type:
        if integer(row.type) == 0:
            return ask(d, o, slot)
        row = item(row, 1)
    if row.kind == READ_NUMPY:
        slot[0] = cast(NumpyArray, o).data
        return True
    found = local(Memory)
    if row.kind != READ_TENSOR or not read_fields(o, row, found):
        return ask(d, o, slot)
    slot[0] = found.address
    return True


@native
def ask(d: Sequence, o: Object, slot: Pointer[i64]) -> bool:
    """Let Python say where an array lies."""
    told = call(d.address, o)
    if told is None:
        return False
    slot[0] = c.PyLong_AsVoidPtr(told)
    c.Py_DecRef(told)
    return slot[0] != 0 or c.PyErr_Occurred() is None


@native
def words_of_all(d: Sequence, objects: Pointer[Object], bases: Pointer[i64]) -> bool:
    bases[0] = 0
    for i in range(d.count):  # noqa: SIM110  the native subset has no generators
        if not word_of(d, objects[i], i, bases + 1 + i):
            return False
    return True


@native
def prepare(
    d: Sequence, k: i64, run: Run, bases: Pointer[i64], numbers: Pointer[i64], slots: Pointer[i64]
) -> i64:
    """Grid and arguments of launch k; DONE, or as `find_maps` has it."""
    one = item(d.launches, k)
    run.function = one.function
    run.config = one.config
    run.map_count = 0
    run.extents[0] = numbers[one.grid]
    run.extents[1] = 1
    run.extents[2] = 1
    for j in range(one.count):
        slots[j] = bases[one.terms[2 * j]] + numbers[one.terms[2 * j + 1]]
    maps = one.maps
    if maps is None or run.extents[0] == 0:
        return DONE
    return find_maps(maps, slots, d.picks, run.extents, run)


@native
def start_one(
    d: Sequence, run: Run, queue: i64, slots: Pointer[i64], count: i64, places: Pointer[i64]
) -> i32:
    """Start a kernel, without the Python lock; the status."""
    run_grid = d.run_grid
    if run_grid is not None:
        return run_grid(queue, run.function, slots, i32(run.extents[0]), 1, 1, run.config)
    launch_kernel = d.launch_kernel
    if launch_kernel is None:
        return -1
    for i in range(count):
        places[i] = integer(slots + i)
    for i in range(run.map_count):
        places[count + i] = integer(run.maps + MAP_BYTES * i)
    return enqueue(launch_kernel, run.function, run.config, run.extents, queue, places)


@native
def start_all(d: Sequence, runs: Run, queue: i64, slots: Pointer[i64], places: Pointer[i64]) -> i64:
    """0, or the number of the launch that failed << 32 with the low bytes of its status."""
    at = slots
    for k in range(d.launch_count):
        run = item(runs, k)
        count = item(d.launches, k).count
        if run.extents[0] != 0:
            status = start_one(d, run, queue, at, count, places)
            if status != 0:
                return k << 32 | i64(status) & 0xFFFFFFFF
        at += count
    return 0


@native(exported=True)
def launch_sequence(self: Object, objects: Pointer[Object], given: i64) -> Object | None:
    """builtin(stream or pool, numbers, *objects) → what `start_all` gives, or FIRST_BY_PYTHON"""
    d = cast(Sequence, c.PyBytes_AsString(self))
    if given != d.count + LEADING:
        text = b"the sequence takes %zd arguments, but got %zd"
        return c.PyErr_Format(d.type_error, text, d.count + LEADING, given)
    queue = c.PyLong_AsVoidPtr(objects[0])
    if queue == 0 and c.PyErr_Occurred() is not None:
        return None
    numbers = cast(Pointer[i64], c.PyBytes_AsString(objects[1]))
    if integer(numbers) == 0:
        return None
    bases = array(i64, d.count + 1)
    if not words_of_all(d, objects + LEADING, bases):
        return None
    slots = array(i64, d.slots, 16)
    runs = cast(Run, array(i64, RUN_WORDS * d.launch_count))
    maps = array(i8, MAP_BYTES * d.maps, 64)
    at = slots
    for k in range(d.launch_count):
        run = item(runs, k)
        run.maps = maps
        code = prepare(d, k, run, bases, numbers, at)
        if code == RAISED:
            return None
        if code != DONE:
            return c.PyLong_FromLong(FIRST_BY_PYTHON)
        at += item(d.launches, k).count
        maps += MAP_BYTES * run.map_count
    places = array(i64, d.most, 16)
    state = c.PyEval_SaveThread()
    failed = start_all(d, runs, queue, slots, places)
    c.PyEval_RestoreThread(state)
    if failed != 0 and c.PyErr_Occurred() is not None:
        return None  # interrupted
    return c.PyLong_FromLong(failed)


@native(exported=True)
def all_aligned(self: Object, objects: Pointer[Object], given: i64) -> Object | None:
    """builtin(*arrays) → whether all begin at multiples of 16 bytes; `self`: a Sequence without launches"""
    d = cast(Sequence, c.PyBytes_AsString(self))
    slot = array(i64, 1)
    found = i64(0)
    for i in range(given):
        if not word_of(d, objects[i], 0, slot):
            return None
        found |= slot[0]
    return c.PyBool_FromLong(i64(found & 15 == 0))
