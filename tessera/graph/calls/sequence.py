"""Makes launch sequences: builtin functions that start the kernels between two calls of the array library.

    run = LaunchSequence(launches, ["ptr", "ptr"], host, driver)
    result = run.launch(queue, numbers, x, y)         0: all kernels were started (on the CPU: have run)
    if result: run.failed(result, queue, numbers, x, y)

`queue` is a CUDA stream or the thread pool's handle, `numbers` the bytes of words (`sequence_native`). The Python
lock is released while the kernels are started, once for all of them. Kernels that native code does not start (builds
that check their accesses; an interpreter without the lock) are launched one by one by Python.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from tessera.backends.llvm.binding import LoadedObject
from tessera.backends.llvm.subset_loader import load_functions
from tessera.backends.llvm.subset_types import words_of
from tessera.backends.process_singleton import process_singleton
from tessera.compiler import CompiledKernel
from tessera.graph.calls.host import Host
from tessera.graph.calls.sequence_native import FIRST_BY_PYTHON, SequenceLaunch
from tessera.graph.calls.sequence_native import Sequence as Fields
from tessera.runtime.drivers.base import Driver
from tessera.runtime.drivers.host import cpu_failure
from tessera.runtime.native.array_types import array_types, words
from tessera.runtime.native.fast_path import Held, Start, supported
from tessera.runtime.native.launcher import (
    METH_FASTCALL,
    MethodDef,
    converter_fields,
    kind_code,
    new_builtin,
)

HERE = "tessera.graph.calls.sequence_native"
NAMES = ("launch_sequence", "all_aligned")


@dataclass(frozen=True, slots=True)
class SequenceStep:
    """A launch. `grid`: which number is the grid's extent; `terms`: for each argument the number of its object, 0 for
    none, and that of its number."""

    kernel: CompiledKernel
    grid: int
    terms: tuple[tuple[int, int], ...]


@process_singleton
def _code() -> LoadedObject:
    return load_functions("sequence", dict.fromkeys(NAMES, HERE)).pin()


@process_singleton
def _methods() -> dict[str, MethodDef]:
    # The builtin functions point at these structures: the cache keeps them for the life of the process.
    return {n: MethodDef(n.encode(), _code()[n], METH_FASTCALL, b"Launch kernels.") for n in NAMES}


def _address_of(host: Host, array: Any) -> int:
    """Where an array lies, of a type that native code may read by itself the next time."""
    array_types().learn(array)
    return host.address(array)


def _builtin(
    name: str, kinds: Sequence[str], host: Host, held: list[Any], **more: int
) -> Callable[..., Any]:
    address = partial(_address_of, host)
    codes = ctypes.create_string_buffer(bytes(kind_code(k) for k in kinds) + b"\0")
    held += [address, codes, array_types()]
    rest = dict.fromkeys(
        ("launch_kernel", "run_grid", "picks", "launches", "launch_count", "slots", "maps", "most"),
        0,
    )
    fields = {
        **converter_fields(len(kinds)), "rows": ctypes.addressof(array_types().rows), "address": id(address),
        "type_error": id(TypeError), "kinds": ctypes.addressof(codes), **rest, **more,
    }  # fmt: skip
    return new_builtin(_methods()[name], bytes(words_of(Fields, fields)), Held(held))


def alignment_check(host: Host) -> Callable[..., bool]:
    """A function that says whether all of the arrays that it is given begin at multiples of 16 bytes."""
    if not supported():
        return lambda *arrays: not any(host.address(x) & 15 for x in arrays)
    return _builtin("all_aligned", ["ptr"], host, [])


class LaunchSequence:
    """Launches as one function; `kinds`: the types of its objects, as kernel signatures name them."""

    def __init__(
        self, steps: Sequence[SequenceStep], kinds: Sequence[str], host: Host, driver: Driver
    ):
        self.steps, self.kinds, self.host = list(steps), list(kinds), host
        device = driver.get_current_device() if driver.name == "cuda" else 0
        starts = [driver.native_start(s.kernel, device) for s in steps]
        found = [s for s in starts if s is not None]
        native = supported() and len(found) == len(starts)
        self.launch: Callable[..., int] = self._native(found) if native else self.by_python

    def _native(self, starts: Sequence[Start]) -> Callable[..., int]:
        terms = [words(*(n for term in s.terms for n in term)) for s in self.steps]
        rows: list[int] = []
        for step, start, term in zip(self.steps, starts, terms, strict=True):
            fields = {
                "function": start.function, "config": start.config, "grid": step.grid, "count": len(step.terms),
                "terms": ctypes.addressof(term), "maps": start.maps.address if start.maps is not None else 0,
            }  # fmt: skip
            rows += words_of(SequenceLaunch, fields)
        maps = [s.maps.count if s.maps is not None else 0 for s in starts]
        counts = [len(s.terms) for s in self.steps]
        launches, picks = words(*rows), words(*range(max(counts, default=0)))
        entry = starts[0].entry if starts else 0
        cuda = bool(starts) and starts[0].cuda
        return _builtin(
            "launch_sequence", self.kinds, self.host, [terms, launches, picks, starts],
            launch_kernel=entry if cuda else 0, run_grid=0 if cuda else entry, picks=ctypes.addressof(picks),
            launches=ctypes.addressof(launches), launch_count=len(self.steps), slots=sum(counts), maps=sum(maps),
            most=max((n + m for n, m in zip(counts, maps, strict=True)), default=0),
        )  # fmt: skip

    def by_python(self, queue: int, numbers: bytes, *objects: Any, first: int = 0) -> int:
        """The same, kernel by kernel, each by its own launcher, from launch `first` on."""
        n = memoryview(numbers).cast("q")
        for step in self.steps[first:]:
            given = [self._argument(objects, k, n[i]) for k, i in step.terms]
            step.kernel.launcher(n[step.grid], 1, 1, queue, *given)
        return 0

    def _argument(self, objects: Sequence[Any], k: int, number: int) -> Any:
        if k == 0:
            return number
        x = objects[k - 1]
        return self.host.address(x) + number if self.kinds[k - 1] == "ptr" else x

    def failed(self, result: int, queue: int, numbers: bytes, *objects: Any) -> None:
        """Raise what the result of `launch` says; or finish what native code leaves to Python: kernels whose arguments
        need another build, and, on CUDA, errors, which the kernel's own launcher mends (a thread without a context) or
        explains."""
        first, status = result >> 32, (result & 0xFFFFFFFF ^ 1 << 31) - (1 << 31)
        if result == FIRST_BY_PYTHON:
            self.by_python(queue, numbers, *objects)
        elif self.steps[first].kernel.metadata.target.backend == "cuda":
            self.by_python(queue, numbers, *objects, first=first)
        else:
            raise cpu_failure(self.steps[first].kernel, status)
