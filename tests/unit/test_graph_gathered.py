"""Loops that go across memory do not share the few outer indices that leave a GPU idle."""

from __future__ import annotations

from tessera.dtypes import bfloat16
from tessera.graph.index import dim
from tessera.graph.ir.build import GraphBuilder
from tessera.graph.ir.ops import LoopOp
from tessera.graph.ir.types import TensorType
from tessera.graph.passes import optimize
from tessera.graph.passes.convolutions import channels_last
from tessera.ir import Value

PARTS, WHOLE = (8, 192, 7, 7), (8, 384, 7, 7)


def _absolute(g: GraphBuilder, x: Value) -> Value:
    made = g.loop(x.type.shape, lambda *i: g.unary("abs", g.load(x, *i)))
    made.type = x.type
    return made


def test_a_concatenation_of_channels_is_one_loop_over_all_elements():
    """It was eight programs, one for each image, that read and wrote every 192nd and 384th element."""
    g = GraphBuilder("net", "cuda:0")
    half, whole = (TensorType(s, bfloat16, channels_last(s), g.device) for s in (PARTS, WHOLE))
    parts: list[Value] = []
    for name in "ab":
        parts.append(_absolute(g, g.input(name, half)))

    def element(n: Value, c: Value, h: Value, w: Value) -> Value:
        first = g.compare("lt", c, g.index(192))
        later = g.compare("ge", c, g.index(192))
        x = g.load(parts[0], n, c, h, w, mask=first)
        at = g.index(dim(0) - 192, c)
        return g.select(first, x, g.load(parts[1], n, at, h, w, mask=later))

    made = g.loop(WHOLE, element)
    made.type = whole
    g.output(made)
    body = optimize(g.finish()).functions[0].regions[0]
    (loop,) = [op for op in body if isinstance(op, LoopOp)]
    assert tuple(loop.extents) == WHOLE
