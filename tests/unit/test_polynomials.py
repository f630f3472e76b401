"""Polynomials of integers: what does not show in the passes that use them."""

from __future__ import annotations

from tessera.analysis.polynomials import Poly
from tessera.dtypes import int32
from tessera.ir import Block, Value


def test_factors_keep_the_order_that_they_came_in() -> None:
    """Code for the host is made in this order: it must not depend on where values lie in memory."""
    values = [Value(int32, Block([]), i) for i in range(12)]
    total = Poly.constant(1)
    for v in values:
        total = total * Poly.atom(v)
    assert total.atoms == values
    reversed_ = Poly.constant(1)
    for v in reversed(values):
        reversed_ = reversed_ * Poly.atom(v)
    assert total == reversed_ and hash(total) == hash(reversed_)
    assert total.over(Poly.atom(values[3])) == reversed_.over(Poly.atom(values[3]))
