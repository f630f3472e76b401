"""A CUDA driver that notes what it is asked for."""

from __future__ import annotations

from typing import Any

from tessera.runtime.cuda import abi as cuda_abi
from tessera.runtime.cuda.driver_api import LaunchConfig


class Fake:
    """Answers like libcuda on a machine with one Hopper; `calls` records name and arguments."""

    def __init__(self, **results: int) -> None:
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        self.results = results
        self.context = 0
        self.launches: list[tuple[list[int], list[int], int, int, list[tuple[int, list[int]]]]] = []

    def __getattr__(self, name: str) -> Any:
        assert name in cuda_abi.SIGNATURES, f"no signature for {name}"

        def function(*args: Any) -> int:
            assert len(args) == len(cuda_abi.SIGNATURES[name]), name
            self.calls.append((name, args))
            self.answer(name, args)
            return self.results.get(name, 0)

        return function

    def answer(self, name: str, args: tuple[Any, ...]) -> None:
        values: dict[str, Any] = {
            "cuDeviceGetCount": 1,
            "cuDriverGetVersion": 13000,
            "cuDeviceTotalMem_v2": 1 << 37,
            "cuDevicePrimaryCtxRetain": 0xC0,
            "cuCtxGetCurrent": self.context,
            "cuModuleLoadData": 0x30,
            "cuModuleGetFunction": 0x40,
            "cuMemAlloc_v2": 0x7F0000000000,
            "cuStreamCreate": 0x50,
            "cuEventCreate": 0x60,
            "cuEventElapsedTime": 1.5,
        }
        if name in values:
            args[0]._obj.value = values[name]
        elif name == "cuDeviceGetAttribute":
            args[0]._obj.value = {1: 1024, 97: 232448, 16: 132, 75: 9, 76: 0, 10: 32}.get(
                args[1], 7
            )
        elif name == "cuOccupancyMaxActiveClusters":
            config = LaunchConfig.from_address(args[2])
            args[0]._obj.value = 132 // config.grid[0] - 3
        elif name == "cuFuncGetAttribute":
            args[0]._obj.value = {0: 1024, 1: 64, 3: 16, 4: 168}[args[1]]
        elif name == "cuDeviceGetName":
            args[0].value = b"NVIDIA H100"
        elif name == "cuCtxSetCurrent":
            self.context = args[0]
        elif name == "cuPointerGetAttribute":
            args[0]._obj.value = args[2] + 1
        elif name == "cuGetErrorName":
            args[1]._obj.value = b"CUDA_ERROR_TEST"
        elif name == "cuGetErrorString":
            args[1]._obj.value = b"the text"
        elif name == "cuLaunchKernelEx":
            c = args[0]._obj
            attributes = [
                (c.attributes[i].id, list(c.attributes[i].value)[:3]) for i in range(c.count)
            ]
            self.launches.append((list(c.grid), list(c.block), c.shared, c.stream or 0, attributes))

    def names(self) -> list[str]:
        return [name for name, _ in self.calls]
