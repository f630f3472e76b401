"""Implements the driver of NVIDIA GPUs."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from tessera.backends.compiler import GPUTarget
from tessera.compiler.kernel import CompiledKernel
from tessera.errors import HostPointerError, LaunchError
from tessera.runtime.arguments.dlpack import on_cuda, speaks_dlpack
from tessera.runtime.arguments.specialize import address_of_array
from tessera.runtime.arguments.tensors import is_numpy
from tessera.runtime.cuda import driver_api as cuda
from tessera.runtime.cuda.abi import INVALID_CONTEXT, INVALID_HANDLE, L_PRINTF_FIFO, launch_config
from tessera.runtime.drivers.base import INT32_MAX, Driver, refuse_foreign
from tessera.runtime.drivers.traced import CudaBuffers, is_traced, traced_launcher, untraced
from tessera.runtime.drivers.variants import FallbackVariant
from tessera.runtime.native.fast_path import Start
from tessera.runtime.native.launcher import make_launcher
from tessera.runtime.native.tensor_maps import Instead, TensorMaps

HOST_HELP = "move the data to the device (torch: `.cuda()`), or pass host arrays only: then the kernel runs on the CPU"


class CudaDriver(Driver):
    """NVIDIA GPUs through the CUDA driver API; uses torch's current device and stream."""

    name = "cuda"
    grid_limits = (INT32_MAX, 65535, 65535)

    @staticmethod
    def is_active() -> bool:
        return cuda.available() or cuda.forked()

    def __init__(self) -> None:
        if not cuda.forked():
            _ = self.api  # raise NoDeviceError now rather than at the first use

    @cached_property
    def api(self) -> cuda.Driver:
        """The driver API of this process, initialised."""
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
        """Return sizes and rates under the names that tuning code uses."""
        p = self.api.properties(device)
        return {
            "max_shared_mem": p.max_shared, "max_num_regs": p.registers_per_block, "warpSize": p.warp_size,
            "multiprocessor_count": p.multiprocessor_count, "sm_clock_rate": p.clock_khz,
            "mem_clock_rate": p.memory_clock_khz, "mem_bus_width": p.memory_bus_bits,
        }  # fmt: skip

    def load_binary(
        self, name: str, binary: bytes, shared: int, device: int
    ) -> tuple[int, int, int, int, int]:
        """Load a cubin; return module, function, registers and spilled words of a thread, and the most threads of a
        CTA."""
        loaded = self.api.load(binary, name, shared, device)
        spills = loaded.local_bytes // 4
        return loaded.module, loaded.function, loaded.registers, spills, loaded.max_threads

    def unload_module(self, module: int) -> None:
        self.api.unload(module)

    def set_printf_fifo_size(self, size: int) -> None:
        """Set how many bytes `device_print` may write between two synchronisations of the current device."""
        self.api.bind()
        self.api.call("cuCtxSetLimit", L_PRINTF_FIFO, size)

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
        specs, precondition = getattr(m, "tensor_maps", ()), getattr(m, "precondition", ())

        fallback = FallbackVariant(kernel, self)

        def instead() -> Instead:
            other = fallback.get()
            start = untraced(other.launcher)
            return Instead(other.function, start.config.address, start.maps)

        maps = None
        if specs or precondition:
            code = getattr(m, "host_code", ())
            resident = getattr(m, "resident_ctas", 0) * p.multiprocessor_count
            if resident and blocks > 1:
                found = self.api.active_clusters(function, config)
                resident = max(1, min(found, resident // blocks))
            maps = TensorMaps(self.api, specs, code, precondition, instead, resident)

        def launch(gx: int, gy: int, gz: int, stream: int, *args: object) -> None:
            # must stay alive until the launch has copied them
            encoded = maps(args, (gx, gy, gz)) if maps is not None else None
            if encoded is not None:
                if not encoded.usable:
                    fallback.get().launcher(gx, gy, gz, stream, *args)
                    return
                args = (*args, *encoded.addresses)
                if encoded.blocks:
                    gx, gy, gz = encoded.blocks, 1, 1
            result = native(gx, gy, gz, stream, function, config.address, *args)
            if result in (INVALID_CONTEXT, INVALID_HANDLE):
                # This thread has not used CUDA yet, or torch changed its device without making its context current.
                self._bind_for(kernel.name, device)
                result = native(gx, gy, gz, stream, function, config.address, *args)
            if result:
                self.extents((gx, gy, gz))  # perhaps the grid is the cause
                check(result, config)

        # what the native path reads during the kernel's life
        launch.config, launch.maps = config, maps  # type: ignore[attr-defined]
        if is_traced(kernel):
            most = getattr(m, "resident_ctas", 0) * p.multiprocessor_count
            launch = traced_launcher(kernel, launch, CudaBuffers(self.api), "cycles", most)
        kernel.n_regs, kernel.n_spills = loaded.registers, loaded.local_bytes // 4
        kernel.n_max_threads = loaded.max_threads
        kernel.function, kernel.launcher, kernel.module = loaded.function, launch, loaded.module

    def _bind_for(self, name: str, device: int) -> None:
        """Make the context of the device current on which kernel `name` was loaded, if that is the current device."""
        current = self.get_current_device()
        if current != device:
            raise LaunchError(
                f"kernel {name} was loaded on device {device}; the current device is {current}",
                help="launch by the kernel function, which loads it on each device",
            )
        self.api.bind(device)

    def native_start(self, kernel: CompiledKernel, device: int) -> Start | None:
        config, api = getattr(kernel.launcher, "config", None), self.api
        if config is None:  # a launcher that somebody replaced, or of a traced build
            return None

        def fail(result: int) -> None:
            api.check_launch(result, config)

        torch = cuda.torch_cuda()
        return Start(
            cuda=True, entry=api.address("cuLaunchKernelEx"), function=kernel.function, config=config.address, pool=0,
            stream=None if torch is None else torch._C._cuda_getCurrentRawStream, device=device, fail=fail,
            context=api.address("cuCtxGetCurrent"), maps=kernel.launcher.maps, keep=kernel.launcher,
        )  # fmt: skip

    def address(self, x: object) -> Any:
        if is_numpy(x):
            raise HostPointerError(name=f"(a NumPy array of {x.dtype})", help=HOST_HELP)
        if getattr(getattr(x, "device", None), "type", None) == "meta":
            refuse_foreign(x, "cuda", "GPU")
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
