"""The device `simt`: kernels compiled for an NVIDIA GPU up to LLVM IR and run by the simulator, without a GPU.

`pytest tests/lang --device simt` checks layouts, passes and the SIMT lowering against the meaning of the language.
TESSERA_SIMT_CAPABILITY (default 90) chooses the GPU, TESSERA_SIMT_CTAS (default 1) over how many blocks programs are
spread that do not say it.
"""

# pyright: basic
from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from tessera.analysis.intervals import evaluate, holds
from tessera.backends.compiler import GPUTarget, Options, Stage
from tessera.backends.nvidia.backend import NvidiaBackend
from tessera.runtime.variants import unguarded
from tests.unit.simt_simulator import run_kernel

compile_module: Any = importlib.import_module("tessera.compiler.compile")
driver_module: Any = importlib.import_module("tessera.runtime.driver")
BLOCKS = 3  # that run at a time
SCALARS = {"fp32": "float", "fp64": "double", "fp16": "half", "bf16": "bfloat"}


class SimtBackend(NvidiaBackend):
    """NVIDIA's back end without the stages after LLVM IR."""

    name: ClassVar[str] = "simt"
    binary_ext: ClassVar[str] = "llir"

    def parse_options(self, options: Mapping[str, Any]) -> Options:
        ctas = int(os.environ.get("TESSERA_SIMT_CTAS", "1"))
        return super().parse_options({"backend_name": "cuda", "num_ctas": ctas, **options})

    def stages(self, options: Options) -> dict[str, Stage]:
        everything = super().stages(options)
        return {name: everything[name] for name in ("tir", "gir", "llir")}

    def toolchain(self) -> str:
        return "simt"


class SimtDriver(driver_module.InterpreterDriver):
    """Runs the LLVM IR with NumPy."""

    name = "simt"

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("simt", int(os.environ.get("TESSERA_SIMT_CAPABILITY", "90")), 32)

    def load_kernel(self, kernel: Any) -> None:
        metadata = kernel.metadata

        def launch(gx: int, gy: int, gz: int, stream: int, *args: Any) -> None:
            kinds = [k for k in metadata.args if k != "memory"]
            values = [_argument(k, a) for k, a in zip(kinds, args, strict=True)]
            threads, shared = 32 * metadata.warps, max(metadata.shared, 16)
            maps, code = getattr(metadata, "tensor_maps", ()), getattr(metadata, "host_code", ())
            grid = (gx, gy, gz)
            if not guarded(kernel, values, grid):
                other = unguarded(kernel)
                self.load_kernel(other)
                other.launcher(gx, gy, gz, stream, *args)
                return
            blocks = BLOCKS * getattr(metadata, "resident_blocks", 0)
            run_kernel(
                kernel.asm["llir"], kernel.name, values, threads, shared, grid, maps, code,
                metadata.cluster_dims[0], blocks,
            )  # fmt: skip

        kernel.module = kernel.function = "simt"
        kernel.launcher = launch
        kernel.n_regs = kernel.n_spills = 0
        kernel.n_max_threads = 1024


def guarded(kernel: Any, values: list[Any], grid: tuple[int, ...]) -> bool:
    """Whether a launch passes the kernel's guard. Arrays count as aligned, as their copies in the simulator are."""
    numbers = [v.ctypes.data & -16 if isinstance(v, np.ndarray) else v[1] for v in values]
    args = {i: x for i, x in enumerate(numbers) if isinstance(x, int)}
    found = evaluate(getattr(kernel.metadata, "host_code", ()), args, grid)
    return holds(getattr(kernel.metadata, "guard", ()), found)


def _argument(kind: str, value: Any) -> Any:
    while hasattr(value, "base") and not isinstance(value, np.ndarray):
        value = value.base  # the bits of a typed view
    if isinstance(value, np.ndarray):
        return value
    if kind in SCALARS:
        return (SCALARS[kind], float(value))
    return ("i64", int(value or 0))


def install() -> None:
    """Make the device known to the compiler and the runtime."""
    compile_module.BACKENDS["simt"] = SimtBackend
    driver_module._MAKERS["simt"] = SimtDriver
