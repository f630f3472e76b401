"""Builds the kernels of a plan: equal ones once, several at a time, through the disk cache of compiled kernels."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tessera.backends.compiler import GPUTarget
from tessera.compiler import CompiledKernel, TextSource
from tessera.errors import LaunchError
from tessera.graph.emit.kernel import KernelCode
from tessera.graph.plan import Launch, Plan
from tessera.graph.planner import instead
from tessera.runtime.driver import driver_named
from tessera.runtime.jit import compile as compile_kernel

AT_ONCE = (
    8  # kernels that are compiled beside each other: their assembler runs in processes of its own
)


class Kernels:
    """Compiled kernels by name, which tells their content. `contract`: whether a * b + c may be rounded once."""

    def __init__(self, target: GPUTarget, contract: bool = True):
        self.target, self.contract = target, contract
        self.compiled: dict[str, CompiledKernel] = {}

    def build(self, plan: Plan) -> None:
        """Compile what the plan launches."""
        codes = {s.code.name: s.code for s in plan.steps if isinstance(s, Launch)}
        new = [code for name, code in codes.items() if name not in self.compiled]
        if self.target.backend == "cpu" or len(new) < 2:
            made = list(map(self._compile, new))
        else:
            with ThreadPoolExecutor(AT_ONCE, "tessera-graph") as pool:
                made = list(pool.map(self._compile, new))
        failed = {c.name: k for c, k in zip(new, made, strict=True) if isinstance(k, Exception)}
        for number, step in enumerate(plan.steps):
            if isinstance(step, Launch) and (error := failed.get(step.code.name)) is not None:
                if step.op is None:
                    raise error
                plan.steps[number] = instead(step.op, error)
        self.compiled.update(
            (c.name, k) for c, k in zip(new, made, strict=True) if not isinstance(k, Exception)
        )

    def _compile(self, code: KernelCode) -> CompiledKernel | Exception:
        source = TextSource(code.text, code.name, "")
        options: dict[str, Any] = {"num_warps": code.warps}
        if not self.contract:
            options["enable_fp_fusion"] = False
        try:
            return compile_kernel(source, self.target, options)
        except Exception as error:
            return error

    def forbidden(self) -> Mapping[str, set[tuple[int, int]]]:
        """By kernel: pairs of parameters that it takes to be different memory even where offsets are equal."""
        found: dict[str, set[tuple[int, int]]] = {}
        for name, k in self.compiled.items():
            assumed: list[Any] = getattr(k.metadata, "assumed_disjoint", None) or []
            found[name] = {(i, j) for i, j, same in assumed if not same}
        return found

    def load(self, name: str) -> CompiledKernel:
        """A kernel, ready to be launched on the current device."""
        kernel = self.compiled[name]
        kernel.load(driver_named(self.target.backend))
        return kernel

    def check_wide(self, what: str) -> None:
        raise LaunchError(
            f"{what} has 2^31 elements or more", help="kernels of this graph count in 32 bits"
        )
