"""Results that expand smaller tensors are computed again where they are read, with the same bits."""

from __future__ import annotations

import random
import re

import numpy as np
import pytest

from tessera.graph.ir.interp import interpret
from tessera.graph.passes import canonical, cost
from tessera.graph.passes.expanded import recompute_expanded
from tessera.ir import Module, parse_module, verify
from tessera.ir.applications import Session
from tests.unit.graph_kit import compiled

UNARY, BINARY = ("exp", "neg", "sin", "abs", "tanh"), ("mul", "add", "sub")
# Rows that are summed, and expanded by 16 numbers; what reads these rows from the end, and two of their columns.
TEXT = """
module {} {
  func {name='f', returns=[!tensor<Nxfp32>, !tensor<NxMxKxfp32>, !tensor<NxKxfp32>]}
      (%x: tensor<NxMxfp32>, %w: tensor<Kxfp32>) {
    KEPT%sum: tensor<Nxfp32>, %a: tensor<NxMxKxfp32> = graph.loop {extents=[N]} (%i: i64) {
      %two: fp32 = const {value=float('0x1.0p+1')}
      %e: tensor<Mxfp32>, %0: tensor<MxKxfp32> = graph.loop {extents=[M]} (%j: i64) {
        %1: fp32 = graph.load %x, [%i, %j], _, _
        %2: fp32 = FIRST %1
        %3: fp32 = BODY %2, %two
        %4: tensor<Kxfp32> = graph.loop {extents=[K]} (%k: i64) {
          %5: fp32 = graph.load %w, [%k], _, _
          %6: fp32 = SECOND %5, %3
          yield [%6]
        }
        yield [%3, %4]
      }
      %s: fp32 = graph.reduce {extents=[M], identities=[float('0x0.0p+0')]} (%r: i64) {
        %7: fp32 = graph.load %e, [%r], _, _
        yield [%7]
      } (%b: fp32, %c: fp32) {
        %8: fp32 = add %b, %c
        yield [%8]
      }
      %local: tensor<MxKxfp32> = graph.loop {extents=[M, K]} (%q: i64, %t: i64) {
        %9: fp32 = graph.load %0, [%q, %t], _, _ {index_map=@map<(d0, d1) -> (-d0 + M - 1, d1)>}
        yield [%9]
      }
      yield [YIELDED%s, %local]
    }
    %y: tensor<NxMxKxfp32> = graph.loop {extents=[N, M, K]} (%l: i64, %m: i64, %n: i64) {
      %10: i64 = const {value=20}
      %11: i1 = cmp %m, %10 {predicate='lt'}
      %12: fp32 = graph.load %a, [%l, %m, %n], MASK, _ {index_map=@map<(d0, d1, d2) -> (-d0 + N - 1, d1, d2)>}
      %13: fp32 = neg %12
      yield [%13]
    }
    %z: tensor<NxKxfp32> = graph.loop {extents=[N, K]} (%o: i64, %p: i64) {
      %14: fp32 = graph.load %a, [%o, %p], _, _ {index_map=@map<(d0, d1) -> (d0, 3, d1)>}
      %15: fp32 = graph.load %a, [%o, %p], _, _ {index_map=@map<(d0, d1) -> (d0, M - 1, d1)>}
      %16: fp32 = add %14, %15
      yield [%16]
    }
    return [%sum, %y, %z]
  }
}
"""


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that computes an exponential sooner than it reads a number."""
    monkeypatch.setattr(cost, "machine_of", lambda device: cost.GPU)


def module_of(masked: bool, kept: bool, seed: int = 0) -> Module:
    draw = random.Random(seed)
    n, m, k = draw.choice([24, 7, 130]), draw.choice([32, 33, 5]), draw.choice([16, 17, 40])
    text = TEXT.replace("MASK", "%11" if masked else "_")
    text = text.replace("KEPT", "%kept: tensor<NxMxfp32>, " if kept else "")
    text = text.replace("YIELDED", "%e, " if kept else "")
    for word, choices in (("FIRST", UNARY), ("SECOND", BINARY), ("BODY", BINARY)):
        text = text.replace(word, draw.choice(choices))
    for name, size in (("N", n), ("M", m), ("K", k)):
        text = re.sub(rf"(?<=[<x\[ ]){name}(?=[x\], ])", str(size), text)
    return parse_module(text)


def passed(module: Module) -> bool:
    """Whether the pass did something."""
    with Session("graph") as session:
        recompute_expanded(module)
        canonical.canonicalize(module)
    verify(module)
    return "graph-recompute-expanded" in {a.name for a in session.applied}


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("kept", [False, True])
def test_results_keep_their_bits(masked: bool, kept: bool, seed: int):
    """`kept`: what the numbers are made of is stored, too, so that it is read."""
    module = module_of(masked, kept, seed)
    draw = np.random.default_rng(seed)
    types = [v.type for v in module.functions[0].regions[0].args]
    given = [draw.standard_normal(t.shape).astype(np.float32) for t in types]
    wanted = interpret(module, [x.copy() for x in given])
    assert passed(module)
    for a, b in zip(interpret(module, [x.copy() for x in given]), wanted, strict=True):
        np.testing.assert_array_equal(a, b)
    sizes = [v.type.shape for op in module.functions[0].regions[0] for v in op.results]
    assert sum(len(shape) == 3 for shape in sizes) == 1  # what is returned
    for a, b in zip(compiled(module)(given), wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("name", "value"), [("MOST_OPS", 0), ("EXPANDED", 1 << 20)])
def test_small_tensors_and_costly_ones_are_stored(
    monkeypatch: pytest.MonkeyPatch, name: str, value: int
):
    monkeypatch.setattr(f"tessera.graph.passes.expanded.{name}", value)
    assert not passed(module_of(False, True))


ROWS = """
module {} {
  func {name='f', returns=[!tensor<40x24xfp32>, !tensor<40x24xfp32>]}
      (%table: tensor<90x24xfp32>, %places: tensor<40xi64>) {
    %row: tensor<40x24xfp32>, %norm: tensor<40x24xfp32> = graph.loop {extents=[40]} (%i: i64) {
      %0: i64 = graph.load %places, [%i], _, _
      %1: tensor<24xfp32> = graph.loop {extents=[24]} (%j: i64) {
        %2: fp32 = graph.load %table, PLACE, _, _
        yield [%2]
      }
      %3: fp32 = graph.reduce {extents=[24], identities=[float('0x0.0p+0')]} (%r: i64) {
        %4: fp32 = graph.load %1, [%r], _, _
        yield [%4]
      } (%a: fp32, %b: fp32) {
        %5: fp32 = add %a, %b
        yield [%5]
      }
      %6: tensor<24xfp32> = graph.loop {extents=[24]} (%k: i64) {
        %7: fp32 = graph.load %1, [%k], _, _
        %8: fp32 = sub %7, %3
        yield [%8]
      }
      yield [%1, %6]
    }
    %sum: tensor<40x24xfp32> = graph.loop {extents=[40, 24]} (%l: i64, %m: i64) {
      %9: fp32 = graph.load %row, [%l, %m], _, _ {index_map=@map<(d0, d1) -> (-d0 + 39, d1)>}
      %10: fp32 = neg %9
      yield [%10]
    }
    return [%norm, %sum]
  }
}
"""


@pytest.mark.parametrize("across", [False, True])
def test_rows_of_a_table_are_read_again(across: bool):
    """A caller's table stays where it is: its rows are read where they are needed, but not elements of columns."""
    place, shape = ("[%j, %0]", "24x90") if across else ("[%0, %j]", "90x24")
    module = parse_module(ROWS.replace("PLACE", place).replace("90x24", shape))
    draw = np.random.default_rng(0)
    table = draw.standard_normal((24, 90) if across else (90, 24)).astype(np.float32)
    places = draw.integers(0, 90, 40)
    wanted = interpret(module, [table, places])
    assert passed(module) != across
    for a, b in zip(interpret(module, [table, places]), wanted, strict=True):
        np.testing.assert_array_equal(a, b)
    for a, b in zip(compiled(module)([table, places]), wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)
