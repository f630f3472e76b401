"""Host time of a launch, ours and Triton's where it can be imported, in one process on one machine.

    python benchmarks/launch.py [--rounds 7] [--json FILE]

Kernels of 5 and 20 arguments, 8 of them arrays, and a product with three tensor descriptors. On a machine with a GPU
and torch the launches are real, on an idle stream. Without a GPU: on the CPU, which includes the running of one
program. "Own share": an entry that does nothing in place of the driver's or the thread pool's. Without a GPU Triton is
timed with launcher and driver replaced by functions that do nothing, which is less than it costs on a GPU.
"""

# pyright: basic
from __future__ import annotations

import argparse
import dataclasses
import importlib
import importlib.util
import json
import timeit
from types import SimpleNamespace
from typing import Any

import numpy as np
import record
import sources
from record import Row

import tessera
from tessera.backends.llvm.binding import host, link_object, optimise
from tessera.runtime.cuda import driver_api as cuda
from tessera.runtime.driver import driver_named
from tessera.testing import print_table

NOTHING = "define i32 @nothing() { ret i32 0 }"  # takes any arguments where the caller cleans up


def microseconds(launch: Any, rounds: int, synchronise: Any) -> float:
    """The best round's time per call; the device is idle before each round: no launch waits for a full queue."""
    calls = 5000 if synchronise is None else 500
    for _ in range(20):
        launch()
    best = float("inf")
    for _ in range(rounds):
        if synchronise is not None:
            synchronise()
        best = min(best, timeit.timeit(launch, number=calls) / calls)
    return best * 1e6


def launches(api: Any, array: Any) -> dict[str, Any]:
    """Name → a function that launches once. `array(shape, dtype)` makes an array."""
    kernels = sources.kernels(api.__name__)
    x = [array((128,), "float32") for _ in range(8)]
    five, twenty = kernels.five, kernels.twenty
    numbers = (2, 3, 48, 5, 6, 7, 80, 9, 10, 1.5, 128)

    config = json.loads('{"BLOCK": 128, "num_warps": 8}')  # not the objects that Python interned

    def grid(meta: dict[str, Any]) -> tuple[int]:
        return (api.cdiv(meta["n"], meta["BLOCK"]),)

    return {
        "5 arguments": lambda: five[(1,)](x[0], x[1], x[2], 128, BLOCK=128),
        "20 arguments": lambda: twenty[(1,)](*x, *numbers, BLOCK=128),
        "5, grid by function": lambda: five[grid](x[0], x[1], x[2], 128, BLOCK=128),
        "5, num_warps": lambda: five[(1,)](x[0], x[1], x[2], 128, BLOCK=128, num_warps=8),
        "5, names from JSON": lambda: five[(1,)](x[0], x[1], x[2], 128, **config),
        "3 descriptors": product(api, kernels.persistent_matmul, array),
    }


def product(api: Any, kernel: Any, array: Any) -> Any:
    """One tile's product by descriptors; on the CPU a small one, so that the launch is most of it."""
    n = 128 if getattr(array((1,), "float32"), "is_cuda", False) else 16
    tools = importlib.import_module(f"{api.__name__}.tools.tensor_descriptor")
    a, b, c = (
        tools.TensorDescriptor.from_tensor(array((n, n), "float16"), [n, n]) for _ in range(3)
    )
    return lambda: kernel[(1,)](a, b, c, n, n, n, 1, BM=n, BN=n, BK=n, GROUP=1)


def measure(api: Any, array: Any, rounds: int, synchronise: Any = None) -> dict[str, float]:
    return {k: microseconds(run, rounds, synchronise) for k, run in launches(api, array).items()}


def own_share(array: Any, rounds: int, where: str = "cpu") -> dict[str, float]:
    """Our launches with a native entry that does nothing."""
    code = link_object(optimise(NOTHING, host("native")).to_object(), ["nothing"])
    on = driver_named(where)
    real = on.native_start

    def start(kernel: Any, device: int) -> Any:
        usual = real(kernel, device)
        assert usual is not None
        return dataclasses.replace(usual, entry=code["nothing"], keep=code)

    on.native_start = start
    try:
        return measure(tessera, array, rounds)
    finally:
        del on.native_start


def triton_without_device(triton: Any, array: Any, rounds: int) -> dict[str, float]:
    """Triton's part before its launcher: driver and launcher do nothing."""
    target = importlib.import_module("triton.backends.compiler").GPUTarget("cuda", 90, 32)
    kernel_class = importlib.import_module("triton.compiler.compiler").CompiledKernel
    kernel_class._init_handles = lambda self: None
    kernel_class.run = property(lambda self: lambda *args: None)
    triton.runtime.driver.set_active(
        SimpleNamespace(
            get_current_target=lambda: target, get_current_device=lambda: 0, get_current_stream=lambda device: 0
        )
    )  # fmt: skip
    return measure(triton, array, rounds)


def columns(rounds: int) -> dict[str, dict[str, float]]:
    triton = importlib.import_module("triton") if importlib.util.find_spec("triton") else None
    torch = importlib.import_module("torch") if importlib.util.find_spec("torch") else None
    found: dict[str, dict[str, float]] = {}
    if torch is not None and torch.cuda.is_available() and cuda.available():

        def on_device(shape: tuple[int, ...], dtype: str) -> Any:
            return torch.zeros(shape, dtype=getattr(torch, dtype), device="cuda")

        found["tessera"] = measure(tessera, on_device, rounds, torch.cuda.synchronize)
        found["own share"] = own_share(on_device, rounds, "cuda")
        if triton is not None:
            found["Triton"] = measure(triton, on_device, rounds, torch.cuda.synchronize)
        return found

    found["CPU, NumPy"] = measure(tessera, np.zeros, rounds)
    found["own share, NumPy"] = own_share(np.zeros, rounds)
    if torch is not None:
        zeros, kinds = torch.zeros, torch

        def on_host(shape: tuple[int, ...], dtype: str) -> Any:
            return zeros(shape, dtype=getattr(kinds, dtype))

        found["CPU, torch"] = measure(tessera, on_host, rounds)
        found["own share, torch"] = own_share(on_host, rounds)
        if triton is not None:
            found["Triton before its launcher"] = triton_without_device(triton, on_host, rounds)
    return found


def recorded(found: dict[str, dict[str, float]]) -> list[Row]:
    """A row for each launch; on the CPU one for each kind of array, as each kind is a row's case."""
    if "tessera" in found:
        return [_row(launch, "", found) for launch in found["tessera"]]
    rows: list[Row] = []
    for arrays in ("NumPy", "torch"):
        names = {"tessera": f"CPU, {arrays}", "own share": f"own share, {arrays}"}
        own = {who: found[name] for who, name in names.items() if name in found}
        if arrays == "torch" and "Triton before its launcher" in found:
            own["triton before its launcher"] = found["Triton before its launcher"]
        rows += [_row(launch, arrays, own) for launch in own.get("tessera", ())]
    return rows


def _row(launch: str, arrays: str, found: dict[str, dict[str, float]]) -> Row:
    times = {who.replace("Triton", "triton"): column[launch] for who, column in found.items()}
    ratios = {"triton": times["triton"] / times["tessera"]} if "triton" in times else {}
    return Row(launch, arrays, time_unit="µs", times=times, ratios=ratios)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=7)
    record.add_arguments(parser)
    arguments = parser.parse_args()
    found = columns(arguments.rounds)
    rows = [
        [name, *(f"{column[name]:.2f}" for column in found.values())]
        for name in next(iter(found.values()))
    ]
    print_table("host time per launch, µs", ["", *found], rows)
    device = importlib.import_module("torch").cuda.get_device_name() if "tessera" in found else ""
    record.write(arguments, "launch", recorded(found), device)


if __name__ == "__main__":
    main()
