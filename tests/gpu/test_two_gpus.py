"""Two GPUs: launches go to the current device, as Triton's do, and all that belongs to a device is kept for each.

With one GPU the tests that need no second one run on it alone."""

# annotations of kernels name dtypes
# pyright: basic, reportInvalidTypeForm=false, reportUndefinedVariable=false
from __future__ import annotations

import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import tessera
import tessera.language as tl
from tessera.config import knobs
from tessera.errors import LaunchError
from tessera.runtime.launching.async_compile import AsyncCompileMode
from tessera.tools.tensor_descriptor import TensorDescriptor
from tests.gpu.products_kit import close, matrix, product
from tests.unit.launch_counter_kit import Counter
from tests.unit.tensor_maps_kit import persistent

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
COUNT = torch.cuda.device_count()
DEVICES = (0, COUNT - 1)
two = pytest.mark.skipif(COUNT < 2, reason="needs two GPUs")
hopper = pytest.mark.skipif(
    COUNT == 0 or torch.cuda.get_device_capability() < (9, 0), reason="needs a Hopper GPU"
)
N = 4096
ROOT = Path(__file__).resolve().parents[2]


@tessera.jit
def add_one(x, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i, i < n) + 1, i < n)


def run(x: Any, out: Any, **options: Any) -> Any:
    return add_one[(N // 512,)](x, out, N, BLOCK=512, **options)


def data(device: int) -> tuple[Any, Any]:
    return torch.randn(N, device=device), torch.zeros(N, device=device)


def test_launches_in_turn_stay_native(monkeypatch: pytest.MonkeyPatch):
    count = Counter(add_one, monkeypatch)
    for turn in range(5):
        for device in (*DEVICES, *reversed(DEVICES)):
            with torch.cuda.device(device):
                x, out = data(device)
                run(x, out)
                assert torch.equal(out, x + 1)
                assert out.device.index == device
        if turn == 2:
            count.calls = 0
    assert count.calls == 0


def test_each_device_has_its_own_kernel():
    kernels = []
    for device in DEVICES:
        with torch.cuda.device(device):
            kernels.append(run(*data(device)))
    assert (kernels[0] is kernels[1]) == (DEVICES[0] == DEVICES[1])
    assert kernels[0].hash == kernels[1].hash


def peers() -> bool:
    return COUNT > 1 and torch.cuda.can_device_access_peer(0, 1)


@pytest.mark.skipif(not peers(), reason="needs two GPUs that reach each other's memory")
def test_the_current_device_runs_the_kernel():
    """Not the device of the arrays: what lies on another device is read over the link between them."""
    near, far = data(0)[0], data(1)[0]
    far.to(0)  # torch lets the devices reach each other
    near.to(1)
    seen: list[int] = []

    def entered(metadata: Any) -> None:
        seen.append(metadata.get()["stream"])

    streams = [torch.cuda.Stream(device) for device in (0, 1)]
    torch.cuda.synchronize(0)
    torch.cuda.synchronize(1)
    for _ in range(3):
        for device in (0, 1):
            with torch.cuda.device(device), torch.cuda.stream(streams[device]):
                out = torch.zeros(N, device=device)
                knobs.runtime.launch_enter_hook.add(entered)
                try:
                    run(near if device else far, out)
                finally:
                    knobs.runtime.launch_enter_hook.remove(entered)
                run(near if device else far, out)
                streams[device].synchronize()
            assert torch.equal(out.cpu(), (near if device else far).cpu() + 1)
    assert seen == [s.cuda_stream for s in streams] * 3


def test_streams_of_each_device():
    for device in DEVICES:
        with torch.cuda.device(device):
            x, out = data(device)
            run(x, out)
            y = torch.randn_like(x)
            side = torch.cuda.Stream()
            torch.cuda._sleep(1)  # loads its kernel, which waits for the device
            torch.cuda.synchronize()
            with torch.cuda.stream(side):
                torch.cuda._sleep(400_000_000)
                run(y, out)
            assert not side.query()
            side.synchronize()
            assert torch.equal(out, y + 1)


def test_graphs_of_each_device():
    for device in DEVICES:
        with torch.cuda.device(device):
            x, out = data(device)
            run(x, out)
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            # torch's own stream for captures is one of the device that captured first
            with torch.cuda.graph(graph, stream=torch.cuda.Stream()):
                run(x, out)
                run(out, x)
            start = x.clone()
            graph.replay()
            torch.cuda.synchronize()
            assert torch.equal(x, start + 1 + 1)


def test_threads_of_each_device():
    failures: list[BaseException] = []

    def work(device: int) -> None:
        try:
            torch.cuda.set_device(device)
            x, out = data(device)
            for turn in range(300):
                run(x, out)
                if turn % 50 == 0:
                    assert torch.equal(out, x + 1)
                    out.zero_()
            run(x, out)
            assert torch.equal(out, x + 1)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(DEVICES[i % 2],)) for i in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failures, failures[0]


@hopper
def test_descriptors_of_each_device(monkeypatch: pytest.MonkeyPatch):
    count = Counter(persistent, monkeypatch)
    for turn in range(6):
        for device in DEVICES:
            with torch.cuda.device(device):
                a, b = (torch.randn(256, 256, device=device, dtype=torch.float16) for _ in range(2))
                c = torch.zeros_like(a)
                blocks = ([128, 64], [128, 64], [128, 128])
                tiles = [TensorDescriptor.from_tensor(x, s) for x, s in zip((a, b, c), blocks)]
                persistent[(8,)](
                    *tiles, 256, 256, 256, BM=128, BN=128, BK=64, TRANS=True, num_warps=4
                )
                torch.testing.assert_close(
                    c, (a.float() @ b.float().T).half(), rtol=1e-2, atol=1e-2
                )
        if turn == 3:
            count.calls = 0
    assert count.calls == 0


@hopper
def test_kernels_with_preconditions_and_their_fallbacks_of_each_device():
    """Loads through tensor maps where the launch allows it, a second kernel where it does not."""
    for room in (8, 4, 8, 4):
        for device in DEVICES:
            with torch.cuda.device(device):
                a, b = (matrix(r, c, "row", room, room) for r, c in ((300, 200), (200, 260)))
                c, _ = product(a, b, "rem", (128, 128, 64), 4)
                assert c.device.index == device
                close(c, a, b)


def test_tuning_on_each_device(tmp_path: Path):
    configs = [
        tessera.Config({"BLOCK": b}, num_warps=w) for b, w in ((128, 1), (512, 4), (1024, 4))
    ]
    with knobs.scope():
        knobs.cache.dir = str(tmp_path)
        tuned = tessera.autotune(configs, key=["n"])(add_one)
        for device in (*DEVICES, *DEVICES):
            with torch.cuda.device(device):
                x, out = data(device)
                tuned[lambda meta: (tessera.cdiv(N, meta["BLOCK"]),)](x, out, N)
                assert torch.equal(out, x + 1)
                assert torch.cuda.current_device() == device


def test_background_compilation_for_each_device():
    with ThreadPoolExecutor(2) as pool, AsyncCompileMode(pool):
        futures = []
        for device in DEVICES:
            with torch.cuda.device(device):
                futures.append(add_one.warmup(*data(device), N, BLOCK=256, grid=(1,)))
    for device in DEVICES:
        with torch.cuda.device(device):
            x, out = data(device)
            add_one[(N // 256,)](x, out, N, BLOCK=256)
            assert torch.equal(out, x + 1)


@two
def test_a_compiled_kernel_stays_on_its_device():
    with torch.cuda.device(0):
        x, out = data(0)
        kernel = run(x, out)
    with (
        torch.cuda.device(1),
        pytest.raises(LaunchError, match="loaded on device 0; the current device is 1"),
    ):
        kernel[(N // 512, 1, 1)](*data(1), N, 512)
    with torch.cuda.device(0):
        out.zero_()
        kernel[(N // 512, 1, 1)](x, out, N, 512)
        assert torch.equal(out, x + 1)


@two
def test_a_process_that_uses_the_second_device_alone():
    """torch then has device 0 without a context; and after the block the second one's stays current in the driver."""
    code = """
import torch, tests.gpu.test_two_gpus as t
with torch.cuda.device(1):
    x, out = t.data(1)
    for _ in range(3):
        t.run(x, out)
    assert torch.equal(out, x + 1)
x, out = t.data(0)
for _ in range(3):
    t.run(x, out)
    assert torch.equal(out, x + 1)
torch.cuda.set_device(1)
x, out = t.data(1)
t.run(x, out)
assert torch.equal(out, x + 1)
"""
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=120)


def test_devices_without_torch():
    code = f"""
import sys
import numpy as np
from tessera.runtime import driver
from tessera.runtime.cuda import driver_api as cuda
import tessera, tessera.language as tl
import tests.unit.raw_kernels as raw
api = cuda.driver()
for device in {DEVICES} * 2:
    driver.active.set_current_device(device)
    assert driver.active.get_current_device() == device
    x = np.arange(64, dtype=np.float32)
    address = api.allocate(x.nbytes)
    api.copy_to_device(address, x.ctypes.data, x.nbytes)
    for _ in range(3):
        raw.increase[(1,)](address, 64, BLOCK=64)
    api.copy_to_host(x.ctypes.data, address, x.nbytes)
    assert (x == np.arange(64) + 3).all(), x
    api.free(address)
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=120)
