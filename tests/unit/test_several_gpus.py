"""Machines with several GPUs, without one: what is kept per device, with stand-ins for libcuda and torch."""

# pyright: basic
from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import tessera
import tessera.language as tl
from tessera.backends.compiler import GPUTarget
from tessera.compiler import ASTSource, CompiledKernel
from tessera.config import knobs
from tessera.errors import LaunchError
from tessera.runtime.autotuner.places import different_gpus
from tessera.runtime.cuda import abi as cuda_abi
from tessera.runtime.cuda import driver_api as cuda
from tessera.runtime.driver import CudaDriver, Driver, driver
from tessera.runtime.launching.async_compile import AsyncCompileMode
from tests.unit.cuda_kit import Fake


@tessera.jit
def scale(x, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i, i < n) * 2, i < n)


class Machine(Driver):
    """Devices of two architectures; kernels remember where they were loaded."""

    name = "machine"
    device = 0

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", (80, 90)[self.device], 32)

    def get_current_device(self) -> int:
        return self.device

    def load_kernel(self, kernel: CompiledKernel) -> None:
        kernel.n_regs = kernel.n_spills = 0
        kernel.n_max_threads = 1024
        loaded = self.device

        def launch(*args: Any) -> None:
            assert self.device == loaded
            self.launches.append((loaded, kernel.target.arch))

        kernel.launcher, kernel.function, kernel.module = launch, loaded, self

    def __init__(self) -> None:
        self.launches: list[tuple[int, Any]] = []


@pytest.fixture
def machine(tmp_path: Path):
    with knobs.scope():
        knobs.cache.dir = str(tmp_path)
        found = Machine()
        driver.set_active(found)
        yield found
        driver.reset_active()


def test_each_device_has_its_kernel(machine: Machine):
    x = np.zeros(64, np.float32)
    kernels = set()
    for device in (0, 1, 0, 1):
        machine.device = device
        kernels.add(scale[(1,)](x, x, 64, BLOCK=64))
    assert machine.launches == [(0, 80), (1, 90), (0, 80), (1, 90)]
    assert len(kernels) == 2


def test_background_compilation_keeps_devices_apart(machine: Machine):
    x = np.zeros(64, np.float32)
    with ThreadPoolExecutor(1) as pool, AsyncCompileMode(pool):
        futures = []
        for device in (0, 1, 0):
            machine.device = device
            futures.append(scale.warmup(x, x, 65, BLOCK=32, grid=(1,)))
    assert [f.result().target.arch for f in futures] == [80, 90, 80]
    for device in (0, 1):
        machine.device = device
        scale[(1,)](x, x, 65, BLOCK=32)
    assert machine.launches == [(0, 80), (1, 90)]


def test_tuning_of_different_gpus(machine: Machine, monkeypatch: pytest.MonkeyPatch):
    torch = SimpleNamespace(
        _C=SimpleNamespace(_cuda_getCurrentRawStream=lambda device: 0),
        cuda=SimpleNamespace(
            is_initialized=lambda: True,
            device_count=lambda: 2,
            get_device_name=lambda device=None: ("A100", "H200")[
                machine.device if device is None else device
            ],
            current_device=lambda: machine.device,
            is_available=lambda: False,
        ),
    )
    monkeypatch.setitem(sys.modules, "torch", torch)
    different_gpus.cache_clear()
    times = {0: {32: 1.0, 64: 2.0}, 1: {32: 2.0, 64: 1.0}}
    measured = []

    def watch(call: Any, quantiles: Any) -> list[float]:
        call()
        measured.append(machine.device)
        return [times[machine.device][(32, 64)[len(measured) % 2 == 0]]] * 3

    knobs.autotuning.cache = False
    configs = [tessera.Config({"BLOCK": b}) for b in (32, 64)]
    tuned = tessera.autotune(configs, key=["n"], do_bench=watch)(scale)
    x = np.zeros(64, np.float32)
    best = []
    for device in (0, 1, 0, 1):
        machine.device = device
        tuned[(1,)](x, x, 66)
        best.append(tuned.best_config)
    different_gpus.cache_clear()
    assert best == [configs[0], configs[1]] * 2
    assert measured == [0, 0, 1, 1]


class TwoGpus(Fake):
    """Two Hoppers; functions may be launched in the context that they were loaded in only."""

    def answer(self, name: str, args: tuple[Any, ...]) -> None:
        super().answer(name, args)
        if name == "cuDeviceGetCount":
            args[0]._obj.value = 2
        elif name == "cuDeviceGet":
            args[0]._obj.value = args[1]
        elif name == "cuDevicePrimaryCtxRetain":
            args[0]._obj.value = 0xC0 + args[1]
        elif name == "cuCtxGetDevice":
            args[0]._obj.value = self.context - 0xC0
        elif name == "cuModuleGetFunction":
            args[0]._obj.value = self.context


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """(library, driver, launches as (function, stream)), native launches going to `launches`."""
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    library = TwoGpus()
    api = cuda.Driver(library)
    monkeypatch.setattr(cuda, "forked", lambda: False)
    monkeypatch.setattr(cuda, "driver", lambda: api)
    launches: list[tuple[int, int]] = []

    def make_launcher(kinds: Any, place: str) -> Any:
        def native(gx: int, gy: int, gz: int, stream: int, function: int, *rest: Any) -> int:
            if function != library.context:
                return cuda_abi.INVALID_HANDLE if library.context else cuda_abi.INVALID_CONTEXT
            launches.append((function, stream))
            return 0

        return native

    monkeypatch.setattr(sys.modules["tessera.runtime.drivers.cuda"], "make_launcher", make_launcher)
    with knobs.scope():
        knobs.cache.dir = str(tmp_path)
        yield library, CudaDriver(), launches


def loaded_on(device: int, gpu: CudaDriver) -> CompiledKernel:
    src = ASTSource(scale, {"x": "*fp32", "out": "*fp32", "n": "i32"}, {"BLOCK": 32})
    kernel = tessera.compile(src, target=GPUTarget("cuda", 90, 32))
    gpu.set_current_device(device)
    kernel.load(gpu)
    return kernel


def test_kernels_are_loaded_in_the_context_of_the_current_device(gpus: Any):
    library, gpu, launches = gpus
    for device in (1, 0):
        kernel = loaded_on(device, gpu)
        assert kernel.function == 0xC0 + device
        kernel.launcher(1, 1, 1, 0, 0, 0, 32)
    assert [function for function, _ in launches] == [0xC1, 0xC0]


def test_a_context_that_is_not_current_is_made_so(gpus: Any):
    library, gpu, launches = gpus
    kernel = loaded_on(0, gpu)
    library.context = 0  # another thread
    kernel.launcher(1, 1, 1, 0, 0, 0, 32)
    assert library.context == 0xC0
    assert launches == [(0xC0, 0)]


def test_a_kernel_of_another_device_is_refused(gpus: Any):
    library, gpu, launches = gpus
    kernel = loaded_on(0, gpu)
    gpu.set_current_device(1)
    with pytest.raises(LaunchError, match="scale was loaded on device 0; the current device is 1"):
        kernel.launcher(1, 1, 1, 0, 0, 0, 32)
    assert (launches, library.context) == ([], 0xC1)
