"""The driver binding and the native launcher on a real GPU: PTX by hand, no compiler of ours involved."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from tessera.backends.nvidia import ptxas
from tessera.errors import HostPointerError, OutOfResources
from tessera.runtime.cuda import driver_api as cuda
from tessera.runtime.cuda.driver_api import CudaError, Driver, LoadedKernel, launch_config
from tessera.runtime.native.launcher import make_launcher

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not cuda.available(), reason="needs a CUDA device"),
]

AXPY = """.version 8.0
.target sm_80
.address_size 64
.visible .entry axpy(.param .u64 x, .param .u64 y, .param .f32 a, .param .u32 n) {
  .reg .pred %p;
  .reg .b32 %r<5>;
  .reg .f32 %f<4>;
  .reg .b64 %rd<6>;
  ld.param.u64 %rd1, [x];
  ld.param.u64 %rd2, [y];
  ld.param.f32 %f1, [a];
  ld.param.u32 %r1, [n];
  mov.u32 %r2, %ctaid.x;
  mov.u32 %r3, %ntid.x;
  mov.u32 %r4, %tid.x;
  mad.lo.u32 %r2, %r2, %r3, %r4;
  setp.ge.u32 %p, %r2, %r1;
  @%p ret;
  mul.wide.u32 %rd3, %r2, 4;
  add.u64 %rd4, %rd1, %rd3;
  add.u64 %rd5, %rd2, %rd3;
  ld.global.f32 %f2, [%rd4];
  ld.global.f32 %f3, [%rd5];
  fma.rn.f32 %f3, %f2, %f1, %f3;
  st.global.f32 [%rd5], %f3;
  ret;
}
"""
KINDS = ("*fp32", "*fp32", "fp32", "i32")
N = 1000


class Array:
    """float32 values on the device; what the launcher takes for a pointer."""

    def __init__(self, driver: Driver, values: np.ndarray) -> None:
        self.driver, self.size = driver, values.nbytes
        self.address = driver.allocate(values.nbytes)
        driver.copy_to_device(self.address, values.ctypes.data, values.nbytes)

    def data_ptr(self) -> int:
        return self.address

    def numpy(self) -> np.ndarray:
        out = np.empty(self.size // 4, np.float32)
        self.driver.copy_to_host(out.ctypes.data, self.address, self.size)
        self.driver.free(self.address)
        return out


@pytest.fixture
def driver() -> Driver:
    found = cuda.driver()
    found.bind()
    return found


def load(driver: Driver, shared: int = 0) -> LoadedKernel:
    major, minor = driver.properties(driver.current_device()).capability
    return driver.load(ptxas.assemble(AXPY, f"sm_{major}{minor}").cubin, "axpy", shared)


def arrays(driver: Driver) -> tuple[Array, Array, np.ndarray]:
    x = np.random.default_rng(0).standard_normal(N).astype(np.float32)
    return (
        Array(driver, x),
        Array(driver, np.ones(N, np.float32)),
        np.float32(0.5) * x + np.float32(1),
    )


def test_properties(driver: Driver):
    found = driver.properties(0)
    assert found.capability >= (8, 0)
    assert found.warp_size == 32
    assert found.max_shared >= 48 << 10
    assert 1 <= found.multiprocessor_count < 1000
    assert driver.version() >= 12000


@pytest.mark.parametrize("cluster", [1, 2])
def test_native_launch(driver: Driver, cluster: int):
    if cluster > 1 and driver.properties(0).capability < (9, 0):
        pytest.skip("clusters need sm_90")
    kernel, (x, y, expected) = load(driver), arrays(driver)
    config = launch_config(128, cluster=(cluster, 1, 1))
    launch, stream = make_launcher(KINDS, "cuda"), driver.stream_create(blocking=True)
    grid = -(-N // (128 * cluster))
    assert launch(grid, 1, 1, stream, kernel.function, config.address, x, y, 0.5, N) == 0
    assert launch(0, 1, 1, stream, kernel.function, config.address, x, y, 0.5, N) == 0
    driver.stream_synchronize(stream)
    driver.stream_destroy(stream)
    np.testing.assert_allclose(y.numpy(), expected, rtol=1e-6)
    x.numpy()


@pytest.mark.parametrize("option", ["none", "cooperative", "programmatic"])
def test_slow_launch_and_attributes(driver: Driver, option: str):
    if option == "programmatic" and driver.properties(0).capability < (9, 0):
        pytest.skip("needs sm_90")
    kernel, (x, y, expected) = load(driver), arrays(driver)
    args = [
        ctypes.c_uint64(x.address),
        ctypes.c_uint64(y.address),
        ctypes.c_float(0.5),
        ctypes.c_int32(N),
    ]
    config = launch_config(
        128, cooperative=option == "cooperative", programmatic=option == "programmatic"
    )
    driver.launch(kernel.function, (8, 1, 1), config, args)
    driver.synchronize()
    np.testing.assert_allclose(y.numpy(), expected, rtol=1e-6)
    x.numpy()


def test_shared_memory_limits(driver: Driver):
    limit = driver.properties(0).max_shared
    kernel, (x, y, expected) = load(driver, limit), arrays(driver)
    launch = make_launcher(KINDS, "cuda")
    config = launch_config(128, limit)
    assert launch(8, 1, 1, 0, kernel.function, config.address, x, y, 0.5, N) == 0
    driver.synchronize()
    np.testing.assert_allclose(y.numpy(), expected, rtol=1e-6)
    with pytest.raises(OutOfResources):
        load(driver, limit + 1)
    x.numpy()


def test_host_memory_is_refused(driver: Driver):
    kernel, (x, y, _) = load(driver), arrays(driver)
    host = np.ones(N, np.float32)
    launch, config = make_launcher(KINDS, "cuda"), launch_config(128)
    y.address, device = host.ctypes.data, y.address
    with pytest.raises(HostPointerError, match=r"Pointer argument \(at 1\)"):
        launch(8, 1, 1, 0, kernel.function, config.address, x, y, 0.5, N)
    with pytest.raises(HostPointerError, match="argument y"):
        driver.device_pointer(host.ctypes.data, "y")
    assert driver.device_pointer(device) == device
    y.address = device
    y.numpy()
    x.numpy()


def test_bad_launch_is_explained(driver: Driver):
    kernel, config = load(driver), launch_config(2048)
    code = make_launcher(KINDS, "cuda")(1, 1, 1, 0, kernel.function, config.address, 0, 0, 0.5, 0)
    assert code != 0
    with pytest.raises(CudaError, match=r"cuLaunchKernelEx failed: CUDA_ERROR_\w+") as caught:
        driver.check_launch(code, config)
    assert "2048 threads a CTA" in str(caught.value)


def test_events_measure_and_kernels_report(driver: Driver):
    kernel = load(driver)
    assert 4 <= kernel.registers <= 32
    assert kernel.local_bytes == 0
    assert kernel.max_threads >= 128
    assert driver.occupancy(kernel.function, 128, 0) >= 8
    start, end = driver.event_create(), driver.event_create()
    memory = driver.allocate(1 << 20)
    driver.event_record(start)
    driver.fill(memory, 0, 1 << 20)
    driver.event_record(end)
    assert 0 < driver.elapsed_ms(start, end) < 1000
    driver.event_destroy(start)
    driver.event_destroy(end)
    driver.free(memory)
    driver.unload(kernel.module)
