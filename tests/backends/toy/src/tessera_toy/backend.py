"""The target, its two stages, and the driver that runs their product."""

from __future__ import annotations

from itertools import product
from typing import Any, ClassVar

import numpy as np

from tessera.backends.compiler import Backend, GPUTarget, Options, Stage
from tessera.errors import LaunchError
from tessera.ir import Module, PassManager
from tessera.passes import neutral_pipeline
from tessera.runtime.driver import Driver
from tessera_toy.codegen import generate

TARGET = GPUTarget("toy", "numpy", 1)


class ToyBackend(Backend):
    """Tile IR, simplified; then Python source."""

    name: ClassVar[str] = "toy"
    binary_ext: ClassVar[str] = "py"

    def stages(self, options: Options) -> dict[str, Stage]:
        def tir(module: Module, metadata: dict[str, Any]) -> Module:
            PassManager(neutral_pipeline()).run(module)
            return module

        def py(module: Module, metadata: dict[str, Any]) -> str:
            return generate(module)

        return {"tir": tir, "py": py}

    def toolchain(self) -> str:
        return f"toy 1, numpy {np.__version__}"


class ToyDriver(Driver):
    """Runs the programs of a grid one after the other."""

    name = "toy"

    def get_current_target(self) -> GPUTarget:
        return TARGET

    def address(self, x: Any) -> Any:
        """An array as its elements in one dimension; other arguments as they are."""
        array = x.numpy() if hasattr(x, "numpy") else x
        if not isinstance(array, np.ndarray):
            return x
        if not array.flags.c_contiguous:
            raise LaunchError("the toy back end takes contiguous arrays only")
        return array.reshape(-1)

    def load_kernel(self, kernel: Any) -> None:
        scope: dict[str, Any] = {}
        exec(compile(kernel.asm["py"], f"<{kernel.name}>", "exec"), scope)
        program = scope[kernel.name]

        def launch(gx: int, gy: int, gz: int, stream: int, *args: Any) -> None:
            with np.errstate(all="ignore"):
                for z, y, x in product(range(gz), range(gy), range(gx)):
                    program((x, y, z), (gx, gy, gz), *args)

        kernel.module, kernel.function, kernel.launcher = scope, program, launch
        kernel.n_regs = kernel.n_spills = 0
        kernel.n_max_threads = 1
