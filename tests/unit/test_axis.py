"""Axis facts against the values that random index expressions really take."""

from __future__ import annotations

from functools import reduce
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tessera.analysis.axis import TOP, AxisAnalysis, AxisFacts, power_of_two_part
from tessera.analysis.prefixes import conjuncts, prefix_width
from tessera.dtypes import float32, int1, int32, pointer_type
from tessera.interp.machine import Machine, run_program
from tessera.interp.memory import Memory
from tessera.ir import Builder, Module, TileType, Value, parse_module, verify
from tessera.ops import (
    AbsOp,
    AddOp,
    AddPtrOp,
    AndOp,
    ArangeOp,
    BroadcastOp,
    CmpOp,
    ConstOp,
    DivOp,
    ExpandDimsOp,
    FuncOp,
    MulOp,
    NegOp,
    OrOp,
    RemOp,
    ReturnOp,
    SelectOp,
    SplatOp,
    SubOp,
    TransOp,
    XorOp,
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
    """Builds a random integer tile expression from drawn choices."""

    def __init__(self, draw: Any):
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
            kinds += ["add", "add", "mul", "div", "rem", "select", "sub", "neg", "abs", "bits"]
        kind = self.draw(st.sampled_from(kinds))
        b = self.b
        if kind == "arange":
            start = self.draw(st.sampled_from([0, 0, 1, 4, 32, 48, -16, -32, -33]))
            return b.emit(ArangeOp(start=start, end=start + N))
        if kind == "splat":
            scalar = self.draw(st.sampled_from([self.even, self.odd]))
            return b.emit(SplatOp(scalar, results=[TILE]))
        if kind == "const":
            value = self.draw(st.sampled_from([0, 1, 2, 3, 8, 16, 24, -8, -16, -3]))
            return b.emit(ConstOp(value=value, results=[TILE]))
        x = self.tile(depth - 1)
        if kind in ("div", "rem"):
            divisor = self.draw(st.sampled_from([1, 2, 3, 4, 8, 16, 12, 64]))
            y = b.emit(ConstOp(value=divisor, results=[TILE]))
            return b.emit((DivOp if kind == "div" else RemOp)(x, y))
        if kind in ("neg", "abs"):
            return b.emit((NegOp if kind == "neg" else AbsOp)(x))
        y = self.tile(depth - 1)
        if kind == "bits":
            return b.emit(self.draw(st.sampled_from([AndOp, OrOp, XorOp]))(x, y))
        if kind == "select":
            predicate = self.draw(st.sampled_from(["lt", "le", "gt", "ge", "eq"]))
            return b.emit(SelectOp(b.emit(CmpOp(x, y, predicate=predicate)), x, y))
        return b.emit({"add": AddOp, "sub": SubOp, "mul": MulOp}[kind](x, y))


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
    n = data.draw(st.sampled_from([0, 16, 48, 1024, -16, -64]))
    machine = Machine(e.module, Memory(), (1, 1, 1))
    run_program(
        machine,
        e.func,
        [np.int64(4096), np.int32(n), np.int32(data.draw(st.integers(-40, 40)))],
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
            if step == 1 and facts.signs.nonnegative(r):
                assert np.min(x) >= 0


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_masks_end_once_within_a_run(data: st.DataObject) -> None:
    """Masks of random comparisons, in two dimensions, and their conjunctions."""
    e = Expressions(data.draw)
    b, square = e.b, TileType((N, N), int1)
    masks: list[Value] = []
    for _ in range(data.draw(st.integers(1, 3))):
        predicate = data.draw(st.sampled_from(["lt", "le", "gt", "ge", "eq", "ne"]))
        mask = b.emit(CmpOp(e.tile(2), e.tile(1), predicate=predicate))
        mask = b.emit(ExpandDimsOp(mask, axis=data.draw(st.sampled_from([0, 1]))))
        if data.draw(st.booleans()):
            mask = b.emit(TransOp(mask, order=(1, 0)))
        masks.append(b.emit(BroadcastOp(mask, results=[square])))
    whole = reduce(lambda x, y: b.emit(AndOp(x, y)), masks)
    b.insert(ReturnOp())
    axis = AxisAnalysis(e.func)
    n, m = data.draw(st.sampled_from([0, 16, 48, -16])), data.draw(st.integers(-40, 40))
    machine = Machine(e.module, Memory(), (1, 1, 1))
    run_program(machine, e.func, [np.int64(4096), np.int32(n), np.int32(m)], (0, 0, 0))
    assert list(conjuncts(whole)) == masks
    for mask in (*masks, whole):
        for dim in (0, 1):
            rows = np.moveaxis(np.asarray(machine.values[mask]), dim, -1).reshape(-1, N)
            runs = rows.reshape(-1, min(N, prefix_width(axis, mask, dim)))
            assert np.all(runs[:, 1:] <= runs[:, :-1]), (mask.op, dim)


def test_rows_that_end_anywhere_are_whole_vectors() -> None:
    e = Expressions(lambda s: None)
    b = e.b
    at = b.emit(ArangeOp(start=32, end=32 + N))
    shifted = b.emit(ArangeOp(start=33, end=33 + N))
    odd, even = (b.emit(SplatOp(v, results=[TILE])) for v in (e.odd, e.even))
    less = b.emit(CmpOp(at, odd, predicate="lt"))
    more = b.emit(CmpOp(odd, at, predicate="ge"))
    begun = b.emit(CmpOp(at, odd, predicate="ge"))
    moved = b.emit(CmpOp(shifted, odd, predicate="lt"))
    aligned = b.emit(CmpOp(at, even, predicate="ge"))
    both = b.emit(AndOp(less, aligned))
    b.insert(ReturnOp())
    axis = AxisAnalysis(e.func)
    found = [prefix_width(axis, mask, 0) for mask in (less, more, begun, moved, aligned, both)]
    assert found == [32, 32, 1, 1, 16, 16]
    assert axis.mask_width(less, 0) == 1
    assert prefix_width(axis, None, 0) == TOP


@pytest.mark.parametrize("start", range(-48, 49))
def test_runs_divided_by_every_number(start: int) -> None:
    """What is said of quotients and remainders of start, start + 1, …, against C's division."""
    x = np.arange(start, start + N)
    for n in range(1, 41):
        e = Expressions(lambda s: None)
        run = e.b.emit(ArangeOp(start=start, end=start + N))
        by = e.b.emit(ConstOp(value=n, results=[TILE]))
        quotient, rest = e.b.emit(DivOp(run, by)), e.b.emit(RemOp(run, by))
        left = e.b.emit(SubOp(run, e.b.emit(MulOp(quotient, by))))
        e.b.insert(ReturnOp())
        facts = AxisAnalysis(e.func)
        true = np.trunc(x / n).astype(np.int64)
        holds(facts.facts(quotient), true, 0, 1)
        for remainder in (rest, left):
            holds(facts.facts(remainder), x - true * n, 0, 1)
        if start >= 0:  # as precise as can be for powers of two that divide the divisor
            shared = min(power_of_two_part(start), power_of_two_part(n), N)
            assert min(facts.facts(v).contiguity[0] for v in (rest, left)) >= shared
            assert facts.facts(quotient).constancy[0] >= shared
        signs = (facts.signs.nonnegative(v) for v in (run, quotient, rest, left))
        assert list(signs) == [start >= 0] * 4


SIGNS = """module {} {
  func {name='k'} (%n: i32, %u: u32, %f: fp32) {
    %zero: i32 = const {value=0}
    %less: i32 = const {value=-1}
    %eight: i32 = const {value=8}
    %pid: i32 = program_id {axis=0}
    %rows: i32 = sub %n, %pid
    %height: i32 = min %rows, %eight
    %within: i32 = rem %pid, %n
    %column: i32 = div %within, %height
    %back: i32 = div %within, %less
    %wide: i64 = cast %u
    %same: i32 = cast %u
    %read: i32 = cast %f
    %top: i32 = max %read, %zero
    %ok: i1 = cmp %n, %zero {predicate='gt'}
    %below: i1 = cmp %rows, %eight {predicate='lt'}
    %a: i32, %b: i32, %c: i32 = for %pid, %n, %eight, [%zero, %zero, %zero]
        (%i: i32, %x: i32, %y: i32, %z: i32) {
      %x2: i32 = add %x, %i
      %y2: i32 = sub %y, %i
      %z2: i32 = add %z, %y
      yield [%x2, %y2, %z2]
    }
    %w: i32 = while [%pid] (%d: i32) {
      condition %ok, [%d]
    } (%e: i32) {
      %g: i32 = mul %e, %eight
      yield [%g]
    }
    %r: i32 = if %ok () {
      yield [%w]
    } () {
      yield [%n]
    }
    print [%column, %back, %wide, %same, %top, %a, %b, %c, %r, %below]
    PROMISE
    return []
  }
}"""


def test_signs_through_control_flow_and_promises() -> None:
    facts, values, _ = analysed(SIGNS.replace("PROMISE", ""))
    positive = {name for name, v in values.items() if name and facts.signs.nonnegative(v)}
    assert positive >= {"pid", "within", "column", "wide", "top", "a", "x", "i", "w", "d", "e", "u"}
    assert not positive & {"n", "rows", "height", "back", "same", "read", "b", "y", "c", "z", "r"}
    facts, values, _ = analysed(SIGNS.replace("PROMISE", "assume %ok"))
    assert facts.signs.nonnegative(values["n"])
    assert facts.signs.nonnegative(values["r"])
    both = "%both: i1 = and %ok, %below\nassume %both"
    facts, values, _ = analysed(SIGNS.replace("PROMISE", both))
    assert facts.signs.nonnegative(values["n"])
    assert not facts.signs.nonnegative(values["rows"])


CONDITIONS = """module {} {
  func {name='k'} (%n: i32, %m: i32) {
    %pid: i32 = program_id {axis=0}
    %more: i1 = cmp %m, %n {predicate='gt'}
    %last: i32, %tile: i32 = while [%n, %pid] (%from: i32, %at: i32) {
      %late: i1 = cmp %from, %at {predicate='le'}
      %both: i1 = and %late, %more
      condition %both, [%from, %at]
    } (%base: i32, %here: i32) {
      %inside: i32 = sub %here, %base
      %turned: i32 = sub %base, %here
      %outer: i32 = sub %m, %n
      %next: i32 = add %here, %m
      yield [%base, %next]
    }
    %after: i32 = sub %tile, %last
    %r: i32 = if %more () {
      %then: i32 = sub %m, %n
      yield [%then]
    } () {
      %else: i32 = sub %m, %n
      yield [%else]
    }
    print [%after, %r]
    return []
  }
}"""


def test_differences_under_conditions() -> None:
    facts, values, _ = analysed(CONDITIONS)
    positive = {name for name, v in values.items() if name and facts.signs.nonnegative(v)}
    assert positive >= {"inside", "outer", "then", "pid"}
    assert not positive & {"turned", "after", "else", "r", "next", "tile", "base"}


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


def analysed(text: str) -> tuple[AxisAnalysis, dict[str, Value], Module]:
    module = parse_module(text)
    verify(module)
    (func,) = module.functions
    assert isinstance(func, FuncOp)
    values = {a.name: a for op in module.walk() for block in op.regions for a in block.args}
    values |= {r.name: r for op in module.walk() for r in op.results}
    return AxisAnalysis(func), values, module


LOOP = """module {} {
  func {name='k', arg_attrs=[[['divisibility', 16]], [['divisibility', 16]], []]} (%p: *fp32, %n: i32, %trips: i32) {
    %zero: i32 = const {value=0}
    %one: i32 = const {value=1}
    %width: i32 = const {value=BLOCK}
    %a: tile<32xi32> = arange {start=START, end=END}
    %ps: tile<32x*fp32> = splat %p
    %start: tile<32x*fp32> = addptr %ps, %a
    %stride: tile<32xi32> = splat %n
    %next_b: tile<32xi32> = const {value=BLOCK}
    %end: i32 = mul %trips, %width
    %r: tile<32x*fp32>, %o: tile<32xi32>, %c: tile<32xi32> = for %zero, %end, %width, [%start, %a, %stride]
        (%i: i32, %q: tile<32x*fp32>, %x: tile<32xi32>, %same: tile<32xi32>) {
      %is: tile<32xi32> = splat %i
      %y: tile<32xi32> = add %is, %a
      %m: tile<32xi1> = cmp %y, %same {predicate='lt'}
      %q2: tile<32x*fp32> = addptr %q, %next_b
      %x2: tile<32xi32> = add %x, %same
      yield [%q2, %x2, %same]
    }
    print [%r, %o, %c]
    return []
  }
}"""


@pytest.mark.parametrize("block", [1, 2, 4, 12, 32])
@pytest.mark.parametrize("start", [0, 4, 5])
def test_facts_of_loops_hold_in_every_trip(block: int, start: int) -> None:
    text = (
        LOOP.replace("BLOCK", str(block))
        .replace("START", str(start))
        .replace("END", str(start + 32))
    )
    facts, values, module = analysed(text)
    func = module.functions[0]
    assert isinstance(func, FuncOp)
    for trips in range(4):
        for n in (0, 16, 80):
            machine = Machine(module, Memory(), (1, 1, 1))
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr("builtins.print", lambda *a: None)
                run_program(
                    machine, func, [np.int64(4096), np.int32(n), np.int32(trips)], (0, 0, 0)
                )
            for v in values.values():
                if v in machine.values and isinstance(v.type, TileType):
                    step = 4 if isinstance(v.type.elem, pointer_type) else 1
                    holds(facts.facts(v), np.asarray(machine.values[v]), 0, step)


def test_pointers_advanced_in_a_loop_stay_wide() -> None:
    facts, values, _ = analysed(
        LOOP.replace("BLOCK", "32").replace("START", "0").replace("END", "32")
    )
    assert facts.vector_width(values["q"], 0) == 4
    assert facts.facts(values["i"]).divisibility == (32,)
    assert facts.mask_width(values["m"], 0) == 16
    facts, values, _ = analysed(
        LOOP.replace("BLOCK", "2").replace("START", "0").replace("END", "32")
    )
    assert facts.vector_width(values["q"], 0) == 2


WHILE = """module {} {
  func {name='k', arg_attrs=[[['divisibility', 16]], []]} (%n: i32, %c: i1) {
    %eight: i32 = const {value=8}
    %w: i32 = while [%n] (%b: i32) {
      condition %c, [%b]
    } (%d: i32) {
      %e: i32 = add %d, %eight
      yield [%e]
    }
    %r: i32 = if %c () {
      %four: i32 = const {value=4}
      %s: i32 = mul %w, %four
      yield [%s]
    } () {
      yield [%n]
    }
    print [%r]
    return []
  }
}"""


def test_while_loops_and_branches_join() -> None:
    facts, values, _ = analysed(WHILE)
    assert [facts.facts(values[v]).divisibility for v in ("b", "d", "w", "s", "r")] == [
        (8,),
        (8,),
        (8,),
        (32,),
        (16,),
    ]


def test_numbers_that_wrap_are_not_known() -> None:
    text = """module {} {
      func {name='k'} () {
        %a: i32 = const {value=2147483647}
        %b: i32 = const {value=7}
        %s: i32 = add %a, %b
        %q: i32 = div %a, %b
        %z: i32 = sub %q, %b
        %t: i32 = mul %a, %b
        print [%s, %z, %t]
        return []
      }
    }"""
    facts, values, _ = analysed(text)
    assert [facts.facts(values[v]).value for v in ("s", "q", "z", "t")] == [
        None,
        306783378,
        306783371,
        None,
    ]


def test_what_the_author_promises() -> None:
    text = """module {} {
      func {name='k'} (%p: tile<8x*fp16>, %n: i32) {
        %q: tile<8x*fp16> = hint %p {divisibility=[8], contiguity=[8]}  // bytes
        %m: i32 = hint %n {divisibility=[12]}
        print [%q, %m]
        return []
      }
    }"""
    facts, values, _ = analysed(text)
    assert facts.vector_width(values["p"], 0) == 1 and facts.vector_width(values["q"], 0) == 4
    assert facts.facts(values["m"]).divisibility == (4,)


def test_shapes_carry_facts_along() -> None:
    text = """module {} {
      func {name='k', arg_attrs=[[['divisibility', 16]]]} (%n: i32) {
        %a: tile<32xi32> = arange {start=0, end=32}
        %e: tile<1x32xi32> = expand_dims %a {axis=0}
        %w: tile<4x32xi32> = broadcast %e
        %t: tile<32x4xi32> = trans %w {order=[1, 0]}
        %r: tile<8x16xi32> = reshape %w
        %s: tile<32xi32> = splat %n
        %v: tile<4x8xi32> = reshape %s
        print [%t, %r, %v]
        return []
      }
    }"""
    facts, values, _ = analysed(text)
    shown = {name: facts.facts(values[name]) for name in "wtrv"}
    assert shown["w"].contiguity == (1, 32) and shown["w"].constancy == (4, 1)
    assert shown["t"].contiguity == (32, 1) and shown["t"].constancy == (1, 4)
    assert shown["r"].contiguity == (1, 16) and shown["r"].divisibility[1] == 16
    assert shown["v"].constancy[1] == 8
