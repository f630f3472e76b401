"""Loads and stores, atomics, descriptors, asynchronous copies."""

from __future__ import annotations

import numpy as np
import pytest

from tessera.errors import InterpreterError, Loc
from tessera.interp import run
from tessera.interp.machine import Machine, kernel_of, run_program
from tessera.interp.memory import Memory
from tessera.ir import parse_module, verify
from tests.unit.interp_kit import COUNT, launch, rows
from tests.unit.op_samples import RING, SHARED


# --- memory -----------------------------------------------------------------------------------------------
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
    with pytest.raises(InterpreterError, match=r"load out of bounds: element \(5\) of the tile"):
        launch("%q: *i32, %n: i32", body, q, 6)


def test_what_masked_off_lanes_read(capsys: pytest.CaptureFixture[str]) -> None:
    x = np.array([5, 6], np.float32)
    body = (
        COUNT + rows("x", 8) + "%v: tile<8xfp32> = load %xp, %m, _\n%o: tile<8xfp32> = cast %ns\n"
    )
    launch("%x: *fp32, %n: i32", body + "%w: tile<8xfp32> = load %xp, %m, %o\nprint [%v, %w]", x, 2)
    shown = [line.rsplit(")", 1)[1] for line in capsys.readouterr().out.splitlines()]
    assert [" ".join(s.split()) for s in shown] == [
        "5.000000",
        "6.000000",
        *["0.000000"] * 6,
        "5.000000",
        "6.000000",
        *["2.000000"] * 6,
    ]


def test_out_of_bounds_accesses_name_the_argument() -> None:
    x, other = np.zeros(8, np.float32), np.zeros(4096, np.float32)
    body = "%y: *fp32 = addptr %x, %n\nstore %y, %f, _"
    arguments = "%x: *fp32, %z: *fp32, %n: i32, %f: fp32"
    launch(arguments, body, x, other, 7, 1.5)
    assert x[7] == 1.5
    with pytest.raises(InterpreterError, match="store out of bounds") as caught:
        launch(arguments, body, x, other, 8, 1.5)
    assert caught.value.message.endswith("it is at element 8 of `x`, whose storage ends after 7")
    assert caught.value.notes == ["program (0, 0, 0)"] and "guard the access with a mask" in str(
        caught.value
    )
    with pytest.raises(InterpreterError, match="it is at element -1 of `x`"):
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
FETCH = f"%s: {SHARED} = local_alloc _\n%k: token = async_copy %p, %s, _, _, _\n%c: token = async_commit [%k]\n"


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
            f"%k{i}: token = async_copy %p, %s{i}, _, _, _\n%c{i}: token = async_commit [%k{i}]\n"
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
