"""Sizes that change from call to call: at most two compilations serve them all; and inputs of every layout."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torch._dynamo")

import torch.nn.functional as F  # noqa: E402

from tests.graph.shape_tables import (  # noqa: E402
    BASE,
    PROGRAMS,
    RESIZED,
    SCALARS,
    SHARED,
    layout_row,
    resized_row,
    scalar_row,
    shared_row,
)
from tests.graph.torch_kit import compare, difference  # noqa: E402

R = torch.randn
PAGE = (Path(__file__).parents[2] / "docs/torch-compile.md").read_text()
# What tests/graph/shape_tables.py finds on a CPU, and the page says.
ON_CPU = torch.get_default_device().type == "cpu"


@pytest.fixture(autouse=True)
def _strict(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing falls back to eager as a whole."""
    monkeypatch.setenv("TESSERA_STRICT", "1")


@pytest.mark.parametrize("name", RESIZED)
def test_two_compilations_serve_five_sizes(name: str):
    row = resized_row(name)
    assert row in PAGE.splitlines() or not ON_CPU
    _, _, equal, compilations, _ = row.split("|")
    # Under a default device of torch's Dynamo breaks more graphs.
    assert equal == " 5 of 5 " and (1 <= int(compilations) <= 2 or not ON_CPU)


@pytest.mark.parametrize("name", BASE)
def test_inputs_of_a_layout(name: str):
    every = f"{len(PROGRAMS)} of {len(PROGRAMS)}, gradient equal"
    row = layout_row(name)
    assert row == f"| {name} | {every} | {every} |"
    assert row in PAGE.splitlines()


def test_inputs_without_dimensions():
    row = scalar_row()
    assert row.count(f"{len(SCALARS)} of {len(SCALARS)}, gradient equal") == 2
    assert row in PAGE.splitlines()


@pytest.mark.parametrize("name", SHARED)
def test_arguments_in_one_memory(name: str):
    row = shared_row(name)
    assert row == f"| {name} | equal | equal |"
    assert row in PAGE.splitlines()


def test_the_tables_have_all_rows():
    rows = [name for table in (RESIZED, BASE, SHARED) for name in table]
    assert all(f"\n| {name} |" in PAGE for name in rows)


@pytest.mark.filterwarnings("ignore:.*degrees of freedom")
@pytest.mark.parametrize("shape", [(0,), (5, 0), (0, 5), (3, 0, 4)])
def test_reductions_over_nothing(shape: tuple[int, ...]):
    """The mean of nothing is no number, and its sum zero."""

    def f(x: Any) -> Any:
        return (
            torch.var_mean(x, correction=-5),
            x.std(0),
            x.mean(-1),
            x.sum(),
            x.prod(),
            (x > 0).all(),
            x.norm(),
        )

    compare(f, R(shape))


def test_each_element_is_scattered():
    """Constants and expanded values, many of which go to one place."""

    def f(x: Any, rows: Any) -> Any:
        n = x.shape[0]
        zeros, ones = torch.zeros(n, dtype=torch.int64), torch.ones(n)
        where = torch.arange(n)[:, None].expand(n, 70)
        return (
            torch.zeros(4).scatter_add(0, zeros, ones),
            torch.zeros(4).index_put([zeros[:1].expand(n)], x[:1].expand(n), accumulate=True),
            torch.zeros(n).index_put([where], torch.ones(n, 70), accumulate=True),
            torch.ones(4).scatter_reduce(0, rows, x[:1].expand(n), "prod"),
        )

    compare(f, R(37).sign(), torch.zeros(37, dtype=torch.int64))


SCATTERS: dict[str, tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]] = {
    "a number to a row": ((3,), (), ()),
    "a row to a row by a number": ((3,), (), (2,)),
    "nothing, of more dimensions": ((3,), (2, 0), (1,)),
    "nothing, of fewer dimensions": ((2, 2), (0,), ()),
    "to a number": ((), (1,), (1,)),
}


@pytest.mark.parametrize("name", SCATTERS)
def test_places_and_numbers_without_dimensions(name: str):
    """Eager takes a number for a row of one, and an index without elements whatever its rank."""
    shape, index, source = SCATTERS[name]

    def f(x: Any, at: Any, y: Any) -> Any:
        copied = x.index_add(0, at.view(-1)[:0], y.view(-1)[:0]) if x.dim() == 1 else x
        return (
            x.scatter(0, at, y),
            x.scatter(0, at, 4.0),
            x.scatter_add(0, at, y),
            x.gather(0, at),
            copied,
        )

    given = R(shape).requires_grad_(), torch.zeros(index, dtype=torch.int64), R(source)
    compare(f, *given)
    compare(lambda x, at: x.gather(0, at), *given[:2], backward=True)


def test_inputs_that_overlap_and_change():
    def f(x: Any, y: Any) -> Any:
        x.mul_(2)
        return x + y, x.sum()

    base = R(12)
    for first, last in ((0, 4), (0, 0), (4, 0)):
        torch._dynamo.reset()  # torch compiles for one overlap, and has no guard for another
        compiled = torch.compile(f, backend="tessera")
        mine, theirs = base.clone(), base.clone()
        found = compiled(mine[first : first + 8], mine[last : last + 8])
        wanted = f(theirs[first : first + 8], theirs[last : last + 8])
        assert difference((found, mine), (wanted, theirs)) is None


def test_scalars_and_numbers():
    def f(x: Any, n: int, scale: float) -> Any:
        return x * scale + n, x.reshape(-1)[:n], x.expand(n, *x.shape)

    for x in (R(()), R(3)):
        for n, scale in ((1, 0.5), (2, 1.5), (3, -2.0)):
            compare(f, x, n, scale)


def from_the_end(x: Any) -> list[Any]:
    """Slices that may begin before the first element, and places that depend on sizes."""
    rows, columns = x.shape
    found = [x[:, -5:] * 2, x[-5:-1:2] * 2, x[-(rows // 2) :] * 2, x[columns - rows :] * 2]
    found += [x[-(rows // 2)] * 2, x[rows // 2, columns - 1] * 2]
    return [*found, torch.slice_scatter(x, x[:, -5:] + 1, 1, -5)]


def test_places_that_count_from_the_end_of_sizes_that_change():
    torch._dynamo.reset()
    compiled = torch.compile(from_the_end, backend="tessera", dynamic=True)
    for shape in ((7, 9), (9, 7), (3, 4), (4, 3), (6, 5), (33, 3)):
        x = torch.randn(shape)
        assert difference(compiled(x), from_the_end(x)) is None, shape


def test_what_is_written_to_an_expanded_tensor_is_there():
    def written(x: Any, source: Any) -> Any:
        return torch.as_strided_scatter(x, source, (2,), (1,), 1)

    for x in (R(3, 1).expand(3, 3), R(1, 3).expand(3, 3), R(3, 3).t()):
        compare(written, x, R(2))


def numbers(x: Any, n: int) -> Any:
    return torch.arange(n, device=x.device)


# Programs of a matrix of 8 x 8 and a whole number, which is a symbol from its second value on.
NUMBERED: dict[str, Any] = {
    "rolled": lambda x, n: x.roll(n, 0),
    "below a diagonal": lambda x, n: x.tril(n) + x.diagonal(n).sum(),
    "rows from a place on": lambda x, n: x[numbers(x, 4) + n],
    "a condition": lambda x, n: torch.where(numbers(x, 8) + n >= 1, x, 0),
    "quotients": lambda x, n: x + (numbers(x, 8) + n) // 4 + (numbers(x, 8) * n) % 5,
    "padded": lambda x, n: F.pad(x, (n, 1), value=2.0),
}


@pytest.mark.parametrize("name", NUMBERED)
def test_whole_numbers_that_change_may_be_negative(name: str):
    program, x = NUMBERED[name], R(8, 8)
    torch._dynamo.reset()
    compiled = torch.compile(program, backend="tessera")
    for n in (3, 2, 4, -2, -1, 0, 1, -3):
        assert difference(compiled(x, n), program(x, n)) is None, n


@pytest.mark.parametrize("backward", [False, True])
def test_groups_of_a_convolution_that_are_a_size(backward: bool):
    """Of a depthwise convolution, whose channels may be any number."""
    x, w = R(2, 6, 9, 8, requires_grad=backward), R(6, 1, 3, 3, requires_grad=backward)

    def depthwise(x: Any, w: Any) -> Any:
        return F.relu(F.conv2d(F.relu(x), w, groups=x.shape[1], padding=1))

    compare(depthwise, x, w, backward=backward, dynamic=True, scale=5)


# Rows of four that a guard of torch's counts: torch's expression for their number stays what it is.
ROWS: dict[str, Callable[[Any, Any], Any]] = {
    "broadcast": lambda one, some: one * some,
    "expanded": lambda one, some: one.expand(3, 4) + some.sum(),
    "squeezed": lambda one, some: one.squeeze(0).sin() + some,
    "a batch of products": lambda one, some: one[:, None] @ some[:, :, None],
    "chosen from": lambda one, some: torch.where(some > 0, one, some),
    "written to": lambda one, some: torch.masked_fill(some, one > 0, 2.0),
}


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("name", ROWS)
def test_one_row_is_one_where_only_a_guard_says_so(name: str, backward: bool):
    function = lambda x, y: ROWS[name](x.view(-1, 4), y.view(-1, 4))
    given = [torch.randn(n, requires_grad=backward) for n in (4, 8)]
    graphs = compare(function, *given, backward=backward, dynamic=True, strides=not backward)
    assert graphs[0].imported is not None


def test_sizes_that_are_divided_by_what_likely_sizes_make_nothing():
    """Windows that overlap by half, as many as there are: memory is planned as if all symbols were the same number."""

    def windows(x: Any, width: int) -> Any:
        x = x.view(x.size(0), x.size(1) // (width * 2), width * 2, x.size(2))
        n, rows, *rest = x.size()
        outer, step, *inner = x.stride()
        return x.as_strided([n, 2 * rows - 1, *rest], [outer, step // 2, *inner])

    torch._dynamo.reset()
    run = torch.compile(windows, backend="tessera", dynamic=True)
    x = R(2, 64, 3)
    for width in (8, 4):
        assert torch.equal(run(x, width), windows(x, width))
