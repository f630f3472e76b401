"""Launches on a GPU beside torch: graphs, streams, threads, dependent and cooperative ones, arrays of every kind."""

# annotations of kernels name dtypes
# pyright: basic, reportInvalidTypeForm=false, reportUndefinedVariable=false
from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

import tessera
import tessera.language as tl
from tessera import knobs
from tessera.errors import ForeignPointerError, HostPointerError, MissingMemory
from tessera.runtime.cuda.driver_api import CudaError
from tessera.runtime.native.array_types import array_types
from tessera.tools.tensor_descriptor import TensorDescriptor
from tests.unit.launch_counter_kit import Counter
from tests.unit.tensor_maps_kit import persistent

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
hopper = pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability() < (9, 0), reason="needs a Hopper GPU"
)  # fmt: skip
N = 4096


@tessera.jit
def add_one(x, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i, i < n) + 1, i < n)


@tessera.jit
def add_one_raw(x: "*fp32", out: "*fp32", n, BLOCK: tl.constexpr):  # noqa: F722
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i, i < n) + 1, i < n)


@tessera.jit
def dependent(x, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.extra.cuda.gdc_wait()
    value = tl.load(x + i, i < n)
    tl.extra.cuda.gdc_launch_dependents()
    tl.store(out + i, value * 2 + 1, i < n)


@tessera.jit
def neighbours(counter, x, out, programs, BLOCK: tl.constexpr):
    me = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    tl.store(x + me * BLOCK + i, me * BLOCK + i)
    tl.debug_barrier()
    tl.atomic_add(counter, 1, sem="acq_rel")
    while tl.atomic_add(counter, 0, sem="acq_rel") < programs:
        pass
    tl.debug_barrier()
    other = (me + 1) % programs
    tl.store(out + me * BLOCK + i, tl.load(x + other * BLOCK + i, cache_modifier=".cg"))


def run(kernel: Any, x: Any, out: Any, **options: Any) -> None:
    kernel[(N // 512,)](x, out, N, BLOCK=512, **options)


def data() -> tuple[Any, Any]:
    return torch.randn(N, device="cuda"), torch.zeros(N, device="cuda")


def test_repeated_launches_stay_native(monkeypatch: pytest.MonkeyPatch):
    count = Counter(add_one, monkeypatch)
    for turn in range(6):
        x, out = data()
        run(add_one, x, out)
        run(add_one, torch.nn.Parameter(x), out=out)
        assert torch.equal(out, x + 1)
        if turn == 2:
            count.calls = 0
    assert count.calls == 0
    assert array_types().layout is not None


def run_tiles(a: Any, b: Any, c: Any) -> None:
    n = a.shape[0]
    tiles = [
        TensorDescriptor.from_tensor(x, [128, 128] if x is c else [128, 64]) for x in (a, b, c)
    ]
    persistent[(8,)](*tiles, n, n, n, BM=128, BN=128, BK=64, TRANS=True, num_warps=4, num_stages=3)


@hopper
def test_descriptors_stay_native(monkeypatch: pytest.MonkeyPatch):
    count = Counter(persistent, monkeypatch)
    for turn in range(8):
        a, b = (torch.randn(256, 256, device="cuda", dtype=torch.float16) for _ in range(2))
        c = torch.zeros_like(a)
        run_tiles(a, b, c)
        torch.testing.assert_close(c, (a.float() @ b.float().T).half(), rtol=1e-2, atol=1e-2)
        if turn == 3:
            count.calls = 0
    assert count.calls == 0


@hopper
def test_graphs_of_launches():
    x, out = data()
    a, b = (torch.randn(256, 256, device="cuda", dtype=torch.float16) for _ in range(2))
    c = torch.zeros_like(a)
    for _ in range(3):
        run(add_one, x, out)
        run(add_one, out, x)
        run_tiles(a, b, c)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run(add_one, x, out)
        run(add_one, out, x)
        run_tiles(a, b, c)
    for _ in range(3):
        x.copy_(torch.randn(N))
        a.copy_(torch.randn(256, 256))
        start = x.clone()
        graph.replay()
        assert torch.equal(x, start + 1 + 1)
        torch.testing.assert_close(c, (a.float() @ b.float().T).half(), rtol=1e-2, atol=1e-2)


@hopper
@pytest.mark.parametrize("captured", [False, True])
def test_dependent_launches(captured: bool):
    x, out = data()
    x = torch.round(x)
    start = x.clone()

    def chain() -> None:
        for _ in range(10):
            run(dependent, x, out, launch_pdl=True)
            run(dependent, out, x, launch_pdl=True)

    chain()
    torch.cuda.synchronize()
    if captured:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            chain()
        x.copy_(start)
        graph.replay()
    want = start.double()
    for _ in range(20):
        want = want * 2 + 1
    assert torch.equal(x, want.float())
    kernel = dependent.warmup(x, out, N, BLOCK=512, grid=(1,), launch_pdl=True)
    assert "griddepcontrol.wait" in kernel.asm["ptx"]


def test_cooperative_launches():
    programs = torch.cuda.get_device_properties(0).multi_processor_count
    x, out = (torch.zeros(programs * 256, device="cuda", dtype=torch.int32) for _ in range(2))
    for _ in range(4):
        counter = torch.zeros(1, device="cuda", dtype=torch.int32)
        neighbours[(programs,)](counter, x, out, programs, BLOCK=256, launch_cooperative_grid=True)  # pyright: ignore[reportCallIssue]
        assert torch.equal(out, torch.roll(x, -256))
        x.zero_()
    for _ in range(2):  # more than fit at a time
        with pytest.raises(CudaError, match="COOPERATIVE_LAUNCH_TOO_LARGE"):
            neighbours[(1 << 16,)](  # pyright: ignore[reportCallIssue]
                counter, x, out, 1 << 16, BLOCK=256, launch_cooperative_grid=True
            )


def test_hooks_and_streams():
    x, out = data()
    seen: list[Any] = []
    side = torch.cuda.Stream()

    def entered(metadata: Any) -> None:
        seen.append((metadata.get()["name"], metadata.get()["stream"]))

    def left(metadata: Any) -> None:
        seen.append("left")

    for _ in range(3):
        run(add_one, x, out)
    knobs.runtime.launch_enter_hook.add(entered)
    knobs.runtime.launch_exit_hook.add(left)
    try:
        for _ in range(2):
            with torch.cuda.stream(side):
                run(add_one, x, out)
            run(add_one, x, out)
    finally:
        knobs.runtime.launch_enter_hook.remove(entered)
        knobs.runtime.launch_exit_hook.remove(left)
    here = torch.cuda.current_stream().cuda_stream
    assert seen == [("add_one", side.cuda_stream), "left", ("add_one", here), "left"] * 2
    run(add_one, x, out)
    assert len(seen) == 8


def test_launches_wait_for_their_stream_only():
    x, out = data()
    x2, out2 = data()
    run(add_one, x, out)
    side = torch.cuda.Stream()
    asleep, awake, here = (torch.cuda.Event(enable_timing=True) for _ in range(3))
    torch.cuda.synchronize()
    for _ in range(3):
        out.zero_()
        out2.zero_()
        torch.cuda.synchronize()
        with torch.cuda.stream(side):
            asleep.record()
            torch.cuda._sleep(1_000_000_000)
            run(add_one, x, out)
            awake.record()
        run(add_one, x2, out2)
        here.record()
        torch.cuda.synchronize()
        # The GPU's own clock tells which came first, however late other processes let this one look.
        assert here.elapsed_time(awake) > 0 and asleep.elapsed_time(awake) > 100
        assert torch.equal(out, x + 1) and torch.equal(out2, x2 + 1)


def test_threads_that_have_not_used_cuda():
    x, out = data()
    results: list[bool] = []
    failures: list[BaseException] = []
    run(add_one, x, out)
    torch.cuda.synchronize()

    def work(seed: int) -> None:
        try:
            mine = (
                torch.zeros_like(out) if seed % 2 else None
            )  # the others launch before anything else
            target = mine if mine is not None else own[seed]
            for _ in range(100):
                run(add_one, x, target)
            torch.cuda.synchronize()
            results.append(bool(torch.equal(target, x + 1)))
        except BaseException as error:
            failures.append(error)

    own = [torch.zeros_like(out) for _ in range(6)]
    threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failures, failures[0]
    assert results == [True] * 6


class ByInterface:
    """An array that only has `__cuda_array_interface__`."""

    def __init__(self, tensor: Any) -> None:
        self.tensor = tensor

    @property
    def __cuda_array_interface__(self) -> Any:
        return self.tensor.__cuda_array_interface__


class ByDlpack:
    """An array that only speaks DLPack."""

    def __init__(self, tensor: Any) -> None:
        self.tensor = tensor

    def __dlpack__(self, stream: Any = None, **options: Any) -> Any:
        return self.tensor.__dlpack__(stream=stream)

    def __dlpack_device__(self) -> Any:
        return self.tensor.__dlpack_device__()


def by_cupy(tensor: Any) -> Any:
    cupy = pytest.importorskip("cupy")
    return cupy.from_dlpack(tensor)


@pytest.mark.parametrize("wrap", [ByInterface, ByDlpack, by_cupy])
def test_arrays_of_other_libraries(monkeypatch: pytest.MonkeyPatch, wrap: Any):
    count = Counter(add_one, monkeypatch)
    for turn in range(5):
        x, out = data()
        run(add_one, wrap(x), wrap(out))
        assert torch.equal(out, x + 1)
        if turn == 2:
            count.calls = 0
    assert count.calls == 0


def test_raw_addresses():
    for _ in range(3):
        x, out = data()
        run(add_one_raw, x.data_ptr(), out.data_ptr())
        assert torch.equal(out, x + 1)


def test_host_memory_is_refused():
    x, out = data()
    for _ in range(3):
        with pytest.raises(HostPointerError):
            run(add_one, x, out.cpu())
        with pytest.raises(HostPointerError):
            run(add_one, x, np.zeros(N, np.float32))
        run(add_one, x, out)
    with pytest.raises(ForeignPointerError):
        run(add_one, x.cpu(), out)
    empty = torch.empty(N, device="meta")
    for wrong in ((empty, out), (x, empty)):
        with pytest.raises((MissingMemory, ForeignPointerError)):  # whichever is seen first
            run(add_one, *wrong)
    pinned = torch.zeros(N).pin_memory()
    for _ in range(3):
        run(add_one, x, pinned)  # the device reaches pinned memory
        torch.cuda.synchronize()
        assert torch.equal(pinned, x.cpu() + 1)


def test_memory_that_is_shared_until_written():
    x, out = data()
    for _ in range(3):
        run(add_one, x, out)
    clone = torch._lazy_clone(out)
    before = out.cpu().clone()
    run(add_one, x * 2, clone)
    assert torch.equal(clone, x * 2 + 1)
    assert torch.equal(out.cpu(), before)


def test_empty_and_offset_tensors():
    x, out = data()
    for _ in range(3):
        add_one[(1,)](x[:0], out[:0], 0, BLOCK=512)
        add_one[(7,)](x[3:], out[5:], N - 512, BLOCK=512)
        assert torch.equal(out[5 : 5 + 7 * 512], x[3 : 3 + 7 * 512] + 1)
    assert not out[:5].any()
