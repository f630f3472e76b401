"""Gradients of attention: the forward graph hands the backward graph what eager's kernel needs."""

# pyright: basic
from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")


def test_attention_has_the_gradients_of_eager():
    pytest.importorskip("tessera.torch")
    torch.manual_seed(0)
    x = [torch.randn(2, 4, 16, 8, requires_grad=True) for _ in range(3)]

    def attention(q, k, v):
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)

    def gradients(f):
        for t in x:
            t.grad = None
        (f(*x) ** 2).sum().backward()
        return [t.grad.clone() for t in x]

    want = gradients(attention)
    got = gradients(torch.compile(attention, backend="tessera"))
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b)
