"""Defines what attention and its gradients are, in NumPy, in fp64: operands and results are those of the ops."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = Any


def attention(
    q: Array, k: Array, v: Array, bias: Array | None, *, scale: float, causal: bool
) -> list[Array]:
    """(softmax(scores) @ v, logarithms of the sums of exponentials)."""
    s = _scores(q, k, bias, scale, causal)
    peak = np.max(s, axis=-1, keepdims=True, initial=-np.inf)
    p = np.exp(s - np.where(peak == -np.inf, 0, peak))
    total = p.sum(-1, keepdims=True)
    none = total == 0
    total = np.where(none, 1, total)
    logs = np.where(none, 0, peak + np.log(total))[..., 0]
    return [p @ _for_each(v, q) / total, logs]


def query_grad(
    q: Array, k: Array, v: Array, bias: Array | None, grad: Array, logs: Array, delta: Array,
    *, scale: float, causal: bool,
) -> list[Array]:  # fmt: skip
    p = _weights(_scores(q, k, bias, scale, causal), logs)
    ds = p * (_wide(grad) @ _turned(_for_each(v, q)) - delta[..., None])
    return [scale * (ds @ _for_each(k, q))]


def key_grads(
    q: Array, k: Array, v: Array, bias: Array | None, grad: Array, logs: Array, delta: Array,
    *, scale: float, causal: bool,
) -> list[Array]:  # fmt: skip
    p = _weights(_scores(q, k, bias, scale, causal), logs)
    ds = p * (_wide(grad) @ _turned(_for_each(v, q)) - delta[..., None])
    found = scale * (_turned(ds) @ _wide(q)), _turned(p) @ _wide(grad)
    return [_for_all(x, k) for x in found]


def grads(*operands: Array | None, scale: float, causal: bool) -> list[Array]:
    return query_grad(*operands, scale=scale, causal=causal) + key_grads(
        *operands, scale=scale, causal=causal
    )


def _scores(q: Array, k: Array, bias: Array | None, scale: float, causal: bool) -> Array:
    s = scale * (_wide(q) @ _turned(_for_each(k, q)))
    s = s if bias is None else s + bias
    hidden: Any = np.triu(np.ones(s.shape[-2:]), 1) if causal else np.zeros(s.shape[-2:])
    return np.where(hidden > 0, -np.inf, s)


def _weights(scores: Array, logs: Array) -> Array:
    logs = _wide(logs)[..., None]
    return np.exp(scores - np.where(logs == -np.inf, 0, logs))


def _for_each(x: Array, q: Array) -> Array:
    """Keys or values, those of a head of q in place of those that heads share."""
    return np.repeat(_wide(x), q.shape[-3] // max(x.shape[-3], 1), axis=-3)


def _for_all(x: Array, k: Array) -> Array:
    """The sums over the heads that share a head of k."""
    *outer, heads, n, d = x.shape
    groups = k.shape[-3]
    return x.reshape(*outer, groups, heads // max(groups, 1), n, d).sum(-3)


def _turned(x: Array) -> Array:
    return np.swapaxes(x, -1, -2)


def _wide(x: Array) -> Array:
    return np.asarray(x, np.float64)
