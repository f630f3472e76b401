"""A transformer block for tests of whole models."""

# pyright: basic, reportMissingImports=false
from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn


class Block(nn.Module):
    """A transformer block, with attention in plain operations or torch's own."""

    def __init__(self, width: int, heads: int, fused: bool) -> None:
        super().__init__()
        self.heads, self.fused = heads, fused
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def attend(self, x: Any) -> Any:
        b, n, w = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, w // self.heads).permute(2, 0, 3, 1, 4)
        if self.fused:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            scores = q @ k.transpose(-1, -2) / (w // self.heads) ** 0.5
            scores = scores.masked_fill(
                torch.ones(n, n, dtype=torch.bool, device=x.device).triu(1), float("-inf")
            )
            y = scores.softmax(-1) @ v
        return self.out(y.transpose(1, 2).reshape(b, n, w))

    def forward(self, x: Any) -> Any:
        x = x + self.attend(self.first(x))
        return x + self.down(F.gelu(self.up(self.second(x))))
