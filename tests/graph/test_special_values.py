"""Infinities, NaN, the ends of ranges, and numbers between two of a narrower type: as eager has them."""

from __future__ import annotations

import math
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402

from tests.graph.torch_kit import compare, externs  # noqa: E402

INF, NAN = float("inf"), float("nan")
FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
NUMBERS = (
    0.0, -0.0, 1.0, -1.0, INF, -INF, NAN, 1e-40, 1e-8, 7e-6, 2e-5, 3e38, -3e38, 0.5, 1.5, 2.5, -2.5, 1e10, 239.0, 248.0,
    448.0, 464.0, 465.0, 480.0, 57343.0, 57344.0, 61439.0, 61440.0, -61440.0, 65504.0, 65519.0, 65520.0, -(2.0**31),
)  # fmt: skip


def numbers(dtype: Any) -> Any:
    return torch.tensor(NUMBERS, dtype=torch.float64).to(dtype)


def pairs(dtype: Any) -> list[Any]:
    x = numbers(dtype)
    return [v.reshape(-1) for v in torch.meshgrid(x, x, indexing="ij")]


@pytest.mark.parametrize("to", [*FLOATS, torch.float8_e4m3fn, torch.float8_e5m2], ids=str)
def test_conversions_end_where_eagers_do(to: Any):
    def converted(*given: Any) -> list[Any]:
        return [x.to(to).to(torch.float64) for x in given]

    compare(converted, *map(numbers, FLOATS), torch.tensor([True, False]))


@pytest.mark.parametrize(
    "to", [torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float8_e5m2], ids=str
)
def test_wide_numbers_are_rounded_by_way_of_fp32(to: Any):
    """So that what is hardly above the middle of two numbers is taken to be there."""
    reals = [1 + 2**-11 + 2**-40, 1 + 2**-8 + 2**-40, 61440 - 1e-9, 1.125 + 2**-40]
    whole = [2**40 + 2**32 + 1, 2**31 + 2**23 + 1, -(2**40) - 2**32 - 1, 65519, 65520, 3]

    def converted(*given: Any) -> list[Any]:
        return [x.to(to).to(torch.float64) for x in given]

    compare(converted, torch.tensor(reals, dtype=torch.float64), torch.tensor(whole))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_the_next_number_is_one_of_the_type(dtype: Any):
    """Bit by bit: a step is far below all tolerances."""
    whole = {2: torch.int16, 4: torch.int32, 8: torch.int64}[dtype.itemsize]
    a, b = pairs(dtype)
    known = ~(a.isnan() | b.isnan())
    compare(lambda a, b: torch.nextafter(a, b).view(whole), a[known], b[known])
    compare(torch.nextafter, a[~known], b[~known])


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_functions_of_numbers_outside_of_their_range(dtype: Any):
    def functions(x: Any) -> list[Any]:
        return [
            f(x) for f in (torch.acosh, torch.asin, torch.acos, torch.atanh, torch.log, torch.sqrt)
        ]

    compare(functions, numbers(dtype))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_what_is_not_finite_has_no_variance(dtype: Any):
    """The mean that comes with a variance is NaN once a finite number is added to an infinity, and on GPUs the order
    in which eager adds is its own: of columns with an infinity it is not compared there."""
    rows = torch.randn(5, 70).to(dtype)
    rows[0, 3], rows[1, 60], rows[2, 9] = INF, -INF, NAN
    rows[3, 1], rows[3, 2] = INF, -INF

    def moments(x: Any) -> list[Any]:
        variance, mean = torch.var_mean(x, 0)
        known = x.isfinite().all(0) if x.is_cuda else torch.tensor(True)
        normal = torch.nn.functional.layer_norm(x, (70,))
        return [x.var(-1), x.std(-1), variance, torch.where(known, mean, 0), normal]

    compare(moments, rows)


HALVES = (torch.bfloat16, torch.float16)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_half_types_meet_numbers_as_numbers_of_their_own(dtype: Any):
    """0.1 is no number of theirs: eager compares, and divides with a remainder, by the nearest one."""

    def met(x: Any, count: Any, wide: Any) -> list[Any]:
        found = [f(x, 0.1) for f in (torch.eq, torch.lt, torch.ge)]
        found += [f(x, 1 / 3) for f in (torch.remainder, torch.fmod, torch.floor_divide)]
        return [*found, x == wide, x < count, x + count]

    x = torch.tensor([0.1, 1 / 3, 2.7, 100.3, 2049, 257, INF], device="cpu").to(dtype)
    count, wide = torch.full((7,), 2049, device="cpu"), torch.tensor(0.1, dtype=torch.float64)
    compare(met, x, count, wide.to("cpu"))


def test_powers_of_two_beyond_the_range_of_floats():
    """Not beside eager: that of torch 2.11 multiplies by such a power, which is infinite or 0."""
    numbers, powers = [INF, 3.0, 1e-30, -0.0, 1e-42, 3e38], [-200, 200, 3, -149, 127, -1000]
    pairs = [(x, by) for x in numbers for by in powers]
    x, by = (torch.tensor(column) for column in zip(*pairs, strict=True))
    torch._dynamo.reset()
    found = torch.compile(torch.ldexp, backend="tessera")(x, by)
    exact = [math.ldexp(float(torch.tensor(x)), by) for x, by in pairs]
    torch.testing.assert_close(found, torch.tensor(exact, dtype=torch.float64).float())


def test_whole_numbers_that_no_float_holds_have_common_multiples():
    compare(torch.lcm, torch.tensor([2**24 + 1, 2**62, 0, 21]), torch.tensor([1, 1, 0, 6]))


def test_sums_and_products_of_truth_values_are_such():
    def joined(x: Any) -> list[Any]:
        kind = torch.bool
        return [x.sum(1, dtype=kind), x.sum(dtype=kind), x.prod(1, dtype=kind), x.prod(dtype=kind)]

    compare(
        joined, torch.tensor([[1.0, 0.5, 0.0, 2.0], [0.0, 0.0, 0.0, -0.0], [1.0, 1.0, 3.0, NAN]])
    )


def test_memory_under_another_type():
    def viewed(x: Any, flags: Any, bytes: Any) -> list[Any]:
        y = x + 1
        same = [
            y.view(torch.int32),
            (x.half() * 2).view(torch.bfloat16),
            (x > 0).view(torch.int8) + 1,
        ]
        others = [
            y.view(torch.int16),
            y.double().view(torch.complex64),
            (bytes % 2).view(torch.bool),
        ]
        return [*same, *others, torch.view_copy(y, torch.int32), flags.view(torch.uint8).sum()]

    compare(viewed, torch.randn(6, 8), torch.randn(9) > 0, torch.arange(8, dtype=torch.uint8))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_special_functions_are_right_from_near_zero_to_far_away(dtype: Any):
    """On both sides of the places where one series takes over from another, and at poles."""
    small = torch.logspace(-6, 2.8, 40, dtype=torch.float64)
    edges = [0.0, 0.4999, 0.5, 1.9999, 2.0, 29.999, 30.0, 49.999, 50.0, 720.0, INF, NAN, -2.5, -INF]
    x = torch.cat([small, -small, torch.tensor(edges, dtype=torch.float64)]).to(dtype)
    known = x[x > -10]  # further down poles are near

    def bessel(x: Any) -> list[Any]:
        s = torch.special
        scaled = [s.scaled_modified_bessel_k0(x), s.scaled_modified_bessel_k1(x)]
        plain = [s.modified_bessel_k0(x), s.modified_bessel_k1(x), s.spherical_bessel_j0(x)]
        return [s.i0e(x), s.i1e(x), *scaled, *plain]

    def derivatives(x: Any) -> list[Any]:
        return [torch.polygamma(n, x) for n in (0, 1, 2, 5)]

    for function, given in ((bessel, x), (derivatives, known)):
        assert not externs(compare(function, given))
    assert externs(compare(lambda x: torch.polygamma(11, x), x[:3])) == {"aten.polygamma.default"}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_pooling_takes_the_place_of_the_last_nan(dtype: Any):
    """As eager, which lets each NaN of a window take the place of what was found before it."""
    x = torch.randn(2, 3, 9, 8).to(dtype)
    x[torch.rand(x.shape) < 0.2] = math.nan
    x[0, 0, :4] = -math.inf

    def pooled(x: Any) -> Any:
        return (
            F.max_pool2d(x, 3, 2, 1, return_indices=True),
            F.adaptive_max_pool2d(x, (3, 2), return_indices=True),
            F.max_pool3d(x, 2, return_indices=True),
            x.flatten(2).max(-1),  # the first NaN here
        )

    compare(pooled, x)
    compare(lambda x: F.max_pool2d(x, 3, 2, 1), x.requires_grad_(), backward=True)
