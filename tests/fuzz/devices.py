"""Runs a kernel's case on one device: arrays between canaries, launches, what they leave."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from tessera.backends.compiler import GPUTarget
from tessera.backends.cpu.target import lacking
from tessera.config import knobs
from tessera.config.optimizations import ALL, OPTIMIZATIONS
from tessera.runtime.arguments.descriptor import TensorDescriptor
from tessera.runtime.driver import CpuDriver, InterpreterDriver, driver
from tests.conftest import as_dtype, encode, is_native, numpy_name
from tests.fuzz.case import CANARY, Array, Case, load_kernel
from tests.fuzz.plans import replanned

ISAS = ("generic", "avx2", "avx512", "amx")
PATTERN = 0x5A  # every byte of a canary
TORCH = {"bf16": "bfloat16", "fp8e4nv": "float8_e4m3fn", "fp8e5": "float8_e5m2"}
BUILDS = ("sm80", "sm90")  # compiled and assembled, not run
CHECKS = ("check80", "check90")  # compiled up to GPU IR, for the checks between and behind passes
REPLANNED = "replanned"  # "simt/replanned" changes the schedules of loops
WITHOUT = "without:"  # "cpu/without:NAME" leaves out the named optimisation


class Unsteady(Exception):
    """Launches of one kernel with the same arguments left different results, or an input was changed."""


class IsaDriver(CpuDriver):
    """Native code for one instruction set level."""

    def __init__(self, isa: str) -> None:
        self.isa = isa

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cpu", self.isa, 1)


class BuildDriver(InterpreterDriver):
    """Compiles for an NVIDIA GPU as a launch there would, and launches nothing."""

    name: ClassVar[str] = "cuda"

    def __init__(self, capability: int) -> None:
        self.capability = capability

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self.capability, 32)

    def load_kernel(self, kernel: Any) -> None:
        def launch(gx: int, gy: int, gz: int, stream: int, *args: Any) -> None:
            del gx, gy, gz, stream, args

        kernel.module = kernel.function = "build"
        kernel.launcher = launch
        kernel.n_regs = kernel.n_spills = 0
        kernel.n_max_threads = 1024


def on_host(device: str) -> bool:
    """A program is one thread."""
    return device.partition("/")[0] in ("cpu", *ISAS)


def is_run(device: str) -> bool:
    """Kernels run there, and are not compiled only."""
    return device.partition("/")[0] not in (*BUILDS, *CHECKS)


def isas() -> list[str]:
    """The instruction set levels that this machine runs."""
    return [x for x in ISAS if not lacking("baseline" if x == "generic" else x)]


def bits_of(array: Array, seed: int, magnitudes: bool = False) -> np.ndarray:
    """The memory of one array with its canaries, as elements of its type (or as its bits, where NumPy lacks it)."""
    kind = as_dtype(array.dtype)
    with np.errstate(all="ignore"):
        values = array.values(seed, magnitudes)
        if array.fill == "codes":
            width = 1 if kind.is_fp8() else 2
            own = values.astype(f"u{width}").view(
                np.float16 if kind.name == "fp16" else f"u{width}"
            )
        else:
            own = values.astype(numpy_name(kind)) if is_native(kind) else encode(values, kind)
    room = np.full((own.size + 2 * CANARY + array.offset) * own.itemsize + 64, PATTERN, np.uint8)
    start = -room.ctypes.data % 64
    memory = room[start : start + (own.size + 2 * CANARY + array.offset) * own.itemsize].view(
        own.dtype
    )
    memory[_inside(array)] = own
    return memory


def _inside(array: Array) -> slice:
    first = CANARY + array.offset
    return slice(first, first + array.size)


class Memory:
    """All arrays of a case on one device; `arguments` are what the kernel is given."""

    def __init__(self, case: Case, magnitudes: bool = False) -> None:
        self.case = case
        own = [a for a in case.arrays if not a.same_as]
        self.blocks = {a.name: bits_of(a, case.seed, magnitudes) for a in own}

    def root(self, array: Array) -> Array:
        named = {a.name: a for a in self.case.arrays}
        return named[array.same_as] if array.same_as else array

    def view(self, array: Array, block: Any) -> Any:
        inside = _inside(self.root(array))
        first = inside.start + (array.offset if array.same_as else 0)
        return block[first : first + array.size]

    def arguments(self) -> list[Any]:
        case, made = self.case, {}
        for a in case.arrays:
            block = self.blocks[self.root(a).name]
            kind = as_dtype(a.dtype)
            view = self.view(a, block)
            made[a.name] = view if is_native(kind) else _typed(view, kind)
        for d in case.descriptors:
            made[d.name] = TensorDescriptor(made[d.base], d.shape, d.strides, d.block)
        return [made[p] if p in made else case.scalars[p] for p in case.order]

    def results(self) -> dict[str, np.ndarray]:
        """The whole memory of every array, canaries included: one that is only read must stay as it is, too."""
        return self.blocks


def _typed(bits: np.ndarray, kind: Any) -> Any:
    from tessera.runtime.arguments.tensors import reinterpret

    return reinterpret(bits, kind)


def driver_of(name: str) -> Any:
    """cpu (the machine's own ISA), generic, avx2, …, interpreter, simt, sm90, sm80, check90, check80."""
    if name in ISAS:
        return IsaDriver(name)
    if name in (*BUILDS, *CHECKS):
        return BuildDriver(int(name[-2:]))
    return name


@contextmanager
def up_to_gpu_ir() -> Iterator[None]:
    """Compile no further: LLVM and ptxas take longer than all passes."""

    def cut(backend: Any, stages: dict[str, Any], *more: Any) -> None:
        del backend, more
        for name in list(stages)[list(stages).index("gir") + 1 :]:
            del stages[name]

    with knobs.scope():
        knobs.runtime.add_stages_inspection_hook = lambda *given: cut(*given) if given else ("", "")
        yield


def run(case: Case, device: str, twin: bool = False) -> dict[str, np.ndarray]:
    """Launch once (on `cuda`: many times, see cuda.py); gives every array's memory afterwards."""
    name, _, setting = device.partition("/")
    if setting.startswith(WITHOUT):
        left_out = {"disable_optimizations": setting.removeprefix(WITHOUT)}
        case = replace(case, options={**case.options, **left_out})
    if name == "cuda":
        from tests.fuzz.cuda import run_cuda

        return run_cuda(case)
    spoil = os.environ.get("TESSERA_FUZZ_SPOIL", "") if name != "interpreter" else ""
    memory = Memory(case, twin)
    kernel = load_kernel(case.twin if twin else case.source)
    driver.set_active(driver_of(name))
    try:
        with (
            up_to_gpu_ir() if name in CHECKS else nullcontext(),
            replanned(case.seed) if setting == REPLANNED else nullcontext(),
        ):
            launch(kernel, case, memory.arguments())
    finally:
        driver.reset_active()
    return spoilt(case, memory.results(), spoil) if spoil else memory.results()


def spoilt(case: Case, results: dict[str, np.ndarray], how: str) -> dict[str, np.ndarray]:
    """For tests of the fuzzer: a fault in kernels with some text, or a crash or hang of those with a number."""
    if f"crash:{case.seed}," in how + ",":
        os.abort()
    if f"hang:{case.seed}," in how + ",":
        time.sleep(3600)
    if how in case.source:
        output = next(a for a in case.arrays if a.output)
        results[output.name][_inside(output)] += 1
    return results


def launch(kernel: Any, case: Case, arguments: Sequence[Any]) -> Any:
    return kernel[case.grid](*arguments, **case.options)


def optimisations(device: str) -> list[str]:
    """Names of the optimisations that can be left out for a device, and the word for all of them."""
    target = "cpu" if on_host(device) else "gpu"
    return [*(row.name for row in OPTIMIZATIONS.values() if target in row.targets.split()), ALL]
