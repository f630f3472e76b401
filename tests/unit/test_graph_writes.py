"""What a graph leaves in its arguments is computed there where nobody needs the old contents any more."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from tessera.dtypes import float32
from tessera.graph.calls.executable import Executable, compile_graph
from tessera.graph.calls.host import NumpyHost
from tessera.graph.index import IndexMap, dim
from tessera.graph.ir.build import GraphBuilder
from tessera.graph.ir.interp import interpret
from tessera.graph.ir.ops import ExternOp
from tessera.graph.ir.types import Place, TensorType
from tessera.graph.passes import optimize
from tessera.graph.planning.plan import Launch
from tessera.ir import Value

rng = np.random.default_rng(9)


class Host(NumpyHost):
    def extern(
        self, op: ExternOp, arrays: Sequence[Any], symbols: Mapping[str, int]
    ) -> tuple[Any, ...]:
        return (arrays[0] * 2,)


def run(make: Callable[[GraphBuilder, Value, Value], list[Value]]) -> tuple[Executable, int]:
    """The compiled graph of x, y (8 x 16 each) and rows, whose results and arguments are right after a call; how many
    kernels it launches."""
    g = GraphBuilder("writes")
    t = TensorType((8, 16), float32)
    x, y = g.input("x", t), g.input("y", t)
    g.output(*make(g, x, y))
    module = g.finish()
    args = [rng.standard_normal((8, 16)).astype(np.float32) for _ in range(2)]
    wanted = [a.copy() for a in args]
    out = interpret(module, wanted, lambda op, arrays, symbols: [arrays[0] * 2])
    exe = compile_graph(optimize(module), Host())
    for _ in range(2):  # the second call has the arena of the first one
        mine = [a.copy() for a in args]
        found = exe(list(mine))
        for a, b in zip([*wanted, *out], [*mine, *found], strict=True):
            np.testing.assert_allclose(b, a, rtol=1e-5, atol=1e-6)
    return exe, sum(isinstance(s, Launch) for s in exe.plan.steps)


def each(g: GraphBuilder, *xs: Value) -> Value:
    """The sum of tensors, plus 1."""

    def body(i: Value, j: Value) -> Value:
        total = g.load(xs[0], i, j)
        for x in xs[1:]:
            total = g.add(total, g.load(x, i, j))
        return g.add(total, g.const(1.0, float32))

    return g.loop([8, 16], body)


def row_sums(g: GraphBuilder, x: Value) -> Value:
    return g.loop([8], lambda i: g.reduce("sum", [16], lambda r: g.load(x, i, r)))


def test_an_update_is_computed_in_its_argument():
    def make(g: GraphBuilder, x: Value, y: Value) -> list[Value]:
        g.write(x, each(g, x, y))
        return [row_sums(g, y)]

    exe, launches = run(make)
    assert launches <= 2
    assert exe.peak_bytes() == 8 * 4  # the result alone


def test_an_argument_that_is_read_later_is_written_at_the_end():
    def make(g: GraphBuilder, x: Value, y: Value) -> list[Value]:
        new = each(g, y)
        g.write(x, g.extern("double", [new], [Place(0)], [new.type])[0])
        g.write(y, each(g, new, new))
        (later,) = g.extern("double", [each(g, x, new)], [Place(0)], [x.type])
        return [later]

    run(make)


def test_a_turned_argument_is_not_written_while_it_is_read():
    """Programs would read elements that others have written already."""

    def make(g: GraphBuilder, x: Value, y: Value) -> list[Value]:
        g.write(x, g.loop([8, 16], lambda i, j: g.load(x, g.index(7 - dim(0), i), j)))
        return [row_sums(g, y)]

    _, launches = run(make)
    assert launches == 3


def test_a_result_is_not_the_argument():
    def make(g: GraphBuilder, x: Value, y: Value) -> list[Value]:
        new = each(g, x, y)
        g.write(x, new)
        return [new]

    exe, launches = run(make)
    assert launches == 2
    x = np.zeros((8, 16), np.float32)
    (found,) = exe([x, x.copy()])
    assert not np.shares_memory(found, x)


def test_an_argument_is_left_reversed():
    """No strides say what is left in it, so that each element is where another one has to go."""

    def make(g: GraphBuilder, x: Value, y: Value) -> list[Value]:
        flipped = g.view(x, IndexMap(2, [7 - dim(0), dim(1)]), x.type)
        g.write(x, flipped)
        g.write(y, flipped)
        return [each(g, flipped, y)]

    run(make)


@pytest.mark.parametrize("read", [False, True])
def test_rows_are_scattered_into_their_argument(read: bool):
    """A cache of keys: nothing is copied, unless the old contents are read afterwards."""

    def make(g: GraphBuilder, x: Value, y: Value) -> list[Value]:
        def body(i: Value, j: Value) -> list[Value]:
            return [g.index(dim(0) * 2 + 1, i), j, g.load(y, i, j)]

        new = g.scatter(x, (3, 16), body, mode="set")
        g.write(x, new)
        (doubled,) = g.extern("double", [new], [Place(0)], [x.type])
        return [each(g, doubled, x) if read else doubled]

    _, launches = run(make)
    assert launches == (4 if read else 1)


def test_an_extern_that_reads_an_argument_may_have_made_a_view_of_it():
    def make(g: GraphBuilder, x: Value, y: Value) -> list[Value]:
        (doubled,) = g.extern("double", [x], [Place(0)], [x.type])
        g.write(x, each(g, doubled, y))
        return [row_sums(g, doubled)]

    _, launches = run(make)
    assert launches == 3
