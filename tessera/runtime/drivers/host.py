"""Implements the drivers of the host: native code on its cores, and the interpreter."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Sequence
from typing import Any

from tessera.backends.compiler import GPUTarget
from tessera.backends.cpu.exclusive import launch_needs
from tessera.backends.cpu.pool import (
    OUT_OF_MEMORY,
    TOO_MANY_PROGRAMS,
    get_pool,
    launch_address,
)
from tessera.backends.cpu.target import lacking
from tessera.backends.llvm.binding import link_object
from tessera.compiler.kernel import CompiledKernel
from tessera.config import knobs
from tessera.errors import (
    DeviceAssertionError,
    ForeignPointerError,
    LaunchError,
    NoDeviceError,
    TesseraError,
)
from tessera.ir import parse_module, unpack_locations
from tessera.ops.trace import TRACE_ADDED
from tessera.runtime.arguments.aliasing import memory_range, violates
from tessera.runtime.arguments.dlpack import on_cuda, speaks_dlpack
from tessera.runtime.arguments.tensors import is_numpy
from tessera.runtime.drivers.base import Driver, refuse_foreign
from tessera.runtime.drivers.checked import checked_launcher, hosted, noted
from tessera.runtime.drivers.perf_map import lined_image, note_code
from tessera.runtime.drivers.traced import HostBuffers, is_traced, traced_launcher
from tessera.runtime.native.fast_path import Start
from tessera.runtime.native.launcher import make_launcher
from tessera.utilities import number


class CpuDriver(Driver):
    """Runs kernels natively on the host's cores."""

    name = "cpu"
    on_host = True

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cpu", knobs.cpu.isa or "native", 1)

    def load_kernel(self, kernel: CompiledKernel) -> None:
        arch = kernel.metadata.target.arch
        missing = lacking(arch)
        if missing:
            raise NoDeviceError(f"this machine cannot run code for {arch}: it lacks {missing}")
        image = lined_image(kernel) if knobs.cpu.perf_map else kernel.asm["object"]
        code = link_object(image, [kernel.name])
        function = code[kernel.name]
        if knobs.cpu.perf_map:
            note_code(kernel, function, image)
        native = make_launcher(kernel.metadata.args, "cpu")
        needs = launch_needs(kernel.metadata)

        def start(gx: int, gy: int, gz: int, *args: object) -> None:
            pool = get_pool(_threads(kernel)).handle
            status = native(gx, gy, gz, pool, function, needs, *args)
            if status:
                raise cpu_failure(kernel, status)

        def launch(gx: int, gy: int, gz: int, stream: int, *args: object) -> None:
            start(gx, gy, gz, *args)

        start.code = code  # type: ignore[attr-defined]  stays mapped while a launch may run it
        checked = kernel.metadata.debug == "check"
        kernel.n_regs = kernel.n_spills = 0
        kernel.n_max_threads = 1
        kernel.function = function
        kernel.launcher = checked_launcher(kernel, start) if checked else launch
        if is_traced(kernel):
            kernel.launcher = traced_launcher(kernel, launch, HostBuffers(False), "ns")
        kernel.module = code

    def address(self, x: object) -> Any:
        refuse_foreign(x, "cpu", "CPU")
        foreign = hasattr(x, "__cuda_array_interface__") or (speaks_dlpack(x) and on_cuda(x))
        if foreign and not is_numpy(x):
            raise ForeignPointerError(device="cuda", place="CPU")
        return super().address(x)

    def arguments(self, kernel: CompiledKernel, args: Iterable[object]) -> Iterable[Any]:
        """Return the arrays themselves for a checked build, which checks their extents."""
        if kernel.metadata.debug == "check":
            return map(number, args)
        return super().arguments(kernel, args)

    def check_arrays(self, kernel: CompiledKernel, args: Sequence[object]) -> None:
        super().check_arrays(kernel, args)
        assumed = getattr(kernel.metadata, "assumed_disjoint", None)
        if not assumed:
            return
        given, kinds = list(kernel.arguments(args)), kernel.metadata.args
        kinds = kinds[: -len(TRACE_ADDED)] if is_traced(kernel) else kinds
        # The launcher reports a wrong number of arguments.
        if len(given) == len(kinds) and violates(assumed, kinds, given, range_of=_trusting):
            raise LaunchError(
                f"two arrays of kernel {kernel.name} share memory, which this build does not expect",
                help="launch by the kernel function, or compile with may_overlap=True",
            )

    def native_start(self, kernel: CompiledKernel, device: int) -> Start | None:
        if kernel.metadata.debug == "check" or is_traced(kernel):
            return None

        def fail(status: int) -> None:
            raise cpu_failure(kernel, status)

        return Start(
            cuda=False, entry=launch_address(), function=kernel.function,
            config=launch_needs(kernel.metadata), pool=get_pool(_threads(kernel)).handle,
            stream=None, device=0, fail=fail, keep=kernel.module,
        )  # fmt: skip


def _threads(kernel: CompiledKernel) -> int | None:
    """Return how many threads run a kernel: one if its programs print, which they do in their order then."""
    return 1 if getattr(kernel.metadata, "in_order", False) else knobs.runtime.num_threads


def _trusting(x: object) -> tuple[int, int]:
    """Return `memory_range`, or one byte for a raw address: the caller is responsible for the memory behind it."""
    return (x, 1) if isinstance(x, int) else memory_range(x)


def cpu_failure(kernel: CompiledKernel, status: int) -> Exception:
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
    on_host = True

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("interpreter", "numpy", 1)

    def address(self, x: object) -> Any:
        return number(x)  # the interpreter needs the arrays themselves, whose extents it checks

    def load_kernel(self, kernel: CompiledKernel) -> None:
        module = parse_module(kernel.asm["tir"])
        run = importlib.import_module("tessera.interp").run  # needs NumPy, which is slow to import
        if getattr(kernel.metadata, "locations", None):
            unpack_locations(module, kernel.metadata.locations)

        def launch(gx: int, gy: int, gz: int, stream: int, *args: object) -> None:
            with hosted(args) as host:
                try:
                    run(module, (gx, gy, gz), host)
                except TesseraError as error:
                    raise noted(error, kernel) from None

        kernel.n_regs = kernel.n_spills = 0
        kernel.n_max_threads = 1
        if is_traced(kernel):
            launch = traced_launcher(kernel, launch, HostBuffers(True), "records")
        kernel.function, kernel.launcher, kernel.module = module, launch, module
