"""Lets programs wait for any other program of their grid, also for one with a higher id, as resident CTAs of a GPU may.

A `while` loop that can see what others do counts its iterations. After LOOKS of them it calls `wait` in each: that
yields the core, and the first time it starts one more thread, which runs programs that have not begun.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tessera.backends.cpu.context import LOOKS_OFFSET, WAIT_OFFSET
from tessera.backends.cpu.exclusive import LOOKS
from tessera.ir import Module
from tessera.ops import WhileOp
from tessera.ops.waiting import sees_others

if TYPE_CHECKING:
    from tessera.backends.cpu.lowering import Lowering


def may_wait(module: Module) -> bool:
    """Whether a program may wait until another one has done something."""
    return any(isinstance(op, WhileOp) and sees_others(op) for op in module.walk())


def begin_waiting(lo: Lowering) -> None:
    at = lo.em.op(f"getelementptr i8, ptr {lo.context}, i64 {LOOKS_OFFSET}")
    lo.em.stmt(f"store i32 0, ptr {at}, align 4")


def wait_longer(lo: Lowering) -> None:
    """Count an iteration, and call `wait` after LOOKS of them."""
    em = lo.em
    at, field = (
        em.op(f"getelementptr i8, ptr {lo.context}, i64 {offset}")
        for offset in (LOOKS_OFFSET, WAIT_OFFSET)
    )
    wait = em.op(f"load ptr, ptr {field}, align 8, !invariant.load !0")
    before = em.here(f"load i32, ptr {at}, align 4")
    looks = em.here(f"add i32 {before}, 1")
    em.stmt(f"store i32 {looks}, ptr {at}, align 4")
    with em.branch(em.here(f"icmp uge i32 {looks}, {LOOKS}")):
        em.stmt(f"call void {wait}(ptr {lo.context})")
