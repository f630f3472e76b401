"""Checks the arrays of a launch before it runs: those without memory, read-only ones, strided ones.

A kernel gets only the address of an array's first element. So it can write to arrays that NumPy would protect, and it
reads a strided array as if its elements were consecutive; users of torch pass strides as arguments, users of NumPy do
not. A launch is refused if the kernel stores to an array that must not change (`metadata.written` lists such
arguments), or if that many consecutive elements would leave the array's memory. For other strided arrays whose strides
are not passed there is one warning, or an error in a checked launch.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from math import prod
from typing import Any, NamedTuple, cast

from tessera.errors import MissingMemory, ReadOnlyArgument, StridedArgument
from tessera.runtime.arguments.aliasing import memory_range
from tessera.runtime.arguments.descriptor import TensorDescriptor
from tessera.runtime.arguments.dlpack import in_order, memory_of, speaks_dlpack
from tessera.runtime.arguments.tensors import TensorWrapper, is_numpy, itemsize_of
from tessera.utilities import number, stacklevel_of_caller

# Libraries whose arrays never change, by the first part of their modules' names; DLPack does not mark all of them.
IMMUTABLE = {"jax": "JAX", "jaxlib": "JAX", "tensorflow": "TensorFlow"}


class StridedArgumentWarning(UserWarning):
    """A kernel gets a strided array but none of its strides."""


class Strided(NamedTuple):
    """An array that is not in C order; strides in elements, `None` if one is not a multiple of the element size."""

    shape: tuple[int, ...]
    strides: tuple[int | None, ...]
    nbytes: int  # if its elements were consecutive


# --- single arrays -------------------------------------------------------------------------------------------------
def why_read_only(x: object) -> str | None:
    """Return why an array must not be written, as the end of a sentence; None if it may be."""
    if isinstance(x, (TensorWrapper, TensorDescriptor)):
        return why_read_only(x.base)
    if is_numpy(x):
        return None if x.flags.writeable else "is read-only"
    library = IMMUTABLE.get(type(x).__module__.partition(".")[0])
    if library is not None:
        return f"is immutable, as all arrays of {library}"
    if hasattr(x, "data_ptr"):
        return None  # always writable; those with a gradient raise if asked for the interface
    for protocol in ("__array_interface__", "__cuda_array_interface__"):
        interface = getattr(x, protocol, None)
        if interface is not None:
            data = interface.get("data")
            return "is read-only" if isinstance(data, tuple) and data[1] else None
    if speaks_dlpack(x) and memory_of(x).read_only:
        return "is exported read-only"
    return None


def strided(x: object) -> Strided | None:
    """Return the layout of an array that is not in C order. None for arrays in C order and for torch's tensors, whose
    kernels take strides as arguments."""
    if isinstance(x, TensorWrapper):
        return strided(x.base)
    if is_numpy(x):
        if x.flags.c_contiguous:
            return None
        return _strided(x.shape, x.strides, x.itemsize)
    if hasattr(x, "data_ptr"):
        return None
    interface = getattr(x, "__cuda_array_interface__", None)
    if interface is not None:
        strides, shape = interface.get("strides"), tuple(interface.get("shape", ()))
        size = int(interface["typestr"][2:])
        return None if strides is None else _strided(shape, strides, size)
    if speaks_dlpack(x):
        memory = memory_of(x)
        if memory.strides is not None:
            size = itemsize_of(memory.dtype)
            return Strided(memory.shape, memory.strides, prod(memory.shape) * size)
    return None


def _strided(shape: Sequence[int], steps: Sequence[int], itemsize: int) -> Strided | None:
    if in_order(shape, steps, itemsize):
        return None
    strides = tuple(None if s % itemsize else s // itemsize for s in steps)
    return Strided(tuple(shape), strides, prod(shape) * itemsize)


# --- arguments -----------------------------------------------------------------------------------------------------
def check_launch(
    fn: Any, kernel: Any, kinds: Sequence[Any], values: Sequence[Any], args: Sequence[Any], checked: bool
) -> None:  # fmt: skip
    """Check all arguments of a launch of the kernel function `fn`, then those of run time."""
    names = fn.arg_names
    check_memory(kernel, lambda: names_of(names, kinds, values), args)
    check_strides(fn.__name__, names, values, checked, _warned.setdefault(fn.cache_key, set()))


_warned: dict[str, set[str]] = {}  # by kernel function → parameters already warned about


def check_memory(kernel: Any, names: Callable[[], Sequence[str]], args: Sequence[Any]) -> None:
    """Raise MissingMemory or ReadOnlyArgument for run-time arguments that the kernel cannot take; `names()`: their
    names."""
    kinds = kernel.metadata.args
    written: set[int] = set(getattr(kernel.metadata, "written", ()))
    for i, (x, kind) in enumerate(zip(args, kinds)):
        if not kind.startswith("*") or x is None or isinstance(x, int):
            continue
        where = _missing(x)
        if where is not None:
            raise MissingMemory(type=_kind_of(x), name=names()[i], kernel=kernel.name, where=where)
        why = why_read_only(x) if i in written else None
        if why is not None:
            raise ReadOnlyArgument(kernel=kernel.name, name=names()[i], type=_kind_of(x), why=why)


def _kind_of(x: object) -> str:
    x = x.base if isinstance(x, TensorWrapper) else x
    return "NumPy array" if is_numpy(x) else type(x).__name__


def _missing(x: Any) -> str | None:
    """Return where a tensor with elements but no memory claims to be; None for others."""
    storage = getattr(x, "untyped_storage", None)
    if storage is None or x.data_ptr() != 0 or storage().nbytes() <= 0:
        return None
    device = getattr(x, "device", None)
    return "" if device is None else f" (its device is {str(device)!r})"


def names_of(params: Sequence[str], kinds: Sequence[Any], values: Sequence[Any]) -> list[str]:
    """Return the user's names of the run-time arguments: `x`, `x[0]` of a tuple, `x` for all parts of a descriptor."""
    found: list[str] = []
    for name, kind, x in zip(params, kinds, values):
        if isinstance(kind, tuple):
            inner = [f"{name}[{i}]" for i in range(len(cast("tuple[object, ...]", kind)))]
            found += names_of(inner, cast("tuple[object, ...]", kind), x)
        elif kind != "constexpr":
            parts = 1 + 2 * len(x.shape) if isinstance(x, TensorDescriptor) else 1
            found += [name] * parts
    return found


def explained(*values: object) -> bool:
    """Whether each strided array comes with one of its strides among the arguments. The usual case takes few steps."""
    ints = [x for x in values if type(x) is int]
    for x in values:
        if type(x) is not int and not _is_told(x, ints):
            passed = _numbers(values)
            return all(_is_passed(array, passed) for _, array, _ in _all_strided("", values))
    return True


def _is_told(x: object, ints: Sequence[int]) -> bool:
    """Whether an argument is a number, or a NumPy array that is in C order or has one of its strides among `ints`."""
    if not is_numpy(x):
        return x is None or isinstance(x, (int, float))
    size = x.itemsize
    for n, s in zip(x.shape, x.strides):
        if n > 1 and s != size and s % size == 0 and s // size in ints:
            return True
    return x.flags.c_contiguous


def check_strides(
    kernel: str, params: Sequence[str], values: Sequence[object], checked: bool, warned: set[str]
) -> None:
    """Raise StridedArgument, or warn the first time, for arrays whose strides the kernel does not get; `warned`
    collects the parameters."""
    passed: set[int] | None = None
    for name, x in zip(params, values, strict=True):
        for at, array, where in _all_strided(name, (x,)):
            passed = _numbers(values) if passed is None else passed
            if _is_passed(array, passed):
                continue
            beyond = array.nbytes > memory_range(where)[1]
            reads = "leave its memory" if beyond else "use those right behind its first element"
            error = StridedArgument(
                name=at, kernel=kernel, shape=array.shape, strides=_shown(array.strides), reads=reads
            )  # fmt: skip
            if checked or beyond:
                raise error
            if at not in warned:
                warned.add(at)
                text = f"{error.message}; {error.help}"
                warnings.warn(text, StridedArgumentWarning, stacklevel=stacklevel_of_caller())


def _shown(strides: Iterable[int | None]) -> str:
    shown = ["a part of an element" if s is None else str(s) for s in strides]
    return f"({', '.join(shown)}{',' * (len(shown) == 1)})"


def _all_strided(name: str, values: Iterable[object]) -> list[tuple[str, Strided, object]]:
    """Return (name, layout, array) of the strided arrays, also those in tuples; descriptors carry their own strides."""
    found: list[tuple[str, Strided, object]] = []
    for x in values:
        if x is None or isinstance(x, (int, float, str)):
            continue
        if isinstance(x, tuple):
            for i, item in enumerate(cast("tuple[object, ...]", x)):
                found += _all_strided(f"{name}[{i}]", (item,))
            continue
        layout = strided(x)
        if layout is not None:
            found.append((name, layout, x))
    return found


def _numbers(values: Iterable[object]) -> set[int]:
    found: set[int] = set()
    for x in values:
        x = number(x)
        if isinstance(x, tuple):
            found |= _numbers(cast("tuple[object, ...]", x))
        elif isinstance(x, int) and not isinstance(x, bool):
            found.add(x)
    return found


def _is_passed(array: Strided, passed: set[int]) -> bool:
    """Whether one of the strides that determine where elements lie is among the numbers."""
    telling = {s for s, n in zip(array.strides, array.shape, strict=True) if n > 1 and s != 1}
    return bool((telling or {1}) & passed)
