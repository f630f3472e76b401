"""Compiles a kernel for an NVIDIA GPU without launching it, and runs its LLVM IR in the simulator."""

# pyright: basic
from __future__ import annotations

import re
from typing import Any

import numpy as np

from tessera.backends.compiler import GPUTarget
from tessera.backends.llvm import binding
from tessera.backends.nvidia import ptxas
from tessera.backends.nvidia.backend import NvidiaBackend, architecture
from tessera.backends.nvidia.simulator import Report, run_kernel
from tessera.compiler.source import ASTSource

SCALARS = {"fp32": "float", "fp64": "double", "i32": "i32", "i64": "i64", "u32": "i32"}


class Compiled:
    """`ir` and, on demand, `ptx` and `assembled` of one kernel."""

    def __init__(
        self,
        fn: Any,
        signature: dict,
        constants: dict,
        cc: int = 90,
        aligned: bool = True,
        **options,
    ) -> None:
        self.types = [t for t in signature.values() if t != "constexpr"]
        facts = {
            (i,): [["tt.divisibility", 16]]
            for i, t in enumerate(signature.values())
            if aligned and t.startswith("*")
        }
        self.cc, self.name = cc, fn.__name__
        backend = NvidiaBackend(GPUTarget("cuda", cc, 32))
        self.options = backend.parse_options(options)
        stages = backend.stages(self.options)
        self.metadata: dict[str, Any] = {}
        product = ASTSource(fn, signature, constants, facts).make_ir(self.options)
        for name in ("tir", "gir", "llir"):
            product = stages[name](product, self.metadata)
        self.ir: str = product
        self.ptx: str = binding.optimise(product, binding.nvptx(architecture(cc)), "").to_assembly()

    def assemble(self) -> ptxas.Assembled:
        return ptxas.assemble(self.ptx, architecture(self.cc))

    def count(self, pattern: str) -> int:
        """Instructions of the PTX that match."""
        return len(re.findall(pattern, self.ptx))

    def run(self, *args: Any, grid: tuple[int, int, int] = (1, 1, 1)) -> Report:
        values = [
            a if isinstance(a, np.ndarray) else (SCALARS[t], a)
            for t, a in zip(self.types, args, strict=True)
        ]
        threads, shared = 32 * self.options.num_warps, max(self.metadata["shared"], 16)
        return run_kernel(self.ir, self.name, values, threads, shared, grid)
