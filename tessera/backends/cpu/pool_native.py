"""Contains the thread pool's native functions: workers, launch and hand-off. `pool` compiles and drives them.

`State`, one per pool, has its hot words on cache lines of their own:

    remaining  chunks of the present grid that nobody has claimed; 0 = no work. Workers sleep on it (futex).
    done       finished chunks; the launching thread sleeps on it
    kernel … z the job. Written by the launcher while remaining == 0; a worker reads it only after a successful claim,
               and the job cannot end before the claimed chunk is done, so what it reads is never torn or stale.

A claim is `remaining: r -> r - 1` by compare-and-exchange and yields chunk number nchunks - r: chunks are claimed in
increasing order. No generation counter is needed: a claim that succeeds is by definition one of the current job.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, cast

from tessera.backends.cpu.context import Context
from tessera.backends.cpu.cores import X86
from tessera.backends.cpu.exclusive import (
    LOOKS,
    MAY_WAIT,
    pause,
    sched_yield,
    tessera_pool_enter,
    tessera_pool_leave,
)
from tessera.backends.cpu.interrupt import begin_looking, stopped
from tessera.backends.cpu.pool import MOST_THREADS, OUT_OF_MEMORY, TOO_MANY_PROGRAMS
from tessera.backends.llvm.subset import (
    Pointer,
    Struct,
    address,
    array,
    atomic_add,
    atomic_load,
    atomic_store,
    compare_exchange,
    external,
    i8,
    i32,
    i64,
    item,
    local,
    memset,
    native,
    u32,
    u64,
    u128,
)
from tessera.backends.llvm.subset_types import layout

# Checks for work before a thread sleeps; a pause takes 20-50 ns on the x86 cores at hand (tools/fit).
SPINS = 1000
LARGE_PAGE, MADV_HUGEPAGE = 2 << 20, 14
STACK_BYTES = 16 << 20  # kernels keep tile buffers on the stack; only touched pages cost memory
CHUNKS_PER_THREAD = 8  # pieces of the grid per thread: nobody waits long for slow ones (tools/fit)
FUTEX = 202 if X86 else 98  # the number of the system call
FUTEX_WAIT, FUTEX_WAKE = 128, 129  # within this process
MOMENT = 100_000_000  # ns
LINE = 64  # bytes of a cache line


class State(Struct):
    remaining: i32
    line_0: Annotated[Pointer[i8], LINE - 4]
    done: i32
    waiting: i32
    line_1: Annotated[Pointer[i8], LINE - 8]
    kernel: Callable[[object, i64, i64, Context], None]
    args: object
    n: u64
    chunk: u64
    nchunks: i32
    x: i32
    y: i32
    z: i32
    arena: Pointer[i8]
    stride: i64
    launches: i64
    lock: i32
    threads: i32
    asleep: i32
    more: i32
    status: i32
    line_2: Annotated[Pointer[i8], LINE - 28]


class Worker(Struct):
    pool: State
    index: i32
    line: Annotated[Pointer[i8], LINE - 12]


POOL_BYTES, WORKER_BYTES = layout(State).size, layout(Worker).size


@external
def syscall(number: i64, *values: object) -> i64: ...
@external
def pthread_create(
    thread: Pointer[i64], attributes: object, start: Callable[[object], object], given: object
) -> i32: ...
@external
def pthread_detach(thread: i64) -> i32: ...
@external
def pthread_attr_init(attributes: object) -> i32: ...
@external
def pthread_attr_setstacksize(attributes: object, size: i64) -> i32: ...
@external
def pthread_attr_destroy(attributes: object) -> i32: ...
@external
def pthread_sigmask(how: i32, signals: object, old: object) -> i32: ...
@external
def aligned_alloc(alignment: i64, size: i64) -> Pointer[i8] | None: ...
@external
def madvise(at: object, size: i64, advice: i32) -> i32: ...
@external
def free(at: object) -> None: ...


@native(attributes="alwaysinline")
def fill(c: Context, x: i32, y: i32, z: i32, thread: i32, status: Pointer[i32]) -> None:
    c.x = x
    c.y = y
    c.z = z
    c.thread = thread
    c.status = status
    c.started = 0


@native
def start_thread(start: Callable[[object], object], given: object) -> bool:
    """Start a detached thread; false if the system starts no more."""
    attributes = array(i64, 16, 16)
    thread = array(i64, 1)
    pthread_attr_init(attributes)
    pthread_attr_setstacksize(attributes, STACK_BYTES)
    failed = pthread_create(thread, attributes, start, given)
    pthread_attr_destroy(attributes)
    if failed == 0:
        pthread_detach(thread[0])
    return failed == 0


@native
def block_signals() -> None:
    signals = array(i64, 16)
    memset(signals, -1, 128)
    pthread_sigmask(0, signals, None)


@native
def be_ready(c: Context) -> None:
    begin_looking(c)
    c.enter = tessera_pool_enter
    c.leave = tessera_pool_leave
    c.alone = 0
    c.pool = None
    c.wait = tessera_pool_wait


@native(attributes="noinline cold")
def tessera_pool_wait(c: Context) -> None:
    """Yield the core for a program that waits; the first time, let one more thread run programs that may not begin."""
    p = cast(State, c.pool)
    if (
        c.looks == LOOKS
        and c.pool is not None
        and atomic_load(address(p.remaining), "monotonic") != 0
    ):
        if atomic_add(address(p.more), 1, "seq_cst") < MOST_THREADS:
            if start_thread(one_more, p):
                return
        atomic_add(address(p.more), -1, "seq_cst")
    sched_yield()


@native
def one_more(given: object) -> object:
    """Run chunks as a worker does, with scratch memory of this thread's own, and end."""
    block_signals()
    p = cast(State, given)
    scratch = aligned_alloc(LINE, p.stride + LINE)
    if scratch is not None:
        work(p, p.threads, scratch)
        free(scratch)
    atomic_add(address(p.more), -1, "seq_cst")
    return None


@native
def work(p: State, index: i32, scratch: Pointer[i8] | None) -> None:
    """Run chunks of the current job until none is left. `index` is the thread's number; 0 is the launching thread."""
    c = local(Context)
    be_ready(c)
    c.pool = p
    latest = 0
    c.started = 0
    while (left := atomic_load(address(p.remaining), "acquire")) != 0:
        if compare_exchange(address(p.remaining), left, left - 1, "acq_rel", "acquire"):
            nchunks = p.nchunks
            # `started` persists between chunks of one launch; another launch may begin while this thread is in here.
            started = c.started if p.launches == latest else 0
            latest = p.launches
            fill(c, p.x, p.y, p.z, index, address(p.status))
            c.scratch = p.arena + p.stride * i64(index) if scratch is None else scratch
            c.scratch_bytes = p.stride
            c.started = started
            begin = u64(nchunks - left) * p.chunk
            end = begin + p.chunk
            if not stopped(c):
                p.kernel(p.args, i64(begin), i64(p.n if end > p.n else end), c)
            last = atomic_add(address(p.done), 1, "seq_cst") + 1 == nchunks
            if last and atomic_load(address(p.waiting), "seq_cst") != 0:
                syscall(FUTEX, address(p.done), FUTEX_WAKE, 1)


@native
def worker(given: object) -> object:
    """Run a worker: spin briefly for work, then sleep until `remaining` is no longer 0."""
    block_signals()
    record = cast(Worker, given)
    p = record.pool
    looks = 0
    while True:
        if atomic_load(address(p.remaining), "monotonic") != 0:
            work(p, record.index, None)
            looks = 0
            continue
        pause()
        looks += 1
        if looks > SPINS:
            atomic_add(address(p.asleep), 1, "seq_cst")
            syscall(FUTEX, address(p.remaining), FUTEX_WAIT, 0, None)
            atomic_add(address(p.asleep), -1, "seq_cst")
            looks = 0


@native(exported=True)
def tessera_pool_create(threads: i32) -> State | None:
    """Make a pool of `threads`, including the launching one, or of as many as start; null if there is no memory."""
    size = POOL_BYTES + WORKER_BYTES * i64(threads)
    memory = aligned_alloc(LINE, size)
    if memory is None:
        return None
    memset(memory, 0, size)
    p = cast(State, memory)
    workers = cast(Worker, memory + POOL_BYTES)
    p.threads = 1
    while p.threads < threads:
        record = item(workers, i64(p.threads))
        record.pool = p
        record.index = p.threads
        if not start_thread(worker, record):
            break
        p.threads += 1
    return p


@native(exported=True)
def tessera_pool_threads(p: State) -> i32:
    return p.threads


@native(exported=True)
def tessera_pool_launch(
    p: State, kernel: Callable[[object, i64, i64, Context], None], args: object, x: i32, y: i32, z: i32, needs: i64
) -> i32:  # fmt: skip
    """Run `kernel` over the whole grid; return what it stored into *status, OUT_OF_MEMORY or TOO_MANY_PROGRAMS.
    `needs`: see `exclusive.launch_needs`."""
    scratch = needs & MAY_WAIT - 64
    few = needs & 63
    waits = needs & MAY_WAIT != 0
    programs = u128(u64(u32(x)) * u64(u32(y))) * u128(u32(z))
    if programs >> 63 != 0:
        return TOO_MANY_PROGRAMS
    n = u64(programs)
    if n == 0:
        return 0
    c = local(Context)
    be_ready(c)
    if not compare_exchange(address(p.lock), 0, 1, "acquire", "monotonic"):
        # Another thread's launch uses the pool: run here, with scratch of our own, rather than wait for it.
        if waits:
            return launch_apart(kernel, args, x, y, z, needs)
        status = array(i32, 1)
        fill(c, x, y, z, 0, status)
        return run_alone(c, kernel, args, n, scratch)
    if u64(scratch) > u64(p.stride) and not grow(p, scratch):
        atomic_store(address(p.lock), 0, "release")
        return OUT_OF_MEMORY
    p.status = 0
    fill(c, x, y, z, 0, address(p.status))
    if n == 1 or (not waits and (p.threads == 1 or i64(p.threads) <= few)):
        c.scratch = p.arena
        c.scratch_bytes = p.stride
        kernel(args, 0, i64(n), c)
    else:
        p.kernel = kernel
        p.args = args
        p.n = n
        p.x = x
        p.y = y
        p.z = z
        publish(p, waits)
        work(p, 0, None)
        wait(p, c)
        while atomic_load(address(p.more), "acquire") != 0:
            sched_yield()
    result = atomic_load(address(p.status), "acquire")
    atomic_store(address(p.lock), 0, "release")
    return result


@native
def launch_apart(
    kernel: Callable[[object, i64, i64, Context], None], args: object, x: i32, y: i32, z: i32, needs: i64
) -> i32:  # fmt: skip
    """Launch on a pool of its own, in which programs may wait."""
    p = tessera_pool_create(1)
    if p is None:
        return OUT_OF_MEMORY
    result = tessera_pool_launch(p, kernel, args, x, y, z, needs)
    free(p.arena)
    free(p)
    return result


@native
def run_alone(
    c: Context, kernel: Callable[[object, i64, i64, Context], None], args: object, n: u64, scratch: i64
) -> i32:  # fmt: skip
    memory = aligned_alloc(LINE, scratch + 127 & -64)
    if memory is None:
        return OUT_OF_MEMORY
    c.status[0] = 0
    c.scratch = memory
    c.scratch_bytes = scratch
    kernel(args, 0, i64(n), c)
    free(memory)
    return c.status[0]


@native
def grow(p: State, scratch: i64) -> bool:
    """Make the threads' scratch larger; false if there is no memory."""
    free(p.arena)
    stride = scratch + 4095 & -4096
    total = stride * i64(p.threads)
    # Large scratch memory gets large pages: tiles of panels then cause fewer TLB misses.
    page = LARGE_PAGE if total >= LARGE_PAGE else 4096
    size = total + page - 1 & -page
    memory = aligned_alloc(page, size)
    p.stride = 0
    p.arena = cast(Pointer[i8], memory)
    if memory is None:
        return False
    madvise(memory, size, MADV_HUGEPAGE)
    p.stride = stride
    return True


@native
def publish(p: State, waits: bool) -> None:
    """Cut the job into chunks and wake sleeping workers."""
    parts = u64(p.threads) * CHUNKS_PER_THREAD
    apart = waits and p.n <= u64(MOST_THREADS)  # a program that waits keeps none from running
    p.chunk = u64(1) if apart else (p.n + parts - 1) // parts
    p.nchunks = i32((p.n + p.chunk - 1) // p.chunk)
    p.launches += 1
    atomic_store(address(p.waiting), 0, "monotonic")
    atomic_store(address(p.done), 0, "monotonic")
    atomic_store(address(p.remaining), p.nchunks, "seq_cst")
    if atomic_load(address(p.asleep), "seq_cst") != 0:
        syscall(FUTEX, address(p.remaining), FUTEX_WAKE, i64(p.nchunks) - 1)


@native
def wait(p: State, c: Context) -> None:
    """Wait until all chunks are done: spin briefly, then sleep."""
    for _ in range(SPINS + 1):
        if atomic_load(address(p.done), "acquire") == p.nchunks:
            return
        pause()
    atomic_store(address(p.waiting), 1, "seq_cst")
    moment = array(i64, 2)
    moment[0] = 0
    moment[1] = MOMENT
    while (done := atomic_load(address(p.done), "seq_cst")) != p.nchunks:
        # with a time limit: a signal to another thread does not end the call
        syscall(FUTEX, address(p.done), FUTEX_WAIT, i64(done), moment)
        stopped(c)
