"""Lets a kernel change memory without atomic instructions where nobody else changes it: the launch runs in one thread,
and no other kernel with atomics runs in this process.

A kernel with atomics calls `enter` before its programs and `leave` after them. `users` counts the threads between the
two; it is -1 while one of them has excluded all others. Only a thread that runs a whole grid may exclude others, and
only one whose kernel ends by itself, without waiting for other programs (`ends_by_itself`): those that come then wait
for it. While others are inside, nobody is excluded, and all use atomic instructions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tessera.backends.cpu.context import ALONE_OFFSET, ENTER_OFFSET, LEAVE_OFFSET, Context
from tessera.backends.cpu.cores import ARM, X86
from tessera.backends.llvm.subset import (
    atomic_add,
    atomic_load,
    atomic_store,
    compare_exchange,
    external,
    i32,
    native,
    variable,
)
from tessera.ir import Module
from tessera.ops import WhileOp, memory

if TYPE_CHECKING:
    from tessera.backends.cpu.lowering import Lowering

MAY_WAIT = 1 << 62  # above any number of bytes of scratch memory, which shares a word with it
LOOKS = 1000  # before a thread that waits offers its core to others
users = variable(i32)


# --- native functions ------------------------------------------------------------------------------------------------
@external
def sched_yield() -> i32: ...
@external(symbol="llvm.x86.sse2.pause")
def pause_on_x86() -> None: ...
@external(symbol="llvm.aarch64.hint")
def hint(kind: i32) -> None: ...


@native(attributes="alwaysinline")
def pause() -> None:
    if X86:
        pause_on_x86()
    elif ARM:
        hint(1)


@native(exported=True)
def tessera_pool_enter(c: Context, whole: i32) -> None:
    """Enter, after a launch that excludes others; set `c.alone` if this one does. `whole`: whether it may."""
    c.alone = 0
    if whole != 0 and compare_exchange(users, 0, -1, "acq_rel", "monotonic"):
        c.alone = 1
        return
    looks = 0
    while True:
        now = atomic_load(users, "monotonic")
        if now >= 0 and compare_exchange(users, now, now + 1, "acq_rel", "monotonic"):
            return
        pause()
        looks += 1
        if looks > LOOKS:
            sched_yield()
            looks = 0


@native(exported=True)
def tessera_pool_leave(c: Context) -> None:
    if c.alone != 0:
        c.alone = 0
        atomic_store(users, 0, "release")
    else:
        atomic_add(users, -1, "acq_rel")


@native
def end_exclusion(c: Context) -> None:
    """Let others run their kernels for a while, between two programs of this one."""
    if c.alone != 0:
        atomic_store(users, 0, "release")


@native
def resume_exclusion(c: Context) -> None:
    if c.alone != 0:
        while not compare_exchange(users, 0, -1, "acq_rel", "monotonic"):
            sched_yield()


@native(exported=True)
def tessera_pool_forget() -> None:
    """Forget, in a forked child, the threads that only its parent has."""
    atomic_store(users, 0, "monotonic")


# --- launches --------------------------------------------------------------------------------------------------------
def launch_needs(metadata: object) -> int:
    """Return the number that a launch gives to the pool: bytes of scratch memory, a multiple of 64, plus the number of
    threads (at most 63) up to which the grid is done sooner by one alone, plus MAY_WAIT if programs may wait."""
    scratch: int = getattr(metadata, "scratch_bytes", 0)
    few: int = getattr(metadata, "alone_up_to", 0)
    waits = MAY_WAIT * getattr(metadata, "may_wait", False)
    return (scratch + 63 & -64) + min(few, 63) + waits


# --- in kernels ----------------------------------------------------------------------------------------------------
def has_atomics(module: Module) -> bool:
    return any(isinstance(op, memory.Atomic) for op in module.walk())


def ends_by_itself(module: Module) -> bool:
    """Whether no program can wait for something that another launch does, or for somebody who reads what it prints."""
    return not any(isinstance(op, WhileOp | memory.PrintOp) for op in module.walk())


def alone(lo: Lowering) -> str:
    """Return an i1: whether no other thread changes memory by atomics while this program runs."""
    where = lo.em.entry_op(f"getelementptr i8, ptr {lo.context}, i64 {ALONE_OFFSET}")
    flag = lo.em.entry_op(f"load i32, ptr {where}, align 4, !invariant.load !0")
    return lo.em.entry_op(f"icmp ne i32 {flag}, 0")


ENTERING = """define void @{name}(ptr noalias %args, i64 %begin, i64 %end, ptr noalias %ctx) {attributes} {{
entry:
  %ya = getelementptr i8, ptr %ctx, i64 4
  %za = getelementptr i8, ptr %ctx, i64 8
  %x = load i32, ptr %ctx, align 4
  %y = load i32, ptr %ya, align 4
  %z = load i32, ptr %za, align 4
  %wx = zext i32 %x to i64
  %wy = zext i32 %y to i64
  %wz = zext i32 %z to i64
  %xy = mul i64 %wx, %wy
  %all = mul i64 %xy, %wz
  %here = sub i64 %end, %begin
  %same = icmp eq i64 %here, %all
  %may = and i1 %same, {may}
  %whole = zext i1 %may to i32
  %ea = getelementptr i8, ptr %ctx, i64 {enter}
  %enter = load ptr, ptr %ea, align 8
  call void %enter(ptr %ctx, i32 %whole)
  call void @{body}(ptr %args, i64 %begin, i64 %end, ptr %ctx)
  %la = getelementptr i8, ptr %ctx, i64 {leave}
  %leave = load ptr, ptr %la, align 8
  call void %leave(ptr %ctx)
  ret void
}}"""


def entering(name: str, body: str, may: bool, attributes: str) -> str:
    """Return a kernel that enters, runs the programs by the function `body`, and leaves. `may`: exclude others."""
    return ENTERING.format(
        name=name, body=body, may=str(may).lower(), attributes=attributes,
        enter=ENTER_OFFSET, leave=LEAVE_OFFSET,
    )  # fmt: skip
