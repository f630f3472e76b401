"""Biases of convolutions: added in loops where the library would launch a kernel for each."""

from __future__ import annotations

from typing import Any

import pytest

from tessera.dtypes import bfloat16, float32, float64
from tessera.graph.ir.build import GraphBuilder
from tessera.graph.ir.ops import ExternOp, LoadOp, LoopOp
from tessera.graph.ir.types import Place, TensorType
from tessera.graph.passes import optimize
from tessera.graph.passes.biases import add_biases
from tessera.graph.passes.convolutions import FORWARD
from tessera.ir import Module, verify
from tessera.ir.applications import Session

GPU = "cuda:0"


def net(elem: Any, device: str, batched: bool = True, relu: bool = False) -> Module:
    g = GraphBuilder("net", device)
    shapes = [(2, 3, 9, 9), (4, 3, 1, 1), (4,), (2, 4, 9, 9)]
    shapes = shapes if batched else [s[len(s) == 4 and k != 1 :] for k, s in enumerate(shapes)]
    *given, made = (TensorType(s, elem, None, device) for s in shapes)
    operands = [g.input(f"p{k}", t) for k, t in enumerate(given)]
    settings = [(1, 1), (0, 0), (1, 1), False, (0, 0), 1]
    (y,) = g.extern(FORWARD, operands, [*map(Place, range(3)), *settings], [made])
    if relu:
        y = g.loop(made.shape, lambda *i: g.unary("abs", g.load(y, *i)))
    g.output(y)
    return g.finish()


def ops_of(module: Module) -> tuple[list[ExternOp], list[LoopOp]]:
    body = list(module.functions[0].regions[0])
    return [op for op in body if isinstance(op, ExternOp)], [
        op for op in body if isinstance(op, LoopOp)
    ]


@pytest.mark.parametrize("elem", [float32, bfloat16, float64])
@pytest.mark.parametrize("batched", [True, False])
def test_a_bias_goes_along_the_channels(elem: Any, batched: bool):
    module = net(elem, GPU, batched)
    add_biases(module)
    verify(module)
    (extern,), (loop,) = ops_of(module)
    assert extern.arguments[:3] == (Place(0), Place(1), None) and len(extern.args) == 2
    at = [op.indices for op in loop.body if isinstance(op, LoadOp)]
    assert at[1] == (loop.body.args[1 if batched else 0],)
    assert loop.results[0].type.elem == elem


def test_it_is_a_part_of_the_loop_that_reads_the_result():
    module = optimize(net(float32, GPU, relu=True))
    (extern,), (loop,) = ops_of(module)
    assert extern.arguments[2] is None
    assert [op.opcode for op in loop.body if op.opcode in ("add", "abs")] == ["add", "abs"]


def test_libraries_of_cpus_add_it_themselves():
    module = net(float32, "cpu")
    add_biases(module)
    (extern,), loops = ops_of(module)
    assert len(extern.args) == 3 and not loops


def test_it_can_be_switched_off():
    module = net(bfloat16, GPU)
    with Session("net", disabled=frozenset(("graph-add-biases",))):
        add_biases(module)
    (extern,), loops = ops_of(module)
    assert len(extern.args) == 3 and not loops
