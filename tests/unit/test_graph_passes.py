"""What canonicalisation and fusion make of small graphs, and what they leave alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tessera.dtypes import float32, int64
from tessera.graph.index import dim, parse_map, sym
from tessera.graph.ir.build import GraphBuilder
from tessera.graph.ir.interp import interpret
from tessera.graph.ir.ops import LoadOp, LoopOp, ReduceOp, ViewOp
from tessera.graph.ir.types import Place, TensorType
from tessera.graph.passes import cost, optimize
from tessera.graph.passes.canonical import canonicalize
from tessera.graph.passes.equal import merge_equal
from tessera.graph.passes.facts import captured_tensors, symbol_ranges
from tessera.graph.passes.fuse import Fusion
from tessera.ir import Module, Op, Value, print_module, verify

N = sym("s0")
rng = np.random.default_rng(3)


def body_of(module: Module) -> list[Op]:
    return [op for op in module.functions[0].regions[0] if not op.terminator]


def count(module: Module, cls: type[Op]) -> int:
    return sum(isinstance(op, cls) for op in module.walk())


def loops(module: Module) -> list[LoopOp]:
    return [op for op in body_of(module) if isinstance(op, LoopOp)]


def tensor(*shape: Any) -> TensorType:
    return TensorType(shape, float32)


def optimized(g: GraphBuilder, *results: Value) -> Module:
    """The module after all passes; it computes what it computed before."""
    g.output(*results)
    module = g.finish()
    verify(module)
    args: list[Any] = []
    for arg in module.functions[0].regions[0].args:
        shape = [5 if not isinstance(n, int) else n for n in arg.type.shape]
        data = rng.standard_normal(shape).astype(np.float32)
        args.append(data if arg.type.elem is float32 else np.zeros(shape, np.int64))
    wanted = interpret(module, args, lambda op, arrays, symbols: [arrays[0] * 2])
    optimize(module, verify=True)
    got = interpret(module, args, lambda op, arrays, symbols: [arrays[0] * 2])
    for a, b in zip(wanted, got, strict=True):
        np.testing.assert_array_equal(a, b)
    return module


def total(g: GraphBuilder, x: Value, columns: int, kind: str = "sum") -> Value:
    return g.loop([N], lambda i: g.reduce(kind, [columns], lambda r: g.load(x, i, r)))


def each(g: GraphBuilder, x: Value, fn: Callable[[Value], Value]) -> Value:
    return g.loop(x.type.shape, lambda *i: fn(g.load(x, *i)))


# --- vertical -----------------------------------------------------------------------------------------------------
def test_a_softmax_becomes_one_loop_over_rows():
    g = GraphBuilder("softmax")
    x = g.input("x", tensor(N, 128))
    m = total(g, x, 128, "max")
    e = g.loop([N, 128], lambda i, j: g.exp(g.sub(g.load(x, i, j), g.load(m, i))))
    s = total(g, e, 128)
    module = optimized(g, g.loop([N, 128], lambda i, j: g.div(g.load(e, i, j), g.load(s, i))))
    (loop,) = loops(module)
    assert loop.extents == (N,)
    assert [type(op) for op in loop.body] == [
        ReduceOp, LoopOp, ReduceOp, LoopOp, type(loop.body.terminator)
    ]  # fmt: skip
    assert count(module, LoadOp) == 4


def test_a_chain_of_element_wise_loops_becomes_one():
    g = GraphBuilder("chain")
    y = g.input("x", tensor(N, 8))
    for name in ("exp", "neg", "abs", "sin"):
        y = each(g, y, lambda v, name=name: g.unary(name, v))
    module = optimized(g, y)
    assert len(loops(module)) == 1
    assert count(module, LoadOp) == 1


def test_views_cost_nothing():
    g = GraphBuilder("views")
    x = g.input("x", tensor(N, 8))
    turned = g.view(x, parse_map("(d0, d1) -> (d1, d0)"), tensor(8, N))
    split = parse_map("(d0) -> (d0 // s0, d0 % s0)")
    flat = g.view(each(g, turned, lambda v: g.exp(v)), split, tensor(N * 8))
    back = g.view(flat, parse_map("(d0, d1) -> (d0 * s0 + d1)"), tensor(8, N))
    module = optimized(g, each(g, back, lambda v: g.unary("neg", v)))
    assert len(loops(module)) == 1
    assert count(module, ViewOp) == 0
    (load,) = (op for op in module.walk() if isinstance(op, LoadOp))
    assert load.tensor.name == "x"
    assert list(load.indices) == [loops(module)[0].body.args[k] for k in (1, 0)]


def test_a_reduction_takes_its_prologue_and_epilogue():
    g = GraphBuilder("sides")
    x = g.input("x", tensor(N, 64))
    squares = each(g, x, lambda v: g.mul(v, v))
    module = optimized(g, each(g, total(g, squares, 64), lambda v: g.unary("sqrt", v)))
    (loop,) = loops(module)
    assert [op.opcode for op in loop.body] == ["graph.reduce", "sqrt", "yield"]


def test_what_others_read_stays_a_result():
    g = GraphBuilder("kept")
    x = g.input("x", tensor(N, 8))
    h = each(g, x, lambda v: g.exp(v))
    module = optimized(g, each(g, h, lambda v: g.unary("neg", v)), h)
    (loop,) = loops(module)
    assert len(loop.results) == 2


def test_a_masked_load_masks_what_it_would_not_read():
    g = GraphBuilder("padded")
    x, y = g.input("x", tensor(N)), g.input("y", tensor(N))
    product = g.loop([N], lambda i: g.mul(g.load(x, i), g.load(y, i)))

    def padded(i: Value) -> Value:
        inside = g.compare("ge", i, g.const(2, int64))
        at = g.index(dim(0) - 2, i)
        return g.load(product, at, mask=inside, other=g.const(7.0, float32))

    module = optimized(g, g.loop([N + 2], padded))
    assert len(loops(module)) == 1
    assert all(op.mask is not None for op in module.walk() if isinstance(op, LoadOp))


# --- horizontal -----------------------------------------------------------------------------------------------------
def test_loops_that_read_the_same_rows_become_one():
    g = GraphBuilder("side by side")
    x = g.input("x", tensor(N, 64))
    module = optimized(g, total(g, x, 64), total(g, x, 64, "max"))
    (loop,) = loops(module)
    assert len(loop.results) == 2


def test_loops_that_share_nothing_stay_apart():
    g = GraphBuilder("apart")
    x, y = g.input("x", tensor(N, 64)), g.input("y", tensor(N, 64))
    assert len(loops(optimized(g, total(g, x, 64), total(g, y, 64)))) == 2


def test_loops_that_another_merge_moved_are_merged_in_their_new_order():
    """first and last become one behind `moved`'s neighbour, and `moved`, which reads first, goes behind them."""
    g = GraphBuilder("moved")
    x, y = g.input("x", tensor(8)), g.input("y", tensor(4))
    first = g.loop([8], lambda i: g.exp(g.load(x, i)))
    moved = g.loop([4], lambda i: g.add(g.load(first, i), g.load(y, i)))
    beside = g.loop([4], lambda i: g.exp(g.load(y, i)))
    last = g.loop([8], lambda i: g.unary("neg", g.load(x, i)))
    g.output(first, moved, beside, last)
    module = g.finish()
    body = module.functions[0].regions[0]
    fusion = Fusion(body, cost.machine_of("cpu"), cost.sizes(symbol_ranges(module)), None)
    assert fusion.horizontal()
    verify(module)
    assert [len(op.results) for op in loops(module)] == [2, 2]


# --- what must not happen ---------------------------------------------------------------------------------------------
def test_no_loop_is_merged_around_an_op_between():
    """x → h → extern → y, and y reads h: h and y cannot be one loop."""
    g = GraphBuilder("around")
    x = g.input("x", tensor(N, 8))
    h = each(g, x, lambda v: g.exp(g.exp(g.exp(v))))
    (copy,) = g.extern("double", [h], [Place(0)], [tensor(N, 8)])
    y = g.loop([N, 8], lambda i, j: g.add(g.load(h, i, j), g.load(copy, i, j)))
    assert [op.opcode for op in body_of(optimized(g, y))] == ["graph.loop", "graph.extern", "graph.loop"]  # fmt: skip


def test_rows_of_another_index_are_not_local():
    """y[i] reads row n - 1 - i of what the first loop makes."""
    g = GraphBuilder("flipped")
    x = g.input("x", tensor(N, 64))
    s = total(g, x, 64)
    flipped = g.view(s, parse_map("(d0) -> (s0 - 1 - d0)"), tensor(N))
    y = g.loop([N, 64], lambda i, j: g.sub(g.load(x, i, j), g.load(flipped, i)))
    assert len(loops(optimized(g, y))) == 2


def test_a_reduction_is_not_computed_for_each_element():
    g = GraphBuilder("columns")
    x = g.input("x", tensor(N, 64))
    s = g.loop([64], lambda j: g.reduce("sum", [N], lambda r: g.load(x, r, j)))
    y = g.loop([N, 64], lambda i, j: g.sub(g.load(x, i, j), g.load(s, j)))
    assert len(loops(optimized(g, y))) == 2


def test_a_few_long_rows_are_no_outer_loop():
    g = GraphBuilder("long")
    x = g.input("x", tensor(4, 1 << 20))
    s = g.loop([4], lambda i: g.reduce("sum", [1 << 20], lambda r: g.load(x, i, r)))
    g.output(g.loop([4, 1 << 20], lambda i, j: g.sub(g.load(x, i, j), g.load(s, i))))
    assert len(loops(optimize(g.finish()))) == 2


def test_a_loop_reads_and_makes_64_tensors_at_most():
    g = GraphBuilder("many")
    xs = [g.input(f"x{k}", tensor(N)) for k in range(100)]
    y = xs[0]
    for x in xs[1:]:
        y = g.loop([N], lambda i, x=x, y=y: g.add(g.load(x, i), g.load(y, i)))
    module = optimized(g, y)
    sizes = [len({*captured_tensors(op), *op.results}) for op in loops(module)]
    assert len(sizes) == 2
    assert max(sizes) <= cost.MOST_TENSORS


def test_a_copy_that_the_graph_returns_stays_a_copy():
    g = GraphBuilder("copies")
    x = g.input("x", tensor(N))
    copy = each(g, x, lambda v: v)
    module = optimized(g, copy, each(g, each(g, x, lambda v: v), lambda v: g.unary("neg", v)))
    assert module.functions[0].regions[0].terminator.operands[0].op is not None
    assert count(module, LoadOp) == len(loops(module)) == 1 or count(module, LoadOp) == 1


def test_two_results_are_two_tensors():
    g = GraphBuilder("twins")
    x = g.input("x", tensor(N))
    module = optimized(g, each(g, x, g.exp), each(g, x, g.exp))
    a, b = module.functions[0].regions[0].terminator.operands
    assert a is not b


# --- canonical form -------------------------------------------------------------------------------------------------
def test_masks_that_always_hold_go():
    g = GraphBuilder("masks")
    x = g.input("x", tensor(N))

    def body(i: Value) -> Value:
        return g.load(x, i, mask=g.compare("lt", i, g.index(N)), other=g.const(1.0, float32))

    module = optimized(g, each(g, g.loop([N], body), g.exp))
    (load,) = (op for op in module.walk() if isinstance(op, LoadOp))
    assert load.mask is None


def test_indices_are_folded_into_maps():
    g = GraphBuilder("indices")
    x = g.input("x", tensor(N, 8))

    def body(i: Value) -> Value:
        row = g.index(dim(0) // 8, i)
        return g.load(x, row, g.sub(i, g.mul(row, g.const(8, int64))))

    g.output(g.loop([N * 8], body))
    module = g.finish()
    canonicalize(module)
    (load,) = (op for op in module.walk() if isinstance(op, LoadOp))
    assert str(load.map) == "(d0) -> (d0 // 8, d0 % 8)"


def test_what_does_not_depend_on_an_inner_nest_leaves_it():
    """As `unit_extents`, `hoist` and `load_of_uniform` together do: no loop over 1 is left, no reduction in another."""
    g = GraphBuilder("kept dimension")
    x = g.input("x", tensor(N, 64))
    kept = g.view(total(g, x, 64), parse_map("(d0, d1) -> (d0)"), tensor(N, 1))
    scaled = each(g, kept, lambda v: g.unary("sqrt", g.unary("abs", v)))
    y = g.loop([N, 64], lambda i, j: g.div(g.load(x, i, j), g.load(scaled, i, 0)))
    (loop,) = loops(module := optimized(g, each(g, y, g.exp)))
    assert [op.opcode for op in loop.body] == ["graph.reduce", "abs", "sqrt", "graph.loop", "yield"]
    assert "extents=[1]" not in print_module(module)


def test_a_sum_of_sums_keeps_its_rows_parallel():
    g = GraphBuilder("sums")
    x = g.input("x", tensor(N, 64))
    s = total(g, x, 64)
    assert len(loops(optimized(g, g.loop([], lambda: g.reduce("sum", [N], lambda r: g.load(s, r)))))) == 2  # fmt: skip


def test_a_loop_that_a_merge_has_moved_is_not_merged_in_front_of_what_it_reads():
    """a and c read x; b reads what is made of a, and a tensor of a's, so it could be merged with a and c in turn."""
    n = 1 << 20
    g = GraphBuilder("moved")
    x, y = g.input("x", tensor(n)), g.input("y", tensor(n))
    a = g.loop([n], lambda i: g.mul(g.load(x, i), g.load(y, i)))
    (m,) = g.extern("double", [a], [Place(0)], [tensor(n)])
    b = g.loop([n], lambda i: g.add(g.load(y, i), g.load(m, i)))
    c = g.loop([n], lambda i: g.exp(g.load(x, i)))
    (most,) = g.extern(
        "double", [c], [Place(0)], [tensor(n)]
    )  # what the bound on memory comes from
    optimized(g, a, b, c, most)


def test_equal_loops_become_one():
    g = GraphBuilder("equal")
    x = g.input("x", tensor(N))
    a, b = (each(g, x, lambda v: g.add(v, g.const(1.0, float32))) for _ in range(2))
    c = each(g, x, lambda v: g.add(v, g.const(-1.0, float32)))
    out = g.extern("double", [a, b, c], [Place(0)], [tensor(N)])
    g.output(out[0])
    module = g.finish()
    merge_equal(module)
    canonicalize(module)
    assert len(loops(module)) == 2


def test_combining_functions_stay_by_themselves():
    """Welford's has constants, as the rows have: one in front of both would be none of its arguments."""
    g = GraphBuilder("norm")
    x = g.input("x", tensor(N, 64))

    def row(i: Value) -> Value:
        mean, m2, number = g.welford([64], lambda r: g.load(x, i, r))
        one = g.const(1.0, float32)
        return g.add(mean, g.div(m2, g.binary("max", g.sub(number, one), g.const(0.0, float32))))

    module = optimized(g, g.loop([N], row))
    (reduce,) = (op for op in module.walk() if isinstance(op, ReduceOp))
    assert sum(op.opcode == "const" for op in reduce.combine) == 2


def test_unused_results_go():
    g = GraphBuilder("unused")
    x = g.input("x", tensor(N))
    a, _ = g.loops([N], lambda i: [g.exp(g.load(x, i)), g.unary("sin", g.load(x, i))])
    module = optimized(g, a)
    assert "sin" not in print_module(module)


def test_scalars_of_the_function_are_given_to_loops():
    g = GraphBuilder("scalars")
    x = g.input("x", tensor(N))
    two = g.const(2.0, float32)
    module = optimized(g, each(g, x, lambda v: g.mul(v, two)))
    assert [op.opcode for op in body_of(module)] == ["graph.loop"]


@pytest.mark.parametrize(
    ("off", "kernels"), [("graph-inline-loops", 1), ("graph-fuse-rows", 4), ("all", 5)]
)
def test_fusion_can_be_switched_off(off: str, kernels: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TESSERA_DISABLE", off)
    g = GraphBuilder("softmax")
    x = g.input("x", tensor(N, 64))
    m = total(g, x, 64, "max")
    d = g.loop([N, 64], lambda i, j: g.sub(g.load(x, i, j), g.load(m, i)))
    e = each(g, d, g.exp)
    s = total(g, e, 64)
    module = optimized(g, g.loop([N, 64], lambda i, j: g.div(g.load(e, i, j), g.load(s, i))))
    assert len(loops(module)) == kernels


# --- making graphs ----------------------------------------------------------------------------------------------------
def test_a_body_that_raises_leaves_nothing_behind():
    """A rule of torch's operations may give up in the middle of a nest."""
    g = GraphBuilder("given up")
    x = g.input("x", tensor(N, 8))

    def row(i: Value) -> Value:
        g.load(x, i, 0)
        return g.reduce("sum", [8], lambda r: g.index(g.load(x, i, r).type.nothing))

    with pytest.raises(AttributeError):
        g.loop([N], row)
    assert not x.uses


def test_a_chain_of_loops_becomes_one_without_copies(monkeypatch: pytest.MonkeyPatch):
    """Each loop moves into its reader: with copies the time would grow with the square of the length of the chain."""
    copied = 0
    clone = Op.clone

    def counting(op: Op, *given: Any) -> Op:
        nonlocal copied
        copied += 1
        return clone(op, *given)

    def halved(v: Value, *i: Value) -> Value:
        return g.mul(g.load(v, *i), g.const(0.5, float32))

    g = GraphBuilder("graph")
    x = g.input("x", tensor(6, 4))
    v = x
    for _ in range(40):
        v = g.loop(v.type.shape[::-1], lambda i, j, v=v: halved(v, j, i))
    monkeypatch.setattr(Op, "clone", counting)
    module = optimized(g, v)
    assert len(loops(module)) == 1 and count(module, LoadOp) == 1
    assert copied < 40


def test_what_a_window_reads_by_channel_is_not_masked():
    """A window's edge masks what is read there; the channel's factor is the same for all of the window."""
    g = GraphBuilder("graph")
    x, factor = g.input("x", tensor(3, 6)), g.input("factor", tensor(3))
    scaled = g.loop([3, 6], lambda c, i: g.mul(g.load(x, c, i), g.load(factor, c)))

    def window(c: Value, i: Value) -> Value:
        left = g.index(dim(0) - 1, i)
        inside = g.compare("ge", left, g.const(0, int64))
        return g.add(g.load(scaled, c, i), g.load(scaled, c, left, mask=inside))

    module = optimized(g, g.loop([3, 6], window))
    loads = [op for op in module.walk() if isinstance(op, LoadOp)]
    (f,) = (op for op in loads if op.tensor.name == "factor")  # one for both
    assert f.mask is None and sum(op.mask is not None for op in loads) == 1
