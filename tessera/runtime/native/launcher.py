"""Makes launchers: builtin functions, made without a C compiler, that turn Python arguments into a kernel launch.

    launch = make_launcher(["*fp32", "i32", "fp32"], "cpu")
    code = launch(grid_x, grid_y, grid_z, stream, function, config, x, n, scale)

Leading arguments, all ints:
    grid_*    programs along each axis; any 0: nothing is launched
    stream    cuda: CUstream; cpu: the handle of the thread pool (`get_pool().handle`)
    function  cuda: CUfunction; cpu: the kernel's address
    config    cuda: `launch_config(...).address`; cpu: bytes of scratch memory per thread

The result is 0 or an error: the CUresult on CUDA; the kernel's status or pool.OUT_OF_MEMORY on the CPU. The Python lock
is released during the launch. A call costs 0.15 to 0.6 µs, of which a tensor's `data_ptr()` is the largest part.

Kinds of arguments, by the type names of kernel signatures:
    *…, ptr                pointer: None (null), an int (raw address), or an object with `data_ptr()`. On CUDA an
                           object's address is checked: memory that the GPU cannot reach raises HostPointerError
    memory                 an int, the address of memory passed by value (a 128-byte CUtensorMap; CUDA only)
    i1 u1                  truth value
    i8 … i64, u8 … u64     anything with __index__; OverflowError if it does not fit
    fp16                   rounded to nearest even; bf16: truncated; fp32, fp64 (f16 f32 f64 mean the same)
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from tessera.backends.cpu.pool import launch_address
from tessera.backends.llvm.binding import LoadedObject
from tessera.backends.llvm.subset_loader import load_functions
from tessera.backends.llvm.subset_types import offset_of, words_of
from tessera.backends.process_singleton import process_singleton
from tessera.errors import HostPointerError, InternalError
from tessera.runtime.cuda import driver_api as cuda
from tessera.runtime.native.structures import Kind
from tessera.runtime.native.structures import Launcher as LauncherFields

Launcher = Callable[..., int]
METH_FASTCALL = 0x80  # CPython's flag of a function that takes a C array of arguments
HERE = "tessera.runtime.native"
FUNCTIONS = {
    "launch": f"{HERE}.call", "fast_launch": f"{HERE}.repeat", "fast_hash": f"{HERE}.find",
    "fast_relations": f"{HERE}.aliasing", "read_times": f"{HERE}.timing",
    **dict.fromkeys(("activity_room", "activity_filled", "activity_taken", "activity_free"), f"{HERE}.activity"),
}  # fmt: skip

KINDS: dict[str, int] = {
    "ptr": Kind.POINTER,
    "memory": Kind.MEMORY,
    "nvTmaDesc": Kind.MEMORY,
    "i1": Kind.I1,
    "u1": Kind.I1,
    "i64": Kind.I64,
    "u64": Kind.U64,
    "fp16": Kind.F16,
    "f16": Kind.F16,
    "bf16": Kind.BF16,
    "fp32": Kind.F32,
    "f32": Kind.F32,
    "fp64": Kind.F64,
    "f64": Kind.F64,
    **{f"i{bits}": bits | Kind.SIGNED for bits in (8, 16, 32)},
    **{f"u{bits}": bits | Kind.UNSIGNED for bits in (8, 16, 32)},
}
DATA_PTR = sys.intern("data_ptr")


class MethodDef(ctypes.Structure):
    """CPython's PyMethodDef."""

    _fields_ = [
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    ]


_new_builtin = ctypes.PYFUNCTYPE(
    ctypes.py_object, ctypes.c_void_p, ctypes.py_object, ctypes.py_object
)(("PyCFunction_NewEx", ctypes.pythonapi))


def new_builtin(method: MethodDef, self: object, module: object) -> Callable[..., Any]:
    """Return a builtin function, which keeps `self` and `module` alive; `method` must never be freed."""
    return _new_builtin(ctypes.addressof(method), self, module)


@process_singleton
def native_code() -> LoadedObject:
    """Return the native code of launchers and of the fast path of launches."""
    return load_functions("launch", FUNCTIONS, "O2").pin()


@process_singleton
def _hash() -> Callable[[bytes, int], int]:
    kind = ctypes.CFUNCTYPE(ctypes.c_uint64, ctypes.c_char_p, ctypes.c_int64)
    return kind(native_code()["fast_hash"])


def hash_words(key: bytes) -> int:
    """Return the hash by which native code looks up a key of 8-byte words."""
    return _hash()(key, len(key) // 8)


@process_singleton
def _method() -> MethodDef:
    # The builtin functions point at this structure: the cache keeps it alive until the process ends.
    return MethodDef(b"launch", native_code()["launch"], METH_FASTCALL, b"Launch a kernel.")


def kind_code(name: str) -> int:
    """Return the kind byte of a signature's type name."""
    if name.startswith("*"):
        return Kind.POINTER
    code = KINDS.get(name)
    if code is None:
        raise InternalError(
            f"the launcher knows no argument type {name!r}; known: *…, {', '.join(KINDS)}"
        )
    return code


def make_launcher(kinds: Sequence[str], target: str) -> Launcher:
    """Return the launcher for run-time arguments of these kinds on `target`, "cuda" or "cpu"."""
    if target == "cpu":
        return bind_launcher(tuple(kinds), "cpu", launch_address(), 0)
    if target == "cuda":
        driver = cuda.driver()
        entry, check = driver.address("cuLaunchKernelEx"), driver.address("cuPointerGetAttribute")
        return bind_launcher(tuple(kinds), "cuda", entry, check)
    raise InternalError(f"no launcher for target {target!r}")


@lru_cache(maxsize=4096)
def bind_launcher(kinds: tuple[str, ...], target: str, entry: int, check: int) -> Launcher:
    """Return a launcher that calls `entry` (with cuLaunchKernelEx's or the pool launch's signature) and checks pointers
    with `check` (with cuPointerGetAttribute's signature; 0: no check)."""
    fields = {
        **converter_fields(len(kinds)), "check": check, "value_error": id(ValueError), "type_error": id(TypeError),
        "launch_kernel": entry if target == "cuda" else 0, "run_grid": entry if target == "cpu" else 0, "kinds": 0,
    }  # fmt: skip
    header = bytes(words_of(LauncherFields, fields))[: offset_of(LauncherFields, "kinds")]
    descriptor = header + bytes(kind_code(kind) for kind in kinds)
    return new_builtin(_method(), descriptor, None)


def converter_fields(count: int) -> dict[str, int]:
    """Return the fields of `structures.Converter` for this many arguments whose pointers are not checked."""
    return {
        "check": 0, "none": id(None), "int": id(int), "data_ptr": id(DATA_PTR), "overflow": id(OverflowError),
        "host": id(HostPointerError), "count": count,
    }  # fmt: skip
