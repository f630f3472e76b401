"""What a report says of a graph: bytes and operations by hand, steps measured one by one, the page's drawing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from tessera.dtypes import float32, int64
from tessera.graph.calls.executable import compile_graph
from tessera.graph.calls.host import NumpyHost
from tessera.graph.index import sym
from tessera.graph.ir.build import GraphBuilder
from tessera.graph.ir.ops import AttentionOp, MatmulOp
from tessera.graph.ir.types import Place, TensorType
from tessera.graph.passes import optimize
from tessera.graph.planning.plan import Interpret
from tessera.graph.report.costs import step_flops
from tessera.graph.report.graphs import GraphFacts
from tessera.graph.report.page import drawing, lanes, page, save
from tessera.graph.report.rows import GraphReport, Peak, Report, StepReport, TensorReport
from tessera.graph.report.timing import Stepper
from tests.fuzz.graphs_kit import RandomGraph
from tests.unit.graph_kit import fp32, module_of

PEAK = Peak(1e9, 1e9, 4e9)


def nothing() -> None:
    """The CPU has done a launch when it returns."""


def graph(g: GraphBuilder) -> Any:
    """Rows picked from a table, their sums with an extern in between: (6, 4) from (100, 4), (6,)."""
    x, at = g.input("x", fp32(100, 4)), g.input("at", TensorType((6,), int64))
    rows = g.loop([6, 4], lambda i, j: g.mul(g.load(x, g.load(at, i), j), g.const(2.0, float32)))
    (copy,) = g.extern("copy", [rows], arguments=(Place(0),), results=[fp32(6, 4)])
    return g.loop([6], lambda i: g.reduce("sum", [4], lambda r: g.load(copy, i, r)))


def facts_of(timed: bool = True) -> GraphFacts:
    exe = compile_graph(module_of(graph), NumpyHost({"copy": np.array}))
    x = np.ones((100, 4), np.float32)
    return GraphFacts(exe, [x, np.zeros(6, np.int64)], PEAK, nothing, timed)


def report_of(facts: GraphFacts) -> GraphReport:
    kernels = [s.name for s in facts.steps if s.kind == "kernel"]
    made = GraphReport("forward", 3, kernels, [("copy", "no kernel of ours", 1)], [], 0)
    made.steps, made.tensors, made.least_bytes = facts.steps, facts.tensors, facts.least
    return made


def test_bytes_and_operations_are_those_of_the_graph():
    facts = facts_of(timed=False)
    pick, copy, total = facts.steps
    assert pick.bytes == 6 * 4 * 4 + 6 * 8 + 6 * 4 * 4  # of the table no more than is read
    assert pick.flops == 24
    assert (copy.kind, copy.bytes, copy.flops) == ("extern", 2 * 96, 0)
    assert total.bytes == 96 + 6 * 4
    assert total.flops == 6 * 4
    assert facts.least == 100 * 4 * 4 + 6 * 8 + 6 * 4
    assert pick.roofline == pick.bytes / 1e9
    assert "@tessera.jit" in pick.source


def test_products_count_two_operations_for_each_sum():
    def build(g: GraphBuilder) -> Any:
        a, b = g.input("a", fp32(2, 5, 7)), g.input("b", fp32(2, 7, 3))
        q = g.input("q", fp32(1, 2, 4, 8))
        attention = AttentionOp(q, q, q, None, scale=1.0)
        return g.matmul(a, b), g.b.insert(attention).results[0]

    module = module_of(build)
    ops = [op for op in module.functions[0].regions[0] if isinstance(op, MatmulOp | AttentionOp)]
    found = [step_flops(Interpret(op, ""), {}) for op in ops]
    assert found == [2 * 2 * 5 * 7 * 3, 2 * 2 * 4 * 4 * (8 + 8)]


def test_steps_are_measured():
    facts = facts_of()
    assert all(s.seconds is not None and 0 < s.seconds < 1 for s in facts.steps)
    text = str(report_of(facts))
    assert "extern copy" in text and "us" in text
    assert json.loads(Report([report_of(facts)]).json())["graphs"][0]["steps"][1]["name"] == "copy"


@pytest.mark.parametrize("seed", [4, 9, 250])
def test_steps_one_by_one_give_what_a_call_gives(seed: int):
    """In-place results, views and scatters read what the steps before have left."""
    made = RandomGraph(seed, 2 + seed % 12)
    optimize(made.module)
    exe = compile_graph(made.module, NumpyHost({"copy": np.array}))
    stepper = Stepper(exe, [x.copy() for x in made.args], nothing)
    for step in exe.plan.steps:
        stepper.run(step)
    wanted = exe([x.copy() for x in made.args])
    for v, want in zip(exe.plan.results, wanted, strict=True):
        np.testing.assert_allclose(stepper.array(v), want, rtol=1e-5)


def test_lines_of_tensors_that_live_together_lie_apart():
    assert lanes([(0, 3), (1, 2), (2, 4), (3, 5)]) == [0, 1, 1, 0]


def chain(n: int) -> GraphReport:
    """`n` steps, each of which reads the results of the two before it."""
    tensors = [TensorReport(f"t{k}", "tensor<4xfp32>", 16, "temporary") for k in range(n)]
    steps = [
        StepReport(
            "kernel", f"k{k}", "add & <mul>", 32, 4, 1e-6, 2e-6, "", tuple(range(max(0, k - 2), k)), (k,)
        )
        for k in range(n)
    ]  # fmt: skip
    return GraphReport("forward", n, [s.name for s in steps], [], [], None, 16, steps, tensors)


@pytest.mark.parametrize("n", [1, 5, 300])
def test_the_drawing_has_a_row_for_each_step_and_stays_narrow(n: int):
    svg = ElementTree.fromstring(drawing(chain(n)))
    space = "{http://www.w3.org/2000/svg}"
    titles = [t.text or "" for t in svg.iter(f"{space}title")]
    assert sum(t.startswith("kernel k") for t in titles) == n
    assert sum("tensor<4xfp32>" in t for t in titles) == max(0, n - 1)
    assert int(svg.attrib["width"]) < 1000
    assert int(svg.attrib["height"]) == 22 * (n + 1)


def test_the_page_stands_alone(tmp_path: Path):
    text = save(
        Report([report_of(facts_of(timed=False))], {"a <break>": 2}), tmp_path / "r.html"
    ).read_text()
    assert (
        "<script" not in text
        and "src=" not in text
        and "http" not in text.replace("http://www.w3.org", "")
    )
    assert "a &lt;break&gt;" in text and text.count("<svg") == 1
    assert "no kernel of ours" in text
    assert "nothing was compiled" in page(Report())


def test_sizes_that_are_symbols_have_their_values():
    n = sym("s0")

    def build(g: GraphBuilder) -> Any:
        x = g.input("x", fp32(n, 8))
        return g.loop([n, 8], lambda i, j: g.exp(g.load(x, i, j)))

    exe = compile_graph(module_of(build), NumpyHost())
    facts = GraphFacts(exe, [np.ones((5, 8), np.float32)], PEAK, nothing)
    assert (facts.steps[0].bytes, facts.steps[0].flops) == (2 * 160, 40)
