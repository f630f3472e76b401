"""Operations that have kernels of their own: values, gradients and strides beside eager, and no extern."""

from __future__ import annotations

import itertools
from functools import partial
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torch._dynamo")

import torch.nn.functional as F  # noqa: E402

from tests.graph.torch_kit import compare, externs, recording  # noqa: E402


def special(x: Any) -> Any:
    s = torch.special
    return (
        s.erfc(x * 4), s.erfinv(x / 3), torch.i0(x * 9), s.i1(x), s.bessel_j0(x * 20), s.bessel_y1(x.abs()),
        torch.nextafter(x, x.flip(0)), torch.frexp(x * 1000),
    )  # fmt: skip


def padded_pools(x: Any) -> Any:
    means = F.avg_pool2d(x, (3, 2), stride=(2, 3), padding=(1, 0), ceil_mode=True)
    plain = F.avg_pool2d(x, 3, stride=1, padding=1, count_include_pad=False)
    return means, plain, F.max_pool2d(x, 3, stride=2, padding=1), F.adaptive_max_pool2d(x, (3, 4))


def pools_of_volumes(x: Any) -> Any:
    return (
        F.avg_pool3d(x, 2, divisor_override=3),
        F.max_pool3d(x, 2, return_indices=True)[0],
        F.adaptive_max_pool3d(x, 2),
    )


def searches(x: Any, edges: Any) -> Any:
    rows = torch.stack([edges, edges * 2])
    two = x.flatten()[:6].view(2, 3)
    return (
        torch.bucketize(x, edges), torch.bucketize(x, edges, right=True), torch.bucketize(0.5, edges, out_int32=True),
        torch.searchsorted(rows, two), torch.searchsorted(rows, two, side="right"),
    )  # fmt: skip


def enlarged(x: Any) -> Any:
    return F.interpolate(x, scale_factor=2), F.interpolate(x, size=(14, 24), mode="nearest-exact")


def lists(a: Any, b: Any) -> Any:
    x, y = [a, b], [a * 2, b.exp()]
    return (
        torch._foreach_add(x, y, alpha=2), torch._foreach_mul(x, [2.0, 3.0]), torch._foreach_lerp(x, y, 0.3),
        torch._foreach_addcdiv(x, y, y, [0.5, 0.25]), torch._foreach_maximum(x, y), torch._foreach_norm(x),
        torch._foreach_pow(2.0, x),
    )  # fmt: skip


def diagonals(x: Any, a: Any, b: Any) -> Any:
    return (
        torch.diagonal_scatter(x, a), torch.diagonal_scatter(x, b, 2), torch.diagonal_scatter(x, b, -2, 1, 0),
        torch.linalg.vector_norm(x.diagonal(-1)),
    )  # fmt: skip


def norms(x: Any) -> Any:
    of = torch.linalg.vector_norm
    return of(x, 3), of(x, 1.5, 1), of(x, -2, 0, keepdim=True), of(x, 0.5)


def places_of_all(x: Any, values: Any) -> Any:
    made = partial(torch.tensor, device=x.device)
    index = made([[0, -1, 7], [12, 3, 7]])
    return (
        torch.put(x, made([3, -2]), values[0, :2]), torch.put(x.mT, index, values.mT.reshape(3, 2), True),
        torch.put(x[0, 0], made(0), values[0, 0]), torch.as_strided_copy(x.detach() * 2, (3, 3), (2, 6), 1),
    )  # fmt: skip


def reductions_by_index(x: Any, rows: Any) -> Any:
    index = torch.tensor([0, 3, 3], device=x.device)
    places = torch.tensor([[0, 3, 1, 3, 0]], device=x.device).expand(3, 5)
    return (
        *(torch.index_reduce(x, 0, index, rows, r) for r in ("prod", "mean", "amax", "amin")),
        *(torch.index_reduce(x.mT, 1, index, rows.mT, r, include_self=False) for r in ("prod", "mean", "amin")),
        *(torch.scatter_reduce(x, 0, places, rows, "mean", include_self=s) for s in (False, True)),
    )  # fmt: skip


def strided(x: Any, rows: Any) -> Any:
    return (
        torch.as_strided_copy(x, (3, 2), (6, 1), 1), torch.as_strided(x, (2, 2), (1, 3)) + 1,
        torch.as_strided_scatter(x, rows, (2, 3), (7, 2), 1), torch.as_strided_scatter(x.exp(), rows, (2, 3), (1, 6)),
    )  # fmt: skip


torch.manual_seed(0)
CASES = {
    "strides in memory": (strided, (torch.randn(4, 5), torch.randn(2, 3)), True),
    "strides in memory of another order": (
        strided,
        (torch.randn(5, 4).mT, torch.randn(2, 3)),
        False,
    ),
    "norms": (norms, (torch.randn(4, 5),), True),
    "places in a whole tensor": (places_of_all, (torch.randn(4, 5), torch.randn(2, 3)), True),
    "reductions by an index": (reductions_by_index, (torch.randn(4, 5), torch.randn(3, 5)), False),
    "a derivative of the logarithm of gamma": (torch.lgamma, (torch.rand(30) * 9,), True),
    "diagonals": (diagonals, (torch.randn(4, 5), torch.randn(4), torch.randn(3)), True),
    "special functions": (special, (torch.rand(30) * 2 - 1,), False),
    "pools": (padded_pools, (torch.randn(2, 3, 9, 10),), True),
    "pools of volumes": (pools_of_volumes, (torch.randn(1, 2, 6, 4, 8),), True),
    "enlargement": (enlarged, (torch.randn(2, 3, 7, 8),), True),
    "searches": (searches, (torch.randn(4, 5), torch.randn(9).sort()[0]), False),
    "lists of tensors": (lists, (torch.randn(4, 5), torch.randn(7)), True),
}


@pytest.mark.filterwarnings("ignore:index_reduce")
@pytest.mark.parametrize("name", CASES)
def test_operations_with_kernels(name: str):
    function, inputs, backward = CASES[name]
    given = [x.requires_grad_(backward) for x in inputs]
    graphs = compare(function, *given, backward=backward, fullgraph=True)
    assert externs(graphs) == set()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_digamma_near_its_poles_and_far_away(dtype: Any):
    inf = float("inf")
    ends = torch.tensor(
        [0, -0.0, -1, -50, inf, -inf, float("nan"), 1e-30, -1e-30, 1e30, -1e10 - 0.5]
    )
    x = torch.cat(
        [torch.linspace(-30.3, 30, 401), torch.tensor([1.4616321449683623, 10, 171]), ends]
    )
    assert externs(compare(torch.digamma, x.to(dtype))) == set()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int64, torch.uint8])
def test_angles_of_real_numbers(dtype: Any):
    if dtype is torch.float16 and torch.get_default_device().type != "cpu":
        pytest.skip("eager on GPUs has no angle of halves")
    x = torch.tensor([0, -0.0, 3, -2, float("inf"), float("-inf"), float("nan")])
    x = x if dtype.is_floating_point else torch.arange(-3, 4).abs() * (-1 if dtype.is_signed else 1)
    assert externs(compare(torch.angle, x.to(dtype))) == set()


@pytest.mark.filterwarnings("ignore:index_reduce")
@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8])
def test_means_of_whole_numbers_by_an_index(dtype: Any):
    """They are rounded down."""
    x = torch.arange(-10, 10).reshape(4, 5).to(dtype)
    assert externs(compare(reductions_by_index, x, x[1:] * 3 - 1)) == set()


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8])
def test_searches_of_whole_numbers(dtype: Any):
    x, edges = torch.arange(20, dtype=dtype), torch.arange(0, 30, 4, dtype=dtype)
    assert externs(compare(searches, x, edges)) == set()


def test_windows_of_least_numbers_begin_inside():
    x = torch.full((1, 1, 4, 4), float("-inf"))
    compare(lambda x: F.max_pool2d(x, 3, padding=1, stride=2, return_indices=True), x)


def test_strides_over_more_than_the_elements_of_an_argument():
    """What lies beside them is read by eager; an argument may begin anywhere in memory."""
    x = torch.randn(6, 5)[2:]
    for begin, own in ((0, False), (12, True)):

        def taken(x: Any, begin: int = begin) -> Any:
            return torch.as_strided_copy(x, (3, 2), (5, 1), begin)

        with recording() as graphs:
            found = torch.compile(taken, backend="tessera", dynamic=False)(x)
        assert torch.equal(found, taken(x))
        assert externs(graphs) == (set() if own else {"aten.as_strided_copy.default"})
    graphs = compare(lambda x: torch.as_strided_scatter(x, x[:2, :2], (2, 2), (1, 1)), x)
    assert externs(graphs) == {"aten.as_strided_scatter.default"}


def test_a_range_of_whole_numbers_between_fractions():
    """Eager cuts off the fraction of the first number and of the step."""
    device = torch.get_default_device()  # which Dynamo does not ask for

    def ranges() -> Any:
        whole = (torch.int64, torch.int32, torch.uint8)
        falling = torch.arange(2.1, -2.9, -1.0, dtype=torch.int64, device=device)
        return [falling, *(torch.arange(0.9, 9.9, 2.5, dtype=t, device=device) for t in whole)]

    compare(ranges)


def test_a_copied_view_is_no_part_of_its_argument():
    x = torch.randn(2, 3)
    found = torch.compile(lambda x: torch.view_copy(x, (6,)), backend="tessera")(x)
    found += 1
    assert torch.equal(found, x.reshape(6) + 1)


@pytest.mark.parametrize(
    ("shape", "at", "strides"),
    [((70, 24), 0, "(1, 24)"), ((3, 40, 20), 1, "(800, 1, 20)"), ((9, 5, 4), 0, "(4, 1, 20)")],
)
@pytest.mark.parametrize("kind", ["float32", "bfloat16", "int64"])
def test_scans_across_memory_lie_as_their_results(
    shape: tuple[int, ...], at: int, strides: str, kind: str, tmp_path: Path
):
    """So that a program takes many columns, whose elements are side by side."""
    # eager rounds sums of bf16 otherwise on GPUs
    where = "cpu" if kind == "bfloat16" else torch.get_default_device()
    x = (torch.randn(shape, device=where) * 4).to(getattr(torch, kind))
    for k, scan in enumerate(
        (lambda x: x.cumsum(at), lambda x: x.cummax(at), lambda x: x.flip(at).cumprod(at))
    ):
        graphs = compare(scan, x, options={"dump": str(tmp_path / str(k))})
        assert not externs(graphs)
        assert f"strides={strides}" in "".join(
            p.read_text() for p in (tmp_path / str(k)).glob("*/graph.gph")
        )


@pytest.mark.parametrize("shape", [(7, 4), (3, 5, 4), (1, 6), (6, 1), (2, 1, 3)])
@pytest.mark.parametrize("dynamic", [False, True])
def test_scans_of_every_layout_lie_as_eagers(shape: tuple[int, ...], dynamic: bool):
    """What a loop makes in the strides of a result takes its place: both are of one type, also with symbols."""
    plain = torch.randn(shape)
    turned = torch.randn(shape[::-1]).permute(*reversed(range(len(shape))))
    for x, at in itertools.product((plain, turned), range(len(shape))):
        compare(lambda x: (x.cumsum(at), *x.cummin(at)), x, dynamic=dynamic)  # noqa: B023


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.bool, torch.float16])
def test_quotients_that_are_not_rounded_are_floats(dtype: Any):
    """`rounding_mode=None` is said in words: whole numbers give what `/` gives."""
    x, y = torch.arange(-8, 8).to(dtype), (torch.arange(16) % 5 + 1).to(dtype)

    def quotients(x: Any, y: Any) -> Any:
        return torch.div(x, y, rounding_mode=None), torch.div(x, 3, rounding_mode=None), x / y

    assert not externs(compare(quotients, x, y))


@pytest.mark.parametrize("dynamic", [False, True])
def test_means_of_windows_that_give_nothing(dynamic: bool):
    plain = torch.randn(2, 3, 4, 5)
    for x in (plain, plain.contiguous(memory_format=torch.channels_last), plain[0]):
        for size in ((0, 2), (1, 0), (0, 0)):
            compare(lambda x, size=size: F.adaptive_avg_pool2d(x, size), x, dynamic=dynamic)
    compare(lambda x: F.adaptive_avg_pool1d(x, 0), plain[0], dynamic=dynamic)
