"""Small models of many kinds, compiled with backend="tessera", beside eager: inference and a training step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torch._dynamo")

import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402

from tests.graph.blocks import Block  # noqa: E402
from tests.graph.torch_kit import copied, difference  # noqa: E402


class Embedded(nn.Module):
    """Words to logits, with a loss."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(31, 12), nn.Linear(12, 31)

    def forward(self, words: Any, targets: Any) -> Any:
        return F.cross_entropy(self.head(self.words(words).mean(1)), targets)


class Convolutions(nn.Module):
    """A small image network: convolution, batch norm, pooling."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, stride=2)
        self.norm, self.head = nn.BatchNorm2d(8), nn.Linear(8, 5)

    def forward(self, x: Any) -> Any:
        x = F.max_pool2d(F.relu(self.norm(self.a(x))), 2)
        return self.head(F.adaptive_avg_pool2d(F.silu(self.b(x)), 1).flatten(1))


class Residual(nn.Module):
    """A U-shaped block: group norm, up-sampling, a skip connection by concatenation."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.up = nn.Conv2d(4, 8, 3, stride=2, padding=1), nn.Conv2d(12, 4, 3, padding=1)
        self.norm = nn.GroupNorm(2, 8)

    def forward(self, x: Any) -> Any:
        y = F.silu(self.norm(self.down(x)))
        y = F.interpolate(y, scale_factor=2, mode="nearest")
        return self.up(torch.cat([x, y], 1))


class Cell(nn.Module):
    """A recurrent cell over a few steps."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.GRUCell(5, 7), nn.Linear(7, 2)

    def forward(self, x: Any) -> Any:
        state = x.new_zeros(x.shape[1], 7)
        for step in x:
            state = self.cell(step, state)
        return self.head(state)


class Experts(nn.Module):
    """A mixture of experts: each row takes the two best of four."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(6, 4)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 6)) for _ in range(4)
        )

    def forward(self, x: Any) -> Any:
        weights, chosen = self.gate(x).softmax(-1).topk(2, dim=-1)
        out = torch.zeros_like(x)
        for n, expert in enumerate(self.experts):
            share = (weights * (chosen == n)).sum(-1, keepdim=True)
            out = out + share * expert(x)
        return out


class StateSpace(nn.Module):
    """A linear recurrence by a prefix sum of logarithms."""

    def __init__(self) -> None:
        super().__init__()
        self.rate, self.inp = nn.Parameter(torch.rand(6)), nn.Linear(6, 6)

    def forward(self, x: Any) -> Any:
        decay = -F.softplus(self.rate) * torch.arange(x.shape[1], device=x.device).unsqueeze(1)
        return (self.inp(x) * (-decay).exp()).cumsum(1) * decay.exp()


class Neighbours(nn.Module):
    """A layer on a graph: messages along edges are added up at their targets."""

    def __init__(self) -> None:
        super().__init__()
        self.message = nn.Linear(6, 6)

    def forward(self, x: Any, source: Any, target: Any) -> Any:
        summed = torch.zeros_like(x).index_add(0, target, self.message(x)[source])
        count = torch.zeros(x.shape[0]).scatter_add(0, target, torch.ones(target.shape[0]))
        return F.relu(x + summed / count.clamp(min=1).unsqueeze(1))


class RMS(nn.Module):
    """A gated layer with the norm of language models, rotated positions included."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.gate, self.up, self.down = (
            nn.Parameter(torch.ones(8)),
            nn.Linear(8, 16),
            nn.Linear(8, 16),
            nn.Linear(16, 8),
        )

    def forward(self, x: Any) -> Any:
        y = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.scale
        a, b = y.chunk(2, -1)
        places = torch.arange(x.shape[1], device=x.device)[:, None]
        angle = places / 10.0 ** torch.arange(4, device=x.device)
        y = torch.cat([a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()], -1)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


def mlp() -> nn.Module:
    return nn.Sequential(
        nn.Linear(10, 32),
        nn.ReLU(),
        nn.Dropout(0.0),
        nn.Linear(32, 16),
        nn.Tanh(),
        nn.Linear(16, 4),
    )


MODELS: dict[str, tuple[Callable[[], Any], Callable[[], tuple[Any, ...]]]] = {
    "mlp": (mlp, lambda: (torch.randn(6, 10),)),
    "transformer": (lambda: Block(16, 4, False), lambda: (torch.randn(2, 9, 16),)),
    "transformer, torch's attention": (lambda: Block(16, 4, True), lambda: (torch.randn(2, 9, 16),)),
    "embedding": (Embedded, lambda: (torch.randint(31, (5, 8)), torch.randint(31, (5,)))),
    "convolutions": (Convolutions, lambda: (torch.randn(2, 3, 12, 12),)),
    "u-net block": (Residual, lambda: (torch.randn(2, 4, 8, 8),)),
    "recurrent": (Cell, lambda: (torch.randn(4, 3, 5),)),
    "experts": (Experts, lambda: (torch.randn(7, 6),)),
    "state space": (StateSpace, lambda: (torch.randn(2, 10, 6),)),
    "graph layer": (Neighbours, lambda: (torch.randn(9, 6), torch.randint(9, (20,)), torch.randint(9, (20,)))),
    "gated, rms norm": (RMS, lambda: (torch.randn(2, 5, 8),)),
}  # fmt: skip


def loss_of(out: Any) -> Any:
    return (
        (out * torch.linspace(-1, 1, out.numel(), device=out.device).view(out.shape)).sum()
        if out.dim()
        else out
    )


def made(name: str) -> tuple[Any, Any, tuple[Any, ...]]:
    """Two models of the same weights, and an input."""
    torch.manual_seed(3)
    model, inputs = MODELS[name][0](), MODELS[name][1]()
    twin = MODELS[name][0]()
    twin.load_state_dict(model.state_dict())
    torch._dynamo.reset()
    return model, twin, inputs


@pytest.mark.parametrize("name", MODELS)
def test_inference(name: str):
    model, twin, inputs = made(name)
    with torch.no_grad():
        found = torch.compile(twin.eval(), backend="tessera", fullgraph=True)(*inputs)
        assert difference(found, model.eval()(*inputs)) is None


@pytest.mark.parametrize("name", MODELS)
def test_training_steps(name: str):
    model, twin, inputs = made(name)
    compiled = torch.compile(twin, backend="tessera")
    for network, call in ((model, model), (twin, compiled)):
        optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
        for _ in range(2):
            optimizer.zero_grad()
            loss_of(call(*copied(inputs))).backward()
            optimizer.step()
    pairs = [
        [(p.detach(), p.grad) for p in network.parameters()] + list(network.buffers())
        for network in (twin, model)
    ]
    assert difference(pairs[0], pairs[1], scale=5) is None


def test_a_step_of_an_optimizer():
    model, twin, inputs = made("mlp")
    for network in (model, twin):
        optimizer = torch.optim.AdamW(network.parameters(), lr=0.01, foreach=True)
        step = optimizer.step
        if network is twin:
            step = torch.compile(optimizer.step, backend="tessera")
        for _ in range(3):
            optimizer.zero_grad()
            loss_of(network(*inputs)).backward()
            step()
    assert (
        difference(
            [p.detach() for p in twin.parameters()], [p.detach() for p in model.parameters()]
        )
        is None
    )
