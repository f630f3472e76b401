"""Defines the structures that Python writes and native code reads to launch kernels.

     Head       of a kernel function: a `bytes` object, the builtin function's `self`
     Entry      of a compiled specialisation, written by Python after the launch that compiled or found it
     ArrayType  how to read address, element type and place of arrays of one type (arrays)
     Number     of a scalar type of NumPy: which Python number equals a scalar
     Cursor     where native code writes the next unit
     Maps       the tensor maps of a compiled specialisation
     Timing     where native launches write their times
     Launcher   of kernels that Python calls with their arguments (launcher): a `bytes` object, too

Their fields are words of 8 bytes. An argument becomes one unit; a tuple or descriptor becomes several (compound). A
unit is two key words, a slot for the value and the size of the memory behind it. The key words hold the value's kind
(`Tag`) and its element type or compile-time value. They follow a word with the place of the first array and, from bit
8, the relations of the pointers (`aliasing`), and a word with the CUDA context. Three words per option come last: its
name and two words as for a compile-time value. `repeat` looks kernels up by this key.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, TypeAlias

from tessera.backends.llvm.subset import Pointer, Struct, i8, i32, i64, u8
from tessera.runtime.arguments.torch_layout import TensorLayout
from tessera.runtime.native.cpython import Method, Object

BUCKETS, MAP_BUCKETS = 256, 64
READ_NUMPY, READ_TENSOR, READ_PYTHON = range(3)
# NumPy's scalars are read as the Python number of their value.
READ_INTEGER, READ_REAL, READ_TRUTH = range(3)
DESCRIPTOR_FIELDS = ("base", "shape", "strides", "block_shape", "padding", "round_f32_to_tf32")
EXTRA_UNITS = 64  # for the items of tuples and descriptors; launches with more go through Python
MAP_BYTES = 128  # of a CUtensorMap
ROW_WORDS = 8  # of a launch: see the fields of `Timing`
NOT_READY = 600  # CUDA_ERROR_NOT_READY
INVALID_HANDLE = 400  # CUDA_ERROR_INVALID_HANDLE: a graph captured the launch
MONOTONIC = 1  # the clock of time.perf_counter_ns
HOST_PLACE, DEVICE_PLACE = 1, 2
READ_ONLY, STRIDED = 4, 8  # what `reader` says of an array


class Kind:
    """How a launch argument becomes the bytes that a kernel gets. Integers of 8, 16 and 32 bits are not listed: their
    kind is bits | SIGNED or bits | UNSIGNED."""

    POINTER, MEMORY, F16, BF16, F32, F64, I1, I64, U64 = range(9)
    SIGNED, UNSIGNED = 64, 128


class Tag:
    """The kind of value that a unit's first key word has in its low byte."""

    NONE, ONE, BOOL, FLOAT, ANY, BLOCK, STRIDE = range(1, 8)
    I32, I64 = 8, 10  # + 1: divisible by 16
    # + 1: address divisible by 16, + 2: on a CUDA device, + 4: READ_ONLY, + 256 * min(storage's bytes >> 31, 15)
    ARRAY = 32
    DESCRIPTOR = 48  # + 2: on a CUDA device, + 4: READ_ONLY, + 256 * rank
    C_INT, C_FLOAT, C_OBJECT = 64, 65, 66  # compile-time: by value, by bits, by identity
    TUPLE = 68  # + 256 * length


class Mode:
    """How arguments of a parameter are classified: the low byte of a mode; the next byte is the Kind."""

    DEFAULT, CONSTANT, FIXED, UNALIGNED, POINTER, KEYED, UNKEYED = range(7)


class LaunchConfig(Struct):
    """CUlaunchConfig."""

    extents: Annotated[Pointer[i32], 3]
    block: Annotated[Pointer[i32], 3]
    shared: i32
    stream: i64
    attributes: Pointer[i8]
    attribute_count: i32


# cuLaunchKernelEx: (config, function, arguments' addresses, null) → CUresult
LaunchKernel: TypeAlias = Callable[[LaunchConfig, i64, Pointer[i64], object], i32]
# The thread pool's launch: (pool, function, arguments, grid x, y, z, bytes of scratch) → status
RunGrid: TypeAlias = Callable[[i64, i64, Pointer[i64], i32, i32, i32, i64], i32]


class Converter(Struct):
    """The fields that converting arguments needs."""

    check: (
        Callable[[Pointer[i64], i32, i64], i32] | None
    )  # cuPointerGetAttribute; None: pointers are not checked
    none: Object
    int: Object
    data_ptr: Object  # the interned string
    overflow: Object
    host: Object  # the exception for a host pointer
    count: i64  # arguments, or parameters


class Launcher(Converter):
    launch_kernel: LaunchKernel | None  # one of the two
    run_grid: RunGrid | None
    value_error: Object
    type_error: Object
    kinds: Annotated[Pointer[u8], 0]


class Head(Converter):
    epoch: Pointer[i64]  # the count of knob changes
    table: Pointer[Chained | None]  # BUCKETS chains
    hooks: Object  # the list of pre-run hooks: unless empty, Python runs the launch
    fallback: Object
    names: Pointer[Object]
    defaults: Pointer[Object]
    modes: Pointer[i64]
    rows: ArrayType  # ended by a row of zeros
    numbers: Number  # likewise
    context: Pointer[
        Callable[[Pointer[i64]], i32]
    ]  # cuCtxGetCurrent, null where CUDA is not in use
    options: Pointer[Object]  # interned names of launch options, null at the end
    true: Object
    float: Object
    str: Object
    constexpr: Object
    tuple: Object
    list: Object
    key_error: Object
    modules: Object
    torch: Object
    relations: Object  # relations(*values) → int, if the storages' sizes do not suffice
    strides: Object  # strides(*values) → whether the kernel gets the strides of its strided arrays
    # reader(array) → (address, dtype, on CUDA, bytes of the storage, bytes from the address on, READ_ONLY | STRIDED)
    reader: Object
    descriptor: Object  # the type TensorDescriptor
    attributes: Pointer[Object]  # the interned names of its fields, DESCRIPTOR_FIELDS


class Chained(Struct):
    """An entry of a hash table: chains of keys."""

    next: Chained | None
    hash: i64
    words: i64
    key: Pointer[i64]


class Entry(Chained):
    made: i64  # the epoch
    compiled: Object
    launch_kernel: LaunchKernel | None  # one of the two
    run_grid: RunGrid | None
    function: i64
    config: i64
    pool: i64
    stream: Object | None
    device: Object
    fail: Object
    globals: Watched
    globals_count: i64
    picks: Pointer[i64]
    picks_count: i64
    maps: Maps | None
    timing: Timing | None
    tag: i64  # of the kernel, in rows of `timing`
    enter: (
        Object | None
    )  # enter(grid x, y, z, stream, *values) → what `leave` gets after the launch
    leave: Object
    parts: Object  # keeps alive what these fields point at


class Timing(Struct):
    """The times of launches: a row of ROW_WORDS words, and two events for each if there is `record`. Its first `count`
    rows are in use."""

    record: Callable[[i64, i64], i32] | None  # cuEventRecord; None on a CPU, and where CUPTI times
    capturing: Callable[[i64, Pointer[i32]], i32] | None  # cuStreamIsCapturing, where CUPTI times
    clock: Callable[[i32, Pointer[i64]], i32]  # clock_gettime
    count: i64
    room: i64  # rows; if all are in use, Python runs the launch
    events: Pointer[i64]
    # tag, extents of the grid, nanoseconds at the start and the end (0: it has not started), milliseconds between the
    # events (a float) and whether they could be read (a CUresult)
    rows: Pointer[i64]


class Watched(Struct):
    """A Python object that the kernel was compiled with, and where it was found."""

    scope: Object  # a dictionary; a cell if there is no name
    name: Object | None
    seen: Object


class ArrayType(Struct):
    type: Object
    kind: i64  # READ_NUMPY, READ_TENSOR or READ_PYTHON
    layout: TensorLayout | None
    data_ptr: Method
    dtype: Method
    dtype_closure: Object
    is_cuda: Method
    is_cuda_closure: Object
    storage: Method
    nbytes: Method


class Number(Struct):
    type: Object
    kind: i64  # READ_INTEGER, READ_REAL or READ_TRUTH


class Cursor(Struct):
    key: Pointer[i64]
    slot: Pointer[i64]
    size: Pointer[i64]
    place: i64
    room: i64
    strided: i64  # not 0: an array is not in C order


class Run(Struct):
    """What a launch starts; used by native code only."""

    function: i64
    config: i64  # cuda: the launch template; cpu: bytes of scratch per thread
    extents: Annotated[Pointer[i64], 3]
    stream: i64
    maps: Pointer[i8]
    map_count: i64


class Maps(Struct):
    maps: i64  # how many
    used: i64  # how many arguments they are made from
    arguments: Pointer[i64]  # their numbers among the kernel's run-time arguments
    extents: i64  # how many of the grid's extents they depend on
    chains: Pointer[Chained | None]  # MAP_BUCKETS of them
    learn: Object  # learn(bytes of the arguments' values) → whether the maps are in the table now


class MapEntry(Chained):
    data: Pointer[i8]  # the encoded maps
    maps: i64  # how many
    blocks: i64  # to start, 0 for one each program
    function: i64  # of the kernel that runs instead, or 0; so its launch template
    config: i64
