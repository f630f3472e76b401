"""What eager refuses is an error of the compiled function, too: places out of range, divisions by 0, choices of
nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torch._dynamo")

import torch.nn.functional as F  # noqa: E402

from tests.graph.torch_kit import compare, externs  # noqa: E402


@pytest.fixture(autouse=True)
def on_a_cpu(request: pytest.FixtureRequest) -> None:
    """An assertion that fails on a GPU ends its context, with all that the process has there."""
    if request.config.getoption("--device") == "cuda":
        pytest.skip("errors of kernels are looked at on CPUs")


FAR = 90_000_000  # a place where no memory is
X = torch.arange(12.0).view(3, 4)


def at(*places: int) -> Any:
    return torch.tensor(places)


def written(x: Any, i: Any) -> Any:
    x = x.clone()
    x[i] = 0
    return x


PLACES: dict[str, Callable[[Any, Any], Any]] = {
    "index": lambda x, i: x[i],
    "two indices": lambda x, i: x[:, i - 1][i],
    "index_select": lambda x, i: x.index_select(0, i),
    "embedding": lambda x, i: F.embedding(i, x),
    "gather": lambda x, i: x.gather(0, i[None]),
    "take": lambda x, i: x.take(i * 4),
    "assignment": written,
    "scatter": lambda x, i: x.scatter(0, i[None], 1.0),
    "index_add": lambda x, i: x.index_add(0, i, torch.ones(2, 4)),
    "index_copy": lambda x, i: x.index_copy(0, i, torch.ones(2, 4)),
    "sum of what is gathered": lambda x, i: x[i].exp().sum(0),
    "beside others": lambda x, i: torch.cat([x, x[i] * 2]),
    "label": lambda x, i: F.cross_entropy(x.t()[:2], i),
}


@pytest.mark.parametrize("name", PLACES)
@pytest.mark.parametrize("dynamic", [False, True])
def test_a_place_out_of_range(name: str, dynamic: bool):
    function = PLACES[name]
    compiled = torch.compile(function, backend="tessera", dynamic=dynamic)
    torch._dynamo.reset()
    for bad in (3, FAR):
        with pytest.raises((IndexError, RuntimeError)):
            function(X, at(1, bad))
        with pytest.raises(RuntimeError, match="an index is out of range"):
            compiled(X, at(1, bad))
    torch.testing.assert_close(compiled(X, at(1, 2)), function(X, at(1, 2)))


def test_the_error_names_the_operation():
    torch._dynamo.reset()
    compiled = torch.compile(lambda w, i: F.embedding(i, w), backend="tessera")
    with pytest.raises(RuntimeError, match=r"aten\.embedding\.default: an index .* of 3"):
        compiled(X, at(5))


def test_places_that_are_computed():
    """Behind the end of a row, and where a concatenation reads something else, there is no place to check."""
    places = torch.randint(1, 101, (333,))
    w = torch.randn(100, 7)
    compare(lambda w, i: (w[i - 1].sum(), w[i - 1].relu().sum(0), w[-i].cumsum(0)), w, places)
    compare(lambda w, i: torch.cat([w, w[i - 1], w.gather(0, i[:7][None] - 1)]), w, places)
    compare(lambda w, i: F.pad(w[i - 1], (3, 3, 5, 5)).sum(1), w, places, dynamic=True)
    compare(lambda w, i: w.index_put((i - 1,), w[i - 1], accumulate=True), w, places)
    compare(lambda w: (w[torch.arange(100), torch.arange(100) % 7], w[torch.arange(99, -1, -1)]), w)


DIVISIONS: dict[str, Callable[[Any, Any], Any]] = {
    "floor": lambda a, b: a // b,
    "remainder": lambda a, b: a % b,
    "truncated": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
    "fmod": torch.fmod,
    "number by tensor": lambda a, b: 5 // b,
    "remainder of a number": lambda a, b: 5 % b,
    "tensor by number": lambda a, b: a // int(b.shape[0] - 2),
}


@pytest.mark.parametrize("name", DIVISIONS)
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8])
def test_whole_numbers_divided_by_nothing(name: str, dtype: Any):
    function = DIVISIONS[name]
    a, b = at(7, 9).to(dtype), at(2, 0).to(dtype)
    compiled = torch.compile(function, backend="tessera")
    torch._dynamo.reset()
    for call in (function, compiled):
        with pytest.raises(RuntimeError, match="ZeroDivisionError"):
            call(a, b)
    if name != "tensor by number":
        compare(function, a, b + 1)


def test_numbers_divided_by_tensors():
    a = at(1, 2, 3, -4)
    compare(lambda a: (5 // a, 5 % a, -7 // a, -7 % a, torch.remainder(7, a), 5 / a, a // -2), a)
    compare(lambda a: (5 // a, 5 % a, -7 // a, -7 % a), a.double() / 3)


CHOICES: dict[str, Callable[[Any], Any]] = {
    "max": lambda x: x.max(),
    "min of rows": lambda x: x.min(1),
    "max of rows": lambda x: x.max(1),
}


@pytest.mark.parametrize("name", CHOICES)
def test_a_choice_of_nothing(name: str):
    x = torch.zeros(3, 0)
    torch._dynamo.reset()
    for call in (CHOICES[name], torch.compile(CHOICES[name], backend="tessera")):
        with pytest.raises((RuntimeError, IndexError), match="reduction dim"):
            call(x)


def test_the_median_of_nothing_is_not_a_number():
    graphs = compare(lambda x: (x.median(), x.nanmedian(), x.sum(1)), torch.zeros(3, 0))
    assert "aten.median.default" in externs(graphs)
