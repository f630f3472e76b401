"""Small models of many families, each with an input and a loss, for comparing backend="tessera" with eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

WIDTH = 16


class EncoderDecoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Transformer(WIDTH, 4, 1, 1, 32, dropout=0.0, batch_first=True)

    def forward(self, source: Any, target: Any) -> Any:
        n = target.shape[1]
        mask = torch.ones(n, n, dtype=torch.bool, device=target.device).triu(1)
        return self.body(source, target, tgt_mask=mask)


class Routed(nn.Module):
    """A mixture of experts whose weights are one tensor; tokens go to the best two."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, 4)
        self.up = nn.Parameter(torch.randn(4, WIDTH, 24) / 4)
        self.down = nn.Parameter(torch.randn(4, 24, WIDTH) / 4)

    def forward(self, x: Any) -> Any:
        share, chosen = self.gate(x).softmax(-1).topk(2)
        weight = x.new_zeros(x.shape[0], 4).scatter(1, chosen, share)
        hidden = F.silu(torch.einsum("nd,edh->enh", x, self.up))
        return torch.einsum("enh,ehd,ne->nd", hidden, self.down, weight)


class Selective(nn.Module):
    """A state-space layer as in Mamba: rates and inputs depend on the element."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Conv1d(WIDTH, WIDTH, 3, padding=2, groups=WIDTH)
        self.rate, self.inp, self.out = (nn.Linear(WIDTH, n) for n in (WIDTH, 4, 4))
        self.log_a = nn.Parameter(torch.rand(WIDTH, 4))

    def forward(self, x: Any) -> Any:
        u = F.silu(self.mix(x.transpose(1, 2))[..., : x.shape[1]].transpose(1, 2))
        step = F.softplus(self.rate(u))
        decay = torch.exp(-step.unsqueeze(-1) * self.log_a.exp())
        given = (step * u).unsqueeze(-1) * self.inp(u).unsqueeze(2)
        state, found = torch.zeros_like(given[:, 0]), []
        for t in range(x.shape[1]):
            state = decay[:, t] * state + given[:, t]
            found.append((state * self.out(u)[:, t].unsqueeze(1)).sum(-1))
        return torch.stack(found, 1)


class Diffusion(nn.Module):
    """A level of a diffusion network: time embedding, group norm, attention over pixels, a skip connection."""

    def __init__(self) -> None:
        super().__init__()
        self.inp, self.time = nn.Conv2d(3, WIDTH, 3, padding=1), nn.Linear(8, WIDTH)
        self.norm, self.qkv = nn.GroupNorm(4, WIDTH), nn.Conv2d(WIDTH, 3 * WIDTH, 1)
        self.down = nn.Conv2d(WIDTH, WIDTH, 3, stride=2, padding=1)
        self.out = nn.Conv2d(2 * WIDTH, 3, 3, padding=1)

    def forward(self, x: Any, t: Any) -> Any:
        angle = t[:, None] * torch.exp(-torch.arange(4, dtype=x.dtype, device=x.device))
        h = self.inp(x) + self.time(torch.cat([angle.sin(), angle.cos()], 1))[:, :, None, None]
        low = F.silu(self.norm(self.down(h)))
        q, k, v = self.qkv(low).flatten(2).transpose(1, 2).chunk(3, -1)
        seen = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(low.shape)
        up = F.interpolate(low + seen, scale_factor=2, mode="bilinear")
        return self.out(torch.cat([h, up], 1))


class Detector(nn.Module):
    """Boxes from anchors, their overlap with given ones, and a loss of both."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.Conv2d(8, 5, 1)

    def forward(self, x: Any, wanted: Any) -> Any:
        found = self.head(F.relu(self.body(x))).permute(0, 2, 3, 1)
        _, h, w, _ = found.shape
        rows, columns = torch.arange(h, device=x.device), torch.arange(w, device=x.device)
        grid = torch.stack(torch.meshgrid(rows, columns, indexing="ij"), -1)
        centre = (found[..., :2].sigmoid() + grid) / h
        size = found[..., 2:4].clamp(max=2).exp() / h
        first, last = centre - size / 2, centre + size / 2
        a, b = wanted[:, None, None, :2], wanted[:, None, None, 2:]
        inner = (torch.minimum(last, b) - torch.maximum(first, a)).clamp(min=0).prod(-1)
        overlap = inner / (size.prod(-1) + (b - a).prod(-1) - inner + 1e-6)
        box = F.smooth_l1_loss(
            torch.cat([first, last], -1), torch.cat([a, b], -1).expand((*found.shape[:3], 4))
        )
        return box + F.binary_cross_entropy_with_logits(found[..., 4], overlap.detach())


class GraphAttention(nn.Module):
    """Attention over the edges of a graph, normalised at their targets."""

    def __init__(self) -> None:
        super().__init__()
        self.value, self.score = nn.Linear(WIDTH, WIDTH), nn.Linear(2 * WIDTH, 1)

    def forward(self, x: Any, source: Any, target: Any) -> Any:
        v = self.value(x)
        score = F.leaky_relu(self.score(torch.cat([v[source], v[target]], 1)))[:, 0]
        most = x.new_full(x.shape[:1], -1e4).scatter_reduce(0, target, score, "amax")
        weight = (score - most.detach()[target]).exp()
        total = x.new_zeros(x.shape[0]).index_add(0, target, weight)
        return torch.zeros_like(v).index_add(
            0, target, v[source] * (weight / total[target])[:, None]
        )


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.Module]) -> None:
        super().__init__()
        self.body, self.head = kind(6, WIDTH, num_layers=2, batch_first=True), nn.Linear(WIDTH, 3)  # type: ignore[call-arg]

    def forward(self, x: Any) -> Any:
        return self.head(self.body(x)[0])


class Speech(nn.Module):
    """Strided convolutions over a signal, then a transformer layer."""

    def __init__(self) -> None:
        super().__init__()
        self.front = nn.Sequential(
            nn.Conv1d(1, 8, 5, stride=3), nn.GroupNorm(8, 8), nn.GELU(), nn.Conv1d(8, WIDTH, 3, stride=2), nn.GELU()
        )  # fmt: skip
        self.body = nn.TransformerEncoderLayer(WIDTH, 4, 32, dropout=0.0, batch_first=True)

    def forward(self, x: Any) -> Any:
        return self.body(self.front(x).transpose(1, 2)).mean(1)


class Bottleneck(nn.Module):
    """A residual block with batch norm, which trains its running means."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(8, 4, 1, bias=False), nn.Conv2d(4, 8, 3, padding=1, bias=False)
        self.n, self.m = nn.BatchNorm2d(4), nn.BatchNorm2d(8)

    def forward(self, x: Any) -> Any:
        return F.relu(x + self.m(self.b(F.relu(self.n(self.a(x)))))).mean((2, 3))


class Patches(nn.Module):
    """A vision transformer: patches, a class token, learned positions."""

    def __init__(self) -> None:
        super().__init__()
        self.patch, self.token = (
            nn.Conv2d(3, WIDTH, 4, stride=4),
            nn.Parameter(torch.randn(1, 1, WIDTH)),
        )
        self.place = nn.Parameter(torch.randn(1, 10, WIDTH) / 10)
        self.body = nn.TransformerEncoderLayer(
            WIDTH, 4, 32, 0.0, F.gelu, batch_first=True, norm_first=True
        )
        self.head = nn.Linear(WIDTH, 5)

    def forward(self, x: Any) -> Any:
        y = self.patch(x).flatten(2).transpose(1, 2)
        y = torch.cat([self.token.expand(len(y), -1, -1), y], 1) + self.place
        return self.head(self.body(y)[:, 0])


class Recommender(nn.Module):
    """Bags of embeddings and dense features that interact by products, as in DLRM."""

    def __init__(self) -> None:
        super().__init__()
        self.bags = nn.ModuleList(nn.EmbeddingBag(20, 8, mode="sum") for _ in range(3))
        self.low, self.top = nn.Linear(5, 8), nn.Linear(14, 1)

    def forward(self, dense: Any, words: Any) -> Any:
        x = F.relu(self.low(dense))
        all_ = torch.stack([x, *(bag(words[k]) for k, bag in enumerate(self.bags))], 1)
        i, j = torch.tril_indices(4, 4, -1, device=dense.device)
        return self.top(torch.cat([x, (all_ @ all_.transpose(1, 2))[:, i, j]], 1))


class Variational(nn.Module):
    """An autoencoder with a divergence in its loss; the noise is an input."""

    def __init__(self) -> None:
        super().__init__()
        self.enc, self.dec = nn.Linear(12, 8), nn.Linear(4, 12)

    def forward(self, x: Any, noise: Any) -> Any:
        mean, log_var = self.enc(x).chunk(2, -1)
        out = self.dec(mean + noise * (0.5 * log_var).exp())
        divergence = -0.5 * (1 + log_var - mean**2 - log_var.exp()).sum(-1).mean()
        return F.mse_loss(out, x) + divergence


class Language(nn.Module):
    """A layer of a language model: RMS norm, rotated positions, grouped queries, a gated layer, tied words."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.norm = nn.Embedding(40, WIDTH), nn.RMSNorm(WIDTH)
        self.q, self.kv = nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, 8, bias=False)
        self.gate, self.up, self.down = (
            nn.Linear(WIDTH, 32),
            nn.Linear(WIDTH, 32),
            nn.Linear(32, WIDTH),
        )

    def forward(self, ids: Any, targets: Any) -> Any:
        x = self.words(ids)
        n, y = ids.shape[1], self.norm(x)
        places, rates = torch.arange(n, device=x.device), torch.arange(2, device=x.device)
        angle = places[:, None] / 100.0**rates
        cos, sin = (
            torch.cat([angle, angle], 1).cos().to(x.dtype),
            torch.cat([angle, angle], 1).sin().to(x.dtype),
        )

        def heads(z: Any) -> Any:
            z = z.unflatten(-1, (-1, 4)).transpose(1, 2)
            a, b = z.chunk(2, -1)
            return z * cos + torch.cat([-b, a], -1) * sin

        k, v = self.kv(y).chunk(2, -1)
        q, k = heads(self.q(y)), heads(k).repeat_interleave(4, 1)
        v = v.unflatten(-1, (-1, 4)).transpose(1, 2).repeat_interleave(4, 1)
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + seen.transpose(1, 2).flatten(2)
        x = x + self.down(F.silu(self.gate(self.norm(x))) * self.up(x))
        return F.cross_entropy(
            (x @ self.words.weight.t()).flatten(0, 1).float(),
            targets.flatten(),
            label_smoothing=0.1,
        )


class Contrastive(nn.Module):
    """Two towers whose matching rows are to be closest, in both directions."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.scale = (
            nn.Linear(10, 8),
            nn.Linear(6, 8),
            nn.Parameter(torch.tensor(1.0)),
        )

    def forward(self, x: Any, y: Any) -> Any:
        logits = (
            F.normalize(self.a(x), dim=-1) @ F.normalize(self.b(y), dim=-1).t() * self.scale.exp()
        )
        labels = torch.arange(len(x), device=x.device)
        return F.cross_entropy(logits, labels) + F.cross_entropy(logits.t(), labels)


class Adapted(nn.Module):
    """A frozen layer with a trained product of low rank beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(WIDTH, WIDTH).requires_grad_(False)
        self.a, self.b = (
            nn.Parameter(torch.randn(WIDTH, 2) / 4),
            nn.Parameter(torch.randn(2, WIDTH) / 4),
        )

    def forward(self, x: Any) -> Any:
        return F.gelu(self.base(x) + x @ self.a @ self.b * 0.5)


class Mixer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.along, self.across, self.norm = (
            nn.Linear(9, 9),
            nn.Linear(WIDTH, WIDTH),
            nn.LayerNorm(WIDTH),
        )

    def forward(self, x: Any) -> Any:
        x = x + self.along(self.norm(x).transpose(1, 2)).transpose(1, 2)
        return x + F.hardswish(self.across(self.norm(x)))


class Flow(nn.Module):
    """A coupling layer of a flow, with the logarithm of its determinant."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 12), nn.Tanh(), nn.Linear(12, 8))

    def forward(self, x: Any) -> Any:
        a, b = x[:, ::2], x[:, 1::2]
        log_scale, shift = self.net(a).chunk(2, -1)
        b = b * log_scale.tanh().exp() + shift
        z = torch.stack([a, b], -1).flatten(1)
        return (0.5 * z.pow(2).sum(1) - log_scale.tanh().sum(1)).mean()


def ids(*shape: int, most: int = 20) -> Any:
    return torch.randint(most, shape)


R = torch.randn
FAMILIES: dict[str, tuple[Callable[[], nn.Module], Callable[[], tuple[Any, ...]]]] = {
    "encoder-decoder": (EncoderDecoder, lambda: (R(2, 7, WIDTH), R(2, 5, WIDTH))),
    "mixture of experts": (Routed, lambda: (R(9, WIDTH),)),
    "selective state space": (Selective, lambda: (R(2, 6, WIDTH),)),
    "diffusion u-net": (Diffusion, lambda: (R(2, 3, 8, 8), torch.rand(2))),
    "detection head": (Detector, lambda: (R(2, 3, 8, 8), torch.tensor([[0.1, 0.2, 0.6, 0.7], [0.3, 0.1, 0.8, 0.5]]))),
    "graph attention": (GraphAttention, lambda: (R(9, WIDTH), ids(30, most=9), ids(30, most=9))),
    "lstm": (lambda: Recurrent(nn.LSTM), lambda: (R(2, 5, 6),)),
    "gru": (lambda: Recurrent(nn.GRU), lambda: (R(2, 5, 6),)),
    "rnn": (lambda: Recurrent(nn.RNN), lambda: (R(2, 5, 6),)),
    "speech": (Speech, lambda: (R(2, 1, 60),)),
    "residual cnn": (Bottleneck, lambda: (R(4, 8, 6, 6),)),
    "vision transformer": (Patches, lambda: (R(2, 3, 12, 12),)),
    "recommender": (Recommender, lambda: (R(4, 5), ids(3, 4, 6))),
    "variational autoencoder": (Variational, lambda: (R(6, 12), R(6, 4))),
    "language model": (Language, lambda: (ids(2, 9, most=40), ids(2, 9, most=40))),
    "contrastive": (Contrastive, lambda: (R(5, 10), R(5, 6))),
    "low-rank adapter": (Adapted, lambda: (R(3, 5, WIDTH),)),
    "mixer": (Mixer, lambda: (R(2, 9, WIDTH),)),
    "flow": (Flow, lambda: (R(6, 8),)),
}  # fmt: skip
