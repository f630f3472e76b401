"""Graphs on a GPU that is not the current one: their kernels are loaded and launched there, and the device is restored.

What torch says about devices is a fake's, but for the marked tests, which need two GPUs."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torch._dynamo")

from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402

import tessera.torch  # noqa: F401, E402  registers the backend
from tessera.backends.compiler import GPUTarget  # noqa: E402
from tessera.graph import explain  # noqa: E402
from tessera.graph.torch import backend  # noqa: E402
from tessera.graph.torch.host import TorchHost  # noqa: E402
from tessera.graph.torch.importing import import_graph  # noqa: E402
from tessera.graph.torch.measure import peak_bytes  # noqa: E402
from tessera.graph.torch.options import Options  # noqa: E402


class Devices:
    """Two GPUs as torch knows them. `changes`: how often somebody has changed the current one."""

    def __init__(self, count: int = 2) -> None:
        self.count, self.now, self.changes = count, 0, 0

    @contextmanager
    def device(self, wanted: Any) -> Generator[None]:
        number = torch.device(wanted).index if isinstance(wanted, str) else wanted
        before, self.now = self.now, number
        self.changes += before != number
        try:
            yield
        finally:
            self.now = before


@pytest.fixture(params=[2])
def devices(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Devices:
    fake = Devices(request.param)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: fake.count)
    monkeypatch.setattr(torch.cuda, "device", fake.device)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: fake.now)
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: fake.now, raising=False)
    stream = lambda number: 1000 + number
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", stream, raising=False)
    return fake


def test_a_call_runs_on_the_device_of_its_graph(devices: Devices):
    call = TorchHost({}, {}, "cuda:1").on_device(lambda inputs: [devices.now, *inputs])
    assert call([7]) == [1, 7] and devices.now == 0 and devices.changes == 1
    devices.now = 1
    assert call([7]) == [1, 7] and devices.now == 1 and devices.changes == 1


def test_the_device_is_restored_behind_an_error(devices: Devices):
    def fail(inputs: list[Any]) -> list[Any]:
        raise RuntimeError(f"on {devices.now}")

    with pytest.raises(RuntimeError, match="on 1"):
        TorchHost({}, {}, "cuda:1").on_device(fail)([])
    assert devices.now == 0


@pytest.mark.parametrize("devices", [1], indirect=True)
def test_a_call_is_left_alone_where_there_is_one_device(devices: Devices):
    call = lambda inputs: inputs
    assert TorchHost({}, {}, "cuda:0").on_device(call) is call
    assert TorchHost({}, {}, "cpu").on_device(call) is call


def test_launches_go_into_the_stream_of_the_device(devices: Devices):
    assert TorchHost({}, {}, "cuda:1").stream() == 1001
    devices.now = 1
    assert TorchHost({}, {}, "cuda").stream() == 1001  # the current one when the graph was compiled
    assert TorchHost({}, {}, "cpu").stream() == 0


@pytest.mark.skipif(torch.cuda.device_count() == 1, reason="torch refuses a GPU that is not there")
def test_kernels_are_loaded_on_the_device_of_their_graph(
    devices: Devices, monkeypatch: pytest.MonkeyPatch
):
    seen: list[int] = []
    monkeypatch.setattr(backend, "target_of", lambda device: GPUTarget("cuda", 90, 32))
    compiled = lambda *given, **more: seen.append(devices.now)
    monkeypatch.setattr(backend, "compile_executable", compiled)
    with FakeTensorMode():
        x = torch.empty(4, 5, device="cuda:1")
        graph = make_fx(lambda x: [x.exp()], tracing_mode="fake")(x)
    backend.executable_of(import_graph(graph, Options()), Options())
    assert seen == [1] and devices.now == 0


def test_memory_of_all_devices_is_measured(devices: Devices, monkeypatch: pytest.MonkeyPatch):
    held, most = [100, 30], [0, 0]

    def run() -> None:
        most[:] = [held[0] + 5, held[1] + 70]

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: held[device])
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: most[device])
    reset = lambda device: most.__setitem__(device, held[device])
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", reset)
    assert peak_bytes(run)[0] == 75


# --- on two GPUs ----------------------------------------------------------------------------------------------------
needs_two = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")


def chain(x: Any, w: Any) -> Any:
    return torch.nn.functional.layer_norm(x @ w, (64,)).exp().sum(1)


@pytest.mark.gpu
@needs_two
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_training_on_the_other_gpu(mode: str):
    torch._dynamo.reset()
    compiled = torch.compile(chain, backend="tessera", mode=mode)
    w = torch.randn(32, 64, device="cuda:1", requires_grad=True)
    for k in range(4):
        torch.cuda.set_device(k % 2)
        x = torch.randn(16, 32, device="cuda:1")
        torch.compiler.cudagraph_mark_step_begin()
        found = compiled(x, w)
        (gradient,) = torch.autograd.grad(found.sum(), w)
        found, gradient = found.detach().clone(), gradient.clone()
        wanted = chain(x, w)
        (right,) = torch.autograd.grad(wanted.sum(), w)
        assert torch.cuda.current_device() == k % 2
        torch.testing.assert_close(found, wanted.detach(), rtol=1e-3, atol=1e-3, msg=f"call {k}")
        torch.testing.assert_close(gradient, right, rtol=1e-2, atol=1e-2)
    torch.cuda.set_device(0)


@pytest.mark.gpu
@needs_two
def test_one_function_on_both_gpus():
    torch._dynamo.reset()
    compiled = torch.compile(chain, backend="tessera")
    for number in (0, 1, 0, 1):
        x, w = (torch.randn(*s, device=f"cuda:{number}") for s in ((16, 32), (32, 64)))
        torch.testing.assert_close(compiled(x, w), chain(x, w), rtol=1e-3, atol=1e-3)
    assert torch.cuda.current_device() == 0


@pytest.mark.gpu
@needs_two
def test_a_report_of_the_other_gpu():
    x, w = torch.randn(16, 32, device="cuda:1"), torch.randn(32, 64, device="cuda:1")
    report = explain(chain, x, w)
    assert all(s.seconds for s in report.graphs[0].steps)
    assert torch.cuda.current_device() == 0
