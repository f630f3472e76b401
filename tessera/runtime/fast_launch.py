"""The fast path of launches: `kernel[grid](...)` bound, looked up and started by native code.

`FastPath` belongs to one kernel function. Its `launch(grid, *args, **kwargs)` is a builtin function; what that has not
seen goes to the kernel's Python path, which calls `install` with the key it was given so that the next such launch is
native. An entry is valid under one count of knob changes (`config.epoch`); it is renewed in place after a change.
"""

# pyright: basic
from __future__ import annotations

import ctypes
import dataclasses
import struct
import sys
import threading
import types
from collections.abc import Callable
from functools import cache, partial
from typing import Any

from tessera.backends.compiler import Options
from tessera.config import epoch
from tessera.dtypes import dtype, parse_scalar_type
from tessera.errors import HostPointerError
from tessera.language.callable import JITCallable, KernelParam
from tessera.runtime.fast_bind_ir import (
    BUCKETS,
    CONSTANT,
    DEFAULT,
    DEVICE_PLACE,
    ENTRY,
    FIXED,
    HEAD,
    KEYED,
    POINTER_MODE,
    ROW,
    TAGS,
    UNALIGNED,
    UNKEYED,
)  # fmt: skip
from tessera.runtime.launcher import DATA_PTR, MethodDef, kind_code, native_code
from tessera.runtime.overlap import relations

METH_FASTCALL_KEYWORDS = 0x82
METH_NOARGS = 0x04
MOST_ENTRIES = 4096  # of a kernel function; more specialisations launch through Python
MOST_TYPES = 64
TORCH = sys.intern("torch")
# Compile-time values of these types are told apart by identity, so they must not change nor be made anew.
BY_IDENTITY = (type(None), bool, int, float, str, dtype, JITCallable, types.FunctionType, type)


@dataclasses.dataclass(frozen=True)
class Start:
    """How a loaded kernel is started natively: what a driver gives. Addresses, except for `stream` and `fail`."""

    cuda: bool
    entry: int  # cuLaunchKernelEx, or the thread pool's launch
    function: int
    config: int  # cuda: the launch template; cpu: bytes of scratch per thread
    pool: int
    stream: Callable[[int], int] | None  # cuda: device → raw stream
    device: int
    fail: Callable[[int], None]  # raises what a non-zero status says
    context: int = 0  # cuda: address of cuCtxGetCurrent
    keep: Any = None


@cache
def _method() -> MethodDef:
    return MethodDef(
        b"launch", native_code()["fast_launch"], METH_FASTCALL_KEYWORDS, b"Launch a kernel."
    )


@cache
def _hash() -> Callable[[bytes, int], int]:
    return ctypes.CFUNCTYPE(ctypes.c_uint64, ctypes.c_char_p, ctypes.c_int64)(
        native_code()["fast_hash"]
    )


def _words(*values: int) -> Any:
    return (ctypes.c_uint64 * max(1, len(values)))(*(v & (1 << 64) - 1 for v in values))


def supported() -> bool:
    """The native code relies on the Python lock."""
    enabled = getattr(sys, "_is_gil_enabled", None)
    return enabled is None or enabled()


# --- array types ------------------------------------------------------------------------------------------------
class ArrayTypes:
    """The process's table of array types, ended by a row of zeros: NumPy's at first, others as they appear."""

    def __init__(self) -> None:
        self.rows = (ctypes.c_uint64 * (len(ROW) * (MOST_TYPES + 1)))()
        self.context = _words(0)
        self.known: dict[type, Any] = {}
        self.learn_numpy()

    def add(self, kind: type, readers: tuple[int, ...], keep: Any = None) -> None:
        """`readers`: the C functions of ROW after the type; none: as in NumPy."""
        if kind in self.known or len(self.known) >= MOST_TYPES:
            return
        at = len(self.known) * len(ROW)
        self.rows[at : at + len(ROW)] = _words(id(kind), *(readers or (0,) * (len(ROW) - 1)))
        self.known[kind] = keep

    def learn_numpy(self) -> None:
        """Add NumPy's arrays once NumPy is there."""
        numpy = sys.modules.get("numpy")
        if numpy is not None:
            self.add(numpy.ndarray, ())

    def learn(self, x: Any) -> bool:
        """Add the type of a torch tensor, whose members are C functions; False for other objects."""
        kind = type(x)
        if kind in self.known:
            return True
        storage = x.untyped_storage() if hasattr(x, "untyped_storage") else None
        members = [
            getattr(kind, "data_ptr", None), getattr(kind, "dtype", None), getattr(kind, "is_cuda", None),
            getattr(kind, "untyped_storage", None), getattr(type(storage), "nbytes", None),
        ]  # fmt: skip
        readers: list[int] = []
        for member in members:
            found = _c_function(member)
            if found is None:
                return False
            readers += found
        self.add(kind, tuple(readers), members)
        return kind in self.known


def _c_function(member: Any) -> list[int] | None:
    """The C function of a method without arguments, or getter and closure of an attribute; None for anything else."""
    # PyMethodDescrObject and PyGetSetDescrObject: three words after the object's head lies the C definition.
    definition = id(member) + object.__basicsize__ + 24
    if isinstance(member, types.GetSetDescriptorType):
        return [_pointer(_pointer(definition) + 8), _pointer(_pointer(definition) + 32)]
    if not isinstance(member, types.MethodDescriptorType):
        return None
    flags = ctypes.c_int.from_address(_pointer(definition) + 16).value
    return [_pointer(_pointer(definition) + 8)] if flags & 0xF == METH_NOARGS else None


def _pointer(address: int) -> int:
    return ctypes.c_uint64.from_address(address).value


@cache
def array_types() -> ArrayTypes:
    return ArrayTypes()


@cache
def _option_names() -> Any:
    names = [sys.intern(f.name) for f in dataclasses.fields(Options)]
    first = ("num_warps", "num_stages", "num_ctas")
    names.sort(key=lambda n: first.index(n) if n in first else len(first))
    return _words(*map(id, names), 0), names


# --- one kernel function -------------------------------------------------------------------------------------------
def mode_of(p: KernelParam) -> int:
    """How native code classifies arguments of a parameter; as `specialize.specializer` does."""
    if p.is_constexpr:
        return CONSTANT
    if p.annotation_type:
        t = parse_scalar_type(p.annotation_type)
        if t.is_ptr():
            return POINTER_MODE
        unkeyed = (
            t.is_floating()
            or t.is_bool()
            or p.do_not_specialize
            or p.do_not_specialize_on_alignment
        )
        return (UNKEYED if unkeyed else KEYED) | kind_code(p.annotation_type) << 8
    if p.do_not_specialize:
        return FIXED
    return UNALIGNED if p.do_not_specialize_on_alignment else DEFAULT


def _relations(modes: list[int], *values: Any) -> int:
    """The relations of a launch's pointers, where native code has found that storages may overlap."""
    pointers: list[Any] = []
    for mode, x in zip(modes, values, strict=True):
        number = x is None or isinstance(x, (bool, int, float))
        if mode == POINTER_MODE:
            if x is not None:
                pointers.append(x)
        elif mode in (DEFAULT, FIXED, UNALIGNED) and not number:
            pointers.append(x)
    return relations(pointers)


class FastPath:
    """`launch` is the builtin function; it calls `fallback(key, grid, *args, **kwargs)` where it must."""

    def __init__(
        self, params: list[KernelParam], hooks: list[Any], fallback: Callable[..., Any]
    ) -> None:
        array_types().learn_numpy()
        self.names = [sys.intern(p.name) for p in params]
        defaults = [p.default for p in params]
        addresses = [id(p.default) if p.has_default else 0 for p in params]
        self.constant = [p.is_constexpr for p in params]
        self._table = (ctypes.c_uint64 * BUCKETS)()
        self._entries: dict[bytes, Any] = {}
        self._lock = threading.Lock()
        self._relations = partial(_relations, [mode_of(p) & 255 for p in params])
        held = [
            _words(*map(id, self.names)), _words(*addresses), _words(*map(mode_of, params)), array_types(),
            _option_names(),
        ]  # fmt: skip
        fields = {
            "entry": 0, "check": 0, "none": id(None), "int": id(int), "data_ptr": id(DATA_PTR),
            "overflow": id(OverflowError), "value": id(ValueError), "type": id(TypeError), "host": id(HostPointerError),
            "count": len(params), "epoch": ctypes.addressof(epoch), "table": ctypes.addressof(self._table),
            "hooks": id(hooks), "fallback": id(fallback), "names": ctypes.addressof(held[0]),
            "defaults": ctypes.addressof(held[1]), "modes": ctypes.addressof(held[2]),
            "rows": ctypes.addressof(array_types().rows), "context": ctypes.addressof(array_types().context),
            "options": ctypes.addressof(_option_names()[0]), "true": id(True), "float": id(float), "tuple": id(tuple),
            "list": id(list), "modules": id(sys.modules), "torch": id(TORCH),
            "relations": id(self._relations),
        }  # fmt: skip
        head = struct.pack(f"={len(HEAD)}Q", *(fields[name] for name in HEAD))
        # The function's module slot keeps alive all that the native code reads, as long as the function lives.
        self._parts: dict[bytes, Any] = {}  # what the entries point at
        self._held: list[Any] = [
            held,
            self._relations,
            defaults,
            hooks,
            fallback,
            self._table,
            self.names,
            self._parts,
        ]
        make = ctypes.pythonapi.PyCFunction_NewEx
        make.restype = ctypes.py_object
        make.argtypes = [ctypes.c_void_p, ctypes.py_object, ctypes.py_object]
        self.launch: Callable[..., Any] = make(ctypes.addressof(_method()), head, self._held)

    def install(
        self, key: bytes, values: tuple[Any, ...], picks: list[int], options: dict[str, Any], compiled: Any,
        start: Start, globals_: dict[Any, Any],
    ) -> None:  # fmt: skip
        """Make launches of this key native: `picks` are the parameters that reach the binary, in order."""
        if not self._eligible(key, values, options, start):
            return
        captured = [(scope, name, seen) for (name, _), (seen, scope) in globals_.items()]
        parts = [
            _words(*picks), _words(*(id(x) for row in captured for x in row)), key, options, captured, compiled, start,
            [v for v, constant in zip(values, self.constant, strict=True) if constant],
            [getattr(v, "dtype", None) for v in values],  # not the arrays: a cache must not keep their memory
        ]  # fmt: skip
        fields = {
            "hash": _hash()(key, len(key) // 8), "words": len(key) // 8,
            "key": ctypes.cast(ctypes.c_char_p(key), ctypes.c_void_p).value or 0, "made": epoch.value,
            "compiled": id(compiled), "cuda": int(start.cuda), "entry": start.entry, "function": start.function,
            "config": start.config, "pool": start.pool, "stream": id(start.stream) if start.stream else 0,
            "device": id(start.device), "fail": id(start.fail), "globals": ctypes.addressof(parts[1]),
            "globals_count": len(captured), "picks": ctypes.addressof(parts[0]), "picks_count": len(picks),
            "parts": id(parts),
        }  # fmt: skip
        with self._lock:
            self._insert(key, fields, parts)

    def _insert(self, key: bytes, fields: dict[str, int], parts: list[Any]) -> None:
        entry = self._entries.get(key)
        bucket = fields["hash"] % BUCKETS
        known = entry is not None
        if not known:
            if len(self._entries) >= MOST_ENTRIES:
                return
            entry = self._entries[key] = _words(*[0] * len(ENTRY))
            entry[0] = self._table[bucket]
            self._held.append(entry)
        entry[1:] = _words(*(fields[name] for name in ENTRY[1:]))
        self._parts[key] = parts
        if not known:
            self._table[bucket] = ctypes.addressof(entry)

    def _eligible(
        self, key: bytes, values: tuple[Any, ...], options: dict[str, Any], start: Start
    ) -> bool:
        constants = [v for v, constant in zip(values, self.constant, strict=True) if constant]
        if not all(isinstance(v, BY_IDENTITY) for v in [*constants, *options.values()]):
            return False
        words = struct.unpack(f"={len(key) // 8}Q", key)
        if start.cuda and words[1] == 0 and start.context:
            array_types().context[0] = start.context  # the next key will tell the context
            return False
        on_device = 2 if words[0] & 255 == DEVICE_PLACE else 0
        tags = words[2 : 2 + 2 * len(values) : 2]
        arrays = [t & 2 for t in tags if t & TAGS["ARRAY"]]
        # Arrays elsewhere than the kernel runs need the checks of the Python path.
        return all(d == 2 * start.cuda == on_device for d in arrays)

    def clear(self) -> None:
        """Send every launch through Python again."""
        with self._lock:
            self._table[:] = [0] * BUCKETS
            self._entries.clear()
