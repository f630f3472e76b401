"""Times kernels of a GPU by CUPTI's activity records, in place of two CUDA events for each launch.

CUPTI lets the GPU note when a kernel starts and ends, within the commands of the launch: 1.5 us of the host's time a
launch, where recording two events takes 3, and without the time that the GPU takes between an event and a kernel. A
record has the name of its kernel and a number that grows from one launch of the process to the next, but not our
launch: the launches and the records of a name are matched in order.

A process has one user of CUPTI. It is taken only if nobody has it: not torch's profiler, Nsight or another profile.
At the end CUPTI is detached, since launches are slower as long as it is there.
"""

from __future__ import annotations

import ctypes
import struct
import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from ctypes import POINTER, byref, c_int, c_size_t, c_uint32, c_void_p
from glob import glob
from pathlib import Path
from typing import NamedTuple

from tessera.runtime.native.activity import callbacks, filled_buffers

SONAMES = ("libcupti.so.13", "libcupti.so.12")
PATTERNS = ("nvidia/cu*/lib/libcupti.so.1[23]", "nvidia/cuda_cupti/lib/libcupti.so.1[23]")
TOOLKIT = "/usr/local/cuda/**/libcupti.so.1[23]"
# Versions of CUPTI, from CUDA 11.2 to 13, whose records of kernels begin with the fields that are read here: those of
# CUpti_ActivityKernel5 to CUpti_ActivityKernel10.
OLDEST, NEWEST = 15, 139999
CONCURRENT_KERNEL = 10  # CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL
TIMES, CORRELATION, NAME, GRAPH_NODE = 16, 92, 104, 144  # offsets in bytes
NO_SUBSCRIBER = ctypes.CFUNCTYPE(None, c_void_p, c_int, c_uint32, c_void_p)(lambda *args: None)
SIGNATURES: dict[str, tuple[type, ...]] = {
    "cuptiGetVersion": (POINTER(c_uint32),),
    "cuptiSubscribe": (POINTER(c_void_p), c_void_p, c_void_p),
    "cuptiUnsubscribe": (c_void_p,),
    "cuptiActivityRegisterCallbacks": (c_void_p, c_void_p),
    "cuptiActivityEnable": (c_int,),
    "cuptiActivityDisable": (c_int,),
    "cuptiActivityFlushAll": (c_uint32,),
    "cuptiActivityGetNextRecord": (c_void_p, c_size_t, POINTER(c_void_p)),
    "cuptiFinalize": (),
}


class Unusable(Exception):
    """The reason why kernels are not timed by CUPTI."""


class Ran(NamedTuple):
    """A kernel that ran: its name, the number of its launch among the process's calls, seconds."""

    name: str
    number: int
    seconds: float


def _library() -> ctypes.CDLL:
    """Return CUPTI's library: the one that is loaded already, of the loader's path, of a wheel, or of the toolkit."""
    wheels = (p for site in sys.path for pattern in PATTERNS for p in Path(site).glob(pattern))
    for path in (*SONAMES, *map(str, wheels), *glob(TOOLKIT, recursive=True)):
        try:
            library = ctypes.CDLL(path)
        except OSError:
            continue
        for name, types in SIGNATURES.items():
            function = getattr(library, name)
            function.argtypes, function.restype = types, c_int
        return library
    raise Unusable("CUPTI is not installed")


class Activity:
    """CUPTI's records of kernels from now until `finish`. Raises Unusable."""

    _current: Activity | None = None

    def __init__(self) -> None:
        if Activity._current is not None:
            raise Unusable("another profile uses CUPTI")
        self._cupti = _library()
        version = c_uint32()
        self._call("cuptiGetVersion", byref(version))
        if not OLDEST <= version.value <= NEWEST:
            raise Unusable(f"the records of CUPTI's version {version.value} are not known")
        if self._is_taken():
            raise Unusable("another tool uses CUPTI")
        self._call("cuptiActivityRegisterCallbacks", *callbacks())
        for _ in filled_buffers():
            pass  # of an earlier user
        self._call("cuptiActivityEnable", CONCURRENT_KERNEL)
        Activity._current = self

    def _call(self, name: str, *args: object) -> None:
        code = getattr(self._cupti, name)(*args)
        if code != 0:
            raise Unusable(f"{name} returns {code}")

    def _is_taken(self) -> bool:
        """Whether somebody else subscribes to CUPTI, which one client can do at a time."""
        handle = c_void_p()
        if self._cupti.cuptiSubscribe(byref(handle), ctypes.cast(NO_SUBSCRIBER, c_void_p), None):
            return True
        self._cupti.cuptiUnsubscribe(handle)
        return False

    def finish(self) -> list[Ran]:
        """Return what ran, in the order of the launches, and detach CUPTI. All kernels must have finished. If another
        tool has begun to use CUPTI, it has the records and keeps CUPTI."""
        Activity._current = None
        taken = self._is_taken()
        if not taken:
            self._cupti.cuptiActivityFlushAll(0)
        names: dict[int, str] = {}
        found = [ran for at, used in filled_buffers() for ran in self._kernels(at, used, names)]
        if not taken:
            self._cupti.cuptiActivityDisable(CONCURRENT_KERNEL)
            self._cupti.cuptiFinalize()
        return sorted(found, key=lambda ran: ran.number)

    def _kernels(self, buffer: int, used: int, names: dict[int, str]) -> Iterator[Ran]:
        """Yield the kernels of a buffer that were launched by themselves, not by a graph. `names`: by address."""
        record, following = c_void_p(), self._cupti.cuptiActivityGetNextRecord
        while following(buffer, used, byref(record)) == 0:
            at = record.value or 0
            text = ctypes.string_at(at, GRAPH_NODE + 8)
            (kind,) = struct.unpack_from("=I", text)
            (node,) = struct.unpack_from("=Q", text, GRAPH_NODE)
            if kind != CONCURRENT_KERNEL or node:
                continue
            start, end = struct.unpack_from("=QQ", text, TIMES)
            (name,) = struct.unpack_from("=Q", text, NAME)
            if name not in names:
                names[name] = ctypes.string_at(name).decode()
            (number,) = struct.unpack_from("=I", text, CORRELATION)
            yield Ran(names[name], number, (end - start) * 1e-9)


def seconds_of(launches: Sequence[str], ran: Iterable[Ran]) -> list[float | None]:
    """Return the time of each launch, given by its kernel's name, in order. Where the records of a name are fewer,
    later launches have None; where they are more, since somebody else launched it, each has the mean. Both warn."""
    found: dict[str, list[float]] = {name: [] for name in launches}
    for name, _, seconds in ran:
        if name in found:
            found[name].append(seconds)
    for name, times in found.items():
        count = launches.count(name)
        if len(times) < count:
            text = f"{count - len(times)} launches of {name} have no time, and are left out: another tool took CUPTI"
            warnings.warn(text, stacklevel=2)
        elif len(times) > count:
            text = f"{name} ran {len(times)} times for {count} launches: each has the mean time"
            warnings.warn(text, stacklevel=2)
            times[:] = [sum(times) / len(times)] * count
    left = {name: iter(times) for name, times in found.items()}
    return [next(left[name], None) for name in launches]
