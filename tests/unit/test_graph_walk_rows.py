"""Columns are reduced in the kernel that computes the rows, and come to what they came to before."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest

from tessera.dtypes import float32
from tessera.graph.calls.executable import machine_of
from tessera.graph.emit.tiling import Machine
from tessera.graph.emit.walk import walk_of
from tessera.graph.index import sym
from tessera.graph.ir.build import GraphBuilder
from tessera.graph.ir.interp import interpret
from tessera.graph.passes import optimize
from tessera.graph.planning.planner import Planner
from tessera.ir import Module, Value, parse_module, print_module, verify
from tessera.ir.applications import Session
from tests.unit.graph_kit import HOPPER, built_for_hopper, compiled, fp32, module_of

GPU = machine_of(HOPPER)
SMALL = replace(GPU, tile=32, row=64, step=64, lanes=8, groups=4, columns=64, walk=1)


def norm_backward(g: GraphBuilder, n: Any, width: int, weights: bool = True) -> Any:
    """The gradients of a layer norm's input, weight and bias, from what its forward pass has kept."""
    x, dy = g.input("x", fp32(n, width)), g.input("dy", fp32(n, width))
    mean, rstd = g.input("mean", fp32(n)), g.input("rstd", fp32(n))
    w = g.input("w", fp32(width))

    def normed(i: Value, r: Value) -> Value:
        return g.mul(g.sub(g.load(x, i, r), g.load(mean, i)), g.load(rstd, i))

    def scaled(i: Value, r: Value) -> Value:
        return g.mul(g.load(dy, i, r), g.load(w, r)) if weights else g.load(dy, i, r)

    def row(i: Value) -> Any:
        part = g.const(1 / width, float32)
        a = g.mul(g.reduce("sum", [width], lambda r: scaled(i, r)), part)
        b = g.mul(g.reduce("sum", [width], lambda r: g.mul(scaled(i, r), normed(i, r))), part)

        def element(r: Value) -> Value:
            left = g.sub(g.sub(scaled(i, r), a), g.mul(normed(i, r), b))
            return g.mul(left, g.load(rstd, i))

        return g.loop([width], element)

    dx = g.loop([n], row)
    dw = g.loop(
        [width], lambda j: g.reduce("sum", [n], lambda r: g.mul(g.load(dy, r, j), normed(r, j)))
    )
    db = g.loop([width], lambda j: g.reduce("sum", [n], lambda r: g.load(dy, r, j)))
    return dx, dw, db


def inputs_of(n: int, width: int) -> list[Any]:
    rng = np.random.default_rng(n)
    shapes = [(n, width), (n, width), (n,), (n,), (width,)]
    return [rng.standard_normal(s).astype(np.float32) for s in shapes]


def walks(module: Module) -> int:
    return sum(walk_of(op) is not None for op in module.functions[0].regions[0])


def planned(module: Module, machine: Machine) -> Module:
    Planner(module.functions[0], machine)  # type: ignore[arg-type]
    return module


def agrees(module: Module, args: list[Any], machine: Machine, wanted: Any = None) -> None:
    """Kernels, and the graph as it was planned, give what the graph means."""
    wanted = wanted or interpret(module, [x.copy() for x in args])
    exe = compiled(module, machine)
    planned_again = parse_module(print_module(module))
    verify(planned_again)
    for found in (
        exe([x.copy() for x in args]),
        interpret(planned_again, [x.copy() for x in args]),
    ):
        for got, want in zip(found, wanted, strict=True):
            np.testing.assert_allclose(got, want, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("width", [16, 24, 64])
@pytest.mark.parametrize("n", [4, 37, 64, 129])
def test_gradients_of_a_norm(n: int, width: int):
    """Groups that the rows fill and that they do not; rows that fill tiles and that do not."""
    for machine in (SMALL, replace(SMALL, step=256), replace(SMALL, groups=100), GPU):
        module = optimize(module_of(lambda g: norm_backward(g, n, width)))
        agrees(module, inputs_of(n, width), machine)
    assert (
        n < 16
        or n == width
        or walks(planned(optimize(module_of(lambda g: norm_backward(g, n, width))), SMALL))
    )


def test_any_number_of_rows():
    build = lambda g: norm_backward(g, sym("s0"), 32)
    module = optimize(module_of(build))
    exe = compiled(module, SMALL)
    assert walks(module) == 1
    for n in (1, 3, 4, 50, 200):
        args = inputs_of(n, 32)
        wanted = interpret(module_of(build), [x.copy() for x in args])
        for got, want in zip(exe(list(args)), wanted, strict=True):
            np.testing.assert_allclose(got, want, rtol=2e-4, atol=2e-4)


def test_as_many_rows_as_columns():
    """What reduces rows and what reduces columns are not merged for the equal extents of their loops."""
    module = optimize(module_of(lambda g: norm_backward(g, 4096, 4096)))
    assert walks(planned(module, GPU)) == 1


def test_switch(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TESSERA_DISABLE", "graph-walk-rows")
    assert not walks(planned(optimize(module_of(lambda g: norm_backward(g, 64, 32))), SMALL))


def test_cpus_and_few_bytes_are_left_alone():
    module = optimize(module_of(lambda g: norm_backward(g, 64, 32)))
    assert not walks(planned(module, replace(SMALL, exact=True)))


# --- any rows, any columns ------------------------------------------------------------------------------------------
def random_rows(seed: int) -> tuple[Module, list[Any]]:
    """Rows of one or two indices, element by element or with reductions; columns of inputs, of the rows' results and of
    both, by sums, maxima and moments, with something behind them or not."""
    r = Random(seed)
    lead = r.choice([[5], [37], [64], [3, 7], [8, 8], [2, 33]])
    width = r.choice([16, 20, 32, 40])
    data = np.random.default_rng(seed)
    args = [data.standard_normal((*lead, width)).astype(np.float32) for _ in range(2)]
    args.append(data.standard_normal(width).astype(np.float32))
    flat, scalars = r.random() < 0.4, r.random() < 0.5
    kinds = [
        r.choice(["given", "made", "both", "max", "moments"]) for _ in range(r.choice([1, 2, 3]))
    ]
    shown = r.random() < 0.6

    def build(g: GraphBuilder) -> Any:
        x, y = (g.input(n, fp32(*lead, width)) for n in "xy")
        w = g.input("w", fp32(width))

        def element(at: Any, j: Value) -> Value:
            return g.add(g.mul(g.load(x, *at, j), g.load(w, j)), g.load(y, *at, j))

        def row(*at: Value) -> Any:
            total = g.reduce("sum", [width], lambda j: element(at, j))
            top = g.reduce("max", [width], lambda j: g.load(x, *at, j))
            out = g.loop([width], lambda j: g.sub(element(at, j), g.mul(total, top)))
            return [out, total] if scalars else [out]

        if flat:
            made = [g.loop([*lead, width], lambda *at: element(at[:-1], at[-1]))]
        else:
            made = g.loops(lead, row)

        def column(kind: str, j: Value) -> Any:
            def value(*at: Value) -> Value:
                if kind == "given":
                    return g.load(x, *at, j)
                if kind in ("made", "max"):
                    return g.load(made[0], *at, j)
                more = g.load(made[1], *at) if len(made) > 1 else g.load(y, *at, j)
                return g.mul(g.load(made[0], *at, j), more)

            if kind == "moments":
                return g.welford(lead, value)[:2]
            found = g.reduce("max" if kind == "max" else "sum", lead, value)
            return g.mul(found, g.load(w, j)) if seed % 2 else found

        out: list[Value] = []
        for kind in kinds:
            out += g.loops([width], lambda j, kind=kind: column(kind, j))
        return [*(made if shown else []), *out]

    return module_of(build), args


def random_case(seed: int) -> int:
    module, args = random_rows(seed)
    wanted = interpret(module, [x.copy() for x in args])
    r = Random(seed)
    if r.random() < 0.8:
        optimize(module)
    machine = replace(
        SMALL, groups=r.choice([1, 2, 4, 16]), step=r.choice([32, 64, 128, 256]), tile=r.choice([8, 32, 64]),
        lanes=r.choice([1, 8]),
    )  # fmt: skip
    with Session("graph") as session:
        agrees(module, args, machine, wanted)
    return sum(a.name == "graph-walk-rows" for a in session.applied)


def test_random_rows(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TESSERA_STRICT", "1")
    assert sum(map(random_case, range(20))) > 5


def test_kernels_assemble():
    for n, width in ((8192, 4096), (1000, 768)):
        kernels = built_for_hopper(
            optimize(module_of(lambda g, n=n, w=width: norm_backward(g, n, w)))
        )
        assert len(kernels.compiled) == 2
        assert all(not k.metadata.spills for k in kernels.compiled.values())
