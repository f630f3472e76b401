"""A process that times kernels of both compilers on the GPU, in turn. See pool.py.

    timer.py tessera FILE FOLDER ROUNDS

A task is the number of a kernel in FILE and its binaries by compiler. The answer has the median µs of each binary, the
registers and bytes of local memory of a thread, and how far the results of the two compilers are apart. Arrays live for
one kernel. An error of the GPU ends the process, for nothing works after it.
"""

# pyright: basic, reportMissingImports=false
from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
# isort: off
from generated import builder, pool  # first, as it decides what `import triton` means

import torch
from cases import in_turn
from generated.binary import launch_of
from generated.kernel import ZEROS, Config, Kernel, read
from tessera.runtime.driver import driver_named
from tessera.runtime.cuda.driver_api import CudaError, driver
# isort: on

DEVICE = "cuda"
CTYPES = {
    "i1": ctypes.c_bool, "u1": ctypes.c_bool,
    "i8": ctypes.c_int8, "u8": ctypes.c_uint8, "i16": ctypes.c_int16, "i32": ctypes.c_int32,
    "u32": ctypes.c_uint32, "i64": ctypes.c_int64, "u64": ctypes.c_uint64, "fp32": ctypes.c_float,
    "fp64": ctypes.c_double,
}  # fmt: skip


def tensor(given: list[Any], below: int | None, asserted: bool) -> Any:
    """Random: normally distributed numbers; integers that are valid indices where the kernel says what is valid, and
    small ones else; booleans, which are all true if the kernel asserts them. A workspace of zeros is one in the first
    launch, whose results are compared."""
    kind, shape, strides, *zeros = given
    dtype = getattr(torch, kind)
    size = 1 + sum((n - 1) * abs(s) for n, s in zip(shape, strides)) if 0 not in shape else 0
    if zeros == [ZEROS]:
        flat = torch.zeros(size, device=DEVICE, dtype=dtype)
    elif dtype.is_floating_point:
        flat = torch.randn(size, device=DEVICE, dtype=torch.float32).to(dtype)
    elif dtype == torch.bool:
        flat = torch.rand(size, device=DEVICE) < (1 if asserted else 0.5)
    else:
        flat = torch.randint(0, below or 2, (size,), device=DEVICE).to(dtype)
    return flat.as_strided(shape, strides)


def arguments(kernel: Kernel) -> list[Any]:
    torch.manual_seed(0)
    return [
        tensor(given, kernel.below, kernel.asserted) if isinstance(given, list) else given
        for given in kernel.arguments
    ]


def launcher(kernel: Kernel, binary: dict[str, Any], given: list[Any]) -> tuple[Callable[[], None], Any]:  # fmt: skip
    """A launch of a binary, and the loaded kernel."""
    values = [
        ctypes.c_void_p(value.data_ptr()) if kind.startswith("*") else CTYPES[kind](value)
        for kind, value in zip(kernel.signature.values(), given) if kind != "constexpr"
    ]  # fmt: skip
    x, y, z = binary["grid"]
    return launch_of(binary, (x, y, z), values)


def own_launch(
    kernel: Kernel, jitted: Any, config: Config, given: list[Any]
) -> tuple[Callable[[], None], Any]:
    """As `launcher`, by tessera's launcher; the kernel comes from the cache."""
    compiled, on = builder.compiled(kernel, jitted, config), driver_named("cuda")
    compiled.load(on)
    values = [v for kind, v in zip(kernel.signature.values(), given) if kind != "constexpr"]
    stream = on.get_current_stream(on.get_current_device())
    launch = partial(compiled.launcher, *config.grid, stream, *on.arguments(compiled, values))
    local = 4 * compiled.n_spills
    return launch, SimpleNamespace(module=compiled.module, registers=compiled.n_regs, local_bytes=local)  # fmt: skip


def apart(found: list[Any], expected: list[Any]) -> float:
    """The largest difference of the compilers' results, relative to the largest element of a result."""
    most = 0.0
    for a, b in zip(found, expected):
        a, b = a.float(), b.float()
        finite = torch.isfinite(b)
        if not torch.equal(finite, torch.isfinite(a)):
            # What overflows in both, as products of random numbers may, is not judged.
            return float("inf") if finite.all() else float("nan")
        a, b = a[finite], b[finite]
        if a.numel():
            most = max(most, ((a - b).abs().max() / b.abs().max().clamp(min=1e-30)).item())
    return most


def main() -> None:
    kernels, facts = read(builder.FILE)
    function = builder.functions(facts)
    rounds = int(sys.argv[4])
    torch.zeros(1, device=DEVICE)
    driver().bind()

    def time(task: dict[str, Any]) -> dict[str, Any]:
        kernel = kernels[task["kernel"]]
        calls: dict[Any, Callable[[], None]] = {}
        resources: dict[str, list[list[int]]] = {}
        modules: list[int] = []
        results: dict[str, list[Any]] = {}
        given = arguments(kernel)
        kept = [x._base if x._base is not None else x for x in given if isinstance(x, torch.Tensor)]
        # Where programs meet in a workspace of zeros, what they leave there is no result: bytes, in an order of chance.
        spaces = [x[3:] == [ZEROS] for x in kernel.arguments if isinstance(x, list)]
        at_first = [x.clone() for x in kept]
        for side, binaries in task["binaries"].items():
            for x, y in zip(kept, at_first):
                x.copy_(y)
            for i, binary in enumerate(binaries):
                if binary["own_launch"]:
                    jitted = function(task["kernel"], kernel)
                    calls[side, i], loaded = own_launch(kernel, jitted, kernel.configs[i], given)
                else:
                    calls[side, i], loaded = launcher(kernel, binary, given)
                modules.append(loaded.module)
                resources.setdefault(side, []).append([loaded.registers, loaded.local_bytes])
            calls[side, 0]()
            torch.cuda.synchronize()
            results[side] = [x.clone() for x, space in zip(kept, spaces) if not space]
        times = in_turn(calls, 1e9, rounds)
        for module in modules:
            driver().unload(module)
        return {
            "times": {s: [1e3 * times[s, i] for i in range(len(b))] for s, b in task["binaries"].items()},
            "resources": resources, "apart": apart(results["tessera"], results["triton"]),
            "device": torch.cuda.get_device_name(),
        }  # fmt: skip

    def guarded(task: dict[str, Any]) -> dict[str, Any]:
        try:
            return time(task)
        except (CudaError, torch.AcceleratorError) as error:
            return {"error": f"{type(error).__name__}: {error}"[:300], "last": True}

    pool.serve(guarded)


if __name__ == "__main__":
    main()
