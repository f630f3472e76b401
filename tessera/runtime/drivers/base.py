"""Defines the interface of drivers, which load compiled kernels and launch them."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from operator import index
from typing import Any

from tessera.backends.compiler import GPUTarget
from tessera.compiler.kernel import CompiledKernel
from tessera.errors import ForeignPointerError, LaunchError, NoDeviceError, Spelling
from tessera.runtime.arguments.checks import check_memory, names_of
from tessera.runtime.arguments.dlpack import speaks_dlpack
from tessera.runtime.arguments.specialize import address_of_array
from tessera.runtime.arguments.tensors import is_numpy
from tessera.runtime.benchmark import L2_BYTES, Timer, do_bench
from tessera.runtime.native.fast_path import Start
from tessera.utilities import number

INT32_MAX = 2**31 - 1
GRID_HELP = (
    "fold the programs into the other axes, x first, and compute the indices from `tl.program_id`"
)


class Driver:
    """The base class of drivers; each launches kernels on one kind of device."""

    name = ""
    on_host = False  # whether kernels run on the processor that launches them
    grid_limits = (INT32_MAX, INT32_MAX, INT32_MAX)  # programs along each axis

    @staticmethod
    def is_active() -> bool:
        """Whether the machine has what this driver needs."""
        return True

    def get_current_target(self) -> GPUTarget:
        raise NotImplementedError

    def get_device_capability(self, device: int | None = None) -> tuple[int, int]:
        """Return (major, minor) of an NVIDIA device; (0, 0) elsewhere."""
        return 0, 0

    def get_current_device(self) -> int:
        return 0

    def set_current_device(self, device: int) -> None:
        if device != 0:
            raise LaunchError(f"the {self.name} driver has one device, 0; got {device}")

    def get_current_stream(self, device: int | None = None) -> int:
        return 0

    def get_device_properties(self, device: int) -> dict[str, int]:
        """Return sizes and rates; empty if kernels have no such limits."""
        return {}

    def get_active_torch_device(self) -> Any:
        """Return the torch.device of this driver's memory. NoDeviceError if torch has not been imported."""
        place = ("cuda", self.get_current_device()) if self.name == "cuda" else ("cpu",)
        return _torch().device(*place)

    def get_device_interface(self) -> Any:
        """Return torch.cuda, or torch.cpu for host memory. NoDeviceError if torch has not been imported."""
        return getattr(_torch(), "cuda" if self.name == "cuda" else "cpu")

    def get_benchmarker(self) -> Timer:
        """Return the timer of autotuning: `benchmarker(call, quantiles=...)` returns times in ms."""
        return do_bench

    def get_empty_cache_for_benchmark(self) -> Any:
        """Return a torch tensor larger than the device's caches, for `clear_cache`."""
        torch = _torch()
        return torch.empty(L2_BYTES // 4, dtype=torch.int, device=self.get_active_torch_device())

    def clear_cache(self, cache: Any) -> None:
        cache.zero_()

    @property
    def utils(self) -> Driver:
        return self

    def extents(self, grid: Any) -> tuple[int, int, int]:
        """Return a grid's three extents; missing ones are 1. LaunchError unless this driver can start that many
        programs along each axis."""
        if not hasattr(grid, "__len__"):
            shown = repr(grid) if hasattr(grid, "__index__") else "n"
            raise LaunchError(
                f"the grid {grid!r} is no sequence",
                help=f"write a tuple of 1 to 3 ints: `kernel[({shown},)](...)`",
            )
        n = len(grid)
        if not 0 < n < 4:
            shown = "is empty" if n == 0 else f"{grid!r} has {n} extents"
            raise LaunchError(
                f"the grid {shown}", help="give 1 to 3 extents, as `kernel[(n,)](...)`"
            )
        given = (grid[0], grid[1] if n > 1 else 1, grid[2] if n > 2 else 1)
        for x in given:
            if not hasattr(x, "__index__"):
                raise LaunchError(
                    f"the grid {given} has an extent that is no integer: {x!r}",
                    help=f"divide with `{Spelling.package}.cdiv(n, BLOCK)` or `//`",
                )
        found = (index(given[0]), index(given[1]), index(given[2]))
        if min(found) < 0:
            raise LaunchError(
                f"the grid {found} has a negative extent",
                help=f"count programs with `{Spelling.package}.cdiv(n, BLOCK)`; 0 programs are allowed",
            )
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
        """Return what native code needs to start a loaded kernel; None if it cannot."""
        return None

    def check_arrays(self, kernel: CompiledKernel, args: Sequence[object]) -> None:
        """Raise LaunchError if the kernel must not use the arrays as it does, or if their layout is not the one that it
        was compiled for."""
        given = list(kernel.arguments(args))
        signature = getattr(kernel.src, "signature", {})
        whole = len(signature) == len(args)

        def names() -> list[str]:
            if whole:
                return names_of(list(signature), list(signature.values()), args)
            return [f"number {i}" for i in range(len(given))]

        check_memory(kernel, names, given)

    def address(self, x: object) -> Any:
        """Return an argument as the native launcher takes it: arrays without `data_ptr` become addresses."""
        if is_numpy(x) or speaks_dlpack(x):
            return address_of_array(x)
        return number(x)

    def arguments(self, kernel: CompiledKernel, args: Iterable[object]) -> Iterable[Any]:
        """Return all run-time arguments as the kernel's launcher takes them."""
        address = self.address
        return [x if type(x) is int else address(x) for x in args]


def _torch() -> Any:
    torch = sys.modules.get("torch")
    if torch is None:
        raise NoDeviceError("torch is not imported")
    return torch


def refuse_foreign(x: object, kind: str, place: str) -> None:
    """Raise ForeignPointerError for a tensor that names a device of another kind."""
    device = getattr(x, "device", None)
    if getattr(device, "type", kind) != kind:
        raise ForeignPointerError(device=str(device), place=place)
