"""Implements, in native code, what CUPTI calls for buffers of activity records: it may do so in any thread, within a
launch, where nobody may wait for Python's lock.

A buffer has two words in front of it: the address of the buffer that was filled before, and how many bytes are in use.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from typing import cast

from tessera.backends.llvm.subset import (
    Pointer,
    atomic_load,
    compare_exchange,
    external,
    i32,
    i64,
    integer,
    native,
    variable,
)
from tessera.backends.process_singleton import process_singleton
from tessera.runtime.native.launcher import native_code

HEADER = 2  # words in front of a buffer
BUFFER_BYTES = 1 << 20  # some 4,800 records of kernels
filled = variable(object)  # the buffer that was filled last


@external
def malloc(size: i64) -> Pointer[i64]: ...
@external
def free(memory: object) -> None: ...


@native(exported=True)
def activity_room(buffer: Pointer[Pointer[i64] | None], size: Pointer[i64], records: Pointer[i64]) -> None:  # fmt: skip
    """Give CUPTI a buffer; without memory none, and then it drops records."""
    records[0] = 0  # as many as fit
    made = malloc(8 * HEADER + BUFFER_BYTES)
    if integer(made) == 0:
        buffer[0] = None
        size[0] = 0
    else:
        buffer[0] = made + HEADER
        size[0] = BUFFER_BYTES


@native(exported=True)
def activity_filled(context: i64, stream: i32, buffer: Pointer[i64], size: i64, used: i64) -> None:
    """Take a buffer back from CUPTI, with `used` bytes of records in it."""
    buffer[-1] = used
    while True:
        before = atomic_load(filled, "acquire")
        buffer[-HEADER] = integer(before)
        if compare_exchange(filled, before, cast(object, buffer), "seq_cst", "seq_cst"):
            return


@native(exported=True)
def activity_taken() -> i64:
    """Return the buffer that was filled last, and forget it and those before it."""
    while True:
        last = atomic_load(filled, "acquire")
        if compare_exchange(filled, last, None, "seq_cst", "seq_cst"):
            return integer(last)


@native(exported=True)
def activity_free(buffer: Pointer[i64]) -> None:
    free(buffer + -HEADER)


@process_singleton
def _functions() -> tuple[Callable[[], int], Callable[[int], None]]:
    code = native_code()
    taken = ctypes.CFUNCTYPE(ctypes.c_int64)(code["activity_taken"])
    return taken, ctypes.CFUNCTYPE(None, ctypes.c_int64)(code["activity_free"])


def callbacks() -> tuple[int, int]:
    """Return the addresses of the functions that CUPTI asks for a buffer, and gives it back to."""
    code = native_code()
    return code["activity_room"], code["activity_filled"]


def filled_buffers() -> Iterator[tuple[int, int]]:
    """Yield the address of each buffer that was filled since the last call, in no order, and how many bytes are in use.
    Its memory is freed when the next one is asked for."""
    taken, release = _functions()
    at = taken()
    while at:
        before, used = (ctypes.c_int64 * HEADER).from_address(at - 8 * HEADER)
        yield at, used
        release(at)
        at = before
