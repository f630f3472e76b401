# ruff: noqa: E501  texts are as wide as they are
"""Full texts of the errors that no line of a kernel causes, and the proof that no class of the catalogue lacks a text."""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

import tessera
import tessera.language as tl
from tessera import errors
from tessera.analysis.synchronization import check_synchronization
from tessera.backends import plugins
from tessera.backends.nvidia.ptxas import assemble
from tessera.backends.nvidia.simulator import run_kernel
from tessera.config import knobs
from tessera.config.budget import budget, check_budget
from tessera.interp import run
from tessera.ir import parse_module, verify
from tessera.runtime.driver import CudaDriver, driver, driver_named
from tessera.tools.error_catalogue import catalogue
from tessera.tools.tensor_descriptor import TensorDescriptor
from tests.compat_parts import install
from tests.errors import (
    checked_launches,
    control_flow_and_syntax,
    names_and_types,
    operations,
    races,
)

KERNELS: tuple[Any, ...] = (
    checked_launches, control_flow_and_syntax, names_and_types, races
)  # fmt: skip

CASES: list[Any] = []
Trigger = Callable[[pytest.MonkeyPatch, Path], Any]


def case(kind: type, text: str) -> Callable[[Trigger], Trigger]:
    """Register a function that makes tessera raise an error of this class with this text."""

    def register(trigger: Trigger) -> Trigger:
        CASES.append(pytest.param(kind, trigger, text, id=kind.__name__))
        return trigger

    return register


FACTOR = tl.constexpr(2)
UNORDERED = """
#0 = ll<[128] lane=[[1],[2],[4],[8],[16]] warp=[[32],[64]]>
#1 = ll<[128] offset=[[1],[2],[4],[8],[16],[32],[64]]>
module {num_warps=4, shared=512} {
  func {name='k'} (%p: *fp32) {
    %x: shared<128xfp32, #1> = local_alloc _ {offset=0}
    %v: tile<128xfp32, #0> = const {value=float('0x1.0p+0')}
    local_store %v, %x
    %w: tile<128xfp32, #0> = local_load %x, _
    return []
  }
}
"""


@tessera.jit
def scaled(p, n):
    tl.store(p + tl.arange(0, 4), tl.arange(0, 4) * FACTOR + n)


class Fake:
    """A tensor that has a size, but no memory."""

    device, dtype, is_cuda = "cpu", np.dtype("float32"), False

    def data_ptr(self) -> int:
        return 0

    def untyped_storage(self) -> Any:
        return SimpleNamespace(nbytes=lambda: 16)


@tessera.jit
def times_factor(x):
    return x * FACTOR


@tessera.jit
def uses_factor(p):
    tl.store(p, times_factor(1.0))


@tessera.jit
def calls_scaled(p):
    tl.store(p, times_factor(1.0) + FACTOR)


@case(
    errors.HostOnly,
    """
    error[host-only]: Cannot call @tessera.jit'd outside of the scope of a kernel
      = help: launch a kernel with a grid: `scaled[grid](...)`
""",
)
def call_a_kernel(patch: pytest.MonkeyPatch, folder: Path) -> None:
    scaled(np.zeros(4, np.float32), 3)


@case(
    errors.KernelOnly,
    """
    error[kernel-only]: Did you forget to add @tessera.jit ? (`arange` can only be called inside a kernel)
      = help: put `@tessera.jit` on the function that calls it, and launch that with `function[grid](...)`
""",
)
def call_an_operation(patch: pytest.MonkeyPatch, folder: Path) -> None:
    tl.arange(0, 4)


@case(
    errors.ChangedGlobal,
    """
    error[changed-global]: Global variable FACTOR has changed since we compiled this kernel, from 2 to 3
      = help: pass a value that changes as a `tl.constexpr` parameter
""",
)
def change_a_global(patch: pytest.MonkeyPatch, folder: Path) -> None:
    scaled[(1,)](np.zeros(4, np.float32), 3)
    patch.setitem(globals(), "FACTOR", tl.constexpr(3))
    scaled[(1,)](np.zeros(4, np.float32), 3)


@case(
    errors.ConflictingGlobal,
    """
    error[conflicting-global]: Global variable FACTOR has value 3 when compiling calls_scaled, but inner kernel times_factor has conflicting value 2 from when it was first compiled.
      = help: pass a value that changes as a `tl.constexpr` parameter
""",
)
def change_a_global_between(patch: pytest.MonkeyPatch, folder: Path) -> None:
    patch.setitem(globals(), "FACTOR", tl.constexpr(2))
    patch.setattr(times_factor, "hash", None)
    uses_factor[(1,)](np.zeros(4, np.float32))
    patch.setitem(globals(), "FACTOR", tl.constexpr(3))
    calls_scaled[(1,)](np.zeros(4, np.float32))


@case(
    errors.LaunchError,
    """
    error[launch]: the grid (2, -1, 1) has a negative extent
      = help: count programs with `tessera.cdiv(n, BLOCK)`; 0 programs are allowed
""",
)
def negative_grid(patch: pytest.MonkeyPatch, folder: Path) -> None:
    scaled[(2, -1)](np.zeros(4, np.float32), 3)


@case(
    errors.UnknownOptimization,
    """
    error[unknown-optimization]: there is no optimisation 'prefecth'; near names: prefetch, row-prefetch, tile-prefetch
      = help: docs/optimizations.md lists all of them; write names with commas in between, or `all`
""",
)
def misspelt_optimization(patch: pytest.MonkeyPatch, folder: Path) -> None:
    knobs.compilation.disable = "cse,prefecth"


@case(
    errors.InvalidArguments,
    """
    error[launch-arguments]: scaled() got an unexpected keyword argument 'm', and misses 'n'
      = help: the parameters of scaled are p, n
""",
)
def another_argument(patch: pytest.MonkeyPatch, folder: Path) -> None:
    scaled[(1,)](np.zeros(4, np.float32), m=3)  # pyright: ignore[reportCallIssue]


@case(
    errors.UnknownKeyword,
    """
    error[unknown-keyword]: Config() got an unexpected keyword argument 'num_wraps'
      = help: did you mean `num_warps`?
""",
)
def misspelt_keyword(patch: pytest.MonkeyPatch, folder: Path) -> None:
    tessera.Config({}, num_wraps=4)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


@case(
    errors.ArgumentOverflow,
    """
    error[argument-overflow]: the integer argument 18446744073709551616 does not fit 64 bits
      = note: it is the argument `n` of scaled
      = help: pass a smaller number, or a part of it, or a float
""",
)
def large_number(patch: pytest.MonkeyPatch, folder: Path) -> None:
    scaled[(1,)](np.zeros(4, np.float32), 1 << 64)


@case(
    errors.InvalidDescriptor,
    """
    error[descriptor]: Last dimension must be contiguous
      = help: the strides are (1, 4): describe a contiguous copy of the array
""",
)
def described_columns(patch: pytest.MonkeyPatch, folder: Path) -> None:
    TensorDescriptor.from_tensor(np.zeros((4, 4), np.float32).T, [4, 4])


@case(
    errors.UnknownOption,
    """
    error[unknown-option]: Keyword argument num_wraps was specified but unrecognised
      = help: did you mean `num_warps`?
""",
)
def misspelt_option(patch: pytest.MonkeyPatch, folder: Path) -> None:
    scaled[(1,)](np.zeros(4, np.float32), 3, num_wraps=4)  # pyright: ignore[reportCallIssue]


@case(
    errors.InvalidOption,
    """
    error[launch-option]: num_warps must be a power of 2
      = help: got num_warps=3; take 1, 2, 4, 8, 16 or 32
""",
)
def odd_warps(patch: pytest.MonkeyPatch, folder: Path) -> None:
    scaled[(1,)](np.zeros(4, np.float32), 3, num_warps=3)


@case(
    errors.ForeignSpecialization,
    """
    error[foreign-specialization]: Specialization data is for other.kernel but trying to preload for {module}.scaled
      = help: give `preload` the `specialization_data` that a compile hook got for this kernel and target
""".replace("{module}", __name__),
)
def foreign_specialization(patch: pytest.MonkeyPatch, folder: Path) -> None:
    scaled.preload('{"name": "other.kernel", "target": [], "kinds": [], "keys": [], "options": {}}')


@case(
    errors.ForeignPointerError,
    """
    error[foreign-pointer]: An array on device 'cuda' cannot be accessed from the CPU
      = help: move all arrays of a launch to one device; the first of them decides where the kernel runs
""",
)
def array_of_a_gpu(patch: pytest.MonkeyPatch, folder: Path) -> None:
    array = SimpleNamespace(__cuda_array_interface__={"data": (16, False), "typestr": "<f4"})
    driver_named("cpu").address(array)


@case(
    errors.ReadOnlyArgument,
    """
    error[read-only-argument]: kernel scaled writes to its parameter `p`, but the NumPy array given for it is read-only
      = help: give it a copy that may be written, as `numpy.array(x)`, or an array made for the result
""",
)
def read_only_array(patch: pytest.MonkeyPatch, folder: Path) -> None:
    scaled[(1,)](np.broadcast_to(np.float32(1), (4,)).reshape(4), 2)


@case(
    errors.MissingMemory,
    """
    error[missing-memory]: the Fake given for the parameter `p` of kernel scaled has no memory (its device is 'cpu')
      = help: launch with a tensor that has data; to compile only, call `scaled.warmup(..., grid=...)`
""",
)
def tensor_without_memory(patch: pytest.MonkeyPatch, folder: Path) -> None:
    scaled[(1,)](Fake(), 2)


@case(
    errors.StridedArgument,
    """
    error[strided-argument]: the array given for the parameter `p` of kernel scaled has strides (-1,), in elements, for its shape (4,), and none of them is an argument of the launch: the kernel would leave its memory
      = help: a kernel gets the address of the first element: give `numpy.ascontiguousarray(p)`, copied back if the kernel writes there, or pass the strides (`p.strides[i] // p.itemsize`)
""",
)
def reversed_array(patch: pytest.MonkeyPatch, folder: Path) -> None:
    scaled[(1,)](np.zeros(4, np.float32)[::-1], 2)


@case(
    errors.SpecializationError,
    """
    error[argument-type]: failed to specialize argument of type: object
      = note: it is the argument `n` of scaled
      = help: pass a tensor, an int, a float, a bool or None; annotate other values `: tl.constexpr`
""",
)
def odd_argument(patch: pytest.MonkeyPatch, folder: Path) -> None:
    scaled[(1,)](np.zeros(4, np.float32), object())


@case(
    errors.AutotunerError,
    """
    error[autotuner]: No valid autotuner configs after pruning of scaled. `early_config_prune` must leave at least one config.
      = help: let it return `configs[:1]` where nothing fits its rule
""",
)
def prune_everything(patch: pytest.MonkeyPatch, folder: Path) -> None:
    configs = [tessera.Config({}, num_warps=w) for w in (1, 2)]
    prune = {"early_config_prune": lambda configs, named_args, **kwargs: []}
    tessera.autotune(configs, key=["n"], prune_configs_by=prune)(scaled)[(1,)](
        np.zeros(4, np.float32), 3
    )


@case(
    errors.NoDeviceError,
    """
    error[no-device]: torch is not imported
""",
)
def device_of_torch(patch: pytest.MonkeyPatch, folder: Path) -> None:
    patch.delitem(sys.modules, "torch", raising=False)
    driver_named("cpu").get_active_torch_device()


@case(
    errors.OutOfResources,
    """
    error[out-of-resources]: out of resource: threads, Required: 2048, Hardware limit: 1024.
      = help: Reducing block sizes or `num_stages` may help.
""",
)
def too_many_threads(patch: pytest.MonkeyPatch, folder: Path) -> None:
    driver.set_active("cpu")
    kernel = scaled.warmup(np.zeros(4, np.float32), 3, grid=(1,), num_warps=64)
    kernel.check_resources(1 << 16, 1024, 32)


@case(
    errors.InterpreterError,
    """
    error[interpreter]: buffer 3 of a ring of 2
      = note: program (0, 0, 0)
""",
)
def beyond_the_ring(patch: pytest.MonkeyPatch, folder: Path) -> None:
    ring, slot = shared_type(2, 8), shared_type(8)
    body = f"%r: {ring} = local_alloc _\n%i: i32 = const {{value=3}}\n%b: {slot} = local_index %r, %i\n"
    run(parse_module("module {}{\nfunc {name='k'} () {\n" + body + "return []\n}\n}\n"), (1,), [])


def shared_type(*shape: int) -> str:
    return f"shared<{'x'.join(map(str, shape))}xfp32>"


@case(
    errors.IRError,
    """
    error[invalid-ir]: add: <x: i32> and <y: i64> differ in type
      = help: this is a bug of tessera: please report it with the reproducer
""",
)
def invalid_ir(patch: pytest.MonkeyPatch, folder: Path) -> None:
    verify(
        parse_module(
            "module {}{\nfunc {name='k'} (%x: i32, %y: i64) {\n%z: i32 = add %x, %y\nreturn []\n}\n}\n"
        )
    )


@case(
    errors.SynchronizationError,
    """
    error[synchronization]: local_load reads `x` (bytes 0 to 512) without the end of the write: local_store may not have written it yet
      = note: the other access is local_store of `x`
      = help: this is a bug of tessera: please report it with the reproducer
""",
)
def missing_barrier(patch: pytest.MonkeyPatch, folder: Path) -> None:
    check_synchronization(parse_module(UNORDERED))


@case(
    errors.InternalError,
    """
    error[internal]: stage 'tir' of the interpreter back end failed: ZeroDivisionError: division by zero
      = note: reproducer: FOLDER
      = help: this is a bug of tessera: please report it with the reproducer
""",
)
def failing_stage(patch: pytest.MonkeyPatch, folder: Path) -> None:
    def broken(*args: Any, **kwargs: Any) -> Any:
        raise ZeroDivisionError("division by zero")

    driver.set_active("interpreter")
    patch.setattr("tessera.backends.interpreter.pack_locations", broken)
    patch.setattr("tempfile.mkdtemp", lambda **kwargs: str(folder))
    scaled.warmup(np.zeros(4, np.float32), 5, grid=(1,), num_warps=2)


@case(
    errors.PluginError,
    """
    error[plug-in]: the back end 'elsewhere' that an installed package offers cannot be used: ModuleNotFoundError: No module named 'no_such_package'
      = help: the contract is in docs/backends.md
""",
)
def broken_plugin(patch: pytest.MonkeyPatch, folder: Path) -> None:
    point = EntryPoint("elsewhere", "no_such_package:backend", plugins.GROUP)
    patch.setattr(plugins, "_points", lambda **selection: [point])
    plugins.plugin("elsewhere")


@case(
    errors.TritonAlreadyImported,
    """
    error[triton-imported]: `import triton` cannot mean tessera any more: another Triton was imported from /lib/triton.py
      = help: import tessera.compat before anything that imports triton, or start the program with `python -m tessera run`
""",
)
def other_triton(patch: pytest.MonkeyPatch, folder: Path) -> None:
    other = ModuleType("triton")
    other.__file__ = "/lib/triton.py"
    patch.setitem(sys.modules, "triton", other)
    install()


@case(
    errors.HostPointerError,
    """
    error[host-pointer]: Pointer argument (a NumPy array of float32) cannot be accessed from the GPU (cpu tensor?)
      = help: move the data to the device (torch: `.cuda()`), or pass host arrays only: then the kernel runs on the CPU
""",
)
def host_array_for_a_gpu(patch: pytest.MonkeyPatch, folder: Path) -> None:
    CudaDriver.address(object.__new__(CudaDriver), np.zeros(1, np.float32))


@case(
    errors.TorchNotFound,
    """
    error[torch-not-found]: torch is not installed, 2.11 or newer is needed
      = help: install it with `pip install "tessera-lang[torch]"`; the rest of tessera works without it
""",
)
def graphs_without_torch(patch: pytest.MonkeyPatch, folder: Path) -> None:
    def missing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    patch.delitem(sys.modules, "tessera.torch", raising=False)
    patch.setattr(importlib.metadata, "version", missing)
    importlib.import_module("tessera.torch")


@case(
    errors.ToolNotFound,
    """
    error[tool-not-found]: TESSERA_PTXAS names 'FOLDER/ptxas', which is no executable file
      = help: correct or unset TESSERA_PTXAS (or TRITON_PTXAS_PATH)
""",
)
def no_assembler(patch: pytest.MonkeyPatch, folder: Path) -> None:
    with knobs.nvidia.scope():
        knobs.nvidia.ptxas = str(folder / "ptxas")
        assemble("", "sm_90")


@case(
    errors.CompilationTimeout,
    """
    error[compile-timeout]: the compilation took more than 0.5 s, at pass 'coalesce'
      = help: set TESSERA_COMPILE_BUDGET to more seconds (0: no limit), or make tiles or unrolled loops smaller
""",
)
def slow_compilation(patch: pytest.MonkeyPatch, folder: Path) -> None:
    later = time.monotonic() + 1
    with budget(0.5):
        patch.setattr(time, "monotonic", lambda: later)
        check_budget("pass 'coalesce'")


@case(
    errors.NotAFunction,
    """
    error[not-a-function]: @jit needs a Python function, got builtin_function_or_method len
      = help: the decorators of a kernel stand in this order: @autotune, @heuristics, @jit, `def`
""",
)
def builtin_as_kernel(patch: pytest.MonkeyPatch, folder: Path) -> None:
    tessera.jit(len)


@case(
    errors.SourceNotFound,
    """
    error[no-source]: @jit functions should be defined in a Python file
      = help: write the kernel as a `def` in a file or a notebook; text for `exec` is written to a file and imported
""",
)
def kernel_without_source(patch: pytest.MonkeyPatch, folder: Path) -> None:
    scope: dict[str, Any] = {}
    # Not the file "<string>": from Python 3.13 on that is the text of a program given by -c, as xdist's are.
    exec(compile("def k(x): pass", "<nowhere>", "exec"), scope)
    tessera.jit(scope["k"])


@case(
    errors.InvalidTuning,
    """
    error[tuning-arguments]: autotuning scaled: q in restore_value is no parameter
      = help: the parameters are p, n
""",
)
def misspelt_array(patch: pytest.MonkeyPatch, folder: Path) -> None:
    tessera.autotune([], key=["n"], restore_value=["q"])(scaled)


@case(
    errors.PTXASError,
    """
    error[ptxas]: ptxas failed with code 255
    ptxas x.ptx, line 2; error   : Unknown symbol
          2 | nonsense;
      = note: the PTX is in FOLDER/k.ptx
      = note: repeat with: FOLDER/ptxas -v -arch=sm_90 FOLDER/k.ptx -o FOLDER/k.cubin
""",
)
def assembler_fails(patch: pytest.MonkeyPatch, folder: Path) -> None:
    tool = folder / "ptxas"
    tool.write_text(
        "#!/bin/sh\necho 'ptxas x.ptx, line 2; error   : Unknown symbol' >&2\nexit 255\n"
    )
    tool.chmod(0o755)
    kept = folder / "k.ptx"
    patch.setattr(
        "tempfile.mkstemp", lambda **kwargs: (os.open(kept, os.O_CREAT | os.O_WRONLY), str(kept))
    )
    with knobs.nvidia.scope():
        knobs.nvidia.ptxas = str(tool)
        assemble(".version 8.0\nnonsense;\n", "sm_90")


MEETING = """
; primitive named_barrier_sync(1, 64)
define ptx_kernel void @meeting() nounwind {
entry:
  call void asm sideeffect "bar.sync 1, 64;", "~{memory}"()
  ret void
}
"""


@case(
    errors.SimulatedHazard,
    """
    error[simulated-hazard]: all threads wait, and nobody is left to end it
      = note: warps 0 wait for barrier 1 (32 of 64 threads), barrier
      = help: this is a bug of tessera: please report it with the kernel and TESSERA_SIMT_SEED
""",
)
def threads_missing_at_a_barrier(patch: pytest.MonkeyPatch, folder: Path) -> None:
    run_kernel(MEETING, "meeting", [], 32, 16)


@case(
    errors.SimulatedUnknown,
    """
    error[simulated-unknown]: the simulator does not know the meaning of `membar.gl;`
      = help: run the kernel on the CPU or on a GPU
""",
)
def assembly_in_the_simulator(patch: pytest.MonkeyPatch, folder: Path) -> None:
    run_kernel(MEETING.replace("bar.sync 1, 64;", "membar.gl;"), "meeting", [], 32, 16)


@pytest.fixture(autouse=True)
def usual_driver() -> Iterator[None]:
    yield
    driver.reset_active()


@pytest.mark.parametrize(("kind", "trigger", "text"), CASES)
def test_text(
    kind: type, trigger: Trigger, text: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    # A test of the alias may have run before in this process.
    monkeypatch.setattr(errors.Spelling, "package", "tessera")
    with pytest.raises(errors.TesseraError) as caught:
        trigger(monkeypatch, tmp_path)
    assert type(caught.value) is kind
    assert str(caught.value).replace(str(tmp_path), "FOLDER") == textwrap.dedent(text).strip("\n")


# Bases that are never raised themselves.
ABSTRACT = {errors.TesseraError}


def test_every_class_has_a_text():
    """The kernel errors' texts stand in the modules beside this one."""
    covered = {param.values[0] for param in CASES}
    for module in KERNELS:
        covered |= {param.values[0] for param in module.CASES}
    codes = "".join(operations.TEXTS.values())
    missing = [
        k for k in catalogue() if k not in covered | ABSTRACT and f"error[{k.code}]" not in codes
    ]
    assert [kind.__name__ for kind in missing] == []
