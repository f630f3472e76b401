"""Tensors whose elements lie 2^31 apart, and nests of loops that count so far: kernels count in 64 bits there."""

# pyright: basic, reportMissingImports=false
from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torch._dynamo")

from tests.graph.torch_kit import difference  # noqa: E402

FAR = 1 << 31


@pytest.fixture(autouse=True)
def _strict(monkeypatch: pytest.MonkeyPatch) -> Generator[None]:
    """No graph runs by eager because it did not compile, and none holds memory afterwards."""
    monkeypatch.setenv("TESSERA_STRICT", "1")
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture
def rows() -> Any:
    """Three rows of different bytes, 2^30 apart: pages that nobody writes to take no memory."""
    if torch.get_default_device().type != "cpu":
        pytest.skip("memory of a GPU is there from the beginning")
    x = torch.empty(FAR + 64, dtype=torch.int8).as_strided((3, 7), (FAR // 2, 9), 1)
    return x.copy_(torch.arange(21).reshape(3, 7))


@pytest.mark.parametrize(
    "f",
    [
        lambda x: x * 2 + 1,
        lambda x: (x.sum(1), x.sum(0), x.amax(), x.argmax(1)),
        lambda x: x.float().softmax(0),
        lambda x: torch.cat([x.t(), x.t() - 1]),
        lambda x: x.float() @ x.float().t(),
        lambda x: x.sort(1, descending=True)[0],
        lambda x: x[torch.tensor([1, 0, -1])],
        lambda x: x.cumsum(0),
    ],
    ids=["elements", "reductions", "softmax", "concat", "product", "sort", "gather", "scan"],
)
def test_rows_that_lie_far_apart(rows: Any, f: Callable[..., Any]):
    for x in (rows, rows[:2]):
        why = difference(torch.compile(f, backend="tessera", dynamic=False)(x), f(x))
        assert why is None, why


def test_writes_into_rows_that_lie_far_apart(rows: Any):
    wanted = rows.clone()
    for change in (torch.compile(lambda x: x.add_(5), backend="tessera"), lambda x: x.add_(5)):
        change(rows)
    assert torch.equal(rows, wanted + 10)


def test_a_changing_size_that_becomes_large(rows: Any):
    """Kernels with symbols for sizes count in 32 bits: where that is not enough eager runs the call."""

    def f(x: Any, n: int) -> Any:
        return x * 2 + n, x.sum(1), x.shape[0] + n

    compiled = torch.compile(f, backend="tessera", dynamic=True)
    for x, n in ((rows[:2], 3), (rows, 4), (rows[:2].clone(), 5), (rows, 6)):
        assert difference(compiled(x, n), f(x, n)) is None


def test_gradients_of_rows_that_lie_far_apart(rows: Any):
    memory = torch.empty(FAR + 64, dtype=torch.float16)
    x = memory.as_strided((3, 7), (FAR // 2, 9), 1).copy_(rows / 16).requires_grad_()
    for dynamic in (False, True):
        torch._dynamo.reset()
        f = torch.compile(lambda x: (x.float() * x).sum(), backend="tessera", dynamic=dynamic)
        (found,) = torch.autograd.grad(f(x), [x])
        assert torch.equal(found, 2 * x)
