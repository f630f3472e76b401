"""Programs as users write them give what eager gives: results, strides, gradients, and what they change."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torch._dynamo")


from tests.graph.torch_kit import compare, externs  # noqa: E402


@pytest.fixture(autouse=True)
def _strict(monkeypatch: pytest.MonkeyPatch) -> None:
    """What does not compile, and a part that gets no kernel, is an error."""
    monkeypatch.setenv("TESSERA_STRICT", "1")
    torch.manual_seed(1)


# --- tensors changed through views ----------------------------------------------------------------------------------
@pytest.mark.parametrize(("offset", "dims"), [(0, (0, 1)), (-2, (2, -2)), (1, (1, 0)), (9, (0, 1))])
def test_diagonals_that_are_written(offset: int, dims: tuple[int, int]):
    def f(x: Any) -> Any:
        diagonal = x.diagonal(offset, *dims)
        diagonal.mul_(3)
        diagonal.add_(torch.arange(diagonal.numel(), device=x.device).view(diagonal.shape))
        return x * 2, x.diagonal(-1, *dims)

    graphs = compare(f, torch.randn(5, 4, 6), fullgraph=True)
    assert externs(graphs) == set()


def test_broadcasts_by_eager():
    x = torch.randn(5, 4)
    options = {"kernels": "none"}
    compare(lambda x: x.sum(1, keepdim=True).expand(5, 4) * 2, x, options=options, fullgraph=True)


# --- numbers --------------------------------------------------------------------------------------------------------
def test_powers():
    x = torch.tensor([0.0, -0.0, 1.0, -1.0, 2.5, -2.5, 3e38, torch.inf, -torch.inf, torch.nan])

    def f(x: Any) -> Any:
        return x**-0.5, x**0.5, x**-1.5, x**torch.inf, x**-torch.inf, x**torch.nan, x**1e30

    compare(f, x, fullgraph=True)


def test_prefix_sums_and_what_reduces_them():
    """A step along a long row carries the sum so far beside what is reduced."""
    x = torch.randn(3, 5000)

    def f(x: Any) -> Any:
        sums = x.cumsum(1)
        return sums.amax(1, keepdim=True) - sums, (sums * 2).mean(1), x.sum(1)

    compare(f, x, dynamic=True, scale=50.0)


# --- what eager does ------------------------------------------------------------------------------------------------
def test_assertions_on_data_hold():
    torch._dynamo.reset()

    def rooted(x: Any) -> Any:
        torch.ops.aten._assert_async.msg((x >= 0).all(), "a number is negative")
        return x.sqrt() * 2

    compiled = torch.compile(rooted, backend="tessera", fullgraph=True)
    # On a GPU nothing could run in this process after an assertion.
    x = torch.tensor([0.0, 4.0, 2.0], device="cpu")
    assert torch.equal(compiled(x), x.sqrt() * 2)
    with pytest.raises(RuntimeError, match="a number is negative"):
        compiled(x - 1)


def test_powers_of_whole_numbers_by_eager():
    x = torch.randn(13, requires_grad=True)
    compare(lambda x: x.ldexp(torch.tensor(3)), x, backward=True, fullgraph=True)


def test_complex_numbers_by_eager():
    """A gradient of 1j * z holds the conjugate of a number, not of a tensor."""

    def f(x: Any) -> Any:
        z = torch.complex(x, x.cos())
        w = z * z.conj() + 1j * z
        return w.real, w.imag, z.abs(), z.angle()

    compare(f, torch.randn(6, 9, requires_grad=True), backward=True)
