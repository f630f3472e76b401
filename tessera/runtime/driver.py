"""Registers the drivers, which load compiled kernels and launch them. One is active; by default the arguments choose.

`driver.active` is the driver that was set, or the default one: CUDA if there is a device, else the CPU.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

from tessera.backends.plugins import plugin, plugin_names
from tessera.compiler.kernel import DRIVER_FOR
from tessera.config import epoch, knobs
from tessera.errors import LaunchError
from tessera.language import target_info
from tessera.runtime import benchmark
from tessera.runtime.cuda import driver_api as cuda
from tessera.runtime.drivers.base import Driver
from tessera.runtime.drivers.cuda import CudaDriver
from tessera.runtime.drivers.host import CpuDriver, InterpreterDriver
from tessera.runtime.drivers.simt import SimtDriver
from tessera.runtime.native.array_types import place_of

__all__ = [
    "ActiveDriver", "CpuDriver", "CudaDriver", "Driver", "InterpreterDriver", "SimtDriver", "driver",
    "driver_named",
]  # fmt: skip

_MAKERS: dict[str, Callable[[], Driver]] = {
    "cpu": CpuDriver,
    "interpreter": InterpreterDriver,
    "cuda": CudaDriver,
    "simt": SimtDriver,
}


@cache
def driver_named(name: str) -> Driver:
    """Return the driver "cpu", "cuda", "interpreter" or a plug-in's. NoDeviceError if its device is missing."""
    if name in _MAKERS:
        return _MAKERS[name]()
    offered = plugin(name)
    if offered is None:
        known = ", ".join([*_MAKERS, *plugin_names()])
        raise LaunchError(f"no driver {name!r}", help=f"drivers: {known}")
    return offered.driver()


class ActiveDriver:
    """The class of the `driver` object: `.active`, `.default`, and functions that switch."""

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
        return self._for_all() or self.default

    def _for_all(self) -> Driver | None:
        """The driver of all launches, wherever their arguments lie."""
        if self.chosen is None and knobs.runtime.device:
            return driver_named(knobs.runtime.device)
        return self.chosen

    def on_host(self) -> bool:
        """Whether all launches run on the host, wherever their arguments lie."""
        fixed = self._for_all()
        return fixed is not None and fixed.on_host

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
        """Return the driver that was set, else that of the memory of the first array argument, else the default."""
        fixed = self._for_all()
        if fixed is not None:
            return fixed
        for x in args:
            found = place_of(x)
            if found is not None:
                return driver_named("cuda") if found == "cuda" else _CPU()
        return self.default

    def for_launch(self, pairs: Iterable[Any], values: Iterable[Any]) -> Driver:
        """Return the driver of a launch with these specialised arguments. Compile-time values do not count, even if
        they look like arrays."""
        run_time = (x for p, x in zip(pairs, values, strict=True) if p[0] != "constexpr")
        return self.for_arguments(run_time)


def _CPU() -> Driver:
    name = knobs.runtime.default_backend
    return driver_named("cpu" if name in (None, "cuda") else name)


driver = ActiveDriver()
DRIVER_FOR.append(lambda target: driver_named(target.backend))
target_info.LAUNCHES.append(lambda: driver.active.get_current_target())
benchmark.ON_HOST.append(driver.on_host)


def _after_fork() -> None:
    epoch.value += 1  # the parent's thread pools do not exist here


os.register_at_fork(after_in_child=_after_fork)
