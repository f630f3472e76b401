"""Loops that would be slower as one stay apart: long reductions in inner loops, and those of few programs on GPUs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tessera.backends.compiler import GPUTarget
from tessera.dtypes import bfloat16, float32, int64
from tessera.graph.calls.executable import machine_of
from tessera.graph.index import IndexMap, dim
from tessera.graph.ir.build import GraphBuilder
from tessera.graph.ir.interp import function_of
from tessera.graph.ir.ops import CombiningOp, LoopOp
from tessera.graph.ir.types import Place, TensorType
from tessera.graph.passes import alive, cost, facts, optimize
from tessera.graph.passes.fuse import Fusion
from tessera.graph.planning.plan import Launch
from tessera.graph.planning.planner import Planner
from tessera.ir import Module, Op, Value
from tests.unit.graph_kit import HOPPER, check, fp32, module_of

RNG = np.random.default_rng(0)


def numbers(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


def nested(module: Module) -> list[Op]:
    """Reductions in loops inside of others."""
    loops = [op for op in function_of(module).body if isinstance(op, LoopOp)]
    return [
        x for op in loops for x in op.walk()
        if isinstance(x, CombiningOp) and x.parent_op() is not op
        and isinstance(x.parent_op(), LoopOp)
    ]  # fmt: skip


def rows_with_bias(rows: int) -> Any:
    """A bias of each place, and the maximum of each row with it, which only share the place: (8, 64) of (64, rows)."""

    def build(g: GraphBuilder) -> Any:
        x, w = g.input("x", fp32(8, 64, rows)), g.input("w", fp32(64, rows))
        bias = g.loop([64, rows], lambda i, j: g.exp(g.load(w, i, j)))
        sums = g.loop(
            [8, 64],
            lambda n, i: g.reduce(
                "max", [rows], lambda r: g.add(g.load(x, n, i, r), g.load(bias, i, r))
            ),
        )
        return bias, sums

    return build


@pytest.mark.parametrize(("rows", "inside"), [(8, True), (512, False)])
def test_long_reductions_do_not_come_to_lie_in_inner_loops(rows: int, inside: bool):
    build = rows_with_bias(rows)
    assert bool(nested(optimize(module_of(build)))) == inside
    check(optimize(module_of(build)), [numbers(8, 64, rows), numbers(64, rows)], rtol=1e-6)


def columns(rows: int, device: str) -> Module:
    """Sums of columns over one index and over two, and one that needs the first."""
    g = GraphBuilder("columns", device=device)
    x = g.input("x", TensorType((8 * rows, 64), float32, device=device))
    y = g.input("y", TensorType((8, rows, 64), float32, device=device))
    first = g.loop([64], lambda c: g.reduce("sum", [8 * rows], lambda r: g.load(x, r, c)))
    other = g.loop([64], lambda c: g.reduce("sum", [8, rows], lambda n, r: g.load(y, n, r, c)))
    last = g.loop(
        [64],
        lambda c: g.reduce(
            "sum", [8, rows], lambda n, r: g.mul(g.load(y, n, r, c), g.load(first, c))
        ),
    )
    g.output(first, other, last)
    return g.finish()


def launches(rows: int, device: str) -> list[Any]:
    module = optimize(columns(rows, device))
    steps = Planner(function_of(module), machine_of(HOPPER)).run().steps
    return [step.code.programs for step in steps if isinstance(step, Launch)]


def test_long_columns_that_need_each_other_are_split_on_gpus():
    """The two that do not are one kernel, and its parts another, though they go over other indices."""
    programs = launches(4096, "cuda")
    assert len(programs) == 4 and programs[0] > 64 and programs[2] > 64
    assert len(launches(16, "cuda")) == 1  # short ones stay together


def test_columns_stay_together_on_cpus():
    module = optimize(columns(4096, "cpu"))
    assert sum(isinstance(op, LoopOp) for op in function_of(module).body) == 1


def test_parts_over_several_indices_are_right():
    def build(g: GraphBuilder) -> Any:
        x, y, z = g.input("x", fp32(6000, 8)), g.input("y", fp32(3, 2000, 8)), g.input("z", fp32(8))
        scaled = lambda v, c: g.mul(v, g.load(z, c))  # what both read makes them one loop
        a = g.loop([8], lambda c: g.reduce("sum", [6000], lambda r: scaled(g.load(x, r, c), c)))
        b = g.loop(
            [8], lambda c: g.reduce("max", [3, 2000], lambda n, r: scaled(g.load(y, n, r, c), c))
        )
        return a, b

    given = [numbers(6000, 8), numbers(3, 2000, 8), numbers(8)]
    exe = check(optimize(module_of(build)), given, rtol=1e-3)
    assert len(exe.plan.steps) == 2


def loss_of_labels() -> Module:
    """The log softmax of rows of a half type, which several loops read, of which one reads an element of each row."""
    g = GraphBuilder("graph", "cuda")
    logits = g.input("logits", TensorType((2048, 4096), bfloat16, device="cuda"))
    labels = g.input("labels", TensorType((2048,), int64, device="cuda"))
    wide = g.loop([2048, 4096], lambda i, j: g.cast(g.load(logits, i, j), float32))
    most = g.loop([2048], lambda i: g.reduce("max", [4096], lambda r: g.load(wide, i, r)))
    less = g.loop([2048, 4096], lambda i, j: g.sub(g.load(wide, i, j), g.load(most, i)))
    total = g.loop([2048], lambda i: g.reduce("sum", [4096], lambda r: g.exp(g.load(less, i, r))))
    loss = lambda i: g.sub(g.load(less, i, g.load(labels, i)), g.load(total, i))
    g.output(g.loop([], lambda: g.reduce("sum", [2048], loss)))
    return g.finish()


def test_rows_of_half_types_are_not_stored_as_wide_ones():
    """Subtracting is as little work as for fp32, so that it is done for the label again: nothing has a row's size."""
    module = optimize(loss_of_labels())
    made = [r.type.shape for op in function_of(module).body for r in op.results]
    assert made and all(4096 not in shape for shape in made)


def product_with_bias() -> Module:
    """A product of halves with a bias, whose rows are reduced."""
    g = GraphBuilder("graph", "cuda")
    half = lambda *shape: TensorType(shape, bfloat16, device="cuda")
    x, w, bias = (
        g.input(n, half(*s)) for n, s in (("x", (2048, 512)), ("w", (512, 1024)), ("c", (1024,)))
    )
    product = g.matmul(x, w, float32, float32)

    def with_bias(i: Any, j: Any) -> Any:
        return g.cast(g.add(g.load(product, i, j), g.cast(g.load(bias, j), float32)), bfloat16)

    y = g.loop([2048, 1024], with_bias)
    wide = g.loop([2048, 1024], lambda i, j: g.cast(g.load(y, i, j), float32))
    most = g.loop([2048], lambda i: g.reduce("max", [1024], lambda r: g.load(wide, i, r)))
    g.output(y, most)
    return g.finish()


def test_a_product_is_stored_in_its_half_type():
    """What narrows it is computed in its kernel, not with the rows that read it: no fp32 one is stored."""
    module = optimize(product_with_bias())
    plan = Planner(function_of(module), machine_of(HOPPER)).run()
    written = [v.type.elem for step in plan.steps for v in step.writes]
    assert len(plan.steps) == 2 and written == [bfloat16, float32]


def gated(g: GraphBuilder) -> Any:
    """Two products of halves with biases, one times the activation of the other one; something else is larger."""
    half = lambda *shape: TensorType(shape, bfloat16)
    x = g.input("x", half(512, 256))
    wide = g.extern("aten.mm.default", [x], [Place(0)], [half(4096, 4096)])[0]
    most = g.loop([4096], lambda i: g.reduce("max", [4096], lambda r: g.load(wide, i, r)))
    sides: list[Value] = []
    for k in range(2):
        w, b = g.input(f"w{k}", half(256, 1024)), g.input(f"b{k}", half(1024))
        p = g.matmul(x, w, float32, float32)

        def with_bias(i: Value, j: Value, p: Value = p, b: Value = b) -> Value:
            return g.cast(g.add(g.load(p, i, j), g.cast(g.load(b, j), float32)), bfloat16)

        sides.append(g.loop([512, 1024], with_bias))

    def both(i: Value, j: Value) -> Value:
        a, b = (g.cast(g.load(v, i, j), float32) for v in sides)
        return g.cast(g.mul(g.unary("tanh", a), b), bfloat16)

    return most, g.loop([512, 1024], both)


def test_of_two_products_none_is_stored_in_fp32():
    """One kernel stores what is made of both products; the other one ends in its own bias, and its half type."""
    g = GraphBuilder("graph")
    g.output(*gated(g))
    plan = Planner(
        function_of(optimize(g.finish())), machine_of(GPUTarget("cpu", "native", 1))
    ).run()
    assert len(plan.steps) == 4
    assert {v.type.elem for step in plan.steps for v in step.writes} == {bfloat16}


HALF = IndexMap(6, [dim(0), dim(1), dim(2) // 2 + dim(4), dim(3) // 2 + dim(5)])


def windows(steps: int) -> list[Launch]:
    """The launches of sums over windows of four elements that overlap, each of which takes some steps to compute."""
    g = GraphBuilder("graph", "cuda")
    half = TensorType((8, 64, 32, 32), bfloat16, device="cuda")
    given = [g.input(name, half) for name in ("x", "y", "z")]

    def element(*at: Value) -> Value:
        found, *others = (g.cast(g.load(v, *at), float32) for v in given)
        for k in range(steps):
            found = g.mul(g.sub(found, others[k % 2]), others[1])
        return found

    made = g.loop([8, 64, 32, 32], element)
    share = lambda at: lambda *r: g.load_at(made, HALF, [*at, *r])
    g.output(g.loop([8, 64, 62, 62], lambda *at: g.reduce("sum", [2, 2], share(at))))
    steps_ = Planner(function_of(optimize(g.finish())), machine_of(HOPPER)).run().steps
    return [step for step in steps_ if isinstance(step, Launch)]


def test_windows_that_overlap_read_what_takes_long_to_compute():
    """Each element would be computed sixteen times. Programs take many elements, each with its own window."""
    assert len(windows(0)) == 1
    apart = windows(12)
    assert len(apart) == 2
    programs = apart[1].code.programs
    assert isinstance(programs, int) and programs <= 4096


# --- memory -----------------------------------------------------------------------------------------------------------
def loops_of(g: GraphBuilder) -> list[LoopOp]:
    return [op for op in function_of(optimize(g.finish())).body if isinstance(op, LoopOp)]


@pytest.mark.parametrize("shifted", [False, True])
def test_results_may_lie_where_operands_die(shifted: bool):
    """A sum of two products and its exponential, both results, take their places, if each element is read where it is
    written; else four tensors would live where three did."""
    g = GraphBuilder("graph", "cuda")
    t = TensorType((15, 16), bfloat16, device="cuda")
    x = g.input("x", t)
    a, b = (g.extern("aten.mm.default", [x, x], [Place(0), Place(1)], [t])[0] for _ in range(2))
    last = IndexMap(2, [dim(0), 15 - dim(1)])
    read = lambda v, *at: g.load_at(v, last, list(at)) if shifted else g.load(v, *at)
    y = g.loop([15, 16], lambda *at: g.add(read(a, *at), read(b, *at)))
    g.output(y, g.loop([15, 16], lambda *at: g.exp(g.load(y, *at))))
    assert len(loops_of(g)) == 1 + shifted


@pytest.mark.parametrize("target", ["aten.mm.default", "attention"])
def test_what_a_loop_reads_does_not_wait_for_a_call_that_takes_memory(target: str):
    """Sums of columns of two tensors times the same one, of which the second tensor is made by a call of the library
    while the first one waits: the call may take as much as it reads and makes, unless it is a product."""
    g = GraphBuilder("graph", "cuda")
    t, wide = (TensorType((64, n), float32, device="cuda") for n in (64, 96))
    x = g.input("x", t)
    first = g.extern("aten.mm.default", [x], [Place(0)], [wide])[0]
    a = g.extern("aten.mm.default", [first], [Place(0)], [t])[0]
    product = lambda v, i, r: g.mul(g.load(x, r, i), g.load(v, r, i))
    sums = lambda v: g.loop([64], lambda i: g.reduce("sum", [64], lambda r: product(v, i, r)))
    one = sums(a)
    b = g.extern(target, [x], [Place(0)], [t])[0]
    g.output(one, sums(b))
    assert len(loops_of(g)) == (1 if target == "aten.mm.default" else 2)


@pytest.mark.parametrize("count", [10, 20, 40])
def test_what_loops_capture_is_found_a_few_times_for_each(
    count: int, monkeypatch: pytest.MonkeyPatch
):
    """Loops that read one tensor: each is a candidate for all others."""
    walked: list[Op] = []

    def counted(op: Op) -> list[Value]:
        walked.append(op)
        return facts.captured_tensors(op)

    g = GraphBuilder("candidates")
    x = g.input("x", fp32(count, 64))
    made = [g.loop([64], lambda i, k=k: g.exp(g.load(x, k, i))) for k in range(count)]
    g.output(*made)
    module = g.finish()
    monkeypatch.setattr(alive, "captured_tensors", counted)
    body = module.functions[0].regions[0]
    fusion = Fusion(body, cost.machine_of("cpu"), cost.sizes({}), None)
    assert fusion.horizontal()
    assert 0 < len(walked) <= 4 * count
