"""Random convolutional networks compute the same, and give tensors in the same strides, whatever layout is chosen."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tessera.graph.calls.executable import compile_graph
from tessera.graph.calls.host import NumpyHost
from tessera.graph.ir.interp import interpret
from tessera.graph.passes import layouts, optimize
from tessera.ir import Module, parse_module, print_module, verify
from tessera.ir.applications import Session
from tests.fuzz.convolutions_kit import FUNCTIONS, RandomNet
from tests.fuzz.graphs_kit import SMALL


@pytest.fixture(autouse=True)
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether it pays does not matter here: networks are small."""
    decide = layouts.Layouts.decide
    monkeypatch.setattr(layouts.Layouts, "decide", lambda *a: (True, decide(*a)[1]))


def run_extern(op: Any, arrays: Any, symbols: Any) -> Any:
    return NumpyHost(FUNCTIONS).extern(op, arrays, symbols)


def returned(module: Module) -> list[Any]:
    return list(module.functions[0].attrs["returns"])


def check(seed: int, machine: Any = None, compiled: bool = True) -> Module:
    net = RandomNet(seed, 3 + seed % 9, dynamic=seed % 4 == 3)
    module, args = net.module, net.args
    verify(module)
    wanted = interpret(module, [x.copy() for x in args], run_extern)
    types = returned(module)
    optimize(module, verify=True)
    module = parse_module(print_module(module))
    free = module.attrs.get("free_results", ())
    for k, (before, after) in enumerate(zip(types, returned(module), strict=True)):
        assert k in free or before == after
    for a, b in zip(wanted, interpret(module, [x.copy() for x in args], run_extern), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5 * max(1.0, float(np.abs(a).max())))
    if compiled:
        found = compile_graph(module, NumpyHost(FUNCTIONS), machine=machine)(list(args))
        for a, b, t in zip(wanted, found, returned(module), strict=True):
            np.testing.assert_allclose(
                a, b, rtol=1e-3, atol=1e-4 * max(1.0, float(np.abs(a).max()))
            )
            if t.strides and all(isinstance(n, int) for n in t.strides):
                sizes = zip(b.shape, b.strides, t.strides, strict=True)
                assert all(n == 1 or s == 4 * e for n, s, e in sizes)
    return module


@pytest.mark.parametrize("seed", range(40))
def test_meaning(seed: int):
    check(seed, compiled=False)


@pytest.mark.parametrize("seed", range(6))
def test_kernels(seed: int):
    check(seed)
    check(100 + seed, SMALL)


def test_most_of_them_change():
    """The networks above are such that layouts are chosen."""
    changed = 0
    for seed in range(12):
        with Session("graph") as session:
            changed += "channels last" in check(seed, compiled=False).attrs["convolutions"]
        assert any(a.name == layouts.NAME for a in session.applied)
    assert changed == 12


def test_without_it():
    with Session("graph", frozenset({layouts.NAME})):
        for seed in range(4):
            assert "is off" in check(seed, compiled=False).attrs["convolutions"]
