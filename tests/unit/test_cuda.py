"""CUDA driver binding, without a GPU: structure layouts, the library's search, calls against a recording stand-in."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn

import pytest

from tessera.config import knobs
from tessera.errors import HostPointerError, NoDeviceError, OutOfResources
from tessera.runtime.cuda import abi as cuda_abi
from tessera.runtime.cuda import driver_api as cuda
from tessera.runtime.cuda.driver_api import CudaError, Driver, LaunchConfig, launch_config
from tessera.runtime.driver import CudaDriver
from tests.unit.cuda_kit import Fake

INVALID_VALUE = 1


@pytest.fixture(autouse=True)
def no_torch(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    with knobs.scope():
        yield


def test_layouts_are_the_drivers():
    assert ctypes.sizeof(cuda_abi.LaunchAttribute) == 72
    assert ctypes.sizeof(LaunchConfig) == 56
    offsets = {
        n: getattr(LaunchConfig, n).offset for n in (field[0] for field in LaunchConfig._fields_)
    }
    assert offsets == {
        "grid": 0,
        "block": 12,
        "shared": 24,
        "stream": 32,
        "attributes": 40,
        "count": 48,
    }


def test_no_driver_tells_the_remedies(tmp_path: Path):
    knobs.nvidia.libcuda_path = str(tmp_path)
    with pytest.raises(NoDeviceError) as caught:
        cuda.load_library()
    assert str(tmp_path) in str(caught.value)
    assert "TESSERA_INTERPRET=1" in str(caught.value)
    assert "CPU backend" in str(caught.value)


def test_a_library_that_is_not_the_driver_is_refused():
    knobs.nvidia.libcuda_path = "libc.so.6"
    with pytest.raises(NoDeviceError, match="too old: it has no cuInit"):
        cuda.load_library()


def test_a_driver_without_a_device():
    with pytest.raises(NoDeviceError, match="cannot start: CUDA_ERROR_TEST: the text"):
        Driver(Fake(cuInit=100))


def test_properties_are_read_once():
    fake = Fake()
    driver = Driver(fake)
    found = driver.properties(0)
    assert (found.name, found.capability, found.max_shared) == ("NVIDIA H100", (9, 0), 232448)
    assert (found.multiprocessor_count, found.warp_size) == (132, 32)
    count = len(fake.calls)
    assert driver.properties(0) is found
    assert len(fake.calls) == count


def test_bind_retains_the_primary_context_once():
    fake = Fake()
    driver = Driver(fake)
    assert driver.bind() == 0
    assert driver.bind(0) == 0
    assert fake.names().count("cuDevicePrimaryCtxRetain") == 1
    assert fake.names().count("cuCtxSetCurrent") == 1
    assert fake.context == 0xC0


def test_load_raises_the_shared_memory_limit():
    fake = Fake()
    kernel = Driver(fake).load(b"\x7fELF", "k", 100_000, cluster=16)
    assert (kernel.registers, kernel.local_bytes, kernel.max_threads, kernel.static_shared) == (
        168,
        16,
        1024,
        64,
    )
    settings = [args for name, args in fake.calls if name == "cuFuncSetAttribute"]
    assert settings == [(0x40, 8, 100_000), (0x40, 14, 1)]
    fake = Fake()
    Driver(fake).load(b"\x7fELF", "k", 1000)
    assert "cuFuncSetAttribute" not in fake.names()


def test_load_refuses_too_much_shared_memory():
    with pytest.raises(OutOfResources) as caught:
        Driver(Fake()).load(b"\x7fELF", "k", 300_000)
    assert (caught.value.required, caught.value.limit) == (300_000, 232448)
    with pytest.raises(OutOfResources):
        Driver(Fake()).load(b"\x7fELF", "k", 232448)


def test_launch_fills_the_configuration():
    fake = Fake()
    driver = Driver(fake)
    config = launch_config(256, 1024, cluster=(2, 1, 1), cooperative=True, programmatic=True)
    driver.launch(0x40, (5, 6, 7), config, [ctypes.c_uint64(3), ctypes.c_float(1.0)], stream=9)
    attributes = [(4, [2, 1, 1]), (2, [1, 0, 0]), (6, [1, 0, 0])]
    assert fake.launches == [([10, 6, 7], [256, 1, 1], 1024, 9, attributes)]
    assert list(config.grid) == [2, 1, 1]
    driver.launch(0x40, (5, 0, 7), config, [])
    assert len(fake.launches) == 1


@pytest.mark.parametrize(("result", "helps"), [(700, True), (716, True), (1, False), (2, False)])
def test_faults_of_kernels_say_how_to_find_them(result: int, helps: bool) -> None:
    text = str(CudaError("cuStreamSynchronize", result, "CUDA_ERROR_X", "an error"))
    assert text.startswith(
        f"error[cuda]: cuStreamSynchronize failed: CUDA_ERROR_X ({result}): an error"
    )
    assert ('with `debug="check"` (TESSERA_CHECK=1)' in text) == helps


def test_failed_launch_names_the_resources():
    driver = Driver(Fake(cuLaunchKernelEx=701))
    with pytest.raises(CudaError) as caught:
        driver.launch(0x40, (1, 1, 1), launch_config(1024, 5000), [])
    assert caught.value.result == 701
    assert "cuLaunchKernelEx failed: CUDA_ERROR_TEST (701): the text" in str(caught.value)
    assert "1024 threads a CTA, 5000 bytes of dynamic shared memory" in str(caught.value)


def test_clusters_that_find_no_room():
    driver = Driver(Fake(cuLaunchKernelEx=912))
    with pytest.raises(OutOfResources, match="CTAs of a cluster, Required: 16"):
        driver.launch(0x40, (1, 1, 1), launch_config(1024, 5000, cluster=(16, 1, 1)), [])


def test_clusters_at_a_time():
    config = launch_config(384, 5000, cluster=(4, 1, 1))
    assert Driver(Fake()).active_clusters(0x40, config) == 30


def test_host_pointers_are_refused():
    assert Driver(Fake()).device_pointer(0x1000) == 0x1001
    assert Driver(Fake()).device_pointer(0) == 0
    with pytest.raises(
        HostPointerError, match=r"Pointer argument x_ptr cannot be accessed .*cpu tensor"
    ):
        Driver(Fake(cuPointerGetAttribute=INVALID_VALUE)).device_pointer(0x1000, "x_ptr")


def test_memory_streams_events_and_errors():
    driver = Driver(Fake())
    assert driver.allocate(10) == 0x7F0000000000
    assert driver.stream_create() == 0x50
    assert driver.elapsed_ms(driver.event_create(), driver.event_create()) == 1.5
    with pytest.raises(CudaError, match="cuMemFree_v2 failed"):
        Driver(Fake(cuMemFree_v2=2)).free(1)


def test_torch_gives_device_and_stream(monkeypatch: pytest.MonkeyPatch):
    torch = SimpleNamespace(
        cuda=SimpleNamespace(current_device=lambda: 3),
        _C=SimpleNamespace(_cuda_getCurrentRawStream=lambda device: 100 + device),
    )
    monkeypatch.setitem(sys.modules, "torch", torch)
    driver = Driver(Fake())
    assert driver.current_device() == 3
    assert driver.current_stream(3) == 103
    monkeypatch.setitem(
        sys.modules, "torch", SimpleNamespace(_C=SimpleNamespace())
    )  # a build without CUDA
    assert driver.current_stream(0) == 0


def test_utilities_of_the_active_driver(monkeypatch: pytest.MonkeyPatch):
    """What programs that load binaries of their own ask `driver.active.utils` for."""
    fake = Fake()
    monkeypatch.setattr(cuda, "driver", lambda: Driver(fake))
    monkeypatch.setattr(cuda, "forked", lambda: False)
    utils = CudaDriver().utils
    assert isinstance(utils, CudaDriver)
    assert utils.load_binary("k", b"\x7fELF", 1000, 0) == (0x30, 0x40, 168, 4, 1024)
    utils.set_printf_fifo_size(1 << 20)
    utils.unload_module(0x30)
    assert ("cuCtxSetLimit", (1, 1 << 20)) in fake.calls
    assert fake.calls[-1] == ("cuModuleUnload", (0x30,))


@pytest.mark.skipif(os.path.exists("/dev/nvidiactl"), reason="there may be a GPU")
def test_not_available_here():
    cuda.driver.cache_clear()
    assert cuda.available() is False


def test_a_missing_driver_is_sought_once(monkeypatch: pytest.MonkeyPatch):
    tried: list[str] = []

    def missing(path: str) -> NoReturn:
        tried.append(path)
        raise OSError(path)

    monkeypatch.setattr(cuda_abi.ctypes, "CDLL", missing)
    cuda.driver.cache_clear()
    with knobs.nvidia.scope():
        knobs.nvidia.libcuda_path = "/nowhere/libcuda.so.1"  # other paths are other answers
        assert not cuda.available()
        assert not cuda.available()
    assert tried == ["/nowhere/libcuda.so.1"]


def test_a_forked_process_knows_the_device(monkeypatch: pytest.MonkeyPatch):
    cuda.driver.cache_clear()
    monkeypatch.setattr(knobs.nvidia, "libcuda_path", "a path that nobody asked for")
    monkeypatch.setattr(cuda, "load_library", lambda: Fake(cuInit=cuda_abi.NOT_INITIALIZED))
    assert not cuda.available()
    assert cuda.forked()
    assert CudaDriver.is_active()
    inherited = CudaDriver()  # enough to compile with
    with pytest.raises(NoDeviceError, match="cannot start"):
        inherited.get_current_target()
    monkeypatch.setattr(cuda, "load_library", lambda: Fake(cuInit=cuda_abi.NO_DEVICE))
    assert not CudaDriver.is_active()
    with pytest.raises(NoDeviceError):
        CudaDriver()
