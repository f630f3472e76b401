"""Attention under backend="tessera": on the CPU by a kernel of ours, whose results eager's backward takes."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torch._dynamo")

from torch.nn import functional as F  # noqa: E402

from tessera.graph.plan import Launch  # noqa: E402
from tests.graph.torch_kit import recording  # noqa: E402


def masked(q: Any, k: Any, v: Any) -> Any:
    mask = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).tril(2)
    mask[1] = False  # a query that sees nothing
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def biased(q: Any, k: Any, v: Any) -> Any:
    bias = torch.arange(k.shape[2], dtype=q.dtype, device=q.device).expand(
        1, 1, q.shape[2], k.shape[2]
    )
    return F.scaled_dot_product_attention(q, k, v, attn_mask=-bias, scale=0.5)


def causal(q: Any, k: Any, v: Any) -> Any:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def shared(q: Any, k: Any, v: Any) -> Any:
    return F.scaled_dot_product_attention(q, k[:, :2], v[:, :2], enable_gqa=True)


def gradients(f: Any, given: list[Any]) -> list[Any]:
    for x in given:
        x.grad = None
    out = f(*given)
    (out * torch.linspace(-1, 1, out.shape[-1], dtype=out.dtype)).sum().backward()
    return [out.detach(), *(x.grad.clone() for x in given)]


@pytest.mark.parametrize("f", [causal, masked, biased, shared], ids=lambda f: f.__name__)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_attention_and_its_gradients_are_those_of_eager(f: Any, dtype: Any):
    torch.manual_seed(0)
    sizes = [(2, 4, 20, 16)] + [(2, 4, 20 if f is causal else 33, 16)] * 2
    given = [torch.randn(s).to(dtype).requires_grad_() for s in sizes]
    want = gradients(f, given)
    torch._dynamo.reset()
    compiled = torch.compile(f, backend="tessera", dynamic=False)
    with recording() as graphs:
        found = gradients(compiled, given)
    steps = [s for s in graphs[0].run.plan.steps if isinstance(s, Launch)]
    assert given[0].is_cuda or any("attention" in s.code.name for s in steps)
    loose = {} if dtype is torch.float32 else {"rtol": 0.03, "atol": 0.03}
    for a, b in zip(found, want, strict=True):
        torch.testing.assert_close(a, b, **loose)
        assert a.stride() == b.stride()


def test_attention_of_sizes_that_change_is_compiled_once():
    def itself(x: Any) -> Any:
        q, k, v = x.permute(2, 0, 3, 1, 4)
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    torch._dynamo.reset()
    compiled = torch.compile(itself, backend="tessera")
    with recording() as graphs:
        for batch, length in ((2, 20), (3, 70), (5, 300)):
            x = torch.randn(batch, length, 3, 4, 16)
            torch._dynamo.mark_dynamic(x, 0)
            torch._dynamo.mark_dynamic(x, 1)
            torch.testing.assert_close(compiled(x), itself(x))
    assert len(graphs) == 1
    assert x.is_cuda or all(isinstance(s, Launch) for s in graphs[0].run.plan.steps)
