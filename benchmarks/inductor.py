"""Stock TorchInductor on a GPU, with tessera or with Triton below it: training steps of twenty models.

    python -m tessera run benchmarks/inductor.py --out tessera.json      # tessera
    python benchmarks/inductor.py --out triton.json                      # the Triton that is installed
    python benchmarks/inductor.py --compare tessera.json triton.json

For each model and dtype: the seconds of a cold compile (forward and backward), the milliseconds of a step, the largest
error of a gradient relative to eager's largest. Start each of the first two with an empty TORCHINDUCTOR_CACHE_DIR,
TRITON_CACHE_DIR and TESSERA_CACHE_DIR.
"""

# pyright: basic, reportMissingImports=warning
from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable
from typing import Any

import torch
import torch._dynamo
import torch.nn.functional as F
from torch import nn

WIDTH, HEADS, TOKENS, BATCH = 512, 8, 256, 16


class Residual(nn.Module):
    """x + inner(norm(x)), `count` times with weights of their own."""

    def __init__(
        self, make: Callable[[], nn.Module], norm: Callable[[int], nn.Module], count: int = 2
    ):
        super().__init__()
        self.layers = nn.ModuleList(nn.ModuleList((norm(WIDTH), make())) for _ in range(count))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for norm, inner in self.layers:
            x = x + inner(norm(x))
        return x


class Feed(nn.Module):
    def __init__(self, activation: Callable[[torch.Tensor], torch.Tensor], gated: bool = False):
        super().__init__()
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.gate = nn.Linear(WIDTH, 4 * WIDTH) if gated else None
        self.down = nn.Linear(4 * WIDTH, WIDTH)
        self.activation = activation

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.activation(self.up(x))
        return self.down(y if self.gate is None else y * self.gate(x))


class Attention(nn.Module):
    """`kind`: "sdpa", "softmax" (written out), "rotary", "relative", "linear"."""

    def __init__(self, kind: str, causal: bool = False):
        super().__init__()
        self.kind, self.causal = kind, causal
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.bias = nn.Parameter(torch.zeros(HEADS, 2 * TOKENS - 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (t.unflatten(-1, (HEADS, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        return self.out(self.mix(q, k, v).transpose(1, 2).flatten(2))

    def mix(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        if self.kind == "linear":
            q, k = F.elu(q) + 1, F.elu(k) + 1
            return q @ (k.transpose(-1, -2) @ v) / (q @ k.sum(-2, keepdim=True).transpose(-1, -2))
        if self.kind == "rotary":
            q, k = rotated(q), rotated(k)
        if self.kind in ("sdpa", "rotary"):
            return F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
        i = torch.arange(q.shape[-2], device=q.device)
        if self.kind == "relative":
            scores = scores + self.bias[:, i[:, None] - i[None, :] + TOKENS - 1]
        if self.causal:
            scores = scores.masked_fill(i[:, None] < i[None, :], -torch.inf)
        return torch.softmax(scores, -1, dtype=torch.float32).to(v.dtype) @ v


def rotated(x: torch.Tensor) -> torch.Tensor:
    n, d = x.shape[-2], x.shape[-1]
    frequency = 10000 ** (-torch.arange(0, d, 2, device=x.device) / d)
    angle = torch.arange(n, device=x.device)[:, None] * frequency
    a, b = x.float().chunk(2, -1)
    c, s = angle.cos(), angle.sin()
    return torch.cat((a * c - b * s, a * s + b * c), -1).to(x.dtype)


class Scan(nn.Module):
    """A gated linear recurrence by cumulative sums of logarithms."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.out = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        value, gate = self.inner(x).float().chunk(2, -1)
        decay = F.logsigmoid(gate).clamp(min=-0.1).cumsum(1)
        state = (value * torch.exp(-decay)).cumsum(1) * torch.exp(decay)
        return self.out((state / x.shape[1]).to(x.dtype))


class Mixer(nn.Module):
    """A feed-forward network over the tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(TOKENS, 2 * TOKENS), nn.Linear(2 * TOKENS, TOKENS)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(F.gelu(self.up(x.transpose(1, 2)))).transpose(1, 2)


class RouteTopK(nn.Module):
    """A soft mixture of four experts, two for each token."""

    def __init__(self) -> None:
        super().__init__()
        self.route = nn.Linear(WIDTH, 4)
        self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights, chosen = torch.softmax(self.route(x).float(), -1).topk(2, -1)
        dense = torch.zeros(*x.shape[:-1], 4, device=x.device).scatter(-1, chosen, weights)
        return sum(
            dense[..., i : i + 1].to(x.dtype) * F.silu(e(x)) for i, e in enumerate(self.experts)
        )


class Convolution(nn.Module):
    """A depthwise convolution along the tokens, normalised by groups."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(WIDTH, WIDTH, 7, padding=3, groups=WIDTH)
        self.norm = nn.GroupNorm(8, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.silu(self.norm(self.conv(x.transpose(1, 2)))).transpose(1, 2)


def transformer(
    attention: Callable[[], nn.Module], feed: Callable[[], nn.Module], norm: Any
) -> nn.Module:
    return nn.Sequential(Residual(attention, norm), Residual(feed, norm), norm(WIDTH))


def models() -> dict[str, Callable[[], nn.Module]]:
    layer, rms = nn.LayerNorm, nn.RMSNorm
    gelu, tanh = F.gelu, lambda x: F.gelu(x, approximate="tanh")
    return {
        "bert": lambda: transformer(lambda: Attention("sdpa"), lambda: Feed(gelu), layer),
        "gpt": lambda: transformer(lambda: Attention("sdpa", True), lambda: Feed(tanh), layer),
        "llama": lambda: transformer(lambda: Attention("rotary", True), lambda: Feed(F.silu, True), rms),
        "gemma": lambda: transformer(lambda: Attention("rotary", True), lambda: Feed(tanh, True), rms),
        "t5": lambda: transformer(lambda: Attention("relative"), lambda: Feed(F.relu), rms),
        "written-out": lambda: transformer(lambda: Attention("softmax", True), lambda: Feed(F.relu), layer),
        "linear-attention": lambda: transformer(lambda: Attention("linear"), lambda: Feed(gelu), layer),
        "mixer": lambda: transformer(Mixer, lambda: Feed(gelu), layer),
        "recurrence": lambda: transformer(Scan, lambda: Feed(F.silu, True), rms),
        "convolution": lambda: transformer(Convolution, lambda: Feed(gelu), layer),
        "mixture": lambda: transformer(lambda: Attention("sdpa"), RouteTopK, rms),
        "squared-relu": lambda: transformer(Scan, lambda: Feed(lambda x: F.relu(x).square()), layer),
        "feed-gelu": lambda: Residual(lambda: Feed(gelu), layer, 4),
        "feed-swiglu": lambda: Residual(lambda: Feed(F.silu, True), rms, 4),
        "feed-mish": lambda: Residual(lambda: Feed(F.mish), layer, 4),
        "attention-relative": lambda: Residual(lambda: Attention("relative", True), layer, 4),
        "attention-rotary": lambda: Residual(lambda: Attention("rotary"), rms, 4),
        "scans": lambda: Residual(Scan, rms, 4),
        "convolutions": lambda: Residual(Convolution, layer, 4),
        "norms": lambda: nn.Sequential(*(n(WIDTH) for n in (layer, rms) * 4)),
    }  # fmt: skip


def step(call: Callable[..., torch.Tensor], x: torch.Tensor, target: torch.Tensor) -> None:
    F.cross_entropy(call(x).float().flatten(0, 1), target.flatten()).backward()


def measure(make: Callable[[], nn.Module], dtype: torch.dtype) -> dict[str, float]:
    torch.manual_seed(0)
    torch._dynamo.reset()
    model = make().cuda().to(dtype)
    x = torch.randn(BATCH, TOKENS, WIDTH, device="cuda").to(dtype)
    target = torch.randint(0, WIDTH, (BATCH, TOKENS), device="cuda")

    def gradients(call: Callable[..., torch.Tensor]) -> list[torch.Tensor]:
        model.zero_grad()
        step(call, x, target)
        return [p.grad.clone() for p in model.parameters() if p.grad is not None]

    expected, compiled = gradients(model), torch.compile(model)
    torch.cuda.synchronize()
    start = time.perf_counter()
    found = gradients(compiled)
    torch.cuda.synchronize()
    cold = time.perf_counter() - start
    pairs = zip(found, expected, strict=True)
    error = max(((a - b).abs().max() / b.abs().max().clamp(min=1e-3)).item() for a, b in pairs)
    for _ in range(5):
        gradients(compiled)
    times = []
    for _ in range(20):
        a, b = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        a.record()
        step(compiled, x, target)
        b.record()
        torch.cuda.synchronize()
        times.append(a.elapsed_time(b))
    return {"cold_s": cold, "step_ms": sorted(times)[len(times) // 2], "error": error}


def compare(ours: str, theirs: str) -> None:
    a, b = (json.load(open(p))["rows"] for p in (ours, theirs))  # noqa: SIM115
    print(f"{'model':28}{'step':>8}{'cold':>8}{'error':>11}{'error':>11}")
    ratios: dict[str, list[float]] = {"step_ms": [], "cold_s": []}
    for name in a.keys() & b.keys():
        both = {k: a[name][k] / b[name][k] for k in ratios}
        for k, v in both.items():
            ratios[k].append(v)
        errors = f"{a[name]['error']:11.1e}{b[name]['error']:11.1e}"
        print(f"{name:28}{both['step_ms']:8.3f}{both['cold_s']:8.3f}{errors}")
    for k, values in ratios.items():
        print(f"geomean of {k}: {math.exp(sum(map(math.log, values)) / len(values)):.3f}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out")
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--dtypes", nargs="*", default=["float32", "bfloat16"])
    parser.add_argument("--compare", nargs=2)
    options = parser.parse_args()
    if options.compare:
        compare(*options.compare)
        return
    import triton

    torch.backends.cuda.matmul.allow_tf32 = False
    rows: dict[str, Any] = {}
    for name, make in models().items():
        for dtype in options.dtypes:
            if options.only and name not in options.only:
                continue
            try:
                rows[f"{name} {dtype}"] = row = measure(make, getattr(torch, dtype))
            except Exception as error:
                print(f"{name} {dtype}: {type(error).__name__}: {str(error)[:500]}", flush=True)
                continue
            shown = "  ".join(f"{k} {v:.3g}" for k, v in row.items())
            print(f"{name} {dtype}: {shown}", flush=True)
    if options.out:
        with open(options.out, "w") as file:
            json.dump({"triton": triton.__file__, "torch": torch.__version__, "rows": rows}, file)


if __name__ == "__main__":
    main()
