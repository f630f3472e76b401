"""Lets Ctrl-C end a running kernel: launches poll for signals where that costs nothing, and end early if a handler
raises.

Python's own handler only sets a flag, on which code that holds the GIL acts. So our handler of SIGINT, and of those
of SIGALRM and SIGTERM that a program sets to end what takes too long, calls Python's and counts the signals
(`attention`). Each thread of a launch compares the count with the last one that it saw: before each chunk of the
grid, before each program of a kernel whose loops may be long, at the head of each `while` loop, and after each block
of iterations of a long `for` loop. If the count has changed, the thread calls `poll`: the launching thread takes the
GIL and lets Python run its handlers. If one raises (KeyboardInterrupt), the launch's status becomes INTERRUPTED, the
other threads see that when they poll next, and each leaves its program there; arrays hold what was written so far.

Python runs handlers of signals only in the main thread, so only a launch from there is interrupted. If a program
installs another handler, ours is put in front of it when the next kernel is loaded, or launched through Python.
"""

from __future__ import annotations

import ctypes
import signal
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from tessera.backends.cpu.context import (
    ATTENTION_OFFSET,
    POLL_OFFSET,
    SEEN_OFFSET,
    STATUS_OFFSET,
    Context,
)
from tessera.backends.cpu.exclusive import end_exclusion, resume_exclusion
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
from tessera.ops import CallOp, ConstOp, ForOp, FuncOp, WhileOp

if TYPE_CHECKING:
    from tessera.backends.cpu.lowering import Lowering

INTERRUPTED = -4  # the result of a launch that Ctrl-C ended: -EINTR
# Iterations of a `for` loop between two polls: for a loop without inner loops, where they take a millisecond with tiles
# of 16,384 elements, and for one around loops that may each end before they poll.
BLOCK, BLOCK_OF_LOOPS = 1024, 16
SIGACTION_BYTES = 256  # at least; the handler comes first
INTERRUPT = int(signal.SIGINT)
SIGNALS = (signal.SIGINT, signal.SIGALRM, signal.SIGTERM)


# --- native functions ------------------------------------------------------------------------------------------------
Handler: TypeAlias = Callable[[i32, object, object], None]
attention = variable(i32)
previous = variable(object)
first = variable(object)
python = variable(object)  # the handler of the other signals, which is the same function for all
inside = variable(i32)


@external
def PyGILState_Ensure() -> i32: ...
@external
def PyGILState_Release(state: i32) -> None: ...
@external
def PyErr_CheckSignals() -> i32: ...


@native(exported=True, attributes="noinline cold")
def tessera_pool_poll(c: Context) -> i32:
    """Handle a count that has changed since this thread looked. Return 1 if the launch is interrupted."""
    c.seen = atomic_load(attention, "seq_cst")
    if atomic_load(c.status, "acquire") == INTERRUPTED:
        return 1
    if c.thread != 0:
        return 0
    end_exclusion(c)  # a handler may launch kernels
    state = PyGILState_Ensure()
    raised = PyErr_CheckSignals()
    PyGILState_Release(state)
    resume_exclusion(c)
    if raised == 0:
        return 0
    atomic_store(c.status, INTERRUPTED, "seq_cst")
    atomic_add(attention, 1, "seq_cst")
    return 1


@native(exported=True)
def tessera_pool_signalled(number: i32, about: object, context: object) -> None:
    """Count a signal, and call the handler that was there before. If a library's handler in front of ours calls us, we
    call the first one, Python's, which does not know ours."""
    atomic_add(attention, 1, "seq_cst")
    outer = atomic_add(inside, 1, "seq_cst") == 0
    slot = (previous if outer else first) if number == INTERRUPT else python
    cast(Handler, atomic_load(slot, "acquire"))(number, about, context)
    atomic_add(inside, -1, "seq_cst")


@native(exported=True)
def tessera_pool_follow(number: i32, handler: object) -> bool:
    """Note the handler that ours shall call. False if it is not the one that other signals have."""
    if number == INTERRUPT:
        atomic_store(previous, handler, "release")
        compare_exchange(first, None, handler, "seq_cst", "seq_cst")
        return True
    compare_exchange(python, None, handler, "seq_cst", "seq_cst")
    return atomic_load(python, "acquire") == handler


@native
def stopped(c: Context) -> bool:
    """Whether the launch has been interrupted, after a check of the count."""
    if atomic_load(attention, "monotonic") != c.seen:
        tessera_pool_poll(c)
    return atomic_load(c.status, "acquire") == INTERRUPTED


@native
def begin_looking(c: Context) -> None:
    c.seen = atomic_load(attention, "monotonic")
    c.attention = attention
    c.poll = tessera_pool_poll


# --- the handler -----------------------------------------------------------------------------------------------------
SYMBOLS = ("tessera_pool_signalled", "tessera_pool_follow")


def follow_interrupts(signalled: int, follow: int) -> None:
    """Install our handler, at address `signalled`, before the current one of SIGINT, if that one is a function, and of
    the other signals, if that one is Python's."""
    sigaction = _sigaction()
    for number in (n for n in SIGNALS if callable(signal.getsignal(n))):
        now = (ctypes.c_uint64 * (SIGACTION_BYTES // 8))()
        sigaction(int(number), None, now)
        if now[0] in (0, 1, signalled):  # the default, ignored, ours
            continue
        if ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.c_int, ctypes.c_void_p)(follow)(number, now[0]):
            now[0] = signalled
            sigaction(int(number), now, None)


@cache
def _sigaction() -> Any:
    """Return the C library's function, cached: making its ctypes object takes longer than a launch."""
    return ctypes.CDLL(None).sigaction


# --- in kernels ----------------------------------------------------------------------------------------------------
def may_take_long(f: FuncOp) -> bool:
    """Whether the length of a loop is known at run time only: then the cost of a poll before each program is small."""
    return any(
        isinstance(op, WhileOp) or (isinstance(op, ForOp) and not isinstance(op.ub.op, ConstOp))
        for op in f.walk()
    )


def may_stop(f: FuncOp) -> bool:
    """Whether a function may return early because the launch is interrupted."""
    for op in f.walk():
        callee = op.resolve() if isinstance(op, CallOp) else None
        if isinstance(op, WhileOp) or (callee is not None and may_stop(callee)):
            return True
        if isinstance(op, ForOp) and iterations_between_looks(op):
            return True
    return False


def iterations_between_looks(loop: ForOp) -> int:
    """Return the number of iterations after which a `for` loop polls for signals; 0 if it has no more than that. The
    iterations in between cost as much as in a loop without polls."""
    around = any(isinstance(op, ForOp | CallOp) for op in loop.walk() if op is not loop)
    count = BLOCK_OF_LOOPS if around else BLOCK
    known = [v.op.value for v in (loop.lb, loop.ub, loop.step) if isinstance(v.op, ConstOp)]
    bounds = [x for x in known if isinstance(x, int)]
    return 0 if len(bounds) == 3 and bounds[2] and not range(*bounds)[count:] else count


def leave_if_interrupted(lo: Lowering) -> None:
    """Emit a return if the launch is interrupted; without a signal this costs two loads and a comparison."""
    em = lo.em
    field = [em.op(f"getelementptr i8, ptr {lo.context}, i64 {at}")
             for at in (ATTENTION_OFFSET, POLL_OFFSET, SEEN_OFFSET)]  # fmt: skip
    attention, poll = (
        em.op(f"load ptr, ptr {at}, align 8, !invariant.load !0") for at in field[:2]
    )
    now = em.here(f"load atomic i32, ptr {attention} monotonic, align 4")
    seen = em.here(f"load i32, ptr {field[2]}, align 4")
    with em.branch(em.here(f"icmp ne i32 {now}, {seen}")):
        stop = em.here(f"call i32 {poll}(ptr {lo.context})")
        _leave_if(lo, em.here(f"icmp ne i32 {stop}, 0"))


def leave_after_call(lo: Lowering) -> None:
    """Emit a return if the called function has returned because the launch is interrupted."""
    em = lo.em
    where = em.op(f"getelementptr i8, ptr {lo.context}, i64 {STATUS_OFFSET}")
    status = em.op(f"load ptr, ptr {where}, align 8, !invariant.load !0")
    now = em.here(f"load atomic i32, ptr {status} monotonic, align 4")
    _leave_if(lo, em.here(f"icmp eq i32 {now}, {INTERRUPTED}"))


def _leave_if(lo: Lowering, condition: str) -> None:
    em = lo.em
    k = em.new_label("stay")
    em.stmt(f"br i1 {condition}, label %{lo.stop_label}, label %{k}")
    em.label(k)
