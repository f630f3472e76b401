"""Attention without tiles, by NumPy or torch: what the kernels' results are checked against and timed beside."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import common


def probabilities(q: np.ndarray, k: np.ndarray, causal: bool) -> np.ndarray:
    scores = q @ k.swapaxes(-1, -2) * q.shape[-1] ** -0.5
    if causal:
        scores = np.where(np.tri(q.shape[-2], dtype=bool), scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


def gradients(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, dout: np.ndarray, causal: bool
) -> list[np.ndarray]:
    weights = probabilities(q, k, causal)
    dweights = dout @ v.swapaxes(-1, -2)
    dscores = weights * (dweights - (dweights * weights).sum(axis=-1, keepdims=True))
    dscores *= q.shape[-1] ** -0.5
    return [dscores @ k, dscores.swapaxes(-1, -2) @ q, weights.swapaxes(-1, -2) @ dout]


def calls(
    device: common.Device, q: Any, k: Any, v: Any, dout: Any, causal: bool
) -> list[Callable[[], Any]]:
    """Forward and backward by NumPy on the CPU, by torch on a GPU."""
    if not device.is_gpu:
        return [
            lambda: probabilities(q, k, causal) @ v,
            lambda: gradients(q, k, v, dout, causal),
        ]
    import torch

    def forward(*inputs: Any) -> Any:
        batch = (x[None] for x in inputs)
        return torch.nn.functional.scaled_dot_product_attention(*batch, is_causal=causal)[0]

    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    out = forward(*leaves)
    return [
        lambda: forward(q, k, v),
        lambda: torch.autograd.grad(out, leaves, dout, retain_graph=True),
    ]
