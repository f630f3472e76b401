"""A model of PyTorch, compiled as a whole by `torch.compile(model, backend="tessera")`: forward, and with backward.

A transformer's block without attention: its norms, activations and sums become a few kernels, which
`tessera.graph.explain(model, x)` lists. Needs torch, which the other examples do not; without it there is no row.
"""

from __future__ import annotations

import copy
import importlib
from typing import Any

import numpy as np

import common
from tessera.errors import TorchNotFound

WIDTH = 256


def specimens() -> list[common.Specimen]:
    return []  # the kernels are the compiler's


def block() -> Any:
    """Two gated layers with norms and residual sums."""
    from torch import nn

    class Gated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.LayerNorm(WIDTH)
            self.gate, self.up = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
            self.down = nn.Linear(WIDTH, WIDTH)

        def forward(self, x: Any) -> Any:
            y = self.norm(x)
            return x + self.down(nn.functional.silu(self.gate(y)) * self.up(y))

    return nn.Sequential(Gated(), Gated())


def forward(model: Any, x: Any) -> Any:
    import torch

    with torch.no_grad():
        return model(x)


def step(model: Any, x: Any) -> Any:
    """The gradient of the input, with those of the weights computed, too."""
    x = x.detach().requires_grad_(True)
    model.zero_grad()
    model(x).square().mean().backward()
    return x.grad


def measure(device: common.Device, what: str, run: Any, rows: int) -> common.Row:
    import torch

    torch.manual_seed(0)
    eager = block().to(device.name)
    compiled = torch.compile(copy.deepcopy(eager), backend="tessera")
    x = torch.randn(rows, WIDTH, device=device.name)
    expected = run(copy.deepcopy(eager).double(), x.double()).cpu().numpy()
    error = common.relative_error(run(compiled, x).cpu().numpy().astype(np.float64), expected)
    work = 2.0 * 6 * rows * WIDTH * WIDTH * (1 if run is forward else 3)
    return common.Row(
        f"compiled model, {what}", f"{rows}x{WIDTH} float32, beside eager", error, 1e-4, work, "GFLOP/s",
        device.time(lambda: run(compiled, x)), device.time(lambda: run(eager, x)),
    )  # fmt: skip


def main(device: common.Device) -> list[common.Row]:
    try:
        importlib.import_module("tessera.torch")  # registers the backend
    except TorchNotFound as missing:
        print(f"  no compiled model: {missing.message}; {missing.help}")
        return []
    rows = device.pick(1024, 16384)
    return [measure(device, "forward", forward, rows), measure(device, "step", step, rows)]


if __name__ == "__main__":
    common.run(main)
