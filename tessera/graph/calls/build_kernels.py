"""Builds the kernels of a plan: equal ones once, several at a time, through the disk cache of compiled kernels."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from typing import Any

from tessera.backends.compiler import GPUTarget
from tessera.backends.cpu.pool import default_threads
from tessera.compiler import CompiledKernel, TextSource
from tessera.compiler import compile as compile_kernel
from tessera.config import knobs
from tessera.errors import LaunchError
from tessera.graph.emit.kernel import KernelCode
from tessera.graph.planning.plan import Launch, Plan
from tessera.graph.planning.planner import instead
from tessera.runtime.cache.disk import toolchain_fingerprint
from tessera.runtime.cache.managers import kernel_cache
from tessera.runtime.driver import driver_named

# Kernels that threads compile beside each other: the GPU's assembler runs in processes of its own.
AT_ONCE = 8
# Worker processes pay from so many kernels on that no cache has, on so many cores: each takes half a second of one to
# start. On two busy cores they made the kernels of a small transformer take 1.6x as long.
WORTH_WORKERS, WORTH_CORES = 12, 4


REPRODUCE = """\
from tessera.backends.compiler import GPUTarget
from tessera.compiler import TextSource, compile

source = TextSource(open({path!r}).read(), {name!r}, "")
compile(source, {target!r}, {options!r})
"""


class NotThere(Exception):
    """No cache has a kernel."""


class Kernels:
    """Compiled kernels by name, which tells their content. `contract`: whether a * b + c may be rounded once."""

    def __init__(self, target: GPUTarget, contract: bool = True):
        self.target, self.contract = target, contract
        self.compiled: dict[str, CompiledKernel] = {}

    def build(self, plan: Plan) -> None:
        """Compile what the plan launches."""
        codes = {s.code.name: s.code for s in plan.steps if isinstance(s, Launch)}
        new = [code for name, code in codes.items() if name not in self.compiled]
        made = self._made(new)
        failed = {c.name: k for c, k in zip(new, made, strict=True) if isinstance(k, Exception)}
        for number, step in enumerate(plan.steps):
            if isinstance(step, Launch) and (error := failed.get(step.code.name)) is not None:
                if step.op is None:
                    raise error
                plan.steps[number] = instead(step.op, error, self._reproducer(step.code))
        self.compiled.update(
            (c.name, k) for c, k in zip(new, made, strict=True) if not isinstance(k, Exception)
        )

    def _made(self, codes: Sequence[KernelCode]) -> list[CompiledKernel | Exception]:
        """The compiled kernels, or why there is none: what the disk cache does not have in worker processes, if that is
        much, since LLVM and Python let one thread at a time compile."""
        made = [self._compile(code, _refuse) for code in codes]
        missing = [k for k, found in enumerate(made) if isinstance(found, NotThere)]
        workers: Any = None
        wanted = knobs.autotuning.processes is not None or default_threads() >= WORTH_CORES
        if wanted and len(missing) >= WORTH_WORKERS:
            module = import_module("tessera.runtime.autotuner.compile_workers")
            workers = module.shared_workers({})
        new = [codes[k] for k in missing]
        if workers is not None:
            jobs = [workers.submit(self._compile, code, workers.run_stages) for code in new]
            found = [job.result() for job in jobs]
        elif self.target.backend == "cpu" or len(new) < 2:
            found = list(map(self._compile, new))
        else:
            with ThreadPoolExecutor(AT_ONCE, "tessera-graph") as pool:
                found = list(pool.map(self._compile, new))
        for k, kernel in zip(missing, found, strict=True):
            made[k] = kernel
        return made

    def _options(self, code: KernelCode) -> dict[str, object]:
        options: dict[str, object] = {"num_warps": code.warps}
        contract = self.contract and code.contract
        return options if contract else {**options, "enable_fp_fusion": False}

    def _reproducer(self, code: KernelCode) -> Path | None:
        """A folder with a kernel that does not compile, and a program that shows it; None where a fault is an error."""
        if knobs.compilation.strict:
            return None
        folder = Path(tempfile.mkdtemp(prefix="tessera-reproducer-"))
        text = folder / f"{code.name}.tir"
        text.write_text(code.text)
        (folder / "run.py").write_text(
            REPRODUCE.format(
                path=str(text), name=code.name, target=self.target, options=self._options(code)
            )
        )
        return folder

    def _compile(self, code: KernelCode, run_stages: Any = None) -> CompiledKernel | Exception:
        source = TextSource(code.text, code.name, "")
        try:
            return compile_kernel(
                source, self.target, self._options(code), store=kernel_cache(),
                toolchain=toolchain_fingerprint(), run_stages=run_stages,
            )  # fmt: skip
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


def _refuse(*given: Any) -> Any:
    raise NotThere
