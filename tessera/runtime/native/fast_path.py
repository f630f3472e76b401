"""Implements the fast path of launches: native code binds, looks up and starts `kernel[grid](...)`.

`FastPath` belongs to one kernel function. Its `launch(grid, *args, **kwargs)` is a builtin function. A launch that it
has not seen goes to the kernel's Python path, which calls `install` with the given key so that the next such launch is
native. An entry is valid for one count of knob changes (`config.epoch`); after a change it is renewed in place.
"""

from __future__ import annotations

import ctypes
import dataclasses
import enum
import struct
import sys
import threading
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple, Protocol, Self, cast

from tessera.backends.compiler import Options
from tessera.backends.llvm.subset_types import words_of
from tessera.backends.process_singleton import process_singleton
from tessera.config import epoch
from tessera.config.forking import undivided
from tessera.dtypes import dtype, parse_scalar_type
from tessera.language.callable import JITCallable
from tessera.language.parameters import KernelParam
from tessera.language.values import constexpr, unwrap
from tessera.language.watching import Place
from tessera.runtime.arguments.aliasing import relations
from tessera.runtime.arguments.checks import explained
from tessera.runtime.arguments.descriptor import TensorDescriptor
from tessera.runtime.native.array_types import Words, array_types, read_array, words
from tessera.runtime.native.launcher import (
    MethodDef,
    converter_fields,
    hash_words,
    kind_code,
    native_code,
    new_builtin,
)
from tessera.runtime.native.structures import (
    BUCKETS,
    DESCRIPTOR_FIELDS,
    DEVICE_PLACE,
    Entry,
    Head,
    Mode,
    Tag,
)
from tessera.runtime.native.tensor_maps import TensorMaps
from tessera.utilities import number

METH_FASTCALL_KEYWORDS = 0x82  # METH_FASTCALL | METH_KEYWORDS of CPython
MOST_ENTRIES = 4096  # of a kernel function; further specialisations launch through Python
TORCH = sys.intern("torch")
# Compile-time values of these types are compared by identity, so they must neither change nor be made anew.
BY_IDENTITY = (
    type(None), bool, int, float, str, dtype, JITCallable, types.FunctionType, types.BuiltinFunctionType, type,
    enum.Enum,
)  # fmt: skip


class Timed(Protocol):
    """What holds a structure `Timing`, which is at `address`."""

    address: int


@dataclasses.dataclass(frozen=True)
class Start:
    """How native code starts a loaded kernel; a driver makes it. All are addresses except `stream` and `fail`."""

    cuda: bool
    entry: int  # cuLaunchKernelEx, or the thread pool's launch
    function: int
    config: int  # cuda: the launch template; cpu: bytes of scratch per thread
    pool: int
    stream: Callable[[int], int] | None  # cuda: device → raw stream
    device: int
    fail: Callable[[int], None]  # raises the error of a non-zero status
    context: int = 0  # cuda: address of cuCtxGetCurrent
    maps: TensorMaps | None = None
    timing: Timed | None = None  # where launches write their times, by the kernel's tag
    tag: int = 0
    enter: Callable[..., object] | None = None  # hooks around the launch, see structures.Entry
    leave: Callable[[Any], object] | None = None
    keep: object = None


@process_singleton
def _method() -> MethodDef:
    return MethodDef(
        b"launch", native_code()["fast_launch"], METH_FASTCALL_KEYWORDS, b"Launch a kernel."
    )


def supported() -> bool:
    """Whether Python has its global lock, on which the native code relies."""
    enabled = getattr(sys, "_is_gil_enabled", None)
    return enabled is None or enabled()


@process_singleton
def _option_names() -> tuple[Words, list[str]]:
    names = [sys.intern(f.name) for f in dataclasses.fields(Options)]
    first = ("num_warps", "num_stages", "num_ctas")
    names.sort(key=lambda n: first.index(n) if n in first else len(first))
    return words(*map(id, names), 0), names


@process_singleton
def _descriptor_fields() -> tuple[Words, list[str]]:
    names = [sys.intern(name) for name in DESCRIPTOR_FIELDS]
    return words(*map(id, names)), names


class Held(str):
    """A builtin function's module name, for Python's errors and Dynamo; it also keeps `objects` alive."""

    __slots__ = ("objects",)
    objects: list[object]

    def __new__(cls, objects: list[object]) -> Self:
        name = super().__new__(cls, __name__)
        name.objects = objects
        return name


# --- one kernel function -------------------------------------------------------------------------------------------
def mode_of(p: KernelParam) -> int:
    """Return how native code classifies arguments of a parameter; it matches `specialize.specializer`."""
    if p.is_constexpr:
        return Mode.CONSTANT
    if p.annotation_type:
        t = parse_scalar_type(p.annotation_type)
        if t.is_ptr():
            return Mode.POINTER
        unkeyed = (
            t.is_floating()
            or t.is_bool()
            or p.do_not_specialize
            or p.do_not_specialize_on_alignment
        )
        return (Mode.UNKEYED if unkeyed else Mode.KEYED) | kind_code(p.annotation_type) << 8
    if p.do_not_specialize:
        return Mode.FIXED
    return Mode.UNALIGNED if p.do_not_specialize_on_alignment else Mode.DEFAULT


def _relations(modes: list[int], *values: object) -> int:
    """Return the relations of a launch's pointers; native code calls it if storages may overlap."""
    pointers: list[object] = []
    for mode, x in zip(modes, values, strict=True):
        if mode == Mode.POINTER:
            if x is not None:
                pointers.append(x)
        elif mode in (Mode.DEFAULT, Mode.FIXED, Mode.UNALIGNED):
            pointers += arrays_in((x,))
    return relations(pointers)


def arrays_in(values: Iterable[object]) -> list[Any]:
    """Return the values that are neither numbers nor None, also those in tuples; of descriptors their arrays."""
    found: list[Any] = []
    for x in values:
        if isinstance(x, tuple):
            found += arrays_in(cast("tuple[object, ...]", x))
        elif type(x) is TensorDescriptor:
            found.append(x.base)
        elif x is not None and not isinstance(x, (bool, int, float)):
            found.append(x)
    return found


class Units(NamedTuple):
    """The units (structures) of a launch: the numbers of those that the binary takes, in its order, and the count."""

    picks: list[int]
    total: int


def units_of(kinds: Iterable[object], values: Iterable[object]) -> Units:
    picks: list[int] = []
    return Units(picks, _pick(kinds, values, 0, picks))


def _pick(kinds: Iterable[object], values: Iterable[Any], at: int, picks: list[int]) -> int:
    for kind, x in zip(kinds, values, strict=True):
        if isinstance(kind, tuple):
            at = _pick(cast("tuple[object, ...]", kind), x, at + 1, picks)
            continue
        if kind == "constexpr":
            at += _constant_units(x)
            continue
        units = 1 + 2 * len(x.shape) if type(x) is TensorDescriptor else 1
        picks += range(at, at + units)
        at += units
    return at


def _constant_units(x: object) -> int:
    if type(x) is not tuple:
        return 1
    return 1 + sum(map(_constant_units, cast("tuple[object, ...]", x)))


def _comparable(x: object) -> bool:
    """Whether native code distinguishes compile-time values by the key words that it makes of `x`."""
    if type(x) is not tuple:
        of_torch = getattr(sys.modules.get(TORCH), "dtype", ())
        return isinstance(number(x), BY_IDENTITY) or isinstance(x, of_torch)
    return all(map(_comparable, cast("tuple[object, ...]", x)))


def _compared(x: object) -> object:
    """Return a compile-time value as native code compares it: what a `tl.constexpr` holds, with strings interned."""
    x = unwrap(x)
    if type(x) is tuple:
        return tuple(map(_compared, cast("tuple[object, ...]", x)))
    return sys.intern(x) if type(x) is str else x


def _strings(x: object) -> list[int]:
    """Return the addresses of the strings in a compile-time value."""
    if type(x) is tuple:
        return [a for y in cast("tuple[object, ...]", x) for a in _strings(y)]
    return [id(x)] if type(x) is str else []


def _kept(values: Iterable[object]) -> list[object]:
    """Return the objects whose addresses are in arguments' key words; no arrays, lest their memory be kept alive."""
    found: list[object] = []
    for x in values:
        if isinstance(x, tuple):
            inner = cast("tuple[object, ...]", x)
            found += [type(inner), *_kept(inner)]
        elif type(x) is TensorDescriptor:
            found += [x.padding, getattr(x.base, "dtype", None)]
        else:
            found.append(getattr(x, "dtype", None))
    return found


def _rows(places: list[Place]) -> Iterator[int]:
    """Yield three words for each place: a dictionary, the name in it and the object there. For a cell the name is 0."""
    for place in places:
        yield from (id(place.scope), 0 if place.name is None else id(place.name), id(place.seen))


class FastPath:
    """The native launches of a kernel function: `launch` falls back to `fallback(key, grid, *args, **kwargs)`."""

    def __init__(
        self, params: list[KernelParam], hooks: object, fallback: Callable[..., object]
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
        names, default_words = words(*map(id, self.names)), words(*addresses)
        modes = words(*map(mode_of, params))
        held = [names, default_words, modes, array_types(), _option_names(), sys.modules]
        fields = {
            **converter_fields(len(params)), "epoch": ctypes.addressof(epoch), "table": ctypes.addressof(self._table),
            "hooks": id(hooks), "fallback": id(fallback), "names": ctypes.addressof(names),
            "defaults": ctypes.addressof(default_words), "modes": ctypes.addressof(modes),
            "rows": ctypes.addressof(array_types().rows), "numbers": ctypes.addressof(array_types().numbers),
            "context": ctypes.addressof(array_types().context),
            "options": ctypes.addressof(_option_names()[0]), "true": id(True), "float": id(float), "tuple": id(tuple),
            "str": id(str), "constexpr": id(constexpr),
            "list": id(list), "key_error": id(KeyError), "modules": id(sys.modules), "torch": id(TORCH),
            "relations": id(self._relations), "strides": id(explained), "reader": id(read_array),
            "descriptor": id(TensorDescriptor), "attributes": ctypes.addressof(_descriptor_fields()[0]),
        }  # fmt: skip
        head = bytes(words_of(Head, fields))
        # The function's module slot keeps alive all that the native code reads, during the function's life.
        self._parts: dict[bytes, list[object]] = {}  # what the entries point at
        self._held = Held(
            [
                held,
                self._relations,
                defaults,
                hooks,
                fallback,
                self._table,
                self.names,
                self._parts,
            ]
        )
        self.launch: Callable[..., Any] = new_builtin(_method(), head, self._held)

    def install(
        self, key: bytes, values: tuple[object, ...], units: Units, options: Mapping[str, object], compiled: object,
        start: Start, places: list[Place],
    ) -> None:  # fmt: skip
        """Make launches of this key native, as long as the same objects are found at these places."""
        values = tuple(
            _compared(v) if constant else v
            for v, constant in zip(values, self.constant, strict=True)
        )
        options = {name: _compared(v) for name, v in options.items()}
        if not self._eligible(key, values, units.total, options, start):
            return
        picks, rows = words(*units.picks), words(*_rows(places))
        parts: list[object] = [
            picks, rows, key, options, places, compiled,
            start, [v for v, constant in zip(values, self.constant, strict=True) if constant],
            _kept(values),
        ]  # fmt: skip
        fields = {
            "hash": hash_words(key), "words": len(key) // 8,
            "key": ctypes.cast(ctypes.c_char_p(key), ctypes.c_void_p).value or 0, "made": epoch.value,
            "compiled": id(compiled), "launch_kernel": start.entry if start.cuda else 0,
            "run_grid": 0 if start.cuda else start.entry, "function": start.function,
            "config": start.config, "pool": start.pool, "stream": id(start.stream) if start.stream else 0,
            "device": id(start.device), "fail": id(start.fail), "globals": ctypes.addressof(rows),
            "globals_count": len(places), "picks": ctypes.addressof(picks), "picks_count": len(units.picks),
            "maps": start.maps.address if start.maps is not None else 0,
            "timing": start.timing.address if start.timing is not None else 0, "tag": start.tag,
            "enter": id(start.enter) if start.enter else 0, "leave": id(start.leave), "parts": id(parts),
        }  # fmt: skip
        with undivided(), self._lock:
            self._insert(key, fields, parts)

    def _insert(self, key: bytes, fields: dict[str, int], parts: list[object]) -> None:
        entry = self._entries.get(key)
        bucket = fields["hash"] % BUCKETS
        known = entry is not None
        if not known:
            if len(self._entries) >= MOST_ENTRIES:
                return
            entry = self._entries[key] = words_of(Entry, {**fields, "next": self._table[bucket]})
            self._held.objects.append(entry)
        else:
            entry[1:] = words_of(Entry, {**fields, "next": 0})[1:]
        self._parts[key] = parts
        if not known:
            self._table[bucket] = ctypes.addressof(entry)

    def _eligible(
        self,
        key: bytes,
        values: tuple[object, ...],
        units: int,
        options: Mapping[str, object],
        start: Start,
    ) -> bool:
        constants = [v for v, constant in zip(values, self.constant, strict=True) if constant]
        known = (*constants, *options.values())
        if not all(map(_comparable, known)):
            return False
        found = struct.unpack(f"={len(key) // 8}Q", key)
        # Another thread may have let go of a string that was interned when the key was made.
        if not set(_strings(known)) <= set(found):
            return False
        if start.cuda and found[1] == 0 and start.context:
            array_types().context[0] = start.context  # so that the next key contains the context
            return False
        on_device = 2 if found[0] & 255 == DEVICE_PLACE else 0
        # Options follow, whose words may look like any tag.
        tags = found[2 : 2 + 2 * units : 2]
        arrays = [t & 2 for t in tags if t & Tag.ARRAY and t & 0xFF < Tag.C_INT]
        # Python's path checks arrays that are not where the kernel runs.
        return all(d == 2 * start.cuda == on_device for d in arrays)

    def clear(self) -> None:
        """Send every launch through Python again."""
        with self._lock:
            self._table[:] = [0] * BUCKETS
            self._entries.clear()
