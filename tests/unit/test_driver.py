"""Drivers: which one runs a launch, switching, devices that are not there, failures of kernels and tools."""

from __future__ import annotations

import importlib
import os
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import tessera
import tessera.language as tl
from tessera.backends.compiler import GPUTarget
from tessera.compiler import ASTSource
from tessera.config import knobs
from tessera.errors import LaunchError, NoDeviceError, OutOfResources, ToolNotFound
from tessera.runtime.cuda import driver_api as cuda
from tessera.runtime.driver import CpuDriver, CudaDriver, driver, driver_named
from tessera.runtime.drivers.traced import HostBuffers, traced_launcher, untraced

no_gpu = pytest.mark.skipif(cuda.available(), reason="there is a CUDA device")


@pytest.fixture(autouse=True)
def clean(tmp_path: Any):
    with knobs.scope():
        knobs.cache.dir = str(tmp_path)
        yield
    driver.reset_active()


@tessera.jit
def fill(x, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + i, 7, i < n)


def test_arguments_choose():
    host, device = SimpleNamespace(is_cuda=False), SimpleNamespace(is_cuda=True)
    assert driver.for_arguments((1, np.zeros(1))).name == "cpu"
    assert driver.for_arguments((host,)).name == "cpu"
    assert driver.for_arguments((SimpleNamespace(base=np.zeros(1)),)).name == "cpu"
    if not cuda.available():
        with pytest.raises(NoDeviceError):
            driver.for_arguments((device,))
    knobs.runtime.default_backend = "interpreter"
    assert driver.for_arguments((np.zeros(1),)).name == "interpreter"
    knobs.runtime.default_backend = "cpu"
    assert driver.for_arguments(()).name == "cpu"


@tessera.jit
def typed(KIND: tl.constexpr, x, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(x + i, i.to(KIND), i < n)


@pytest.mark.parametrize(
    "value",
    [tl.float16, tl.pointer_type(tl.int8), SimpleNamespace(is_cuda=True), (tl.int1, tl.int8)],
    ids=lambda x: type(x).__name__,
)  # fmt: skip
def test_compile_time_values_choose_nothing(value: Any):
    """Nor do they where they come first and answer what arrays are asked."""
    assert not hasattr(tl.float16, "is_cuda") and tl.float16.is_fp16() and not tl.float16.is_int8()
    pairs = [("constexpr", value), ("*fp32", "D")]
    assert driver.for_launch(pairs, (value, np.zeros(1))).name == "cpu"


def test_a_dtype_as_the_first_argument():
    x = np.zeros(8, np.float32)
    for _ in range(3):
        x[:] = -1
        typed[(1,)](tl.float16, x, 8, 8)
        assert x.tolist() == list(range(8))


def test_arrays_in_tuples_choose():
    assert (
        driver.for_arguments((1, (2, (np.zeros(1),)), SimpleNamespace(is_cuda=True))).name == "cpu"
    )


def test_switching():
    driver.set_active("interpreter")
    assert driver.active.name == "interpreter"
    assert driver.for_arguments((np.zeros(1),)).name == "interpreter"
    driver.set_active_to_cpu()
    assert driver.active.name == "cpu"
    mine = CpuDriver()
    driver.set_active(mine)
    assert driver.active is mine
    driver.reset_active()
    with pytest.raises(LaunchError, match="no driver 'vulkan'"):
        driver_named("vulkan")


def test_switching_after_native_launches():
    x = np.zeros(8, np.int32)
    for _ in range(3):
        fill[(1,)](x, 8, BLOCK=8)
    driver.set_active("interpreter")
    x[:] = 0
    kernel = fill[(1,)](x, 8, BLOCK=8)
    assert kernel.target.backend == "interpreter"
    assert (x == 7).all()
    driver.reset_active()
    assert fill[(1,)](x, 8, BLOCK=8).target.backend == "cpu"


def test_devices_of_the_host():
    on = driver_named("cpu")
    assert on.get_current_device() == 0
    on.set_current_device(0)
    with pytest.raises(LaunchError, match="one device"):
        on.set_current_device(1)
    assert on.get_current_stream(0) == 0
    assert on.get_current_target().backend == "cpu"


@no_gpu
def test_no_gpu():
    with pytest.raises(NoDeviceError):
        driver.set_active_to_gpu()
    with pytest.raises(NoDeviceError):
        driver_named("cuda")
    knobs.runtime.default_backend = "cuda"
    with pytest.raises(NoDeviceError):
        fill[(1,)](1234, 8, BLOCK=8)


def test_no_assembler(tmp_path: Any):
    source = ASTSource(fill, {"x": "*i32", "n": "i32"}, {"BLOCK": 128})
    knobs.nvidia.ptxas = str(tmp_path / "nothing")
    with pytest.raises(ToolNotFound, match="no executable file"):
        tessera.compile(source, GPUTarget("cuda", 90, 32))


def test_a_kernel_that_does_not_fit(monkeypatch: pytest.MonkeyPatch):
    """What a GPU lacks is said before anything is loaded."""
    on = object.__new__(CudaDriver)
    limits = SimpleNamespace(max_shared=1000, max_threads_per_block=1024, warp_size=32)
    on.api = SimpleNamespace(properties=lambda device: limits, current_device=lambda: 0)  # type: ignore[assignment]
    kernel = tessera.compile(
        ASTSource(fill, {"x": "*i32", "n": "i32"}, {"BLOCK": 8}), GPUTarget("cpu", "avx2", 1)
    )
    kernel.metadata = kernel.metadata._replace(shared=4096)
    with pytest.raises(OutOfResources, match="shared memory, Required: 4096, Hardware limit: 1000"):
        on.load_kernel(kernel)
    kernel.metadata = kernel.metadata._replace(shared=0, num_warps=64)
    with pytest.raises(OutOfResources, match="threads, Required: 2048, Hardware limit: 1024"):
        on.load_kernel(kernel)


@pytest.mark.parametrize("traced", [False, True])
def test_a_precondition_without_tensor_maps(monkeypatch: pytest.MonkeyPatch, traced: bool):
    """Pointers that are read in wide vectors because of a precondition: where it fails, the fallback runs. In a traced
    build both have launchers that give them a buffer."""
    module: Any = importlib.import_module("tessera.runtime.drivers.cuda")
    ran: list[str] = []

    def native(*args: Any) -> int:
        ran.append("kernel")
        return 0

    def loads(*args: Any) -> Any:
        return SimpleNamespace(function=1, registers=1, local_bytes=0, max_threads=1024, module=2)

    class Other:
        config, maps = SimpleNamespace(address=0), None

        def __call__(self, *args: Any) -> None:
            ran.append("fallback")

    other: Any = Other()
    if traced:
        other = partial(Other.__call__, Other())
        other.start = Other()
    fallback = SimpleNamespace(launcher=other, function=3)
    monkeypatch.setattr(module, "make_launcher", lambda kinds, target: native)
    monkeypatch.setattr(
        module, "FallbackVariant", lambda kernel, on: SimpleNamespace(get=lambda: fallback)
    )
    on = object.__new__(CudaDriver)
    limits = SimpleNamespace(
        max_shared=1000, max_threads_per_block=1024, warp_size=32, multiprocessor_count=1
    )
    on.api = SimpleNamespace(  # type: ignore[assignment]
        properties=lambda device: limits, current_device=lambda: 0, load=loads,
        check_launch=None,
    )  # fmt: skip
    metadata = SimpleNamespace(
        shared=0, num_warps=1, launch_cooperative_grid=False, launch_pdl=False, args=["ptr", "i32"],
        host_code=[("arg", 1)], precondition=[(0, 1, 99, 8)],
    )  # fmt: skip
    kernel: Any = SimpleNamespace(
        metadata=metadata,
        name="k",
        asm={"cubin": b""},
        check_resources=lambda *args: None,
    )
    on.load_kernel(kernel)
    kernel.launcher(1, 1, 1, 0, 4096, 16)
    kernel.launcher(1, 1, 1, 0, 4096, 17)
    assert ran == ["kernel", "fallback"]
    assert kernel.launcher.maps is not None  # native launches look there


def test_the_launcher_of_a_traced_build_has_the_one_without_a_buffer():
    kernel: Any = SimpleNamespace(metadata=SimpleNamespace(args=["ptr", "*i64", "i32", "i32"]))
    start = list[Any]().append
    launcher = traced_launcher(kernel, start, HostBuffers(False), "ns")
    assert untraced(launcher) == start
    assert untraced(start) == start


def test_launches_after_a_fork():
    x = np.zeros(8, np.int32)
    for _ in range(3):
        fill[(1,)](x, 8, BLOCK=8)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        x[:] = 0
        for _ in range(3):
            fill[(4,)](x, 8, BLOCK=2)
            fill[(1,)](x, 8, BLOCK=8)
        os.write(write, b"good" if (x == 7).all() else b"bad!")
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(read, 4) == b"good"


def test_threads_of_a_launch():
    x = np.zeros(64, np.int32)
    for threads in (1, 2, None):
        knobs.runtime.num_threads = threads
        x[:] = 0
        fill[(8,)](x, 64, BLOCK=8)
        assert (x == 7).all()
    knobs.runtime.num_threads = 0
    with pytest.raises(ValueError, match="number of threads"):
        fill[(8,)](x, 64, BLOCK=8)
