"""Axis facts against the values that random index expressions really take."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tessera.analysis.axis import AxisAnalysis, AxisFacts
from tessera.dtypes import float32, int32, pointer_type
from tessera.interp.machine import Machine, run_program
from tessera.interp.memory import Memory
from tessera.ir import Builder, Module, TileType, Value
from tessera.ops import (
    AddOp,
    AddPtrOp,
    ArangeOp,
    BroadcastOp,
    CmpOp,
    ConstOp,
    DivOp,
    ExpandDimsOp,
    FuncOp,
    MulOp,
    RemOp,
    ReturnOp,
    SelectOp,
    SplatOp,
    SubOp,
)  # fmt: skip

N = 32
TILE = TileType((N,), int32)


def holds(f: AxisFacts, x: np.ndarray, axis: int, step: int) -> None:
    """Check facts along one axis on concrete values (`step`: difference of neighbours in a run)."""
    rows = np.moveaxis(x.astype(np.int64), axis, -1).reshape(-1, x.shape[axis])
    c, k = f.contiguity[axis], f.constancy[axis]
    runs = rows.reshape(-1, c)
    assert np.array_equal(runs, runs[:, :1] + np.arange(c) * step), ("contiguity", f)
    assert not np.any(runs[:, 0] % f.divisibility[axis]), ("divisibility", f)
    equal = rows.reshape(-1, k)
    assert np.array_equal(equal, np.broadcast_to(equal[:, :1], equal.shape)), ("constancy", f)


class Expressions:
    """Builds a random integer tile expression of non-negative values from drawn choices."""

    def __init__(self, draw: st.DrawFn):
        self.draw = draw
        self.module = Module()
        self.func = FuncOp(
            name="k", arg_attrs=((("divisibility", 16),), (("divisibility", 16),), ())
        )
        self.module.body.append(self.func)
        self.pointer = self.func.body.add_arg(pointer_type(float32), "p")
        self.even = self.func.body.add_arg(int32, "n")
        self.odd = self.func.body.add_arg(int32, "m")
        self.b = Builder(self.func.body)

    def tile(self, depth: int) -> Value:
        kinds = ["arange", "splat", "const"]
        if depth:
            kinds += ["add", "add", "mul", "div", "rem", "select", "sub"]
        kind = self.draw(st.sampled_from(kinds))
        b = self.b
        if kind == "arange":
            start = self.draw(st.sampled_from([0, 0, 1, 4, 32, 48]))
            return b.emit(ArangeOp(start=start, end=start + N))
        if kind == "splat":
            return b.emit(
                SplatOp(self.draw(st.sampled_from([self.even, self.odd])), results=[TILE])
            )
        if kind == "const":
            return b.emit(
                ConstOp(value=self.draw(st.sampled_from([0, 1, 2, 3, 8, 16, 24])), results=[TILE])
            )
        x = self.tile(depth - 1)
        if kind in ("div", "rem"):
            y = b.emit(
                ConstOp(
                    value=self.draw(st.sampled_from([1, 2, 3, 4, 8, 16, 12, 64])), results=[TILE]
                )
            )
            return b.emit((DivOp if kind == "div" else RemOp)(x, y))
        y = self.tile(depth - 1)
        if kind == "select":
            predicate = self.draw(st.sampled_from(["lt", "le", "gt", "ge", "eq"]))
            return b.emit(SelectOp(b.emit(CmpOp(x, y, predicate=predicate)), x, y))
        if kind == "sub":  # kept non-negative: division is described for such values only
            smaller = b.emit(CmpOp(x, y, predicate="lt"))
            return b.emit(SelectOp(smaller, x, b.emit(SubOp(x, y))))
        return b.emit((AddOp if kind == "add" else MulOp)(x, y))


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_facts_hold_on_every_value(data: st.DataObject) -> None:
    e = Expressions(data.draw)
    offset = e.tile(3)
    b = e.b
    base = b.emit(SplatOp(e.pointer, results=[TileType((N,), e.pointer.type)]))
    b.emit(AddPtrOp(base, offset))
    wide = TileType((4, N), int32)
    b.emit(BroadcastOp(b.emit(ExpandDimsOp(offset, axis=0)), results=[wide]))
    b.insert(ReturnOp())
    facts = AxisAnalysis(e.func)
    n = data.draw(st.sampled_from([0, 16, 48, 1024]))
    machine = Machine(e.module, Memory(), (1, 1, 1))
    run_program(
        machine,
        e.func,
        [np.int64(4096), np.int32(n), np.int32(data.draw(st.integers(0, 40)))],
        (0, 0, 0),
    )
    for op in e.func.body:
        for r in op.results:
            x = np.asarray(machine.values[r])
            if x.ndim == 0 or np.max(np.abs(x.astype(np.int64)), initial=0) > 1 << 30:
                continue
            step = 4 if isinstance(getattr(r.type, "elem", None), pointer_type) else 1
            for axis in range(x.ndim):
                holds(facts.facts(r), x, axis, step)


def test_row_of_a_matrix_is_a_wide_vector() -> None:
    """base + row * stride + arange with aligned base and stride loads 16 bytes at a time."""
    e = Expressions.__new__(Expressions)
    Expressions.__init__(e, lambda s: None)
    b = e.b
    row = b.emit(SplatOp(b.emit(MulOp(e.odd, e.even)), results=[TILE]))
    offset = b.emit(AddOp(row, b.emit(ArangeOp(start=0, end=N))))
    pointers = b.emit(
        AddPtrOp(b.emit(SplatOp(e.pointer, results=[TileType((N,), e.pointer.type)])), offset)
    )
    mask = b.emit(
        CmpOp(
            b.emit(ArangeOp(start=0, end=N)),
            b.emit(SplatOp(e.even, results=[TILE])),
            predicate="lt",
        )
    )
    b.insert(ReturnOp())
    facts = AxisAnalysis(e.func)
    assert facts.vector_width(pointers, 0) == 4
    assert facts.mask_width(mask, 0) == 16


@pytest.mark.parametrize("predicate", ["lt", "le", "gt", "ge"])
def test_mask_run_follows_the_predicate(predicate: str) -> None:
    """`x < n` keeps whole aligned runs; `x <= n` may change after the first element of one."""
    e = Expressions(lambda s: None)
    b = e.b
    x = b.emit(ArangeOp(start=0, end=N))
    mask = b.emit(CmpOp(x, b.emit(SplatOp(e.even, results=[TILE])), predicate=predicate))
    b.insert(ReturnOp())
    assert AxisAnalysis(e.func).mask_width(mask, 0) == (16 if predicate in ("lt", "ge") else 1)
