"""Convolutions with biases under torch.compile, whose biases are added in loops as on a GPU."""

# pyright: basic, reportMissingImports=false
# torch gives most of its values no type.
from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

import tessera.torch  # noqa: E402, F401  # registers the backend
from tessera.graph.passes import cost  # noqa: E402
from tests.graph.gpu_plans import launched  # noqa: E402


@pytest.fixture(autouse=True)
def apart(monkeypatch: pytest.MonkeyPatch) -> None:
    torch._dynamo.reset()
    monkeypatch.setattr(cost, "machine_of", lambda device: replace(cost.CPU, biases_apart=True))


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.Conv1d(3, 4, 3, padding=1), (2, 3, 8)),
        (nn.Conv2d(3, 4, 3), (2, 3, 8, 8)),
        (nn.Conv2d(3, 4, 3), (3, 8, 8)),
        (nn.Conv3d(3, 4, 2), (2, 3, 4, 4, 4)),
        (nn.ConvTranspose2d(4, 6, 2, stride=2, groups=2), (2, 4, 5, 5)),
    ],
)
def test_numbers_are_those_of_eager(layer: Any, shape: tuple[int, ...]):
    x = torch.randn(shape)
    run = torch.compile(lambda x: layer(x).relu(), backend="tessera")
    torch.testing.assert_close(run(x), layer(x).relu())
    run(x).square().sum().backward()
    found = [p.grad.clone() for p in layer.parameters()]
    layer.zero_grad()
    layer(x).relu().square().sum().backward()
    torch.testing.assert_close(found, [p.grad for p in layer.parameters()])
    layer.zero_grad()


def test_no_kernel_is_added_for_them():
    """Each convolution and what becomes of its result are two launches on a GPU; with a bias they were three."""
    model = nn.Sequential(nn.Conv2d(8, 8, 1), nn.ReLU(), nn.Conv2d(8, 8, 1), nn.Sigmoid())
    x = torch.randn(2, 8, 16, 16)

    def step() -> None:
        with torch.no_grad():
            torch.compile(model, backend="tessera")(x)

    found = launched(step)
    assert len(found.own) == 2 and len(found.externs) == 2
