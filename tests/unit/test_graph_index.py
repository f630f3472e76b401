"""The index algebra agrees with plain evaluation, whatever it rewrites, and its text reads back."""

from __future__ import annotations

import itertools
import operator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.graph.index import (
    Dim,
    Expr,
    IndexMap,
    Ranges,
    Sym,
    dim,
    expr,
    is_less,
    is_nonnegative,
    maximum,
    minimum,
    parse_expr,
    parse_map,
    simplify,
    size,
    sym,
)

d0, d1, d2, s0, s1 = dim(0), dim(1), dim(2), sym("s0"), sym("s1")

OPERATORS: dict[str, Any] = {
    "+": (operator.add, operator.add), "-": (operator.sub, operator.sub), "*": (operator.mul, operator.mul),
    "//": (operator.floordiv, operator.floordiv), "%": (operator.mod, operator.mod),
    "min": (minimum, min), "max": (maximum, max),
}  # fmt: skip

leaves = st.one_of(st.sampled_from([d0, d1, s0]), st.integers(-4, 6).map(expr))
divisors = st.one_of(st.just(s0), st.integers(1, 6).map(expr), st.integers(-3, -1).map(expr))


def trees(children: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        st.tuples(st.sampled_from(["+", "-", "*", "min", "max"]), children, children),
        st.tuples(st.sampled_from(["//", "%"]), children, divisors),
    )


TREES = st.recursive(leaves, trees, max_leaves=6)
POINTS = [
    {Dim(0): i, Dim(1): j, Sym("s0"): n}
    for i, n in itertools.product((0, 1, 4), (1, 2, 7))
    for j in sorted({0, n // 2, n - 1})
]
RANGES = ((5, s0), {"s0": (1, None)})


def built(tree: Any) -> Expr:
    if isinstance(tree, Expr):
        return tree
    name, a, b = tree
    return OPERATORS[name][0](built(a), built(b))


def value(tree: Any, env: Any) -> int:
    if isinstance(tree, Expr):
        return tree.evaluate(env)
    name, a, b = tree
    return OPERATORS[name][1](value(a, env), value(b, env))


@given(TREES)
def test_normal_forms_and_simplification_keep_the_value(tree: Any):
    e, ranges = built(tree), Ranges.of_extents(*RANGES)
    simple, proved = simplify(e, ranges), is_nonnegative(e, ranges)
    for env in POINTS:
        wanted = value(tree, env)
        assert e.evaluate(env) == wanted
        assert simple.evaluate(env) == wanted
        assert wanted >= 0 or not proved


@given(TREES)
def test_text_reads_back(tree: Any):
    e = built(tree)
    assert parse_expr(str(e)) == e


@given(TREES, TREES)
def test_substitution_is_evaluation(tree: Any, inner: Any):
    e, i = built(tree), built(inner)
    replaced = e.subs({Dim(0): i})
    for env in POINTS[:8]:
        assert replaced.evaluate(env) == e.evaluate({**env, Dim(0): i.evaluate(env)})


@pytest.mark.parametrize(
    ("e", "text"),
    [
        ((d0 * 4 + d1) // 4, "d0 + d1 // 4"),
        (d0 // 4 * 4 + d0 % 4, "d0"),
        (d0 // 2 % 3 * 2 + d0 % 2, "d0 % 6"),
        ((d0 * 5 + d1) // 3 * 3 + (d0 * 5 + d1) % 3, "d0 * 5 + d1"),
        ((d0 * 5 + d1) // 3 % 4 * 3 + (d0 * 5 + d1) % 3, "(d0 * 5 + d1) % 12"),
        ((d0 * s0 + d1) // s0, "d0 + d1 // s0"),
        ((d0 * 6) // (s0 * 4), "d0 * 3 // (s0 * 2)"),
        (d0 % (s0 * 4) % s0 - d0, None),
        (d0 // 3 // 5, "d0 // 15"),
        (d0 % 12 // 4, "d0 // 4 % 3"),
        (d0 % 12 % 4, "d0 % 4"),
        ((d0 + 7) % 4, "(d0 + 3) % 4"),
        (-(d0 % 4), "-1 * (d0 % 4)"),
        (d0 - d0 // 8 * 8, "d0 % 8"),
        (d1 + (d0 + d1) * s0 - (d0 + d1) // 3 * 3 * s0, "d1 + s0 * ((d0 + d1) % 3)"),
        (minimum(d0, d0 + 2), "d0"),
        (s0 * 2 - s0 - s0, "0"),
        (maximum(d0, s0) * 2, "max(d0, s0) * 2"),
    ],
)
def test_normal_forms(e: Expr, text: str | None):
    if text is not None:
        assert e == parse_expr(text), str(e)
    assert parse_expr(str(e)) == e


@pytest.mark.parametrize(
    ("e", "extents", "simple"),
    [
        ((d0 * 128 + d1) // 128, (s0, 128), d0),
        ((d0 * 128 + d1) % 128, (s0, 128), d1),
        ((d0 * s1 + d1) // s1, (s0, s1), d0),
        ((d0 * s1 + d1) % s1, (s0, s1), d1),
        ((d0 * (s1 + 2) + d1) // (s1 + 2), (s0, s1), d0),
        ((d0 * (s1 + 2) + d1) % (s1 + 2), (s0, s1), d1),
        ((d0 * 4 * s1 + d1 * s1 + d2) // s1 % 4, (s0, 4, s1), d1),
        ((d0 * 4 * s1 + d1 * s1 + d2) // (s1 * 4), (s0, 4, s1), d0),
        ((d0 * 4 + d1) // 8, (s0, 4), d0 // 2),
        ((d0 * 4 + d1) % 8, (s0, 4), d0 % 2 * 4 + d1),
        (minimum(d0, s0), (s0,), d0),
        (maximum(d0 - s0, expr(0)), (s0,), expr(0)),
        (d0 // s0, (s0,), expr(0)),
        ((d0 + d1 // 4 * 4) // 4, (4, 16), d1 // 4),
    ],
)
def test_simplification_within_ranges(e: Expr, extents: tuple[Any, ...], simple: Expr):
    assert simplify(e, Ranges.of_extents(extents)) == simple


def test_what_may_be_outside_of_its_range_stays():
    ranges = Ranges.of_extents((s0, 128))
    assert simplify((d0 * 128 + d1 + 1) // 128, ranges) != d0
    assert simplify((d0 * s1 + d1) // s1, ranges) != d0  # 128 may be more than s1
    assert not is_less(d1, s0, ranges)
    assert is_less(d0, s0, ranges)
    assert not is_less(d0, s0 - 1, ranges)


def test_ranges_of_symbols():
    d_below_128 = Ranges.of_extents((s0, 128), {"s0": (128, None)})
    assert is_less(d1, s0, d_below_128)
    assert simplify(d0 // 1000, Ranges.of_extents((s0,), {"s0": (2, 1000)})) == 0
    assert not is_nonnegative(s0, Ranges({Sym("s0"): (-1, None)}))


@pytest.mark.parametrize("e", [minimum(s0, s1), maximum(s0, s1), s0 // 2 + minimum(s0, s1) % 3])
def test_of_ints_the_value_is_an_int(e: Expr):
    """Torch takes no integer of NumPy's as a size."""
    values: dict[Dim | Sym, int] = {Sym("s0"): 4, Sym("s1"): 6}
    assert type(e.compute(values.__getitem__)) is int


def test_maps_compose_as_functions_do():
    outer, inner = parse_map("(d0, d1) -> (d1, d0 + s0)"), parse_map("(d0) -> (d0 // 8, d0 % 8)")
    both = outer.compose(inner)
    assert str(both) == "(d0) -> (d0 % 8, s0 + d0 // 8)"
    assert both.evaluate([19], {"s0": 5}) == outer.evaluate(inner.evaluate([19], {}), {"s0": 5})
    assert IndexMap.identity(2).compose(outer) == outer
    assert parse_map(str(both)) == both
    assert parse_map("() -> ()").is_identity
    with pytest.raises(ValueError, match="takes 2 indices"):
        outer.compose(parse_map("(d0) -> (d0)"))


@pytest.mark.parametrize(
    "text",
    ["d0 +", "d0 / 2", "f(d0)", "d0 ** 2", "True", "(d0) -> (d1)", "(d1) -> (d1)", "d0 -> d0"],
)
def test_text_that_is_no_map(text: str):
    with pytest.raises(ValueError):
        (parse_map if ">" in text else parse_expr)(text)


def test_division_by_zero_is_refused():
    with pytest.raises(ZeroDivisionError):
        _ = d0 // 0
    with pytest.raises(ZeroDivisionError):
        _ = d0 % 0


def test_equal_expressions_are_one_key():
    assert len({d0 * 2 + d1, d1 + d0 + d0, expr(3), size(expr(3)), 3}) == 2
    assert size(s0 - s0 + 4) == 4
    assert isinstance(size(s0 - s0 + 4), int)
    assert isinstance(size(s0), Expr)
