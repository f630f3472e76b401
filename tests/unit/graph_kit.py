"""Graphs for tests: built in Python, run by their kernels on the CPU and by their meaning in NumPy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tessera.backends.compiler import GPUTarget
from tessera.config import knobs
from tessera.dtypes import dtype, float32
from tessera.graph.calls.build_kernels import Kernels
from tessera.graph.calls.executable import Executable, compile_graph, machine_of
from tessera.graph.calls.host import NumpyHost
from tessera.graph.emit.tiling import Machine
from tessera.graph.ir.build import GraphBuilder
from tessera.graph.ir.combine import arg_extremum
from tessera.graph.ir.interp import interpret
from tessera.graph.ir.types import TensorType
from tessera.graph.planning.planner import Planner
from tessera.interp.numerics import from_storage
from tessera.ir import Builder, Module, Value
from tessera.ops import AddOp, MulOp, NegOp

HOPPER = GPUTarget("cuda", 90, 32)
Build = Callable[[GraphBuilder], Any]
Values = Sequence[Value]


def fp32(*shape: Any) -> TensorType:
    return TensorType(shape, float32)


def module_of(build: Build) -> Module:
    """The graph whose results `build` gives."""
    g = GraphBuilder("graph")
    found = build(g)
    g.output(*(found if isinstance(found, list | tuple) else (found,)))
    return g.finish()


def softmax(rows: Any, width: int, elem: dtype = float32, bias: bool = False) -> Any:
    """Softmaxes of rows, as torch computes them: by three walks. `bias`: a row that is added to each."""

    def build(g: GraphBuilder) -> Any:
        shape = [rows] if isinstance(rows, int) else list(rows)
        x = g.input("x", TensorType((*shape, width), elem))
        b = g.input("b", fp32(width)) if bias else None

        def row(*i: Value) -> Any:
            def given(r: Value) -> Value:
                found = g.cast(g.load(x, *i, r), float32)
                return g.add(found, g.load(b, r)) if b is not None else found

            most = g.reduce("max", [width], given)
            total = g.reduce("sum", [width], lambda r: g.exp(g.sub(given(r), most)))
            return g.loop(
                [width],
                lambda r: g.cast(g.div(g.exp(g.sub(given(r), most)), total), elem),
            )

        return g.loop(shape, row)

    return build


def last_extremum(b: Builder, x: Values, y: Values) -> list[Value]:
    """The largest value, of equal ones the last: an order that no rewriting sees to be the same from both sides."""
    flipped = [b.emit(NegOp(v[1])) for v in (x, y)]
    value, place = arg_extremum("max")(b, [x[0], flipped[0]], [y[0], flipped[1]])
    return [value, b.emit(NegOp(place))]


def recurrence(b: Builder, x: Values, y: Values) -> list[Value]:
    """h = a * h + v as pairs (a, v), which do not commute."""
    return [
        b.emit(MulOp(x[0], y[0])),
        b.emit(AddOp(b.emit(MulOp(y[0], x[1])), y[1])),
    ]


def compiled(module: Module, machine: Machine | None = None) -> Executable:
    return compile_graph(module, NumpyHost(), machine=machine)


def values_of(results: Sequence[Any], module: Module) -> list[Any]:
    """Results as the interpreter carries them: float32 for bf16, bool for int1."""
    types = module.functions[0].returns  # type: ignore[attr-defined]
    return [from_storage(np.asarray(x), t.elem) for x, t in zip(results, types, strict=True)]


def check(
    build: Build | Module,
    inputs: Sequence[Any],
    wanted: Sequence[Any] | None = None,
    tilings: bool = True,
    rtol: float = 1e-4,
    atol: float = 1e-5,
) -> Executable:
    """Compare the kernels with the graph's meaning, and with `wanted`; with `tilings` also those that are cut up as
    for a GPU."""
    module = build if isinstance(build, Module) else module_of(build)
    meant = interpret(module, [np.copy(x) for x in inputs])
    for got, want in zip(meant, wanted or meant, strict=True):
        np.testing.assert_allclose(got, want, rtol=rtol, atol=atol)
    machines = [None, machine_of(HOPPER)] if tilings else [None]
    exes = [compiled(module, m) for m in machines]
    for exe in exes:
        found = values_of(exe([np.copy(x) for x in inputs]), module)
        for got, want in zip(found, meant, strict=True):
            assert got.shape == np.shape(want)
            np.testing.assert_allclose(got, want, rtol=rtol, atol=atol)
        again = by_python(exe)([np.copy(x) for x in inputs])
        for got, want in zip(values_of(again, module), found, strict=True):
            np.testing.assert_array_equal(got, want)
    return exes[0]


def by_python(exe: Executable) -> Executable:
    """The same kernels, each launched by a line of Python."""
    return Executable(exe.function, exe.plan, exe.kernels, exe.host, "python")


def built_for_hopper(module: Module) -> Kernels:
    """The graph's kernels as cubins for sm_90a; each stage is verified, and the order of shared memory checked."""
    plan = Planner(module.functions[0], machine_of(HOPPER)).run()  # type: ignore[arg-type]
    kernels = Kernels(HOPPER)
    with knobs.scope():
        knobs.compilation.verify = True
        knobs.compilation.always_compile = True
        kernels.build(plan)
    return kernels
