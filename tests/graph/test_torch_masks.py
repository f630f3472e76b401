"""Masks of attention whose numbers follow from sizes alone: attention is causal, or has no mask, in their place."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torch._dynamo")

from torch.nn import functional as F  # noqa: E402

from tessera.graph.planning.plan import Launch  # noqa: E402
from tessera.graph.torch.masks import ATTENTION, MOST_BYTES, drop_known_masks, kind_of  # noqa: E402
from tests.graph.torch_kit import recording  # noqa: E402

N = 24


def places(x: Any) -> tuple[Any, Any]:
    at = torch.arange(N, device=x.device)
    return at[:, None], at


def causal(x: Any) -> Any:
    rows, columns = places(x)
    return columns <= rows


def of_sequences(x: Any) -> Any:
    """As models make it that look for sequences packed into one row: of each batch by itself."""
    at = torch.arange(N, device=x.device).expand(2, N)
    sequence = (torch.diff(at, prepend=at[:, :1] - 1, dim=-1) != 1).cumsum(-1)
    same = sequence[:, None, :, None] == sequence[:, None, None, :]
    return (same & causal(x)).expand(2, -1, N, N)


def of_numbers(x: Any) -> Any:
    return torch.zeros(N, N, device=x.device).masked_fill(~causal(x), -torch.inf)


def least_numbers(x: Any) -> Any:
    return torch.full((1, 1, N, N), torch.finfo(torch.float32).min, device=x.device).triu(1)


def of_everything(x: Any) -> Any:
    return torch.ones(2, 1, N, N, dtype=torch.bool, device=x.device)


def zeros(x: Any) -> Any:
    return torch.zeros(N, N, device=x.device)


def of_a_window(x: Any) -> Any:
    rows, columns = places(x)
    return (columns <= rows) & (columns > rows - 5)


def of_an_argument(x: Any) -> Any:
    return causal(x) & (x[0, 0, :, 0] > -100)


def small_numbers(x: Any) -> Any:
    """Which scores could make up for."""
    return torch.zeros(N, N, device=x.device).masked_fill(~causal(x), -1e4)


def written(x: Any) -> Any:
    mask = causal(x)
    mask[3] = x[0, 0, 3, 0] > -100
    return mask


def written_by_a_view(x: Any) -> Any:
    mask = causal(x)
    mask[3:].fill_(True)
    return mask


def not_set(x: Any) -> Any:
    return torch.empty(N, N, device=x.device).mul(0.0)


def random(x: Any) -> Any:
    return torch.rand(N, N, device=x.device).ge(0) & causal(x)


DROPPED = [causal, of_sequences, of_numbers, least_numbers, of_everything, zeros]
KEPT = [of_a_window, of_an_argument, small_numbers, random, written, written_by_a_view, not_set]


def of_dynamo(f: Any, *given: Any) -> Any:
    """The call of attention in the graph that Dynamo captures, once known masks are dropped."""
    found: list[Any] = []

    def keep(graph: Any, inputs: Any) -> Any:
        drop_known_masks(graph)
        found.extend(graph.graph.find_nodes(op="call_function", target=ATTENTION))
        return graph.forward

    torch._dynamo.reset()
    torch.compile(f, backend=keep)(*given)
    (node,) = found
    return node


@pytest.mark.parametrize("mask", DROPPED + KEPT, ids=lambda f: f.__name__)
@pytest.mark.parametrize("training", [True, False])
def test_masks_are_dropped_where_they_are_known(mask: Any, training: bool):
    def f(q: Any, k: Any, v: Any) -> Any:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask(q), scale=0.5)

    torch.manual_seed(0)
    given = [torch.randn(2, 3, N, 16, requires_grad=training) for _ in range(3)]
    node = of_dynamo(f, *given)
    assert (node.kwargs["attn_mask"] is None) == (mask in DROPPED)
    assert node.kwargs["scale"] == 0.5
    if mask in DROPPED:
        assert node.kwargs["is_causal"] == (mask not in (of_everything, zeros))
        assert sum(n.op != "placeholder" for n in node.graph.nodes) == 2, "what made it has gone"
    if mask in (random, not_set):
        return
    torch._dynamo.reset()
    with recording() as records:
        found = torch.compile(f, backend="tessera")(*given)
    wanted = f(*given)
    torch.testing.assert_close(found, wanted)
    if training:
        of_found, of_wanted = (
            torch.autograd.grad(y.square().sum(), given) for y in (found, wanted)
        )
        for a, b in zip(of_found, of_wanted, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
    if mask in DROPPED:
        (step,) = records[0].run.plan.steps
        what = step.code.name if isinstance(step, Launch) else step.op.target
        assert "attention" in what


def test_the_mask_is_kept_where_that_is_switched_off(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TESSERA_DISABLE", "graph-drop-masks")
    q = torch.randn(2, 3, N, 8)
    node = of_dynamo(lambda q: F.scaled_dot_product_attention(q, q, q, of_numbers(q)), q)
    assert node.args[3] is not None


def test_sizes_that_change_are_not_known():
    def f(q: Any) -> Any:
        at = torch.arange(q.shape[2], device=q.device)
        return F.scaled_dot_product_attention(q, q, q, at <= at[:, None])

    run = torch.compile(f, backend="tessera")
    torch._dynamo.reset()
    for n in (8, 12, 20):
        q = torch.randn(1, 2, n, 8)
        torch.testing.assert_close(run(q), f(q))


def test_large_masks_are_not_computed():
    rows = 1 << 14

    def f(q: Any) -> Any:
        at = torch.arange(rows, device=q.device)
        bias = torch.where(at <= at[:, None], 0.0, -torch.inf)
        return F.scaled_dot_product_attention(q, q, q, bias[:8, :8])

    assert rows * rows * 4 > MOST_BYTES
    node = of_dynamo(f, torch.randn(1, 1, 8, 8))
    assert node.args[3] is not None


def test_masks_of_other_shapes():
    rows = torch.ones(6, 8, dtype=torch.bool).tril()
    assert kind_of(rows, 6, 8) is None  # kernels differ in where such a mask begins
    assert kind_of(torch.zeros(1, 8), 6, 8) == "none"
    assert kind_of(rows[:, :6].expand(4, 3, 6, 6), 6, 6) == "causal"
    assert kind_of(torch.tensor(float("nan")).expand(6, 6), 6, 6) is None
