"""Programs as users write them give what eager gives: results, strides, gradients, and what they change."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torch._dynamo")


import torch.nn.functional as F  # noqa: E402

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


@pytest.mark.parametrize("shape", [(3, -1), (5, 3), (-1,), (3, 5, 1)])
@pytest.mark.parametrize("dynamic", [False, True])
def test_views_that_are_returned_share_memory(shape: tuple[int, ...], dynamic: bool):
    """Also where rows of another length begin in the middle of rows."""

    def f(x: Any) -> Any:
        whole = x + 1
        view = whole.view(shape)
        view[1:].mul_(2)
        return whole, view, whole.reshape(3, 5).t()

    x = torch.randn(5, 3)
    compare(f, x, dynamic=dynamic, fullgraph=True)
    out = torch.compile(f, backend="tessera", dynamic=dynamic)(x)
    assert len({r.untyped_storage().data_ptr() for r in out}) == 1


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


def test_a_saved_size_may_be_a_number():
    """Gradients of `cumprod` fix a size that was a symbol: it is saved beside tensors, and is the number of one."""
    x = torch.randn(5, 2, requires_grad=True)
    compare(lambda x: x.cumprod(1).var(1), x, backward=True, dynamic=True)


def test_a_saved_size_may_be_the_smaller_of_two():
    """The length of a diagonal, which its gradient asks for, is an int, as torch wants it."""
    x = torch.randn(4, 6, requires_grad=True)
    compare(lambda x: torch.cat((x.diagonal(), x[0])), x, backward=True, dynamic=True)


@pytest.mark.parametrize("dtype", [torch.int64, torch.float32])
def test_a_median_of_few_numbers_beside_others(dtype: Any):
    """What sorts a row without outer indices is a loop around it, that yields a tensor and no scalars."""
    x = torch.arange(36).mul(7).remainder(36).to(dtype)
    compare(lambda x: (x.median(), x * 2), x, fullgraph=True)


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


@pytest.mark.parametrize("taken", [lambda z: z[:, 1:3].mT, lambda z: z.conj()])
def test_writes_to_complex_arguments(taken: Any):
    def f(z: Any, w: Any, x: Any) -> Any:
        before = z * 1
        z.add_(1j).mul_(w)
        w.copy_(before)
        w[0] = x[0]
        x.copy_(before.abs())
        return z.sum(), before

    z, w = (taken(torch.randn(4, 4, dtype=torch.complex64)) for _ in range(2))
    compare(f, z, w, torch.randn(z.shape), dynamic=True)


# --- what is compared with the greatest or least of itself ---------------------------------------------------------
def scaled(x: Any) -> Any:
    """A chain whose last bits depend on the order of sums and on roundings in between."""
    h = x * x.float().pow(2).mean(-1, keepdim=True).add(1e-5).rsqrt().to(x.dtype)
    return (h * 1.1).softmax(-1)


def gated(x: Any) -> Any:
    g = x.view(-1, 4, 16)
    h = (g * g.float().pow(2).mean(-1, keepdim=True).add(1e-5).rsqrt().to(g.dtype)).flatten(1)
    a, b = h.chunk(2, -1)
    rolled = h.view(-1, 2, 32).roll(1, 1).flatten(1)
    return F.silu(a) * b, rolled, F.softmax(h.view(-1, 8, 8), 1).amax(2)


EXTREMA: dict[str, Any] = {
    "both of rows": lambda x: scaled(x).aminmax(dim=1),
    "of columns": lambda x: scaled(x).amax(0),
    "of all": lambda x: scaled(x).max(),
    "norm": lambda x: torch.linalg.vector_norm(scaled(x), float("inf"), 1),
    "groups": lambda x: x.new_zeros(3, 64).scatter_reduce(
        0, (torch.arange(48, device=x.device) % 3)[:, None].expand(-1, 64), scaled(x), "amax", include_self=False
    ),
    "beside others": gated,
}  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", EXTREMA)
def test_gradients_of_the_greatest_find_it(name: str, dtype: Any):
    """The backward graph compares elements with the greatest one; of what differs by a rounding none would be equal,
    and the gradient 0 / 0."""
    if name == "both of rows" and tuple(map(int, torch.__version__.split(".")[:2])) < (2, 13):
        pytest.skip("aminmax has no gradient in this torch")
    x = torch.randn(48, 64).to(dtype).requires_grad_()
    compare(EXTREMA[name], x, backward=True, scale=4)
