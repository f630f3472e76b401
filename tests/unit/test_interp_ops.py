"""What ops mean: integer semantics, tiles, reductions, control flow, launches."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tessera import dtypes as dt
from tessera.errors import DeviceAssertionError, InterpreterError
from tessera.interp import run
from tessera.ir import Module, parse_module, verify
from tessera.ops import (
    MATH_OPS,
    BitcastOp,
    ClzOp,
    DivOp,
    MulHiOp,
    PopcOp,
    RemOp,
    ShlOp,
    ShrOp,
)
from tests.unit.interp_kit import COUNT, apply, evaluate, launch

# --- integers ---------------------------------------------------------------------------------------------
INTS = [t for t in dt.ALL_DTYPES if t.is_int() and t.bits > 1]


def wrap(x: int, t: dt.dtype) -> int:
    x %= 1 << t.bits
    return x - (1 << t.bits) if t.signed and x >> (t.bits - 1) else x


@pytest.mark.parametrize("t", INTS, ids=str)
@settings(max_examples=25)
@given(data=st.data())
def test_integer_arithmetic(t: dt.dtype, data: st.DataObject) -> None:
    low, high = t.get_int_min_value(), t.get_int_max_value()
    number = st.integers(low, high) | st.sampled_from([low, high, 0, 1, high - 1, wrap(-1, t)])
    x, y = (data.draw(st.lists(number, min_size=4, max_size=4)) for _ in range(2))
    pairs = list(zip(x, y, strict=True))
    quotients = [abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1) if b else 0 for a, b in pairs]
    assert apply(DivOp, None, (t, x), (t, y)) == [wrap(q, t) for q in quotients]
    rests = [a - b * q for (a, b), q in zip(pairs, quotients, strict=True)]
    assert apply(RemOp, None, (t, x), (t, y)) == [wrap(r, t) for r in rests]
    assert apply(MulHiOp, None, (t, x), (t, y)) == [wrap(a * b >> t.bits, t) for a, b in pairs]
    assert apply(PopcOp, None, (t, x)) == [(a % (1 << t.bits)).bit_count() for a in x]
    assert apply(ClzOp, None, (t, x)) == [t.bits - (a % (1 << t.bits)).bit_length() for a in x]
    counts = [b % t.bits for b in y]
    assert apply(ShlOp, None, (t, x), (t, counts)) == [
        wrap(a << c, t) for a, c in zip(x, counts, strict=True)
    ]
    assert apply(ShrOp, None, (t, x), (t, counts)) == [
        a >> c for a, c in zip(x, counts, strict=True)
    ]


def test_float_functions_are_rounded_once() -> None:
    x = np.array([0.3, 0.7, 0.99], np.float32)
    got = apply(MATH_OPS["exp"], None, (dt.float32, x.tolist()))
    assert got == np.exp(x.astype(np.float64)).astype(np.float32).tolist()
    assert apply(MATH_OPS["round"], None, (dt.float32, [0.5, -0.5, 2.5, 1e30])) == [
        1.0,
        -1.0,
        3.0,
        float(np.float32(1e30)),
    ]
    assert apply(MATH_OPS["rint"], None, (dt.float32, [0.5, 1.5, 2.5])) == [0.0, 2.0, 2.0]
    assert apply(MATH_OPS["exp"], None, (dt.bfloat16, [1.0])) == [2.71875]


def test_float_remainder_has_the_sign_of_the_dividend() -> None:
    assert apply(RemOp, None, (dt.float32, [5.5, -5.5]), (dt.float32, [2.0, 2.0])) == [1.5, -1.5]


def test_nan_in_min_and_max() -> None:
    x, y, o = (
        np.array([np.nan, 1, np.nan], np.float32),
        np.array([2, np.nan, np.nan], np.float32),
        np.zeros(6, np.float32),
    )
    body = """
      %a: tile<4xi32> = arange {start=0, end=4}
      %k: i32 = const {value=3}
      %t: tile<4xi32> = splat %k
      %m: tile<4xi1> = cmp %a, %t {predicate='lt'}
      %xs: tile<4x*fp32> = splat %x
      %ys: tile<4x*fp32> = splat %y
      %os: tile<4x*fp32> = splat %o
      %xp: tile<4x*fp32> = addptr %xs, %a
      %yp: tile<4x*fp32> = addptr %ys, %a
      %op: tile<4x*fp32> = addptr %os, %a
      %oq: tile<4x*fp32> = addptr %op, %t
      %u: tile<4xfp32> = load %xp, %m, _
      %v: tile<4xfp32> = load %yp, %m, _
      %mn: tile<4xfp32> = min %u, %v
      %mx: tile<4xfp32> = max %u, %v {propagate_nan=True}
      store %op, %mn, %m
      store %oq, %mx, %m"""
    launch("%x: *fp32, %y: *fp32, %o: *fp32", body, x, y, o)
    assert o[:2].tolist() == [2.0, 1.0] and np.isnan(o[2:]).all()


def test_bitcast_of_a_scalar_keeps_its_bits() -> None:
    assert apply(BitcastOp, dt.int32, (dt.float32, [1.0])) == [0x3F800000]


# --- tiles ------------------------------------------------------------------------------------------------
ARGMAX = """(%a: fp32, %i: i32, %b: fp32, %j: i32) {
  %gt: i1 = cmp %a, %b {predicate='gt'}
  %eq: i1 = cmp %a, %b {predicate='eq'}
  %lt: i1 = cmp %i, %j {predicate='lt'}
  %t: i1 = and %eq, %lt
  %c: i1 = or %gt, %t
  %v: fp32 = select %c, %a, %b
  %k: i32 = select %c, %i, %j
  yield [%v, %k]
}"""


@given(st.lists(st.integers(0, 5), min_size=1, max_size=9), st.integers(1, 3))
def test_reduction_of_pairs(values: list[int], n: int) -> None:
    """argmax with the first of equal ones, along a middle axis, of any extent."""
    x = np.resize(np.array(values, np.float32), (2, len(values), n))
    index = np.broadcast_to(np.arange(len(values), dtype=np.int32)[:, None], x.shape)
    shape = "x".join(map(str, x.shape))
    got = evaluate(
        f"%m: tile<2x{n}xfp32>, %w: tile<2x{n}xi32> = reduce [%x, %index] {{axis=1}} {ARGMAX}",
        f"%x: tile<{shape}xfp32>, %index: tile<{shape}xi32>", x, index,
    )  # fmt: skip
    assert np.array_equal(got["m"], x.max(1)) and np.array_equal(got["w"], x.argmax(1))


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("n", [1, 2, 5, 8])
def test_scans_combine_in_order(n: int, reverse: bool) -> None:
    """x → a·x + b composed along the axis: associative, not commutative."""
    rng = np.random.default_rng(n)
    a, b = (rng.integers(-3, 4, (3, n)).astype(np.int64) for _ in range(2))
    body = f"""%p: tile<3x{n}xi64>, %q: tile<3x{n}xi64> = scan [%a, %b] {{axis=1, reverse={reverse}}}
      (%a1: i64, %b1: i64, %a2: i64, %b2: i64) {{
        %c: i64 = mul %a1, %a2
        %d: i64 = mul %b1, %a2
        %e: i64 = add %d, %b2
        yield [%c, %e]
      }}"""
    got = evaluate(body, f"%a: tile<3x{n}xi64>, %b: tile<3x{n}xi64>", a, b)
    order = range(n)[::-1] if reverse else range(n)
    for row in range(3):
        p, q = 1, 0
        for i in order:
            p, q = p * a[row, i], q * a[row, i] + b[row, i]
            assert (got["p"][row, i], got["q"][row, i]) == (p, q)


def test_combining_with_a_branch() -> None:
    body = """%m: i32 = reduce [%x] {axis=0} (%a: i32, %b: i32) {
      %c: i1 = cmp %a, %b {predicate='gt'}
      %r: i32 = if %c () {
        yield [%a]
      } () {
        yield [%b]
      }
      yield [%r]
    }"""
    assert evaluate(body, "%x: tile<5xi32>", np.array([3, 9, -1, 9, 2], np.int32))["m"] == 9


def test_shapes() -> None:
    x = np.arange(8, dtype=np.int32).reshape(2, 4)
    body = """%t: tile<4x2xi32> = trans %x {order=[1, 0]}
      %a: tile<4xi32>, %b: tile<4xi32> = split %t
      %j: tile<4x2xi32> = join %b, %a
      %e: tile<4x1x2xi32> = expand_dims %j {axis=1}
      %w: tile<4x3x2xi32> = broadcast %e
      %r: tile<2x12xi32> = reshape %w
      %g: tile<2x3xi32> = gather %x, %i {axis=1}
      %h: tile<4xi32> = histogram %a, %m {bins=4}"""
    index, mask = np.array([[3, 0, 0], [1, 2, 3]], np.int32), np.array([True, True, False, True])
    got = evaluate(body, "%x: tile<2x4xi32>, %i: tile<2x3xi32>, %m: tile<4xi1>", x, index, mask)
    assert np.array_equal(got["a"], x[0]) and np.array_equal(got["j"], np.stack([x[1], x[0]], 1))
    assert np.array_equal(got["r"], np.repeat(got["j"][:, None], 3, 1).reshape(2, 12))
    assert got["g"].tolist() == [[3, 0, 0], [5, 6, 7]] and got["h"].tolist() == [1, 1, 0, 1]


def test_histogram_ignores_what_is_outside() -> None:
    got = evaluate(
        "%h: tile<3xi32> = histogram %x, _ {bins=3}",
        "%x: tile<6xi32>",
        np.array([0, -1, 3, 2, 2, 99], np.int32),
    )
    assert got["h"].tolist() == [1, 0, 2]


def test_dots() -> None:
    rng = np.random.default_rng(1)
    a, b, c = (rng.standard_normal(s).astype(np.float32) for s in ((2, 4, 8), (2, 8, 4), (2, 4, 4)))
    arguments = "%a: tile<2x4x8xfp32>, %b: tile<2x8x4xfp32>, %c: tile<2x4x4xfp32>"
    exact = (a.astype(np.float64) @ b.astype(np.float64) + c).astype(np.float32)
    got = evaluate("%d: tile<2x4x4xfp32> = dot %a, %b, %c", arguments, a, b, c)
    assert np.array_equal(got["d"], exact)
    got = evaluate("%d: tile<2x4x4xfp32> = dot %a, %b, %c {precision='tf32'}", arguments, a, b, c)
    assert 1e-6 < np.abs(got["d"] - exact).max() < 1e-2
    i, j = (
        rng.integers(-128, 128, (4, 64)).astype(np.int8),
        rng.integers(-128, 128, (64, 4)).astype(np.int8),
    )
    got = evaluate(
        "%d: tile<4x4xi32> = dot %i, %j, %z",
        "%i: tile<4x64xi8>, %j: tile<64x4xi8>, %z: tile<4x4xi32>",
        i,
        j,
        np.zeros((4, 4), np.int32),
    )
    assert np.array_equal(got["d"], i.astype(np.int32) @ j.astype(np.int32))


# --- control flow, launches -------------------------------------------------------------------------------
@given(st.integers(-4, 9), st.integers(-4, 9), st.sampled_from([1, 2, 3, -1, -2]))
def test_loops_count_as_range(lb: int, ub: int, step: int) -> None:
    body = """%z: i32 = const {value=0}
      %one: i32 = const {value=1}
      %n: i32, %last: i32 = for %lb, %ub, %step, [%z, %z] (%i: i32, %c: i32, %l: i32) {
        %d: i32 = add %c, %one
        yield [%d, %i]
      }"""
    got = evaluate(body, "%lb: i32, %ub: i32, %step: i32", *map(np.int32, (lb, ub, step)))
    trips = list(range(lb, ub, step))
    assert (got["n"], got["last"]) == (len(trips), trips[-1] if trips else 0)


def test_calls_and_while() -> None:
    text = """module {} {
      func {name='step', kernel=False, returns=[!i32]} (%x: i32) {
        %two: i32 = const {value=2}
        %y: i32 = mul %x, %two
        return [%y]
      }
      func {name='k'} (%o: *i32, %limit: i32) {
        %one: i32 = const {value=1}
        %r: i32 = while [%one] (%a: i32) {
          %c: i1 = cmp %a, %limit {predicate='lt'}
          condition %c, [%a]
        } (%b: i32) {
          %d: i32 = call [%b] {callee='step'}
          yield [%d]
        }
        store %o, %r, _
        return []
      }
    }"""
    module, out = parse_module(text), np.zeros(1, np.int32)
    verify(module)
    run(module, (1,), [out, 100])
    assert out[0] == 128


def test_programs_run_x_fastest() -> None:
    out = np.zeros(2 * 3 * 4, np.int32)
    body = """%x: i32 = program_id {axis=0}
      %y: i32 = program_id {axis=1}
      %z: i32 = program_id {axis=2}
      %nx: i32 = num_programs {axis=0}
      %ny: i32 = num_programs {axis=1}
      %zero: i32 = const {value=0}
      %one: i32 = const {value=1}
      %t: i32 = atomic_rmw %counter, %one, _ {kind='add'}
      %a: i32 = mul %z, %ny
      %b: i32 = add %a, %y
      %c: i32 = mul %b, %nx
      %d: i32 = add %c, %x
      %p: *i32 = addptr %o, %d
      store %p, %t, _"""
    launch("%o: *i32, %counter: *i32", body, out, np.zeros(1, np.int32), grid=(2, 3, 4))
    assert out.tolist() == list(range(24))


def test_scalar_arguments_wrap_into_their_type() -> None:
    got: list[int] = []
    for value in (2**31, -1, True):
        out = np.zeros(1, np.int32)
        launch("%o: *i32, %x: i32", "store %o, %x, _", out, value)
        got.append(int(out[0]))
    assert got == [-(2**31), -1, 1]


def test_assertions_say_where() -> None:
    body = COUNT + "%o: tile<8xi1> = or %m, %m\nassert %o {message='not five'}"
    with pytest.raises(
        DeviceAssertionError, match=r"assertion failed at element \(5,\): not five"
    ) as caught:
        launch("%n: i32", body, 5, grid=(1, 2))
    assert caught.value.notes == ["program (0, 0, 0)"]


def test_printing(capsys: pytest.CaptureFixture[str]) -> None:
    body = "%a: tile<2xi16> = const {value=-2}\nprint [%a, %n] {prefix=' x: ', hex=True}\nprint [] {prefix=' here'}"
    launch("%n: i32", body, 255, grid=(1, 2))
    assert capsys.readouterr().out.splitlines()[5:] == [
        "pid (0, 1, 0) idx (1) x: (operand 0) 0xfffe",
        "pid (0, 1, 0) idx () x: (operand 1) 0x000000ff",
        "pid (0, 1, 0) here",
    ]


def test_uniform_values_are_computed_once_and_change_nothing() -> None:
    """Ops of arguments alone run once; what depends on the program or on memory runs in each."""
    x, out = np.arange(4, dtype=np.float32), np.zeros(4, np.float32)
    body = """%pid: i32 = program_id {axis=0}
      %two: fp32 = const {value=float('0x1.0p+1')}
      %xp: *fp32 = addptr %x, %pid
      %op: *fp32 = addptr %x2, %pid
      %v: fp32 = load %xp, _, _
      %w: fp32 = mul %v, %two
      store %op, %w, _"""
    launch("%x: *fp32, %x2: *fp32", body, x, out, grid=(4,))
    assert out.tolist() == [0, 2, 4, 6]


def test_a_module_needs_a_kernel() -> None:
    with pytest.raises(InterpreterError, match="the module has no kernel"):
        run(Module(), (1,), [])
