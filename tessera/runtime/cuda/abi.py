"""Declares the binary interface of libcuda (function signatures, constants, structures) and finds the library."""

from __future__ import annotations

import ctypes
import os
from ctypes import POINTER, c_char_p, c_float, c_int, c_size_t, c_ubyte, c_uint, c_uint64, c_void_p
from typing import Any

from tessera.config import knobs
from tessera.errors import NoDeviceError, TesseraError

NO_DEVICE_HELP = (
    "run with TESSERA_INTERPRET=1, or pass NumPy arrays or CPU tensors: they run on the CPU backend"
)
LIBRARY = "libcuda.so.1"
FOLDERS = (
    "/usr/local/nvidia/lib64",
    "/usr/local/nvidia/lib",
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib/wsl/lib",
    "/usr/local/cuda/compat",
)

INVALID_VALUE, OUT_OF_MEMORY, NOT_INITIALIZED, NO_DEVICE = 1, 2, 3, 100
INVALID_CONTEXT, INVALID_HANDLE = 201, 400
LAUNCH_OUT_OF_RESOURCES, INVALID_CLUSTER_SIZE = 701, 912
L_PRINTF_FIFO = 1  # CUlimit: bytes that `device_print` may write between two synchronisations
DEFAULT_SHARED = 48 << 10  # a kernel needs an attribute to use more dynamic shared memory

# argtypes of the functions in use; the names have the ABI version that current headers map to.
_Out = POINTER(c_void_p)
SIGNATURES: dict[str, tuple[Any, ...]] = {
    "cuInit": (c_uint,),
    "cuDriverGetVersion": (POINTER(c_int),),
    "cuGetErrorName": (c_int, POINTER(c_char_p)),
    "cuGetErrorString": (c_int, POINTER(c_char_p)),
    "cuDeviceGetCount": (POINTER(c_int),),
    "cuDeviceGet": (POINTER(c_int), c_int),
    "cuDeviceGetName": (c_char_p, c_int, c_int),
    "cuDeviceTotalMem_v2": (POINTER(c_size_t), c_int),
    "cuDeviceGetAttribute": (POINTER(c_int), c_int, c_int),
    "cuDevicePrimaryCtxRetain": (_Out, c_int),
    "cuCtxGetCurrent": (_Out,),
    "cuCtxSetCurrent": (c_void_p,),
    "cuCtxGetDevice": (POINTER(c_int),),
    "cuCtxSynchronize": (),
    "cuCtxSetLimit": (c_int, c_size_t),
    "cuModuleLoadData": (_Out, c_char_p),
    "cuModuleUnload": (c_void_p,),
    "cuModuleGetFunction": (_Out, c_void_p, c_char_p),
    "cuModuleGetGlobal_v2": (POINTER(c_uint64), POINTER(c_size_t), c_void_p, c_char_p),
    "cuFuncGetAttribute": (POINTER(c_int), c_int, c_void_p),
    "cuFuncSetAttribute": (c_void_p, c_int, c_int),
    "cuFuncSetCacheConfig": (c_void_p, c_int),
    "cuOccupancyMaxActiveBlocksPerMultiprocessor": (POINTER(c_int), c_void_p, c_int, c_size_t),
    "cuOccupancyMaxActiveClusters": (POINTER(c_int), c_void_p, c_void_p),
    "cuLaunchKernelEx": (c_void_p, c_void_p, _Out, _Out),
    "cuMemAlloc_v2": (POINTER(c_uint64), c_size_t),
    "cuMemFree_v2": (c_uint64,),
    "cuMemcpyHtoDAsync_v2": (c_uint64, c_void_p, c_size_t, c_void_p),
    "cuMemcpyDtoHAsync_v2": (c_void_p, c_uint64, c_size_t, c_void_p),
    "cuMemcpyDtoDAsync_v2": (c_uint64, c_uint64, c_size_t, c_void_p),
    "cuMemsetD8Async": (c_uint64, c_ubyte, c_size_t, c_void_p),
    "cuMemsetD32Async": (c_uint64, c_uint, c_size_t, c_void_p),
    "cuStreamCreate": (_Out, c_uint),
    "cuStreamDestroy_v2": (c_void_p,),
    "cuStreamSynchronize": (c_void_p,),
    "cuStreamIsCapturing": (c_void_p, POINTER(c_int)),
    "cuEventCreate": (_Out, c_uint),
    "cuEventDestroy_v2": (c_void_p,),
    "cuEventRecord": (c_void_p, c_void_p),
    "cuEventSynchronize": (c_void_p,),
    "cuEventElapsedTime": (POINTER(c_float), c_void_p, c_void_p),
    "cuPointerGetAttribute": (c_void_p, c_int, c_uint64),
}

# cuTensorMapEncodeTiled, which drivers have since CUDA 12
TENSOR_MAP_ENCODE = (
    c_void_p, c_int, c_uint, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_int, c_int, c_int, c_int,
)  # fmt: skip

# CUdevice_attribute
DEVICE_ATTRIBUTES = {
    "max_threads_per_block": 1,
    "max_shared_default": 8,
    "warp_size": 10,
    "registers_per_block": 12,
    "clock_khz": 13,
    "multiprocessor_count": 16,
    "memory_clock_khz": 36,
    "memory_bus_bits": 37,
    "l2_bytes": 38,
    "max_threads_per_multiprocessor": 39,
    "capability_major": 75,
    "capability_minor": 76,
    "shared_per_multiprocessor": 81,
    "registers_per_multiprocessor": 82,
    "cooperative_launch": 95,
    "max_shared": 97,
    "reserved_shared": 111,
}
# CUfunction_attribute
F_MAX_THREADS, F_STATIC_SHARED, F_LOCAL_BYTES, F_REGISTERS = 0, 1, 3, 4
F_MAX_DYNAMIC_SHARED, F_NON_PORTABLE_CLUSTER = 8, 14
PREFER_SHARED = 1  # CUfunc_cache
PORTABLE_CLUSTER = 8  # CTAs
# CUpointer_attribute
P_DEVICE_POINTER = 3
# CUlaunchAttributeID
A_COOPERATIVE, A_CLUSTER, A_PROGRAMMATIC_SERIALIZATION = 2, 4, 6


# CUresults that a kernel can cause: an assertion, illegal or misaligned accesses, any other fault.
FAULTS = (700, 710, 714, 715, 716, 717, 718, 719)
FAULT_HELP = (
    "a kernel that was launched before this call did it, and the process cannot use the device any more: repeat the "
    'launch in a new one with `debug="check"` (TESSERA_CHECK=1), or under compute-sanitizer'
)


class CudaError(TesseraError, RuntimeError):
    """A call of the CUDA driver failed. `result` is its CUresult, `name` the constant's name."""

    code = "cuda"

    def __init__(self, call: str, result: int, name: str, text: str) -> None:
        self.call, self.result, self.name = call, result, name
        super().__init__(f"{call} failed: {name} ({result}): {text}")
        if result in FAULTS:
            self.help = FAULT_HELP


class LaunchAttribute(ctypes.Structure):
    """CUlaunchAttribute: the id, four bytes of padding, a union of 64 bytes."""

    _fields_ = [("id", c_uint), ("pad", c_uint), ("value", c_uint * 16)]


class LaunchConfig(ctypes.Structure):
    """CUlaunchConfig, filled once per kernel as a template. The launcher copies it, sets the stream and multiplies the
    grid's extents by those in the template: these are the cluster's, since the driver counts CTAs, not clusters."""

    _fields_ = [
        ("grid", c_uint * 3),
        ("block", c_uint * 3),
        ("shared", c_uint),
        ("stream", c_void_p),
        ("attributes", POINTER(LaunchAttribute)),
        ("count", c_uint),
    ]

    @property
    def address(self) -> int:
        """Return what the native launcher takes as its `config`; keep the LaunchConfig alive."""
        return ctypes.addressof(self)


def launch_config(
    threads: int,
    shared: int = 0,
    cluster: tuple[int, int, int] = (1, 1, 1),
    cooperative: bool = False,
    programmatic: bool = False,
) -> LaunchConfig:
    """Return a template for a kernel of `threads` threads a CTA and `shared` bytes of dynamic shared memory.

    `programmatic` allows the kernel to start before the stream's previous kernel has ended (PDL).
    """
    attributes: list[tuple[int, tuple[int, ...]]] = []
    if cluster != (1, 1, 1):
        attributes.append((A_CLUSTER, cluster))
    if cooperative:
        attributes.append((A_COOPERATIVE, (1,)))
    if programmatic:
        attributes.append((A_PROGRAMMATIC_SERIALIZATION, (1,)))
    array = (LaunchAttribute * max(1, len(attributes)))()
    for slot, (kind, values) in zip(array, attributes):
        slot.id = kind
        for i, value in enumerate(values):
            slot.value[i] = value
    config = LaunchConfig()
    config.grid[:] = cluster
    config.block[:] = (threads, 1, 1)
    config.shared = shared
    config.attributes = ctypes.cast(array, POINTER(LaunchAttribute))  # keeps the array alive
    config.count = len(attributes)
    return config


def _candidates() -> list[str]:
    configured = knobs.nvidia.libcuda_path
    if configured:
        return [os.path.join(configured, LIBRARY) if os.path.isdir(configured) else configured]
    return [LIBRARY, *(os.path.join(folder, LIBRARY) for folder in FOLDERS)]


def load_library() -> Any:
    """Return libcuda with typed functions; NoDeviceError if there is no driver."""
    problems: list[str] = []
    for path in _candidates():
        try:
            library = ctypes.CDLL(path)
        except OSError as error:
            problems.append(str(error))
            continue
        for name, types in SIGNATURES.items():
            function = getattr(library, name, None)
            if function is None:
                raise NoDeviceError(
                    f"the CUDA driver in {path} is too old: it has no {name} (CUDA 11.8 is needed)"
                )
            function.argtypes, function.restype = types, c_int
        return library
    where = knobs.nvidia.libcuda_path or f"the loader's path, {', '.join(FOLDERS)}"
    raise NoDeviceError(
        f"no CUDA driver: {LIBRARY} was not found in {where} ({problems[0]})", help=NO_DEVICE_HELP
    )
