"""Scans of few long rows are split among programs, and give what they gave before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest

from tessera.backends.compiler import GPUTarget
from tessera.dtypes import int64
from tessera.graph.calls.executable import machine_of
from tessera.graph.emit.tiling import Machine
from tessera.graph.ir.build import GraphBuilder
from tessera.graph.ir.combine import is_commutative, region_of, simple, welford
from tessera.graph.ir.interp import interpret
from tessera.graph.ir.ops import LoopOp
from tessera.graph.ir.types import TensorType
from tessera.graph.passes import optimize
from tessera.graph.planning.planner import Planner
from tessera.ir import Module, Value, parse_module, print_module, verify
from tessera.ir.applications import Session
from tests.unit.graph_kit import (
    HOPPER,
    built_for_hopper,
    compiled,
    fp32,
    last_extremum,
    module_of,
    recurrence,
)

RNG = np.random.default_rng(0)
SMALL = replace(machine_of(HOPPER), tile=8, row=8, step=4, part=2, lanes=8, columns=8, walk=1)
Values = Sequence[Value]


def prefix_sums(g: GraphBuilder, n: int, m: int) -> Any:
    a = g.input("a", fp32(n, m))
    return g.loop([n], lambda i: g.scan("sum", m, lambda r: g.load(a, i, r)))


@pytest.mark.parametrize("shape", [(1, 5), (1, 1000), (2, 37), (3, 8), (7, 129), (70, 33)])
def test_prefix_sums_of_any_length(shape: tuple[int, int]):
    """Parts of a tile and of several, which need not divide the rows."""
    x = RNG.integers(-50, 50, shape).astype(np.float32)
    for machine in (SMALL, replace(SMALL, step=2), replace(SMALL, lanes=2), machine_of(HOPPER)):
        module = module_of(lambda g: prefix_sums(g, *shape))
        np.testing.assert_array_equal(compiled(module, machine)([x])[0], x.cumsum(1))


@pytest.mark.parametrize("off", ["", "graph-stream-scans", "scan-columns"])
@pytest.mark.parametrize("shape", [(1, 70000), (3, 40000), (7, 5000), (12, 3000), (77, 600)])
def test_columns_of_a_cpu(shape: tuple[int, int], off: str, monkeypatch: pytest.MonkeyPatch):
    """Of rows of any number of columns, which lie across memory; with what is computed from each element."""
    monkeypatch.setenv("TESSERA_DISABLE", off)
    (n, m), x = shape, RNG.integers(-50, 50, shape[::-1]).astype(np.float32)

    def build(g: GraphBuilder) -> Any:
        a = g.input("a", fp32(m, n))

        def row(i: Value) -> Any:
            made = g.scan("sum", m, lambda r: g.load(a, r, i))
            return g.loop([m], lambda r: g.add(g.load(made, r), g.load(a, r, i)))

        return g.loops([n], row, [(1, n)])

    with Session("graph") as session:
        exe = compiled(module_of(build), machine_of(GPUTarget("cpu", "avx2", 1)))
    np.testing.assert_array_equal(exe([x])[0], (x.cumsum(0) + x).T)
    applied = {a.name for a in session.applied}
    assert ("graph-stream-scans" in applied) == (off != "graph-stream-scans")


# --- any scan -------------------------------------------------------------------------------------------------------
def random_scan(seed: int) -> tuple[Module, list[Any]]:
    """A scan of rows: with two values or one, from a body that masks or adds up two tensors, to a reader or none."""
    r = Random(seed)
    outer = [r.choice([1, 2, 3, 5]) for _ in range(r.randrange(3))]
    n = r.choice([1, 2, 5, 9, 16, 17, 40, 63, 64, 100])
    data = np.random.default_rng(seed)
    x = data.integers(-3, 4, (*outer, n)).astype(np.float32)
    scale = data.integers(-1, 2, (*outer, n)).astype(np.float32)
    kind = r.choice(["sum", "max", "last", "recurrence", "int64"])
    reads, masks = r.random() < 0.5, r.random() < 0.3

    def build(g: GraphBuilder) -> Any:
        a, b = g.input("x", fp32(*x.shape)), g.input("scale", fp32(*x.shape))

        def body(i: tuple[Value, ...], k: Value) -> list[Value]:
            inside = g.compare("lt", k, g.const(n // 2 + 1, int64)) if masks else None
            v = g.add(g.load(a, *i, k, mask=inside), g.load(b, *i, k))
            if kind == "last":
                return [v, k]
            if kind == "recurrence":
                return [g.load(b, *i, k), v]
            return [g.cast(v, int64) if kind == "int64" else v]

        def row(*i: Value) -> Any:
            if kind == "last":
                made = g.scans(n, lambda k: body(i, k), last_extremum, (float("-inf"), -1))
            elif kind == "recurrence":
                made = g.scans(n, lambda k: body(i, k), recurrence, (1.0, 0.0))
            else:
                made = [g.scan("max" if kind == "max" else "sum", n, lambda k: body(i, k)[0])]
            if not reads:
                return made
            more = g.loop([n], lambda k: g.add(g.load(made[0], k), g.load(made[-1], k)) if kind not in ("last",)
                          else g.mul(g.load(made[0], k), g.load(b, *i, k)))  # fmt: skip
            return [*made, more]

        return g.loops(outer, row)

    return module_of(build), [x, scale]


def check(seed: int) -> int:
    """Compare the kernels of a random scan with its meaning; how many scans were split."""
    module, inputs = random_scan(seed)
    verify(module)
    wanted = interpret(module, [x.copy() for x in inputs])
    if seed % 2:
        optimize(module)
    r = Random(seed)
    machine = replace(
        SMALL, row=r.choice([4, 8]), step=r.choice([2, 4]), lanes=r.choice([1, 4, 16]), part=r.choice([1, 2, 4])
    )  # fmt: skip
    with Session("graph") as session:
        exe = compiled(module, machine)
    for got, want in zip(exe([x.copy() for x in inputs]), wanted, strict=True):
        np.testing.assert_array_equal(got, want)
    return sum(a.name == "graph-split-scans" for a in session.applied)


def test_random_scans(monkeypatch: pytest.MonkeyPatch):
    """Of whole numbers, so that the order in which they are added changes nothing."""
    monkeypatch.setenv("TESSERA_STRICT", "1")
    assert sum(map(check, range(24))) > 8


def planned(build: Any, machine: Machine) -> Module:
    """The graph as the planner leaves it."""
    module = module_of(build)
    Planner(module.functions[0], machine)  # type: ignore[arg-type]
    return module


def test_the_meaning_of_joined_parts_is_that_of_the_scan():
    """The graph after the split means the same, also once it was printed and parsed."""
    x = RNG.integers(-50, 50, (2, 37)).astype(np.float32)
    module = planned(lambda g: prefix_sums(g, 2, 37), SMALL)
    text = print_module(module)
    again = parse_module(text)
    verify(again)
    assert "joined=[37]" in text and print_module(again) == text
    np.testing.assert_array_equal(interpret(again, [x])[0], x.cumsum(1))


def loops(module: Module) -> int:
    return sum(isinstance(op, LoopOp) for op in module.functions[0].regions[0])


def test_rows_that_keep_a_machine_busy_stay_whole(monkeypatch: pytest.MonkeyPatch):
    hopper, cpu = machine_of(HOPPER), replace(SMALL, exact=True)
    few, many = (lambda g: prefix_sums(g, 4, 50000)), (lambda g: prefix_sums(g, 512, 50000))
    assert loops(planned(few, hopper)) == 2
    assert loops(planned(many, hopper)) == loops(planned(few, cpu)) == 1
    monkeypatch.setenv("TESSERA_DISABLE", "graph-split-scans")
    assert loops(planned(few, hopper)) == 1


def test_copies_that_are_handed_out_are_no_kernels_of_their_own(monkeypatch: pytest.MonkeyPatch):
    """Those of several results as those of one, but each result has its own memory."""
    monkeypatch.setenv("TESSERA_DISABLE", "graph-fuse-rows,graph-inline-loops")

    def build(g: GraphBuilder, other: int) -> Any:
        a = g.input("a", fp32(3, 5))
        made = g.loops(
            [3],
            lambda i: g.scans(
                5, lambda k: [g.load(a, i, k), g.load(a, i, k)], recurrence, (1.0, 0.0)
            ),
        )
        return g.loops([3, 5], lambda i, j: [g.load(made[0], i, j), g.load(made[other], i, j)])

    x = RNG.integers(-3, 4, (3, 5)).astype(np.float32)
    for other, kernels in ((1, 1), (0, 2)):
        module = module_of(lambda g, other=other: build(g, other))
        wanted = interpret(module, [x])
        exe = compiled(optimize(module))
        assert len(exe.plan.steps) == kernels
        found = exe([x])
        assert not np.shares_memory(found[0], found[1])
        for got, want in zip(found, wanted, strict=True):
            np.testing.assert_array_equal(got, want)


def test_a_scan_that_is_read_elsewhere_stays_whole():
    """Each part would need elements of others."""

    def build(g: GraphBuilder) -> Any:
        a = g.input("a", fp32(2, 64))

        def row(i: Value) -> Any:
            t = g.scan("sum", 64, lambda r: g.load(a, i, r))
            return g.loop([64], lambda k: g.add(g.load(t, k), g.load(t, 63)))

        return g.loop([2], row)

    assert loops(planned(build, SMALL)) == 1


def test_kernels_of_split_scans_assemble():
    """In one tile and in several, of one value and of two."""
    for n in (50000, 10_000_000):
        built_for_hopper(module_of(lambda g, n=n: prefix_sums(g, 2, n)))

    def pairs(g: GraphBuilder) -> Any:
        a = g.input("a", TensorType((4, 30000), int64))

        def row(i: Value) -> Any:
            return g.scans(30000, lambda k: [g.load(a, i, k), k], last_extremum, (-(1 << 62), -1))

        return g.loops([4], row)

    built_for_hopper(module_of(pairs))


def test_which_functions_commute():
    f = [prefix_sums(GraphBuilder("x"), 1, 1).type.elem] * 3
    for kind in ("sum", "prod", "max", "min"):
        assert is_commutative(region_of(f[:1], simple(kind, f[0])[0]))
    assert not is_commutative(region_of(f[:2], recurrence))
    assert not is_commutative(region_of(f, welford))
