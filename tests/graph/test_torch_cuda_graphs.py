"""CUDA graphs on request: what is handed to torch's trees, and what is not. Nothing here runs on a GPU."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torch._dynamo")

from tessera.graph.torch import backend, cuda_graphs  # noqa: E402
from tessera.graph.torch.options import options_of  # noqa: E402
from tests.graph.torch_kit import compare  # noqa: E402


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Takes CPU graphs for those of a GPU, and notes what torch is asked to record."""
    from torch._inductor import cudagraph_trees

    asked: list[dict[str, Any]] = []

    def record(call: Any, inputs: Any, static: Any, **facts: Any) -> Any:
        asked.append({"static": list(static), "inputs": len(inputs), **facts})
        return lambda given: call(given)

    monkeypatch.setattr(cudagraph_trees, "cudagraphify_impl", record)
    of_torch = cuda_graphs.of_torch
    monkeypatch.setattr(of_torch, "get_device_index", lambda graph: 0)
    monkeypatch.setattr(of_torch, "check_multiple_devices_or_any_cpu_nodes", lambda devices: None)
    real = backend.executable_of

    def executable_of(imported: Any, options: Any) -> Any:
        run = real(imported, options)
        imported.device = "cuda:0"
        return run

    monkeypatch.setattr(backend, "executable_of", executable_of)
    return asked


def test_modes_ask_for_cuda_graphs():
    assert options_of("reduce-overhead", None).cuda_graphs
    assert options_of("max-autotune", None).cuda_graphs
    assert not options_of("max-autotune-no-cudagraphs", None).cuda_graphs
    assert not options_of("reduce-overhead", {"cuda_graphs": False}).cuda_graphs


def test_forward_and_backward_are_recorded(recorded: list[dict[str, Any]]):
    model = torch.nn.Linear(4, 3, device="cpu")
    compiled = torch.compile(model, backend="tessera", mode="reduce-overhead")
    compiled(torch.randn(2, 4, device="cpu")).exp().sum().backward()
    assert [r["is_backward"] for r in recorded] == [False, True]
    assert not any(r["is_inference"] for r in recorded)
    assert model.weight.grad.shape == (3, 4)


def test_what_runs_on_the_host_is_not_recorded(
    recorded: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
):
    with torch.no_grad():
        torch.compile(torch.sin, backend="tessera", mode="reduce-overhead")(
            torch.randn(3, device="cpu")
        )
        assert [r["is_inference"] for r in recorded] == [True]
        monkeypatch.setattr(cuda_graphs.of_torch, "check_for_skip", lambda *given: "a reason")
        torch.compile(torch.cos, backend="tessera", mode="reduce-overhead")(
            torch.randn(3, device="cpu")
        )
        assert len(recorded) == 1


def test_on_the_cpu_the_mode_changes_nothing():
    compare(lambda x: x.exp() + 1, torch.randn(5, device="cpu"), mode="reduce-overhead")
