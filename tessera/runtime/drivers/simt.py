"""Implements the driver of the simulator: kernels compiled for an NVIDIA GPU run lane by lane in NumPy, without a
GPU."""

from __future__ import annotations

import importlib
from typing import Any

from tessera.backends.compiler import GPUTarget
from tessera.compiler.kernel import CompiledKernel
from tessera.config import knobs
from tessera.runtime.drivers.checked import hosted
from tessera.runtime.drivers.host import InterpreterDriver
from tessera.runtime.drivers.traced import HostBuffers, is_traced, traced_launcher
from tessera.runtime.drivers.variants import fallback_of

CTAS = 3  # running at a time
THREADS = 1024  # of the largest CTA


class SimtDriver(InterpreterDriver):
    """Runs the LLVM IR of the SIMT lowering. Arguments are NumPy arrays or tensors of the host."""

    name = "simt"

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("simt", knobs.simulator.capability or 90, 32)

    def get_device_capability(self, device: int | None = None) -> tuple[int, int]:
        return divmod(knobs.simulator.capability or 90, 10)

    def load_kernel(self, kernel: CompiledKernel) -> None:
        # Needs NumPy, which is slow to import.
        simulator: Any = importlib.import_module("tessera.backends.nvidia.simulator")

        def run(of: CompiledKernel, grid: tuple[int, int, int], args: list[Any]) -> None:
            metadata: Any = of.metadata
            kinds = [k for k in metadata.args if k != "memory"]
            values = [simulator.argument(k, a) for k, a in zip(kinds, args, strict=True)]
            if not simulator.precondition_holds(metadata, values, grid):
                run(fallback_of(of), grid, args)
                return
            of.simulation = kernel.simulation = simulator.run_kernel(
                of.asm["llir"], of.name, args, 32 * metadata.warps, max(metadata.shared, 16), grid,
                getattr(metadata, "tensor_maps", ()), getattr(metadata, "host_code", ()), metadata.cluster_dims[0],
                CTAS * getattr(metadata, "resident_ctas", 0), kinds=kinds,
            )  # fmt: skip

        def launch(gx: int, gy: int, gz: int, stream: int, *args: object) -> None:
            with hosted(args) as host:
                run(kernel, (gx, gy, gz), host)

        kernel.n_regs = kernel.n_spills = 0
        kernel.n_max_threads = THREADS
        kernel.function = kernel.module = "simt"
        kernel.launcher = launch
        if is_traced(kernel):
            most = CTAS * getattr(kernel.metadata, "resident_ctas", 0)
            kernel.launcher = traced_launcher(kernel, launch, HostBuffers(True), "steps", most)
