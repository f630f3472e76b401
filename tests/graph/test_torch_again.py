"""Biases of attention that a few numbers make are computed again in the backward graph, and not saved."""

# pyright: basic, reportMissingImports=false
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torch._dynamo")

from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402

import tessera.torch  # noqa: E402, F401  registers the backend
from tessera.graph.torch.again import bias_of_gradient, compute_biases_again  # noqa: E402
from tessera.graph.torch.nodes import is_view  # noqa: E402
from tessera.graph.torch.records import recording  # noqa: E402

N, HEADS, TOKENS, WIDTH = 2, 2, 16, 8
OFF = "graph-recompute-biases"


def attend(q: Any, k: Any, v: Any, bias: Any) -> Any:
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=bias)


def of_padding(seen: Any) -> Any:
    """A bias for each pair of tokens, of a number for each token."""
    place = torch.arange(TOKENS, device=seen.device)
    causal = place[None, :] <= place[:, None]
    mask = causal[None, None] & (seen[:, None, None, :] > 0)
    return torch.where(mask, 0.0, float("-inf")).expand(N, 1, TOKENS, TOKENS)


def of_tokens(q: Any, k: Any, v: Any, seen: Any) -> Any:
    bias = of_padding(seen)
    return attend(attend(q, k, v, bias).sin(), k, v, bias)


def of_table(q: Any, k: Any, v: Any, table: Any) -> Any:
    """What each distance of two tokens adds, looked up."""
    place = torch.arange(TOKENS, device=table.device)
    return attend(q, k, v, table[:, (place[None, :] - place[:, None]).abs()][None])


def of_scores(q: Any, k: Any, v: Any, scores: Any) -> Any:
    """A bias that takes no more than the argument that it is made of."""
    return attend(q, k, v, scores * 2.0)


def of_chance(q: Any, k: Any, v: Any, seen: Any) -> Any:
    return attend(q, k, v, of_padding(seen) + torch.rand(TOKENS, TOKENS))


def of_sums(q: Any, k: Any, v: Any, seen: Any) -> Any:
    """To add numbers up again is more than to read them."""
    return attend(q, k, v, of_padding(seen.cumsum(1)))


def of_rows(x: Any, table: Any, more: Any) -> Any:
    """Rows of two tables at the same places."""
    place = (torch.arange(TOKENS, device=table.device) + 1) % TOKENS
    rows = torch.nn.functional.embedding(place, table)
    return (x * rows).sin() * torch.nn.functional.embedding(place, more).exp()


def of_found_rows(x: Any, table: Any, more: Any) -> Any:
    """Rows at places that an argument says, and of a table that the graph makes."""
    found = torch.nn.functional.embedding(more.argmax(0) % TOKENS, table)
    place = torch.arange(WIDTH, device=table.device)
    return (x[:, :WIDTH] * found * torch.nn.functional.embedding(place, table.sin())).sin()


def seen() -> Any:
    found = torch.ones(N, TOKENS, dtype=torch.int64)
    found[1, TOKENS // 2 :] = 0
    return found


def given(last: Any) -> list[Any]:
    torch.manual_seed(0)
    return [*(torch.randn(N, HEADS, TOKENS, WIDTH).requires_grad_() for _ in range(3)), last]


def marked(f: Callable[..., Any], last: Any, returned: Callable[[Any], Any] | None = None) -> int:
    """How many operations of a joint graph are computed again. `returned`: what it gives, too, from the bias on."""

    def both(*args: Any) -> Any:
        return torch.autograd.grad(f(*args).square().sum(), args[:3])

    graph = make_fx(both, tracing_mode="fake")(*given(last)).graph
    if returned is not None:
        output = next(iter(reversed(graph.nodes)))
        bias = next(b for b in map(bias_of_gradient, graph.nodes) if b is not None)
        output.args = ((*output.args[0], returned(bias)),)
    compute_biases_again(graph)
    return sum("recompute" in node.meta for node in graph.nodes)


CASES = [
    (of_tokens, seen, True),
    (of_table, lambda: torch.randn(1, TOKENS), True),
    (of_scores, lambda: torch.randn(N, 1, TOKENS, TOKENS), False),
    (of_chance, seen, False),
    (of_sums, seen, False),
]


@pytest.mark.parametrize(("f", "last", "again"), CASES)
def test_what_is_computed_again(f: Callable[..., Any], last: Callable[[], Any], again: bool):
    assert bool(marked(f, last())) == again


def viewed(node: Any) -> Any:
    """What a node is a view of."""
    return viewed(node.args[0]) if is_view(node) else node


def a_view(node: Any) -> Any:
    with node.graph.inserting_after(node):
        return node.graph.call_function(torch.ops.aten.view.default, (node, [-1]))


@pytest.mark.parametrize("returned", [lambda bias: bias, viewed, a_view])
def test_results_are_there_anyway(returned: Callable[[Any], Any]):
    assert not marked(of_tokens, seen(), returned)


def test_small_results_are_no_reason_to_save_the_bias():
    def condition(bias: Any) -> Any:
        """What says of each token whether it is seen."""
        nodes = bias.graph.find_nodes(op="call_function", target=torch.ops.aten.gt.Scalar)
        return next(iter(nodes))

    assert marked(of_tokens, seen(), condition)


def test_off_switch(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TESSERA_DISABLE", OFF)
    assert not marked(of_tokens, seen())


@pytest.mark.parametrize("off", ["", OFF])
def test_gradients_and_what_is_saved(monkeypatch: pytest.MonkeyPatch, off: str):
    monkeypatch.setenv("TESSERA_DISABLE", off)
    torch._dynamo.reset()
    results = []
    with recording() as records:
        for run in (torch.compile(of_tokens, backend="tessera"), of_tokens):
            args = given(seen())
            out = run(*args)
            results.append([out, *torch.autograd.grad((out * out).sum(), args[:3])])
    for mine, theirs in zip(*results, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)
    (plan,) = (r.run.plan for r in records if r.purpose == "forward")
    shapes = [tuple(v.type.shape) for v in plan.results]
    saved = any(shape[2:] == (TOKENS, TOKENS) for shape in shapes)  # on GPUs for each head
    assert saved == bool(off), shapes


def tables() -> list[Any]:
    torch.manual_seed(0)
    shapes = (N, TOKENS, WIDTH), (TOKENS, WIDTH), (TOKENS, WIDTH)
    return [torch.randn(shape).requires_grad_() for shape in shapes]


@pytest.mark.parametrize("off", ["", "graph-recompute-rows"])
@pytest.mark.parametrize(("f", "again"), [(of_rows, 2), (of_found_rows, 0)])
def test_rows_at_known_places(
    monkeypatch: pytest.MonkeyPatch, f: Callable[..., Any], again: int, off: str
):
    monkeypatch.setenv("TESSERA_DISABLE", off)
    graph = make_fx(lambda *x: torch.autograd.grad(f(*x).sum(), x[:2]), tracing_mode="fake")(
        *tables()
    )
    compute_biases_again(graph.graph)
    looked_up = graph.graph.find_nodes(op="call_function", target=torch.ops.aten.embedding.default)
    assert len(looked_up) == 2
    assert sum("recompute" in node.meta for node in looked_up) == (0 if off else again)


def test_rows_are_those_of_the_table():
    torch._dynamo.reset()
    results = []
    with recording() as records:
        for run in (torch.compile(of_rows, backend="tessera"), of_rows):
            given = tables()
            out = run(*given)
            results.append([out, *torch.autograd.grad(out.square().sum(), given)])
    for mine, theirs in zip(*results, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)
    (plan,) = (r.run.plan for r in records if r.purpose == "forward")
    made = [v for v in plan.results if v not in plan.arguments]
    assert [tuple(v.type.shape) for v in made] == [(N, TOKENS, WIDTH)]  # no rows besides
