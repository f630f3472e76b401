"""Holds the persistent thread pool that runs compiled CPU kernels over a grid.

A compiled kernel is a C function

    void kernel(void *args, int64_t begin, int64_t end, struct Context *context)

that runs the linear program ids [begin, end), x fastest (id = x + gridx * (y + gridy * z)). `args` points at packed
8-byte slots, one per run-time parameter, each value in the low bytes. Context is

    { int32 gridx, gridy, gridz, thread_index; void *scratch; int64 scratch_bytes; int32 *status; int32 started, seen;
      int32 *attention; int32 (*poll)(struct Context *);
      void (*enter)(struct Context *, int32), (*leave)(struct Context *); int32 alone, looks; void *pool;
      void (*wait)(struct Context *) }

`scratch` is 64-byte aligned memory of this thread, at least as large as the launch asked for; it is not cleared.
Between the calls of one launch in a thread it keeps what the kernel wrote: `started` is 0 in the first of them, and the
kernel may set it. A kernel may store a non-zero code into *status (a failed device assert, say); the launch returns it.
If *attention differs from `seen`, it may call `poll`, and should return if that returns non-zero (`interrupt`).
`enter`, `leave` and `alone` are for kernels with atomics (`exclusive`), `looks`, `pool` and `wait` for programs that
wait for others (`waiting`).

Order: the grid is cut into chunks; threads claim chunks in increasing order and run a chunk's programs one after the
other. So a program may spin on a lock that a running program holds, or wait for any program with a *lower* id: that
one is finished or running. If programs may wait (MAY_WAIT), one that has waited for long starts another thread, and
in a grid of up to MOST_THREADS programs each is a chunk of its own: there it may wait for those with a higher id, too.

The launching thread takes part, so a short grid never waits for a sleeping worker. Workers spin for at most about 50 µs
after a launch (longer would take cores from other pools, such as OpenMP's), then sleep. If another thread's launch
uses the pool, the grid runs in the launching thread alone. The Python lock is released throughout.
"""

from __future__ import annotations

import ctypes
import os
import platform
import threading

from tessera.backends.cpu import exclusive, interrupt
from tessera.backends.cpu.cores import ARM, X86, usable_cores
from tessera.backends.llvm.binding import LoadedObject
from tessera.backends.llvm.subset_loader import load_functions
from tessera.backends.process_singleton import process_singleton
from tessera.config import knobs
from tessera.config.forking import undivided

NATIVE = "tessera.backends.cpu.pool_native"
FORGET = "tessera_pool_forget"
FUNCTIONS = {
    **dict.fromkeys(("tessera_pool_create", "tessera_pool_threads", "tessera_pool_launch"), NATIVE),
    **dict.fromkeys(interrupt.SYMBOLS, interrupt.__name__),
    FORGET: exclusive.__name__,
}
OUT_OF_MEMORY = -12  # the result of a launch: -ENOMEM
TOO_MANY_PROGRAMS = -75  # 2^63 or more
MOST_THREADS = 1024  # of one pool, whatever number is requested


def supported() -> bool:
    """Whether this machine can have a pool: Linux futexes on x86-64 or AArch64."""
    return platform.system() == "Linux" and (X86 or ARM)


def default_threads() -> int:
    """Return a launch's threads: runtime.num_threads (TESSERA_NUM_THREADS), else the process's usable cores."""
    configured = knobs.runtime.num_threads
    return usable_cores() if configured is None else configured


@process_singleton
def pool_code() -> LoadedObject:
    """Return the compiled pool; its code stays mapped until the process ends, since workers never leave it."""
    return load_functions("pool", FUNCTIONS).pin()


def launch_address() -> int:
    """Return the address of `int32 launch(pool, fn, args, int32 gx, gy, gz, int64 needs)`, for native code. `needs`:
    see `exclusive.launch_needs`."""
    return pool_code()["tessera_pool_launch"]


class Pool:
    """Threads that wait for grids. `handle` is the native pool's address; a pool lives until the process ends."""

    def __init__(self, threads: int) -> None:
        """Start a pool of `threads`, the launching thread counted. ValueError if not in 1 … 1024."""
        if not 1 <= threads <= MOST_THREADS:
            raise ValueError(f"the number of threads must be in 1 … {MOST_THREADS}, got {threads}")
        if not supported():
            threads = 1
        code = pool_code()
        create = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_int32)(code["tessera_pool_create"])
        handle = create(threads)
        if not handle:
            raise MemoryError("no memory for the thread pool")
        self.handle: int = handle
        count = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p)(code["tessera_pool_threads"])
        self.threads: int = count(handle)  # fewer than requested if the system starts no more
        types = [ctypes.c_void_p] * 3 + [ctypes.c_int32] * 3 + [ctypes.c_int64]
        self._launch = ctypes.CFUNCTYPE(ctypes.c_int32, *types)(code["tessera_pool_launch"])

    def launch(self, fn: int, args: int, grid: tuple[int, int, int], scratch_bytes: int = 0) -> int:
        """Run the kernel at address `fn` over `grid`; return its status, 0 for success. MemoryError: no scratch."""
        status = self._launch(self.handle, fn, args, *grid, scratch_bytes + 63 & -64)
        if status == OUT_OF_MEMORY:
            raise MemoryError(f"no memory for {self.threads} x {scratch_bytes} bytes of scratch")
        return status


_pools: dict[int, Pool] = {}
_lock = threading.Lock()


def get_pool(threads: int | None = None) -> Pool:
    """Return the pool of `threads` (default: default_threads()), started at first use."""
    count = default_threads() if threads is None else threads
    interrupt.follow_interrupts(*(pool_code()[name] for name in interrupt.SYMBOLS))
    pool = _pools.get(count)
    if pool is None:
        with undivided(), _lock:
            pool = _pools.get(count)
            if pool is None:
                pool = _pools[count] = Pool(count)
    return pool


def launch(
    fn: int,
    args: int,
    grid: tuple[int, int, int],
    num_threads: int | None = None,
    scratch_bytes: int = 0,
) -> int:
    """Run a compiled kernel; see Pool.launch."""
    return get_pool(num_threads).launch(fn, args, grid, scratch_bytes)


def _forget_pools() -> None:
    """Start new pools at the next launch: a forked child has only the thread that forked."""
    global _lock
    _lock = threading.Lock()
    if _pools:
        ctypes.CFUNCTYPE(None)(pool_code()[FORGET])()
    _pools.clear()


os.register_at_fork(after_in_child=_forget_pools)
