"""What ops mean: integer semantics, memory, atomics, reductions, descriptors, asynchronous copies, control flow."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tessera import dtypes as dt
from tessera.errors import DeviceAssertionError, InterpreterError, Loc
from tessera.interp import run
from tessera.interp.machine import Machine, kernel_of, run_program
from tessera.interp.memory import Memory
from tessera.interp.numerics import carrier
from tessera.ir import Builder, Module, TileType, parse_module, verify
from tessera.ops import (
    MATH_OPS,
    BitcastOp,
    ClzOp,
    DivOp,
    FuncOp,
    MulHiOp,
    PopcOp,
    PrintOp,
    RemOp,
    ReturnOp,
    ShlOp,
    ShrOp,
)
from tests.unit.op_samples import RING, SHARED


def launch(arguments: str, body: str, *args: Any, grid: tuple[int, ...] = (1,)) -> None:
    module = parse_module(
        f"module {{}} {{\nfunc {{name='k'}} ({arguments}) {{\n{body}\nreturn []\n}}\n}}\n"
    )
    verify(module)
    run(module, grid, args)


def apply(op: Any, result: Any, *values: tuple[dt.dtype, list[Any]]) -> list[Any]:
    """Evaluate one op on tiles; `result` is its type's element, None where the op infers it."""
    module, n = Module(), len(values[0][1])
    func = FuncOp(name="k")
    module.body.append(func)
    args = [func.body.add_arg(TileType((n,), t), "x") for t, _ in values]
    made = op(*args) if result is None else op(*args, results=[TileType((n,), result)])
    b = Builder(func.body)
    b.insert(PrintOp([b.emit(made)]))
    b.insert(ReturnOp())
    verify(module)
    machine = Machine(module, Memory(), (1, 1, 1))
    run_program(machine, kernel_of(module), [np.array(x, carrier(t)) for t, x in values], (0, 0, 0))
    return machine.values[made.result].tolist()


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


# --- memory -----------------------------------------------------------------------------------------------
def rows(name: str, n: int, offset: str = "%a") -> str:
    """Pointers `%{name}p` to n neighbouring elements of argument `%{name}`."""
    t = {"q": "i32", "x": "fp32", "h": "bf16", "b": "i1"}[name[0]]
    return f"%{name}s: tile<{n}x*{t}> = splat %{name}\n%{name}p: tile<{n}x*{t}> = addptr %{name}s, {offset}\n"


COUNT = (
    "%a: tile<8xi32> = arange {start=0, end=8}\n"
    "%ns: tile<8xi32> = splat %n\n"
    "%m: tile<8xi1> = cmp %a, %ns {predicate='lt'}\n"
)


def test_masked_accesses_touch_nothing_else() -> None:
    q, r = np.arange(5, dtype=np.int32), np.full(5, -1, np.int32)
    body = (
        COUNT
        + rows("q", 8)
        + rows("q2", 8)
        + "%v: tile<8xi32> = load %qp, %m, _\nstore %q2p, %v, %m"
    )
    launch("%q: *i32, %q2: *i32, %n: i32", body, q, r, 3)
    assert r.tolist() == [0, 1, 2, -1, -1]
    body = COUNT + rows("q", 8) + "%v: tile<8xi32> = load %qp, %m, %a\nprint [%v]"
    with pytest.raises(InterpreterError, match="load out of bounds: element 5"):
        launch("%q: *i32, %n: i32", body, q, 6)


def test_what_masked_off_lanes_read(capsys: pytest.CaptureFixture[str]) -> None:
    x = np.array([5, 6], np.float32)
    body = (
        COUNT + rows("x", 8) + "%v: tile<8xfp32> = load %xp, %m, _\n%o: tile<8xfp32> = cast %ns\n"
    )
    launch("%x: *fp32, %n: i32", body + "%w: tile<8xfp32> = load %xp, %m, %o\nprint [%v, %w]", x, 2)
    shown = [line.rsplit(")", 1)[1] for line in capsys.readouterr().out.splitlines()]
    assert [" ".join(s.split()) for s in shown] == [
        "5.0",
        "6.0",
        *["0.0"] * 6,
        "5.0",
        "6.0",
        *["2.0"] * 6,
    ]


def test_out_of_bounds_accesses_name_the_argument() -> None:
    x, other = np.zeros(8, np.float32), np.zeros(4096, np.float32)
    body = "%y: *fp32 = addptr %x, %n\nstore %y, %f, _"
    arguments = "%x: *fp32, %z: *fp32, %n: i32, %f: fp32"
    launch(arguments, body, x, other, 7, 1.5)
    assert x[7] == 1.5
    with pytest.raises(InterpreterError, match="store out of bounds") as caught:
        launch(arguments, body, x, other, 8, 1.5)
    assert "0 bytes past the end of argument `x` (32 bytes)" in caught.value.message
    assert caught.value.notes == ["program (0, 0, 0)"] and "guard the access with a mask" in str(
        caught.value
    )
    with pytest.raises(InterpreterError, match="4 bytes before argument `x`"):
        launch(arguments, body, x, other, -1, 1.5)
    with pytest.raises(InterpreterError, match="load out of bounds"):
        launch("%x: *fp32", "%v: fp32 = load %x, _, _\nprint [%v]", None)


def test_views_reach_their_whole_storage() -> None:
    base = np.arange(10, dtype=np.float32)
    body = "%y: *fp32 = addptr %x, %n\nstore %y, %f, _"
    launch("%x: *fp32, %n: i32, %f: fp32", body, base[4:6][::-1], 3, -1.0)
    assert base[8] == -1.0


def test_errors_carry_the_location() -> None:
    module = parse_module(
        "module {}{\nfunc {name='k'} (%x: *fp32) {\n%v: fp32 = load %x, _, _\nprint [%v]\nreturn []\n}\n}\n"
    )
    (load,) = (op for op in module.walk() if op.opcode == "load")
    load.loc = Loc("kernel.py", 3)
    with pytest.raises(InterpreterError) as caught:
        run(module, (1,), [np.zeros(0, np.float32)])
    assert caught.value.loc == Loc("kernel.py", 3)


def test_unaligned_accesses_are_refused() -> None:
    raw = np.zeros(16, np.uint8)
    body = "%y: *i32 = bitcast %x\n%v: i32 = load %y, _, _\nprint [%v]"
    with pytest.raises(InterpreterError, match="not a multiple of 4 bytes"):
        launch("%x: *u8", body, raw[raw.ctypes.data % 4 + 1 :])


def test_raw_addresses_are_trusted_but_null() -> None:
    x = np.array([1, 2], np.float32)
    body = "%v: fp32 = load %x, _, _\n%y: *fp32 = addptr %x, %o\nstore %y, %v, _"
    launch("%x: *fp32, %o: i32", body, x.ctypes.data, 1)
    assert x.tolist() == [1.0, 1.0]
    with pytest.raises(InterpreterError, match="out of bounds"):
        launch("%x: *fp32, %o: i32", body, 0, 1)


def test_pointers_from_memory() -> None:
    x = np.array([0, 7], np.float32)
    table, out = np.array([x.ctypes.data + 4], np.int64), np.zeros(1, np.float32)
    body = "%p: *fp32 = load %t, _, _\n%v: fp32 = load %p, _, _\nstore %o, %v, _"
    launch("%t: **fp32, %o: *fp32", body, table, out)
    assert out[0] == 7.0


def test_bf16_and_bool_in_memory() -> None:
    h, b = np.array([0x3F80, 0x7FC1], np.uint16), np.zeros(2, np.uint8)
    body = "%a: tile<2xi32> = arange {start=0, end=2}\n" + rows("h", 2) + rows("b", 2) + (
        "%v: tile<2xbf16> = load %hp, _, _\n%n: tile<2xi1> = isnan %v\nstore %bp, %n, _\n"
        "%w: tile<2xbf16> = add %v, %v\nstore %hp, %w, _"
    )  # fmt: skip
    launch("%h: *bf16, %b: *i1", body, h, b)
    assert b.tolist() == [0, 1] and h[0] == 0x4000 and h[1] & 0x7FC0 == 0x7FC0


# --- atomics ----------------------------------------------------------------------------------------------
def test_atomics_on_one_address_see_each_other() -> None:
    """Row-major order: the old values of an add are the prefix sums."""
    counter, old = np.array([100, 0], np.int32), np.zeros(8, np.int32)
    body = (
        COUNT
        + rows("q", 8, "%z")
        + rows("q2", 8)
        + "%o: tile<8xi32> = atomic_rmw %qp, %a, %m {kind='add'}\nstore %q2p, %o, _"
    )
    launch(
        "%q: *i32, %q2: *i32, %n: i32",
        "%z: tile<8xi32> = const {value=0}\n" + body,
        counter,
        old,
        5,
    )
    assert counter.tolist() == [110, 0] and old.tolist() == [100, 100, 101, 103, 106, 0, 0, 0]


@pytest.mark.parametrize(
    ("kind", "expected"),
    [("add", 15), ("max", 9), ("min", 0), ("and", 0), ("or", 11), ("xor", 9), ("xchg", 3)],
)
def test_kinds_of_atomics(kind: str, expected: int) -> None:
    """9, then 0, 1, 2, 3 on one address."""
    q = np.array([9], np.int32)
    body = "%z: tile<4xi32> = const {value=0}\n%a: tile<4xi32> = arange {start=0, end=4}\n"
    atomic = f"%o: tile<4xi32> = atomic_rmw %qp, %a, _ {{kind='{kind}'}}"
    launch("%q: *i32", body + rows("q", 4, "%z") + atomic, q)
    assert q[0] == expected


def test_unsigned_and_float_atomics() -> None:
    u, x = np.array([1], np.uint32), np.array([1.5], np.float32)
    launch("%u: *u32, %v: u32", "%o: u32 = atomic_rmw %u, %v, _ {kind='max'}", u, 2**32 - 1)
    assert u[0] == 2**32 - 1
    launch("%x: *fp32, %v: fp32", "%o: fp32 = atomic_rmw %x, %v, _ {kind='add'}", x, 0.25)
    assert x[0] == 1.75


def test_compare_and_swap() -> None:
    q = np.array([5, 5, 6, 5], np.int32)
    body = "%a: tile<4xi32> = arange {start=0, end=4}\n" + rows("q", 4) + (
        "%e: tile<4xi32> = const {value=5}\n%o: tile<4xi32> = atomic_cas %qp, %e, %a"
    )  # fmt: skip
    launch("%q: *i32", body, q)
    assert q.tolist() == [0, 1, 6, 3]
    x = np.array([-0.0], np.float32)  # compared bit for bit
    launch("%x: *fp32, %e: fp32, %v: fp32", "%o: fp32 = atomic_cas %x, %e, %v", x, 0.0, 1.0)
    assert str(x[0]) == "-0.0"


# --- tiles ------------------------------------------------------------------------------------------------
def evaluate(body: str, arguments: str, *values: Any) -> dict[str, np.ndarray]:
    """Values by name after running a kernel whose arguments may be tiles."""
    module = parse_module(
        f"module {{}} {{\nfunc {{name='k'}} ({arguments}) {{\n{body}\nreturn []\n}}\n}}\n"
    )
    verify(module)
    machine = Machine(module, Memory(), (1, 1, 1))
    run_program(machine, kernel_of(module), values, (0, 0, 0))
    return {v.name: x for v, x in machine.values.items()}


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


# --- descriptors ------------------------------------------------------------------------------------------
DESC = "%d: desc<4x4xfp32> = make_descriptor %x, [%n0, %n1], [%s0, %s1] {block_shape=[4, 4], padding='PAD'}\n"
DESC_ARGS = "%x: *fp32, %x2: *fp32, %n0: i32, %n1: i32, %s0: i64, %s1: i64, %i: i32, %j: i32"
COPY_OUT = """%t: tile<4x4xfp32> = descriptor_load %d, [%i, %j]
%e: desc<4x4xfp32> = make_descriptor %x2, [%n0, %n1], [%s0, %s1] {block_shape=[4, 4]}
descriptor_store %e, [%i, %j], %t {kind='KIND'}"""


@pytest.mark.parametrize(("i", "j"), [(0, 0), (4, 4), (-2, 3), (5, 6)])
def test_descriptors_clip(i: int, j: int) -> None:
    x, y = np.arange(42, dtype=np.float32).reshape(6, 7), np.full((6, 7), -1, np.float32)
    launch(
        DESC_ARGS,
        (DESC + COPY_OUT).replace("PAD", "zero").replace("KIND", "store"),
        x,
        y,
        6,
        7,
        7,
        1,
        i,
        j,
    )
    expected = np.full((6, 7), -1, np.float32)
    block = (slice(max(i, 0), max(i + 4, 0)), slice(max(j, 0), max(j + 4, 0)))
    expected[block] = x[block]
    assert np.array_equal(y, expected)


def test_padding_and_reduction_of_descriptors(capsys: pytest.CaptureFixture[str]) -> None:
    x, y = np.ones((4, 4), np.float32), np.ones((4, 4), np.float32)
    launch(
        DESC_ARGS,
        (DESC + COPY_OUT).replace("PAD", "nan").replace("KIND", "add"),
        x,
        y,
        4,
        4,
        4,
        1,
        2,
        0,
    )
    assert np.array_equal(y, [[1] * 4] * 2 + [[2] * 4] * 2)
    shown = "%t: tile<4x4xfp32> = descriptor_load %d, [%i, %j]\nprint [%t]"
    launch(DESC_ARGS, (DESC + shown).replace("PAD", "nan"), x, y, 4, 4, 4, 1, 3, 0)
    assert capsys.readouterr().out.count("nan") == 12


# --- the GPU level ----------------------------------------------------------------------------------------
ASYNC_ARGS = "%p: tile<4x8x*fp32>"
FETCH = f"%s: {SHARED} = local_alloc _\n%k: token = async_copy %p, %s, _, _\n%c: token = async_commit [%k]\n"


def fetch(body: str) -> dict[str, np.ndarray]:
    x = np.arange(32, dtype=np.float32).reshape(4, 8)
    address = x.ctypes.data + 4 * np.arange(32).reshape(4, 8)
    module = parse_module(
        f"module {{}} {{\nfunc {{name='k'}} ({ASYNC_ARGS}) {{\n{body}\nreturn []\n}}\n}}\n"
    )
    verify(module)
    machine = Machine(module, Memory(open=True), (1, 1, 1))
    run_program(machine, kernel_of(module), [address], (0, 0, 0))
    return {
        v.name: np.asarray(v2) for v, v2 in machine.values.items() if isinstance(v2, np.ndarray)
    }


def test_a_missing_wait_shows() -> None:
    early = fetch(FETCH + "%v: tile<4x8xfp32> = local_load %s, _")["v"]
    assert np.isnan(early).all()
    waited = (
        FETCH
        + "%w: token = async_wait [%c] {pending=PENDING}\n%v: tile<4x8xfp32> = local_load %s, %w"
    )
    assert np.array_equal(fetch(waited.replace("PENDING", "0"))["v"], np.arange(32).reshape(4, 8))
    assert np.isnan(fetch(waited.replace("PENDING", "1"))["v"]).all()


def test_groups_land_in_order() -> None:
    body = f"%r: {RING} = local_alloc _\n"
    for i in range(3):
        body += (
            f"%i{i}: i32 = const {{value={i}}}\n%s{i}: {SHARED} = local_index %r, %i{i}\n"
            f"%k{i}: token = async_copy %p, %s{i}, _, _\n%c{i}: token = async_commit [%k{i}]\n"
        )
    body += "%w: token = async_wait [] {pending=1}\n"
    body += "".join(f"%v{i}: tile<4x8xfp32> = local_load %s{i}, _\n" for i in range(3))
    got = fetch(body)
    assert [bool(np.isnan(got[f"v{i}"]).any()) for i in range(3)] == [False, False, True]


def test_copies_not_committed_never_land() -> None:
    body = (
        FETCH.rsplit("%c:", 1)[0]
        + "%w: token = async_wait [] {pending=0}\n%v: tile<4x8xfp32> = local_load %s, _"
    )
    assert np.isnan(fetch(body)["v"]).all()


def test_rings_have_bounds() -> None:
    body = f"%r: {RING} = local_alloc _\n%i: i32 = const {{value=3}}\n%s: {SHARED} = local_index %r, %i\n"
    with pytest.raises(InterpreterError, match="buffer 3 of a ring of 3"):
        fetch(body + "%v: tile<4x8xfp32> = local_load %s, _")


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
