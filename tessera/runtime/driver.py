"""Drivers: load compiled kernels and launch them. One of them is active; by default the arguments choose.

`driver.active` is the driver that was set, or the default one: CUDA where a device is, else the CPU.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import cache, cached_property
from typing import Any

from tessera.backends.compiler import GPUTarget
from tessera.backends.cpu.pool import get_pool, launch_address
from tessera.backends.cpu.pool_ir import OUT_OF_MEMORY, TOO_MANY_PROGRAMS
from tessera.backends.cpu.target import lacking
from tessera.backends.llvm.binding import link_object
from tessera.backends.plugins import plugin, plugin_names
from tessera.compiler.kernel import DRIVER_FOR, CompiledKernel
from tessera.config import epoch, knobs
from tessera.errors import (
    DeviceAssertionError,
    ForeignPointerError,
    HostPointerError,
    LaunchError,
    NoDeviceError,
    Spelling,
)
from tessera.ir import parse_module, unpack_locations
from tessera.runtime import cuda
from tessera.runtime.benchmark import L2_BYTES, do_bench
from tessera.runtime.checked import checked_launcher, hosted
from tessera.runtime.cuda_abi import INVALID_CONTEXT, INVALID_HANDLE, launch_config
from tessera.runtime.dlpack import on_cuda, speaks_dlpack
from tessera.runtime.fast_launch import Start
from tessera.runtime.launcher import make_launcher
from tessera.runtime.overlap import reach, violates
from tessera.runtime.specialize import address_of_array
from tessera.runtime.tensor_maps import Instead, TensorMaps
from tessera.runtime.tensors import is_numpy
from tessera.runtime.variants import Twin

INT32_MAX = 2**31 - 1
GRID_HELP = (
    "fold the programs into the other axes, x first, and compute the indices from `tl.program_id`"
)


class Driver:
    """Base: a place where kernels run."""

    name = ""
    grid_limits = (INT32_MAX, INT32_MAX, INT32_MAX)  # programs along each axis

    @staticmethod
    def is_active() -> bool:
        """Whether the machine has what this driver needs."""
        return True

    def get_current_target(self) -> GPUTarget:
        raise NotImplementedError

    def get_device_capability(self, device: int | None = None) -> tuple[int, int]:
        """(major, minor) of an NVIDIA device; (0, 0) elsewhere."""
        return 0, 0

    def get_current_device(self) -> int:
        return 0

    def set_current_device(self, device: int) -> None:
        if device != 0:
            raise LaunchError(f"the {self.name} driver has one device, 0; got {device}")

    def get_current_stream(self, device: int | None = None) -> int:
        return 0

    def get_device_properties(self, device: int) -> dict[str, int]:
        """Sizes and rates; empty where kernels have no limits of the kind."""
        return {}

    def get_active_torch_device(self) -> Any:
        """torch.device of this driver's memory. NoDeviceError when torch has not been imported."""
        torch = _torch()
        return (
            torch.device("cpu")
            if self.name != "cuda"
            else torch.device("cuda", self.get_current_device())
        )

    def get_device_interface(self) -> Any:
        """torch.cuda, or torch.cpu for host memory. NoDeviceError when torch has not been imported."""
        return getattr(_torch(), "cuda" if self.name == "cuda" else "cpu")

    def get_benchmarker(self) -> Callable[..., Any]:
        """The stopwatch of autotuning: `benchmarker(call, quantiles=...)` gives times in ms."""
        return do_bench

    def get_empty_cache_for_benchmark(self) -> Any:
        """A torch tensor larger than the device's caches, for `clear_cache`."""
        torch = _torch()
        return torch.empty(L2_BYTES // 4, dtype=torch.int, device=self.get_active_torch_device())

    def clear_cache(self, cache: Any) -> None:
        cache.zero_()

    @property
    def utils(self) -> Driver:
        return self

    def extents(self, grid: Any) -> tuple[int, int, int]:
        """A grid's three extents, those that are not given being 1. LaunchError unless each is a number of programs
        that this driver can start."""
        if not hasattr(grid, "__len__"):
            shown = repr(grid) if hasattr(grid, "__index__") else "n"
            raise LaunchError(
                f"the grid {grid!r} is no sequence", help=f"write kernel[({shown},)](...)"
            )
        n = len(grid)
        if not 0 < n < 4:
            shown = "is empty" if n == 0 else f"{grid!r} has {n} extents"
            raise LaunchError(f"the grid {shown}", help="give 1 to 3 extents")
        found = (grid[0], grid[1] if n > 1 else 1, grid[2] if n > 2 else 1)
        for x in found:
            if not hasattr(x, "__index__"):
                raise LaunchError(
                    f"the grid {found} has an extent that is no integer: {x!r}",
                    help=f"divide with `{Spelling.package}.cdiv(n, BLOCK)` or `//`",
                )
            if x < 0:
                raise LaunchError(f"the grid {found} has a negative extent")
        for axis, x, limit in zip("xyz", found, self.grid_limits):
            if x > limit and 0 not in found:
                raise LaunchError(
                    f"the grid {found} has {x} programs along {axis}; the {self.name} driver starts at most {limit}",
                    help=GRID_HELP,
                )
        return found

    def load_kernel(self, kernel: CompiledKernel) -> None:
        """Set the kernel's function, launcher and, last, module for the current device (see CompiledKernel.load)."""
        raise NotImplementedError

    def native_start(self, kernel: CompiledKernel, device: int) -> Start | None:
        """How native code starts a loaded kernel; None where it cannot."""
        return None

    def check_arrays(self, kernel: CompiledKernel, args: Sequence[Any]) -> None:
        """LaunchError if the arrays lie in a way that the kernel was not compiled for."""

    def address(self, x: Any) -> Any:
        """An argument as the native launcher takes it: arrays without `data_ptr` become addresses."""
        if is_numpy(x) or speaks_dlpack(x):
            return address_of_array(x)
        return x

    def arguments(self, kernel: CompiledKernel, args: Iterable[Any]) -> Iterable[Any]:
        """All run-time arguments as the kernel's launcher takes them."""
        address = self.address
        return [x if type(x) is int else address(x) for x in args]


def _torch() -> Any:
    torch = sys.modules.get("torch")
    if torch is None:
        raise NoDeviceError("torch is not imported")
    return torch


class CpuDriver(Driver):
    """Runs kernels natively on the host's cores."""

    name = "cpu"

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cpu", knobs.cpu.isa or "native", 1)

    def load_kernel(self, kernel: CompiledKernel) -> None:
        arch = kernel.metadata.target.arch
        missing = lacking(arch)
        if missing:
            raise NoDeviceError(f"this machine cannot run code for {arch}: it lacks {missing}")
        code = link_object(kernel.asm["object"], [kernel.name])
        function = code[kernel.name]
        native = make_launcher(kernel.metadata.args, "cpu")
        scratch = getattr(kernel.metadata, "scratch_bytes", 0)

        def start(gx: int, gy: int, gz: int, *args: Any) -> None:
            pool = get_pool(knobs.runtime.num_threads).handle
            status = native(gx, gy, gz, pool, function, scratch, *args)
            if status:
                raise _cpu_failure(kernel, status)

        def launch(gx: int, gy: int, gz: int, stream: int, *args: Any) -> None:
            start(gx, gy, gz, *args)

        start.code = code  # type: ignore[attr-defined]  stays mapped while a launch may run it
        checked = kernel.metadata.debug == "check"
        kernel.n_regs = kernel.n_spills = 0
        kernel.n_max_threads = 1
        kernel.function = function
        kernel.launcher = checked_launcher(kernel, start) if checked else launch
        kernel.module = code

    def address(self, x: Any) -> Any:
        _refuse(x, "cpu", "CPU")
        foreign = hasattr(x, "__cuda_array_interface__") or (speaks_dlpack(x) and on_cuda(x))
        if foreign and not is_numpy(x):
            raise ForeignPointerError(device="cuda", place="CPU")
        return super().address(x)

    def arguments(self, kernel: CompiledKernel, args: Iterable[Any]) -> Iterable[Any]:
        """A checked build wants the arrays, whose extents it checks."""
        return args if kernel.metadata.debug == "check" else super().arguments(kernel, args)

    def check_arrays(self, kernel: CompiledKernel, args: Sequence[Any]) -> None:
        assumed = getattr(kernel.metadata, "assumed_disjoint", None)
        if not assumed:
            return
        given, kinds = list(kernel.arguments(args)), kernel.metadata.args
        # A wrong number of arguments is for the launcher to report.
        if len(given) == len(kinds) and violates(assumed, kinds, given, reach_of=_trusting):
            raise LaunchError(
                f"two arrays of kernel {kernel.name} share memory, which this build does not expect",
                help="launch by the kernel function, or compile with may_overlap=True",
            )

    def native_start(self, kernel: CompiledKernel, device: int) -> Start | None:
        if kernel.metadata.debug == "check":
            return None

        def fail(status: int) -> None:
            raise _cpu_failure(kernel, status)

        return Start(
            cuda=False, entry=launch_address(), function=kernel.function,
            config=getattr(kernel.metadata, "scratch_bytes", 0), pool=get_pool(knobs.runtime.num_threads).handle,
            stream=None, device=0, fail=fail, keep=kernel.module,
        )  # fmt: skip


def _refuse(x: Any, kind: str, place: str) -> None:
    """ForeignPointerError for a tensor on a device that is not of the kind named, where it tells."""
    found = getattr(getattr(x, "device", None), "type", kind)
    if found != kind:
        raise ForeignPointerError(device=str(x.device), place=place)


def _trusting(x: Any) -> tuple[int, int]:
    """As `reach`; nothing is supposed of the memory behind a raw address."""
    return (x, 1) if isinstance(x, int) else reach(x)


def _cpu_failure(kernel: CompiledKernel, status: int) -> Exception:
    messages: list[str] = getattr(kernel.metadata, "assertions", None) or []
    if 0 < status <= len(messages):
        return DeviceAssertionError(f"assertion failed in {kernel.name}: {messages[status - 1]}")
    why = {
        OUT_OF_MEMORY: "found no memory for its scratch",
        TOO_MANY_PROGRAMS: "was not run: its grid has 2^63 programs or more",
    }.get(status, f"ended with status {status}")
    return LaunchError(f"kernel {kernel.name} {why}")


class InterpreterDriver(Driver):
    """Executes tile IR with NumPy; needs no device and no native code."""

    name = "interpreter"

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("interpreter", "numpy", 1)

    def address(self, x: Any) -> Any:
        return x  # the interpreter wants the arrays, whose extents it checks

    def load_kernel(self, kernel: CompiledKernel) -> None:
        module = parse_module(kernel.asm["tir"])
        run = importlib.import_module("tessera.interp").run  # needs NumPy, which is slow to import
        if getattr(kernel.metadata, "locations", None):
            unpack_locations(module, kernel.metadata.locations)

        def launch(gx: int, gy: int, gz: int, stream: int, *args: Any) -> None:
            with hosted(args) as host:
                run(module, (gx, gy, gz), host)

        kernel.n_regs = kernel.n_spills = 0
        kernel.n_max_threads = 1
        kernel.function, kernel.launcher, kernel.module = module, launch, module


class CudaDriver(Driver):
    """NVIDIA GPUs through the CUDA driver API; shares device and stream with torch."""

    name = "cuda"
    grid_limits = (INT32_MAX, 65535, 65535)

    @staticmethod
    def is_active() -> bool:
        return cuda.available() or cuda.forked()

    def __init__(self) -> None:
        if not cuda.forked():
            _ = self.api  # NoDeviceError now rather than at the first use

    @cached_property
    def api(self) -> cuda.Driver:
        """The driver of this process, started."""
        return cuda.driver()

    def get_current_target(self) -> GPUTarget:
        major, minor = self.get_device_capability()
        return GPUTarget("cuda", major * 10 + minor, 32)

    def get_device_capability(self, device: int | None = None) -> tuple[int, int]:
        return self.api.properties(
            self.get_current_device() if device is None else device
        ).capability

    def get_current_device(self) -> int:
        return self.api.current_device()

    def set_current_device(self, device: int) -> None:
        self.api.set_current_device(device)

    def get_current_stream(self, device: int | None = None) -> int:
        return self.api.current_stream(self.api.current_device() if device is None else device)

    def get_device_properties(self, device: int) -> dict[str, int]:
        """Sizes and rates under the names that tuning code asks for."""
        p = self.api.properties(device)
        return {
            "max_shared_mem": p.max_shared, "max_num_regs": p.registers_per_block, "warpSize": p.warp_size,
            "multiprocessor_count": p.multiprocessor_count, "sm_clock_rate": p.clock_khz,
            "mem_clock_rate": p.memory_clock_khz, "mem_bus_width": p.memory_bus_bits,
        }  # fmt: skip

    def load_kernel(self, kernel: CompiledKernel) -> None:
        m, device = kernel.metadata, self.get_current_device()
        p = self.api.properties(device)
        kernel.check_resources(p.max_shared, p.max_threads_per_block, p.warp_size)
        blocks: int = getattr(m, "cluster_dims", (1,))[0]
        loaded = self.api.load(kernel.asm["cubin"], kernel.name, m.shared, device, blocks)
        config = launch_config(
            threads=getattr(m, "warps", m.num_warps) * 32, shared=m.shared, cluster=(blocks, 1, 1),
            cooperative=m.launch_cooperative_grid, programmatic=m.launch_pdl,
        )  # fmt: skip
        native = make_launcher(kernel.metadata.args, "cuda")
        function, check = loaded.function, self.api.check_launch
        specs = getattr(m, "tensor_maps", None)

        twin = Twin(kernel, self)

        def instead() -> Instead:
            other = twin.get()
            return Instead(other.function, other.launcher.config.address, other.launcher.maps)

        maps = None
        if specs:
            code, guard = getattr(m, "host_code", ()), getattr(m, "guard", ())
            resident = getattr(m, "resident_blocks", 0) * p.multiprocessor_count
            if resident and blocks > 1:
                found = self.api.active_clusters(function, config)
                resident = max(1, min(found, resident // blocks))
            maps = TensorMaps(self.api, specs, code, guard, instead, resident)

        def launch(gx: int, gy: int, gz: int, stream: int, *args: Any) -> None:
            # held until the launch has copied them
            encoded = maps(args, (gx, gy, gz)) if maps is not None else None
            if encoded is not None:
                if not encoded.usable:
                    twin.get().launcher(gx, gy, gz, stream, *args)
                    return
                args = (*args, *encoded.addresses)
                if encoded.blocks:
                    gx, gy, gz = encoded.blocks, 1, 1
            result = native(gx, gy, gz, stream, function, config.address, *args)
            if result in (INVALID_CONTEXT, INVALID_HANDLE):
                # A thread that has not used CUDA yet, or whose device torch has changed but not made current.
                self._bind_for(kernel.name, device)
                result = native(gx, gy, gz, stream, function, config.address, *args)
            if result:
                self.extents((gx, gy, gz))  # one of them may be the cause
                check(result, config)

        # what the native path reads as long as the kernel lives
        launch.config, launch.maps = config, maps  # type: ignore[attr-defined]
        kernel.n_regs, kernel.n_spills = loaded.registers, loaded.local_bytes // 4
        kernel.n_max_threads = loaded.max_threads
        kernel.function, kernel.launcher, kernel.module = loaded.function, launch, loaded.module

    def _bind_for(self, name: str, device: int) -> None:
        """Make current the context of the device that kernel `name` was loaded on, if that is the current device."""
        current = self.get_current_device()
        if current != device:
            raise LaunchError(
                f"kernel {name} was loaded on device {device}; the current device is {current}",
                help="launch by the kernel function, which loads it on each device",
            )
        self.api.bind(device)

    def native_start(self, kernel: CompiledKernel, device: int) -> Start | None:
        config, api = getattr(kernel.launcher, "config", None), self.api
        if config is None:  # someone's own launcher
            return None

        def fail(result: int) -> None:
            api.check_launch(result, config)

        torch = cuda.torch_cuda()
        return Start(
            cuda=True, entry=api.address("cuLaunchKernelEx"), function=kernel.function, config=config.address, pool=0,
            stream=None if torch is None else torch._C._cuda_getCurrentRawStream, device=device, fail=fail,
            context=api.address("cuCtxGetCurrent"), maps=kernel.launcher.maps, keep=kernel.launcher,
        )  # fmt: skip

    def address(self, x: Any) -> Any:
        if is_numpy(x):
            raise HostPointerError(name=f"(a NumPy array of {x.dtype})", help=HOST_HELP)
        if getattr(getattr(x, "device", None), "type", None) == "meta":
            _refuse(x, "cuda", "GPU")
        # `data_ptr` first: torch raises for the array interface of element types that NumPy lacks (fp8).
        if not hasattr(x, "data_ptr") and hasattr(x, "__cuda_array_interface__"):
            return address_of_array(x)
        if speaks_dlpack(x):
            if not on_cuda(x):
                raise HostPointerError(
                    name=f"(an array of type {type(x).__name__})", help=HOST_HELP
                )
            return address_of_array(x)
        return x


HOST_HELP = "move the data to the device (torch: `.cuda()`), or pass host arrays only: then the kernel runs on the CPU"

_MAKERS: dict[str, Callable[[], Driver]] = {
    "cpu": CpuDriver,
    "interpreter": InterpreterDriver,
    "cuda": CudaDriver,
}


@cache
def driver_named(name: str) -> Driver:
    """The driver "cpu", "cuda", "interpreter" or a plug-in's. NoDeviceError when its device is not there."""
    if name in _MAKERS:
        return _MAKERS[name]()
    offered = plugin(name)
    if offered is None:
        known = ", ".join([*_MAKERS, *plugin_names()])
        raise LaunchError(f"no driver {name!r}", help=f"drivers: {known}")
    return offered.driver()


class ActiveDriver:
    """The `driver` object: `.active`, `.default`, and switching."""

    def __init__(self) -> None:
        self.chosen: Driver | None = None

    @property
    def default(self) -> Driver:
        name = knobs.runtime.default_backend
        if knobs.runtime.interpret:
            name = "interpreter"
        return driver_named(name or ("cuda" if cuda.available() else "cpu"))

    @property
    def active(self) -> Driver:
        return self.chosen if self.chosen is not None else self.default

    def set_active(self, driver: Driver | str) -> None:
        self.chosen = driver_named(driver) if isinstance(driver, str) else driver
        epoch.value += 1

    def set_active_to_cpu(self) -> None:
        self.set_active("cpu")

    def set_active_to_gpu(self) -> None:
        self.set_active("cuda")

    def reset_active(self) -> None:
        self.chosen = None
        epoch.value += 1

    def for_arguments(self, args: Any) -> Driver:
        """The driver that was set; else the one where the first array argument lies; else the default."""
        if self.chosen is not None:
            return self.chosen
        for x in args:
            if is_numpy(x):
                return _CPU()
            on_gpu = getattr(x, "is_cuda", None)
            if on_gpu is not None:
                return driver_named("cuda") if on_gpu else _CPU()
            if hasattr(x, "__cuda_array_interface__"):
                return driver_named("cuda")
            if speaks_dlpack(x):
                return driver_named("cuda") if on_cuda(x) else _CPU()
            base = getattr(x, "base", None)
            if base is not None:
                return self.for_arguments((base,))
        return self.default


def _CPU() -> Driver:
    name = knobs.runtime.default_backend
    return driver_named("cpu" if name in (None, "cuda") else name)


driver = ActiveDriver()
DRIVER_FOR.append(lambda target: driver_named(target.backend))


def _after_fork() -> None:
    epoch.value += 1  # the thread pools of the parent are not there any more


os.register_at_fork(after_in_child=_after_fork)
