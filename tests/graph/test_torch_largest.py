"""The few largest and smallest elements of rows, which CPUs find by a walk through the row for each."""

from __future__ import annotations

import random
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torch._dynamo")

from tests.graph.torch_kit import compare, externs, recording  # noqa: E402


def rows(shape: tuple[int, ...], seed: int = 0) -> Any:
    """Different numbers in random order, so that no two choices are right."""
    count = torch.Size(shape).numel()
    made = torch.randperm(count, generator=torch.Generator("cpu").manual_seed(seed), device="cpu")
    return ((made - count // 2) / 8).reshape(shape)


def kernels(f: Any, x: Any) -> int:
    torch._dynamo.reset()
    with recording() as records:
        torch.compile(f, backend="tessera")(x)
    return sum(len(r.run.compiled()) for r in records)


@pytest.mark.parametrize(
    ("shape", "dim", "k"),
    [
        ((5, 100), 1, 10), ((33, 17), -1, 5), ((100, 12), 0, 3), ((2, 19, 7), 1, 4), ((9,), 0, 9), ((3, 16), 1, 16),
        ((2, 1025), 1, 8), ((3, 2047), 1, 2), ((1, 100), 1, 10), ((70, 3), 1, 2), ((6, 1, 5), 1, 1),
    ],
)  # fmt: skip
def test_elements_and_places_are_eagers(shape: tuple[int, ...], dim: int, k: int):
    x = rows(shape)
    for largest in (True, False):
        graphs = compare(lambda x, up=largest: x.topk(k, dim, largest=up), x)
        assert externs(graphs) == set()


def test_random_rows():
    draw = random.Random(7)
    for seed in range(6):
        shape = tuple(draw.randrange(1, 40) for _ in range(draw.randrange(1, 4)))
        dim = draw.randrange(len(shape))
        k, largest = draw.randrange(1, min(shape[dim], 16) + 1), draw.random() < 0.5
        x = rows(shape, seed)
        if draw.random() < 0.5 and x.dim() > 1:
            x = x.transpose(0, -1).contiguous().transpose(0, -1)
        compare(lambda x, a=(k, dim, largest): torch.topk(x * 2, *a)[1] + 1, x)


@pytest.mark.parametrize("largest", [True, False])
def test_nan_infinities_zeros_and_equal_elements(largest: bool):
    """Places are those of the stable sort: a NaN is above infinity, -0 equals 0."""
    nan, inf = float("nan"), float("inf")
    row = [1.0, -0.0, 0.0, inf, nan, -inf, 3.0, nan, 1.0, -0.0, inf, -inf, 3.0, 0.5]
    x = torch.tensor([row, row[::-1], [nan] * 14, [-inf] * 14, [inf] * 13 + [nan]], device="cpu")
    found = torch.compile(lambda x: x.topk(14, 1, largest), backend="tessera")(x)
    wanted = x.sort(dim=1, stable=True, descending=largest)
    assert torch.equal(found[1], wanted[1])
    assert torch.equal(found[0].view(torch.int32), wanted[0].view(torch.int32))


def test_gradients_reach_the_largest():
    x = rows((6, 50)).requires_grad_()
    compare(lambda x: x.topk(3, 1)[0].exp().sum(), x, backward=True)


def test_one_kernel_does_it(monkeypatch: pytest.MonkeyPatch):
    x = rows((64, 64))

    def largest(x: Any) -> Any:
        return x.topk(10, 1)

    assert kernels(largest, x) == 1
    monkeypatch.setenv("TESSERA_DISABLE", "graph-select-largest")
    assert kernels(largest, x) > 1
    monkeypatch.delenv("TESSERA_DISABLE")
    assert kernels(lambda x: x.double().topk(10, 1), x[:, :30]) > 1
    for shape, k in (((4, 300), 17), ((2, 2049), 9), ((3, 65), 17)):
        assert externs(compare(lambda x, k=k: x.topk(k, 1), rows(shape))) == {"aten.topk.default"}


@pytest.mark.parametrize(
    ("n", "k"), [(25, 17), (33, 33), (64, 17), (100, 17), (100, 32), (128, 50), (512, 128)]
)
def test_many_of_rows_that_a_network_sorts_in_less_time(n: int, k: int):
    for largest in (True, False):
        graphs = compare(lambda x, up=largest: x.topk(k, 1, largest=up), rows((7, n)))
        assert externs(graphs) == set()


def test_no_elements_of_rows():
    for n in (5, 100, 3000):
        compare(lambda x: x.topk(0, 1), rows((3, n)))


def test_integers_in_order_across_memory():
    """Values of 64 bits alone, which no kernel of a network reads across memory."""
    for shape, dim in (((32, 5), 0), ((5, 32), 1), ((5, 16), 1), ((64, 3), 0), ((2, 64), 1)):
        x = rows(shape).mul(8).long() % 50
        compare(lambda x, d=dim: x.sort(d)[0], x)
        compare(lambda x, d=dim: (x * 2).sort(d)[0] + 1, x)


def test_single_elements_of_rows():
    """A network orders rows that nearly fill a power of two in less time than eager finds one element in."""
    for n, ours in (
        (24, True),
        (64, True),
        (65, False),
        (100, True),
        (129, False),
        (256, True),
        (512, False),
    ):
        for f, name in ((lambda x: x.median(1), "median"), (lambda x: x.kthvalue(10, 1), "kthvalue")):  # fmt: skip
            found = externs(compare(f, rows((6, n))))
            assert not found if ours else [x.split(".")[1] for x in found] == [name]
