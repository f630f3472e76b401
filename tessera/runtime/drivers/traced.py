"""Launches traced builds: gives them a buffer for their records, and keeps what they wrote (`tessera.profiler.tracing`
decodes it)."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Protocol, TypeAlias, TypeVar

from tessera.compiler.kernel import CompiledKernel
from tessera.ops.trace import TRACE_ADDED, TRACE_BEHIND, TRACE_HEADER, TRACE_UNIT
from tessera.runtime.cuda.driver_api import Driver

if TYPE_CHECKING:
    import numpy as np

Words: TypeAlias = "np.ndarray"
Buffer: TypeAlias = "int | np.ndarray"  # as the launcher takes it

T = TypeVar("T")
FIXED = TRACE_HEADER + TRACE_BEHIND  # words of a warp beside its ring
BUDGET = 64 << 20  # bytes of a buffer, unless the caller asks for a number of records and CTAs
FEWEST, MOST = 32, 1024  # units of a warp


@dataclass(frozen=True, slots=True)
class Limits:
    """What a launch records: the latest `records` of a warp, and more where there is room, of the first `ctas` CTAs.
    None: as many as fit in 64 MiB, up to 1,024 units of one to seven records, and all CTAs. `sink` gets what this
    thread's launches record, beside `SINKS`, which get that of all threads."""

    records: int | None = None
    ctas: int | None = None
    sink: Callable[[Recorded], None] | None = None


@dataclass(slots=True)
class Recorded:
    """What one launch of a traced build wrote: `words` of `ctas` CTAs of `launched`, a row for each warp. `unit`: of
    the clock, "ns" if it has a fixed rate, "cycles", "steps" or "records"."""

    kernel: CompiledKernel
    grid: tuple[int, int, int]
    words: Words
    mask: int
    ctas: int
    launched: int
    unit: str


LIMITS: ContextVar[Limits | None] = ContextVar("tessera_trace_limits", default=None)
SINKS: list[Callable[[Recorded], None]] = []


def is_traced(kernel: CompiledKernel) -> bool:
    return hasattr(kernel.metadata, "trace")


def _numpy() -> ModuleType:
    return importlib.import_module("numpy")  # slow to import


def _address(buffer: Buffer) -> int:
    return buffer if isinstance(buffer, int) else buffer.ctypes.data


class Buffers(Protocol):
    """The memory that a driver's kernels write to."""

    def allocate(self, count: int) -> Buffer:
        """Return zeroed memory of `count` 64-bit words, as the launcher takes it."""
        ...

    def read(self, buffer: Buffer, count: int, stream: int) -> Words:
        """Wait for the stream; return the words as an array of uint64."""
        ...

    def free(self, buffer: Buffer) -> None: ...


class HostBuffers:
    """Memory of the host. `arrays`: launchers take arrays, not addresses."""

    def __init__(self, arrays: bool) -> None:
        self.arrays = arrays
        self.kept: dict[int, Words] = {}

    def allocate(self, count: int) -> Buffer:
        whole = _numpy().zeros(count + 2, "uint64")
        words = whole[(whole.ctypes.data >> 3) & 1 :][:count]  # 16 bytes are stored at a time
        self.kept[words.ctypes.data] = words
        return words if self.arrays else words.ctypes.data

    def read(self, buffer: Buffer, count: int, stream: int) -> Words:
        return self.kept[_address(buffer)]

    def free(self, buffer: Buffer) -> None:
        del self.kept[_address(buffer)]


class CudaBuffers:
    """Memory of a GPU through the driver API `api`."""

    def __init__(self, api: Driver) -> None:
        self.api = api

    def allocate(self, count: int) -> int:
        address: int = self.api.allocate(8 * count)
        self.api.fill(address, 0, 8 * count)
        self.api.synchronize()  # the launch's stream need not wait for the default one
        return address

    def read(self, buffer: Buffer, count: int, stream: int) -> Words:
        words = _numpy().empty(count, "uint64")
        self.api.copy_to_host(words.ctypes.data, _address(buffer), 8 * count, stream)
        return words

    def free(self, buffer: Buffer) -> None:
        self.api.free(_address(buffer))


def traced_launcher(
    kernel: CompiledKernel,
    start: Callable[..., None],
    buffers: Buffers,
    unit: str,
    resident: int = 0,
) -> Callable[..., None]:
    """Return the launcher of a traced build; `start(gx, gy, gz, stream, *arguments)` runs it. `resident`: CTAs that a
    kernel whose CTAs run several programs starts at most, 0 for other kernels."""
    m = kernel.metadata
    own = sum(kind != "memory" for kind in m.args) - len(TRACE_ADDED)
    cluster: int = getattr(m, "cluster_dims", (1,))[0]

    def launch(gx: int, gy: int, gz: int, stream: int, *args: object) -> None:
        if len(args) > own:  # the fallback variant of a launch that has a buffer
            start(gx, gy, gz, stream, *args)
            return
        launched = gx * gy * gz * cluster
        if resident:
            launched = min(launched, resident)
        limits = LIMITS.get() or Limits()
        units, ctas = sizes(limits, launched, m.trace_warps)
        row = FIXED + TRACE_UNIT * units
        count = ctas * m.trace_warps * row
        buffer = buffers.allocate(count)
        try:
            start(gx, gy, gz, stream, *args, buffer, units - 1, ctas)
            words = buffers.read(buffer, count, stream).reshape(-1, row)
        finally:
            buffers.free(buffer)
        grid = (gx, gy, gz)
        found = Recorded(kernel, grid, words, units - 1, ctas, launched, unit)
        for sink in (*SINKS, limits.sink):
            if sink is not None:
                sink(found)

    launch.start = start  # type: ignore[attr-defined]
    return launch


def untraced(launcher: T) -> T:
    """Return what starts a kernel, without the buffer that the launcher of a traced build gives it."""
    return getattr(launcher, "start", launcher)


def sizes(limits: Limits, launched: int, warps: int) -> tuple[int, int]:
    """Return the units of a warp, a power of two, and the CTAs that are recorded."""
    row = BUDGET // 8 // warps  # words
    if limits.records is not None:
        units = 1 << max(limits.records - 1, 1).bit_length()  # one may have but one record
    else:
        ctas = launched if limits.ctas is None else min(launched, limits.ctas)
        fit = max((row // max(ctas, 1) - FIXED) // TRACE_UNIT, FEWEST)
        units = min(1 << fit.bit_length() - 1, MOST)
    most = max(row // (FIXED + TRACE_UNIT * units), 1) if limits.ctas is None else limits.ctas
    return units, min(launched, most)


def variants_of(
    kernel: CompiledKernel, make: Callable[[CompiledKernel], CompiledKernel]
) -> Iterator[CompiledKernel]:
    """Yield the kernel, and its fallback variants in the order in which launches try them."""
    yield kernel
    while getattr(kernel.metadata, "precondition", None) or getattr(
        kernel.metadata, "tensor_maps", None
    ):
        kernel = make(kernel)
        yield kernel


__all__ = [
    "LIMITS", "SINKS", "CudaBuffers", "HostBuffers", "Limits", "Recorded", "is_traced", "sizes",
    "traced_launcher", "untraced", "variants_of",
]  # fmt: skip
