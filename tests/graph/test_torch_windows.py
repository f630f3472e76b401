"""Gradients of depthwise convolutions' weights are sums of ours on CPUs, without the library's copies of windows."""

# pyright: basic, reportMissingImports=false
from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torch._dynamo")

from torch.nn.functional import conv2d  # noqa: E402

import tessera.torch  # noqa: E402, F401  registers the backend
from tessera.graph.planning.plan import Extern  # noqa: E402
from tessera.graph.torch.measure import peak_bytes  # noqa: E402
from tessera.graph.torch.records import recording  # noqa: E402

BACKWARD = "aten.convolution_backward.default"
# Images, window, and what else the convolution is told; whether the library computes the gradient of the weight.
CASES: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any], bool]] = {
    "same size": ((2, 6, 9, 8), (6, 1, 7, 7), {"padding": 3}, False),
    "strided": ((2, 5, 13, 11), (5, 1, 5, 4), {"stride": (2, 3), "padding": (2, 1)}, False),
    "no padding": ((1, 3, 8, 9), (3, 1, 4, 4), {}, False),
    "window of the image": ((3, 2, 5, 5), (2, 1, 5, 5), {}, False),
    "small windows": ((2, 6, 9, 8), (6, 1, 3, 3), {"padding": 1}, True),
    "spread": ((2, 6, 15, 15), (6, 1, 5, 5), {"dilation": 2}, True),
    "several of a channel": ((2, 3, 9, 8), (6, 1, 5, 5), {}, True),
    "groups of channels": ((2, 6, 9, 8), (6, 2, 5, 5), {"groups": 3}, True),
}


def gradients(
    shape: tuple[int, ...], window: tuple[int, ...], how: dict[str, Any], run: Any, dtype: Any
) -> list[Any]:
    torch.manual_seed(0)
    given = [torch.randn(n).to(dtype).requires_grad_() for n in (shape, window, window[:1])]
    how = {"groups": shape[1], **how}
    out = run(lambda x, w, b: conv2d(x.sin(), w, b, **how))(*given)
    return list(torch.autograd.grad((out * out).sum(), given))


def compiled(f: Any) -> Any:
    torch._dynamo.reset()
    return torch.compile(f, backend="tessera")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("off", ["", "graph-sum-windows"])
@pytest.mark.parametrize("name", CASES)
def test_gradients(monkeypatch: pytest.MonkeyPatch, name: str, off: str, dtype: str):
    monkeypatch.setenv("TESSERA_DISABLE", off)
    shape, window, how, library = CASES[name]
    with recording() as records:
        ours = gradients(shape, window, how, compiled, getattr(torch, dtype))
    exact = gradients(shape, window, how, lambda f: f, torch.float64)
    tolerance = 1e-4 if dtype == "float32" else 5e-2
    for mine, true in zip(ours, exact, strict=True):
        if dtype == "float32":
            torch.testing.assert_close(mine.double(), true, rtol=tolerance, atol=tolerance)
        assert mine.shape == true.shape and mine.stride() == true.stride()
        assert (mine.double() - true).norm() < tolerance * true.norm()
    steps = [s for r in records if r.purpose == "backward" for s in r.run.plan.steps]
    calls = [s.op for s in steps if isinstance(s, Extern) and s.op.target == BACKWARD]
    small = dtype == "bfloat16" and name == "small windows"
    on_gpu = ours[0].device.type != "cpu"  # there the library sums windows as they lie
    assert [bool(op.arguments[-1][1]) for op in calls] == [
        on_gpu or bool(off) or (library and not small)
    ]


def test_memory():
    """Gradients of a convolution with windows of 7x7, as of a convnext, hold less than three quarters of eager's, where
    the library copies windows; elsewhere they hold less than eager's."""
    x, w = torch.randn(2, 64, 32, 32), torch.randn(64, 1, 7, 7)

    def peak(run: Any) -> int:
        given = [t.clone().requires_grad_() for t in (x, w)]
        f = run(lambda x, w: conv2d(x.sin(), w, padding=3, groups=64).cos())
        return peak_bytes(lambda: torch.autograd.grad(f(*given).sum(), given))[0]

    part = 0.75 if x.device.type == "cpu" else 1.0
    assert peak(compiled) < part * peak(lambda f: f)
