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
from generated.kernel import ZEROS, Kernel, read
from tessera.runtime.driver import driver_named
from tessera.runtime.cuda.driver_api import CudaError, driver, launch_config
# isort: on

DEVICE = "cuda"
CTYPES = {
    "i1": ctypes.c_bool, "u1": ctypes.c_bool,
    "i8": ctypes.c_int8, "u8": ctypes.c_uint8, "i16": ctypes.c_int16, "i32": ctypes.c_int32,
    "u32": ctypes.c_uint32, "i64": ctypes.c_int64, "u64": ctypes.c_uint64, "fp32": ctypes.c_float,
    "fp64": ctypes.c_double,
}  # fmt: skip


def tensor(given: list[Any], below: int | None) -> Any:
    """Random: normally distributed numbers; integers that are valid indices where the kernel says what is valid, and
    small ones else. A workspace of zeros is one in the first launch, whose results are compared."""
    kind, shape, strides, *zeros = given
    dtype = getattr(torch, kind)
    size = 1 + sum((n - 1) * abs(s) for n, s in zip(shape, strides)) if 0 not in shape else 0
    if zeros == [ZEROS]:
        flat = torch.zeros(size, device=DEVICE, dtype=dtype)
    elif dtype.is_floating_point:
        flat = torch.randn(size, device=DEVICE, dtype=torch.float32).to(dtype)
    elif dtype == torch.bool:
        flat = torch.rand(size, device=DEVICE) < 0.5
    else:
        flat = torch.randint(0, below or 2, (size,), device=DEVICE).to(dtype)
    return flat.as_strided(shape, strides)


def arguments(kernel: Kernel) -> list[Any]:
    torch.manual_seed(0)
    return [
        tensor(given, kernel.below) if isinstance(given, list) else given
        for given in kernel.arguments
    ]


def launcher(kernel: Kernel, binary: dict[str, Any], given: list[Any]) -> tuple[Callable[[], None], Any]:  # fmt: skip
    """A launch of a binary, and the loaded kernel."""
    loaded = driver().load(Path(binary["path"]).read_bytes(), binary["entry"], binary["shared"])
    config = launch_config(32 * binary["warps"], binary["shared"])
    values: list[Any] = []
    for kind, value in zip(kernel.signature.values(), given):
        if kind == "constexpr":
            continue
        if kind.startswith("*"):
            values.append(ctypes.c_void_p(value.data_ptr()))
        else:
            values.append(CTYPES[kind](value))
    values += [ctypes.c_void_p(0)] * 2  # scratch memory, which none of these kernels has
    launch = partial(driver().launch, loaded.function, tuple(binary["grid"]), config, values)
    return launch, loaded


def ours(
    kernel: Kernel, number: int, config: int, given: list[Any]
) -> tuple[Callable[[], None], Any]:
    """As `launcher`, of a kernel of ours that needs tensor maps, by our own launches: it is in the cache."""
    jitted = builder.functions()(number, kernel)
    found = builder.compiled(kernel, jitted, kernel.configs[config])
    on = driver_named("cuda")
    found.load(on)
    kinds = kernel.signature.values()
    values = [value for kind, value in zip(kinds, given) if kind != "constexpr"]
    start = on.get_current_stream(on.get_current_device())
    launch = partial(
        found.launcher, *kernel.configs[config].grid, start, *on.arguments(found, values)
    )
    return launch, SimpleNamespace(
        module=None, registers=found.n_regs, local_bytes=4 * found.n_spills, keep=found
    )


def apart(found: list[Any], expected: list[Any]) -> float:
    """The largest difference of the compilers' results, relative to the largest element of a result."""
    most = 0.0
    for a, b in zip(found, expected):
        a, b = a.float(), b.float()
        finite = torch.isfinite(b)
        if not torch.equal(finite, torch.isfinite(a)):
            return (
                float("inf") if finite.all() else float("nan")
            )  # products of random numbers may overflow
        a, b = a[finite], b[finite]
        if a.numel():
            most = max(most, ((a - b).abs().max() / b.abs().max().clamp(min=1e-30)).item())
    return most


def main() -> None:
    kernels, _ = read(builder.FILE)
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
        at_first = [x.clone() for x in kept]
        for side, binaries in task["binaries"].items():
            for x, y in zip(kept, at_first):
                x.copy_(y)
            for i, binary in enumerate(binaries):
                if binary.get("maps"):
                    calls[side, i], loaded = ours(kernel, task["kernel"], i, given)
                else:
                    calls[side, i], loaded = launcher(kernel, binary, given)
                    modules.append(loaded.module)
                resources.setdefault(side, []).append([loaded.registers, loaded.local_bytes])
            calls[side, 0]()
            torch.cuda.synchronize()
            results[side] = [x.clone() for x in kept]
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
