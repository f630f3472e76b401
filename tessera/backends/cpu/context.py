"""Defines a kernel's fourth argument, what a launch tells each of its threads; `pool` says what the fields mean."""

from __future__ import annotations

from collections.abc import Callable

from tessera.backends.llvm.subset import Pointer, Struct, i8, i32, i64
from tessera.backends.llvm.subset_types import offset_of


class Context(Struct):
    x: i32
    y: i32
    z: i32
    thread: i32
    scratch: Pointer[i8]
    scratch_bytes: i64
    status: Pointer[i32]
    started: i32
    seen: i32
    attention: Pointer[i32]
    poll: Callable[[Context], i32]
    enter: Callable[[Context, i32], None]
    leave: Callable[[Context], None]
    alone: i32
    looks: i32
    pool: object
    wait: Callable[[Context], None]


(
    STATUS_OFFSET,
    SEEN_OFFSET,
    ATTENTION_OFFSET,
    POLL_OFFSET,
    ENTER_OFFSET,
    LEAVE_OFFSET,
    ALONE_OFFSET,
    LOOKS_OFFSET,
    WAIT_OFFSET,
) = (
    offset_of(Context, field)
    for field in ["status", "seen", "attention", "poll", "enter", "leave", "alone", "looks", "wait"]
)
