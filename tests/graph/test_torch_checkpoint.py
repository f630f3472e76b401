"""Checkpointing under torch.compile: what is random is the same when it is computed again, and graphs stay ours."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torch._dynamo")

import torch.nn.functional as F  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from tests.graph.torch_kit import compare, externs, recording  # noqa: E402

Function = Callable[[Any, Any], Any]


def dropped(x: Any, w: Any) -> Any:
    return F.dropout(x @ w, 0.5).sin()


def dropped_twice(x: Any, w: Any) -> Any:
    return F.dropout(F.dropout(x.cos(), 0.3), 0.2) * torch.rand_like(x) @ w


def not_dropped(x: Any, w: Any) -> Any:
    return torch.native_dropout(x @ w, 0.5, False)[0].sin()


def attention(x: Any, w: Any) -> Any:
    q = (x @ w).view(2, 4, 16, 2).contiguous()
    return F.scaled_dot_product_attention(q, q.sin(), q, is_causal=True).exp()


def attention_with_dropout(x: Any, w: Any) -> Any:
    q = (x @ w).view(2, 4, 16, 2).contiguous()
    return F.scaled_dot_product_attention(q, q.sin(), q, dropout_p=0.2).exp()


FUNCTIONS = [dropped, dropped_twice, not_dropped, attention, attention_with_dropout]


def again(function: Function) -> Function:
    return lambda x, w: checkpoint(function, x, w, use_reentrant=False)


def given() -> list[Any]:
    torch.manual_seed(4)
    return [torch.randn(32, 8, requires_grad=True), torch.randn(8, 8, requires_grad=True)]


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_with_the_numbers_that_eager_draws(function: Function):
    compare(again(function), *given(), backward=True, scale=20, options={"random": "eager"})


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_nothing_is_an_extern(function: Function):
    torch._dynamo.reset()
    with recording() as graphs:
        torch.compile(again(function), backend="tessera")(*given()).sum().backward()
    assert len(graphs) == 2
    products = ("aten.mm", "aten.bmm")  # of eager's library, where that is quicker
    assert not {name for name in externs(graphs) if not name.startswith(products)}


@pytest.mark.parametrize("function", [dropped, dropped_twice], ids=lambda f: f.__name__)
def test_gradients_are_of_the_elements_that_were_kept(function: Function):
    """By differences of two calls that draw the same numbers."""
    torch._dynamo.reset()
    compiled = torch.compile(again(function), backend="tessera")
    x, w = given()
    step = torch.randn_like(x)

    def total(x: Any) -> Any:
        torch.manual_seed(5)
        return compiled(x, w).sum()

    total(x).backward()
    assert x.grad is not None
    with torch.no_grad():
        slope = (total(x + 1e-3 * step) - total(x - 1e-3 * step)) / 2e-3
    torch.testing.assert_close((x.grad * step).sum(), slope, rtol=2e-2, atol=2e-2)


def test_a_dropout_keeps_its_mask_alone():
    """Beside arguments, forward hands the mask to backward; the dropout's result is computed again."""
    torch._dynamo.reset()
    with recording() as graphs:
        torch.compile(again(dropped), backend="tessera")(*given()).sum().backward()
    forward = graphs[0].imported
    assert forward is not None
    (function,) = forward.module.functions
    kept = [v.type for v in function.regions[0].terminator.operands if v.op is not None]
    assert sorted(t.elem.short for t in kept) == ["fp32", "i1"]
