"""Wraps the CUDA driver API by ctypes: devices, contexts, modules, launches, memory, streams, events.

Neither a CUDA toolkit nor torch is needed, only the driver's libcuda.so.1. If torch is already imported, its current
device and stream are used, so that kernels run in order with torch's own. Handles are plain ints.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence
from ctypes import (
    byref,
    c_char_p,
    c_float,
    c_int,
    c_size_t,
    c_uint64,
    c_void_p,
)
from dataclasses import dataclass
from functools import cache
from typing import Any, cast

from tessera.config import knobs
from tessera.config.forking import undivided
from tessera.errors import HostPointerError, NoDeviceError, OutOfResources
from tessera.runtime.cuda import abi
from tessera.runtime.cuda.abi import (
    NO_DEVICE_HELP,
    CudaError,
    LaunchConfig,
    launch_config,
    load_library,
)

__all__ = [
    "CudaError",
    "DeviceProperties",
    "Driver",
    "LaunchConfig",
    "LoadedKernel",
    "available",
    "driver",
    "launch_config",
    "load_library",
]


@dataclass(frozen=True)
class DeviceProperties:
    """Properties of one device; memory in bytes, clocks in kHz. `max_shared` is the most that one CTA may use."""

    name: str
    total_memory: int
    max_threads_per_block: int
    max_shared_default: int
    warp_size: int
    registers_per_block: int
    clock_khz: int
    multiprocessor_count: int
    memory_clock_khz: int
    memory_bus_bits: int
    l2_bytes: int
    max_threads_per_multiprocessor: int
    capability_major: int
    capability_minor: int
    shared_per_multiprocessor: int
    registers_per_multiprocessor: int
    cooperative_launch: int
    max_shared: int
    reserved_shared: int

    @property
    def capability(self) -> tuple[int, int]:
        return self.capability_major, self.capability_minor


@dataclass(frozen=True)
class LoadedKernel:
    """A function of a loaded module. `local_bytes` is per thread: stack and spills."""

    module: int
    function: int
    registers: int
    local_bytes: int
    static_shared: int
    max_threads: int


class Driver:
    """The initialised driver. Methods raise CudaError; they act on the calling thread's current context."""

    def __init__(self, library: Any) -> None:
        self.library = library
        result = library.cuInit(0)
        if result != 0:
            name, text = self.describe(result)
            raise NoDeviceError(
                f"the CUDA driver cannot start: {name}: {text}", help=NO_DEVICE_HELP
            )
        if self.device_count() == 0:
            raise NoDeviceError("the CUDA driver sees no device", help=NO_DEVICE_HELP)
        self._contexts: dict[int, int] = {}
        self._properties: dict[int, DeviceProperties] = {}

    # --- calls ---
    def describe(self, result: int) -> tuple[str, str]:
        """Return name and explanation of a CUresult."""
        name, text = c_char_p(), c_char_p()
        self.library.cuGetErrorName(result, byref(name))
        self.library.cuGetErrorString(result, byref(text))
        return (name.value or b"CUDA_ERROR").decode(), (text.value or b"unknown error").decode()

    def check(self, call: str, result: int) -> None:
        """Raise CudaError unless `result` is 0."""
        if result != 0:
            raise CudaError(call, result, *self.describe(result))

    def call(self, name: str, *args: object) -> None:
        self.check(name, getattr(self.library, name)(*args))

    def _handle(self, name: str, *args: object) -> int:
        """Call a function whose first parameter receives a pointer-sized handle."""
        out = c_void_p()
        self.call(name, byref(out), *args)
        return out.value or 0

    def _int(self, name: str, *args: object) -> int:
        out = c_int()
        self.call(name, byref(out), *args)
        return out.value

    def address(self, name: str) -> int:
        """Return the address of a driver function, for native callers."""
        return ctypes.cast(getattr(self.library, name), c_void_p).value or 0

    # --- devices and contexts ---
    def version(self) -> int:
        """Return the newest CUDA version that the driver supports, as major * 1000 + minor * 10."""
        return self._int("cuDriverGetVersion")

    def device_count(self) -> int:
        return self._int("cuDeviceGetCount")

    def properties(self, device: int) -> DeviceProperties:
        found = self._properties.get(device)
        if found is None:
            handle = self._int("cuDeviceGet", device)
            name = ctypes.create_string_buffer(256)
            self.call("cuDeviceGetName", name, 256, handle)
            memory = c_size_t()
            self.call("cuDeviceTotalMem_v2", byref(memory), handle)
            values = {
                k: self._int("cuDeviceGetAttribute", a, handle)
                for k, a in abi.DEVICE_ATTRIBUTES.items()
            }
            found = DeviceProperties(name=name.value.decode(), total_memory=memory.value, **values)
            self._properties[device] = found
        return found

    def current_device(self) -> int:
        """Return torch's current device if torch uses CUDA, else that of the current context, else 0."""
        torch = torch_cuda()
        if torch is not None:
            return cast(int, torch.cuda.current_device())
        return self._int("cuCtxGetDevice") if self.has_context() else 0

    def has_context(self) -> bool:
        """Whether the calling thread has a current context."""
        return self.current_context() != 0

    def current_context(self) -> int:
        """Return the calling thread's current context, 0 if there is none."""
        return self._handle("cuCtxGetCurrent")

    def set_current_device(self, device: int) -> None:
        torch = torch_cuda()
        if torch is not None:
            torch.cuda.set_device(device)
        self.bind(device)

    def bind(self, device: int | None = None) -> int:
        """Make `device`'s primary context current in this thread; return the device. torch and the CUDA runtime use the
        primary context, too, so memory and streams are shared with them."""
        device = self.current_device() if device is None else device
        context = self._contexts.get(device)
        if context is None:
            context = self._handle("cuDevicePrimaryCtxRetain", self._int("cuDeviceGet", device))
            self._contexts[device] = context
        if self.current_context() != context:
            self.call("cuCtxSetCurrent", context)
        return device

    def current_stream(self, device: int) -> int:
        """Return torch's current stream, else the default stream 0."""
        torch = torch_cuda()
        return 0 if torch is None else cast(int, torch._C._cuda_getCurrentRawStream(device))

    def synchronize(self) -> None:
        """Wait for all work of the current context."""
        self.call("cuCtxSynchronize")

    def tensor_map_encode(self) -> Any:
        """Return the function cuTensorMapEncodeTiled(map, type, rank, base, extents, strides, box, steps, interleave,
        swizzle, promotion, fill). NoDeviceError if the driver is older than CUDA 12."""
        function = getattr(self.library, "cuTensorMapEncodeTiled", None)
        if function is None:
            raise NoDeviceError("the CUDA driver is too old for tensor maps (CUDA 12 is needed)")
        function.argtypes, function.restype = abi.TENSOR_MAP_ENCODE, c_int
        return function

    # --- modules ---
    def load(
        self, cubin: bytes, name: str, shared: int = 0, device: int | None = None, cluster: int = 1
    ) -> LoadedKernel:
        """Load `cubin` on `device` and return its function `name`, allowed to use `shared` bytes of dynamic shared
        memory and clusters of `cluster` CTAs. OutOfResources if the device has less shared memory."""
        device = self.bind(device)
        limit = self.properties(device).max_shared
        if shared > limit:
            raise OutOfResources(shared, limit, "shared memory")
        module = self._handle("cuModuleLoadData", cubin)
        function = self._handle("cuModuleGetFunction", module, name.encode())
        static = self._int("cuFuncGetAttribute", abi.F_STATIC_SHARED, function)
        if shared + static > limit:
            raise OutOfResources(shared + static, limit, "shared memory")
        if shared + static > abi.DEFAULT_SHARED:
            self.call("cuFuncSetCacheConfig", function, abi.PREFER_SHARED)
            self.call("cuFuncSetAttribute", function, abi.F_MAX_DYNAMIC_SHARED, shared)
        if cluster > abi.PORTABLE_CLUSTER:
            self.call("cuFuncSetAttribute", function, abi.F_NON_PORTABLE_CLUSTER, 1)
        return LoadedKernel(
            module,
            function,
            registers=self._int("cuFuncGetAttribute", abi.F_REGISTERS, function),
            local_bytes=self._int("cuFuncGetAttribute", abi.F_LOCAL_BYTES, function),
            static_shared=static,
            max_threads=self._int("cuFuncGetAttribute", abi.F_MAX_THREADS, function),
        )

    def unload(self, module: int) -> None:
        self.call("cuModuleUnload", module)

    def symbol(self, module: int, name: str) -> tuple[int, int]:
        """Return device address and size of a module's global variable."""
        address, size = c_uint64(), c_size_t()
        self.call("cuModuleGetGlobal_v2", byref(address), byref(size), module, name.encode())
        return address.value, size.value

    def occupancy(self, function: int, threads: int, shared: int) -> int:
        """Return how many CTAs a multiprocessor runs at a time."""
        return self._int("cuOccupancyMaxActiveBlocksPerMultiprocessor", function, threads, shared)

    def active_clusters(self, function: int, config: LaunchConfig) -> int:
        """Return how many clusters the device runs at a time: fewer than its SMs suggest if its GPCs differ in size."""
        return self._int("cuOccupancyMaxActiveClusters", function, config.address)

    def launch(
        self,
        function: int,
        grid: tuple[int, int, int],
        config: LaunchConfig,
        args: Sequence[Any],
        stream: int = 0,
    ) -> None:
        """Launch with ctypes values as arguments: slow but simple; `runtime.launcher` is the fast way."""
        if 0 in grid:
            return
        copy = LaunchConfig.from_buffer_copy(config)
        copy.grid[:] = [g * m for g, m in zip(grid, config.grid)]
        copy.stream = stream
        pointers = (c_void_p * max(1, len(args)))(*(ctypes.addressof(a) for a in args))
        self.check_launch(
            self.library.cuLaunchKernelEx(byref(copy), function, pointers, None), config
        )

    def check_launch(self, result: int, config: LaunchConfig) -> None:
        """Raise the error of a launch's result; errors that a kernel's options cause name those options."""
        if result == 0:
            return
        if result == abi.INVALID_CLUSTER_SIZE:  # the GPU has no GPC with room for so many such CTAs
            raise OutOfResources(config.grid[0], abi.PORTABLE_CLUSTER, "CTAs of a cluster")
        name, text = self.describe(result)
        error = CudaError("cuLaunchKernelEx", result, name, text)
        if result in (abi.INVALID_VALUE, abi.LAUNCH_OUT_OF_RESOURCES):
            error.note(
                f"{config.block[0]} threads a CTA, {config.shared} bytes of dynamic shared memory"
            )
            error.help = "fewer warps or stages need fewer resources"
        raise error

    # --- memory ---
    def allocate(self, size: int) -> int:
        """Return device memory of `size` bytes, aligned to 256; free it with `free`."""
        out = c_uint64()
        self.call("cuMemAlloc_v2", byref(out), max(1, size))
        return out.value

    def free(self, address: int) -> None:
        self.call("cuMemFree_v2", address)

    def copy_to_device(self, target: int, host: int, size: int, stream: int = 0) -> None:
        """Copy `size` bytes from the host address `host`; return when the copy is complete."""
        self.call("cuMemcpyHtoDAsync_v2", target, host, size, stream)
        self.stream_synchronize(stream)

    def copy_to_host(self, host: int, source: int, size: int, stream: int = 0) -> None:
        """Copy `size` bytes to the host address `host`; return when the copy is complete."""
        self.call("cuMemcpyDtoHAsync_v2", host, source, size, stream)
        self.stream_synchronize(stream)

    def fill(self, target: int, byte: int, size: int, stream: int = 0) -> None:
        """Queue a fill of `size` bytes."""
        self.call("cuMemsetD8Async", target, byte, size, stream)

    def device_pointer(self, address: int, name: str = "") -> int:
        """Return the address by which the device reaches the memory at `address`; HostPointerError if it cannot."""
        if address == 0:
            return 0
        out = c_uint64()
        result = self.library.cuPointerGetAttribute(byref(out), abi.P_DEVICE_POINTER, address)
        if result == abi.INVALID_VALUE:
            raise HostPointerError(name=name or hex(address))
        self.check("cuPointerGetAttribute", result)
        return out.value

    # --- streams and events ---
    def stream_create(self, blocking: bool = False) -> int:
        """Return a new stream; unless it is `blocking`, it does not wait for the default stream."""
        return self._handle("cuStreamCreate", 0 if blocking else 1)

    def stream_destroy(self, stream: int) -> None:
        self.call("cuStreamDestroy_v2", stream)

    def stream_synchronize(self, stream: int) -> None:
        self.call("cuStreamSynchronize", stream)

    def is_capturing(self, stream: int) -> bool:
        """Whether a CUDA graph captures what is launched on the stream."""
        status = c_int()
        self.call("cuStreamIsCapturing", stream, byref(status))
        return status.value != 0

    def event_create(self, timing: bool = True) -> int:
        return self._handle("cuEventCreate", 0 if timing else 2)

    def event_destroy(self, event: int) -> None:
        self.call("cuEventDestroy_v2", event)

    def event_record(self, event: int, stream: int = 0) -> None:
        self.call("cuEventRecord", event, stream)

    def event_synchronize(self, event: int) -> None:
        self.call("cuEventSynchronize", event)

    def elapsed_ms(self, start: int, end: int) -> float:
        """Return the milliseconds between two recorded events, after waiting for the second."""
        self.event_synchronize(end)
        out = c_float()
        self.call("cuEventElapsedTime", byref(out), start, end)
        return out.value


def torch_cuda() -> Any:
    """Return torch if it is already imported and was built with CUDA; never import it."""
    torch = sys.modules.get("torch")
    if (
        torch is None
        or not hasattr(torch, "_C")
        or not hasattr(torch._C, "_cuda_getCurrentRawStream")
    ):
        return None
    return torch


@cache
def driver() -> Driver:
    """Return the driver, initialised at the first call. NoDeviceError if there is no GPU or no driver.

    The child of a fork in the middle of that would wait for the driver's locks for ever.
    """
    with undivided():
        return Driver(load_library())


def finish() -> None:
    """Wait for all work of the current context, if this process uses CUDA without torch."""
    if driver.cache_info().currsize and driver().has_context():
        driver().synchronize()


def available() -> bool:
    """Whether a CUDA device can be used."""
    return _found(knobs.nvidia.libcuda_path)


@cache  # launches ask, and a search for a missing library takes a millisecond
def _found(path: str | None) -> bool:
    try:
        driver()
    except NoDeviceError:
        return False
    return True


def forked() -> bool:
    """Whether there is a CUDA device that this process cannot use, since its parent had initialised the driver.

    Such a process compiles for the device and leaves the loading to others, as TorchInductor's workers do.
    """
    try:
        return load_library().cuInit(0) == abi.NOT_INITIALIZED
    except NoDeviceError:
        return False
