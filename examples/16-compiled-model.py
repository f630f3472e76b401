"""A model of PyTorch, compiled as a whole by `torch.compile(model, backend="tessera")`: forward, and with backward.

A transformer's block without attention: its norms, activations and sums become a few kernels, which
`tessera.graph.explain(model, x)` lists. Needs torch, which the other examples do not; without it there is no row.
"""

from __future__ import annotations

from typing import Any

WIDTH = 256


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


if __name__ == "__main__":
    import torch

    model, x = block(), torch.randn(1024, WIDTH)
    fast = torch.compile(model, backend="tessera")
    print(
        "largest difference from eager:", (forward(fast, x) - forward(model, x)).abs().max().item()
    )
    print("gradients:", torch.allclose(step(fast, x), step(model, x), atol=1e-5))
