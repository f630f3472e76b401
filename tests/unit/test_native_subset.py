"""The native subset: what its functions compute, and what its compiler refuses."""

from __future__ import annotations

import ctypes
import math
import platform
from collections.abc import Callable
from typing import Annotated, Any, cast

import pytest
import rejected_native_functions as bad

from tessera.backends.llvm.binding import host, link_object, optimise
from tessera.backends.llvm.subset import (
    Pointer,
    Struct,
    address,
    array,
    atomic_add,
    atomic_load,
    atomic_store,
    compare_exchange,
    external,
    f32,
    f64,
    i8,
    i16,
    i32,
    i64,
    integer,
    item,
    local,
    memcpy,
    memset,
    native,
    u8,
    u16,
    u64,
    u128,
    variable,
)
from tessera.backends.llvm.subset_compiler import compile_functions
from tessera.backends.llvm.subset_types import SubsetError, layout, offset_of, words_of

THREE = 3
LITTLE = platform.machine() in ("x86_64", "aarch64")
count = variable(i32)
last = variable(object)
INTEGER, REAL = ctypes.c_int64, ctypes.c_double


class Level:
    LOW, HIGH = 1, 10


class Node(Struct):
    next: Node | None
    value: i64


class Mixed(Node):
    flag: bool
    small: Annotated[Pointer[i16], THREE]
    apply: Callable[[i64, f64], f64]


@external
def abs(x: i32) -> i32: ...
@external
def snprintf(to: Pointer[i8], size: i64, text: bytes, *values: object) -> i32: ...
@external(symbol="llvm.ctpop.i64")
def ones(x: i64) -> i64: ...


def run(function: Any, *args: Any, result: Any = INTEGER) -> Any:
    """Compile `function`, which must be exported, and call it; arguments are int, float or ctypes arrays."""
    text = compile_functions(function)
    code = link_object(
        optimise(text, host(), "inline,sroa", verify=True).to_object(), [function.__name__]
    )
    kinds = [
        INTEGER if isinstance(x, int) else REAL if isinstance(x, float) else ctypes.c_void_p for x in args
    ]  # fmt: skip
    return ctypes.CFUNCTYPE(result, *kinds)(code[function.__name__])(*args)


# --- values ----------------------------------------------------------------------------------------------------------
@native(exported=True)
def integers(x: i64, out: Pointer[i64]) -> None:
    out[0] = x * 7 - 2
    out[1] = x >> 1
    out[2] = i64(u64(x) >> 1)
    out[3] = i64(u64(x) // 10)
    out[4] = i64(u64(x) % 10)
    out[5] = ~x & 0xFF | 1 << 20 ^ THREE
    out[6] = i64(i8(x))
    out[7] = i64(u8(x))
    out[8] = i64(u64(x) < 5) + i64(x < 5) * 2
    out[9] = i64(u16(i32(x)))
    out[10] = -x
    out[11] = i64(u128(u64(x)) * u128(u64(x)) >> 64)
    out[12] = i64(Level.HIGH if x < 0 else Level.LOW)
    out[13] = i64(x == -11) + i64(x != -11) * 2 + i64(-12 <= x < -10) * 4


def test_integers():
    out = (INTEGER * 14)()
    x = -11
    run(integers, x, out)
    u = x % (1 << 64)
    expected = [
        x * 7 - 2, x >> 1, u >> 1, u // 10, u % 10, (~x & 0xFF) | (1 << 20 ^ 3), -11, 245, 2, 65525, 11,
        (u * u >> 64) - (1 << 64), 10, 5,
    ]  # fmt: skip
    assert list(out) == expected


@native(exported=True)
def reals(x: f64, out: Pointer[f64]) -> f64:
    out[0] = x / 3.0 - 1.0
    out[1] = f64(f32(x))
    cast(Pointer[f32], integer(out))[4] = f32(0.1)
    out[3] = 1.0 if x < 0.5 else -x * 2.0
    out[4] = -(x * 0.0)
    return x + 1


def test_reals():
    out = (REAL * 5)()
    assert run(reals, 0.1, out, result=REAL) == 1.1
    assert math.copysign(1, out[4]) == -1
    assert list(out)[:2] == [0.1 / 3 - 1, ctypes.c_float(0.1).value] and out[3] == 1
    assert ctypes.cast(out, ctypes.POINTER(ctypes.c_float))[4] == ctypes.c_float(0.1).value


# --- control flow ----------------------------------------------------------------------------------------------------
@native
def collatz(n: i64) -> i64:
    steps = 0
    while n != 1:
        steps += 1
        if u64(n) % 2 == 0:
            n = n >> 1
            continue
        n = 3 * n + 1
    return steps


@native(exported=True)
def longest(most: i64) -> i64:
    best = found = 0
    for i in range(1, most):
        steps = collatz(i)
        if steps > best:
            best = steps
            found = i
    return found


def test_loops_and_calls():
    def steps(n: int) -> int:
        return 0 if n == 1 else 1 + steps(3 * n + 1 if n % 2 else n // 2)

    assert run(longest, 200) == max(range(1, 200), key=steps)


@native(exported=True)
def primes(n: i64) -> i64:
    found = 0
    for i in range(2, n):
        d = 2
        while True:
            if d * d > i:
                found += 1
                break
            if u64(i) % u64(d) == 0:
                break
            d += 1
    return found


def test_endless_loops_end():
    assert run(primes, 100) == 25


@native
def note(at: Pointer[i64], answer: bool) -> bool:
    at[0] += 1
    return answer


@native(exported=True)
def short(at: Pointer[i64], x: i64) -> i64:
    found = note(at, x == 1) and (note(at, x == 2) or not note(at, x == 3))
    if (x > 5 or note(at, True)) and not found:
        return 100
    return 200 if found else 300


def test_conditions_evaluate_what_they_need():
    calls = (INTEGER * 1)()
    for x, result, evaluated in ((1, 200, 4), (2, 100, 2), (9, 100, 1)):
        calls[0] = 0
        assert (run(short, calls, x), calls[0]) == (result, evaluated)


@native(exported=True)
def of_the_machine() -> i64:
    if LITTLE:
        return 1
    else:
        return total(3)  # type: ignore[arg-type]  never compiled


@pytest.mark.skipif(not LITTLE, reason="another machine")
def test_only_the_branch_of_a_known_condition_is_compiled():
    assert run(of_the_machine) == 1


# --- memory ----------------------------------------------------------------------------------------------------------
@native
def total(node: Node | None) -> i64:
    found = 0
    while node is not None:
        found += node.value
        node = node.next
    return found


@native
def scaled(x: i64, y: f64) -> f64:
    return y * 2.0 if x == 1 else y


@native(exported=True)
def structures(n: i64, out: Pointer[f64]) -> i64:
    first = cast(Node, array(i64, 2 * n))
    for i in range(n):
        node = item(first, i)
        node.value = i
        node.next = item(first, i + 1) if i < n - 1 else None
    mixed = local(Mixed)
    mixed.next = first
    mixed.value = 1000
    mixed.flag = n == 4
    mixed.apply = scaled
    memset(mixed.small, -1, 6)
    mixed.small[1] = 5
    copy = local(Mixed)
    memcpy(copy, mixed, 40)
    address(mixed.value)[0] += 1
    out[0] = copy.apply(1, 1.5)
    if copy.flag and (rest := copy.next) is not None:
        return total(copy) + total(rest) * 10000 + i64(copy.small[1] + copy.small[2])
    return -1


def test_structures():
    out = (REAL * 1)()
    assert run(structures, 4, out) == 1000 + 6 + 6 * 10000 + 4
    assert out[0] == 3.0


def test_layouts_are_those_of_c():
    class C(ctypes.Structure):
        _fields_ = [
            ("next", ctypes.c_void_p), ("value", INTEGER), ("flag", ctypes.c_bool), ("small", ctypes.c_int16 * 3),
            ("apply", ctypes.c_void_p),
        ]  # fmt: skip

    found = layout(Mixed)
    assert found.size == ctypes.sizeof(C)
    assert {name: offset_of(Mixed, name) for name in found.fields} == {
        name: getattr(C, name).offset for name, *_ in C._fields_
    }
    assert list(words_of(Node, {"value": -1, "next": 3})) == [3, (1 << 64) - 1]


@native(exported=True)
def c_functions(out: Pointer[i8]) -> i64:
    where = b"left" if abs(-3) == 3 else b"right"
    written = snprintf(out, 32, b'%s "%ld"', where, ones(255))
    return i64(written)


def test_functions_of_c():
    text = ctypes.create_string_buffer(32)
    assert run(c_functions, text) == len(text.value)
    assert text.value == b'left "8"'


@native(exported=True)
def atomics(at: Pointer[i64]) -> i64:
    before = atomic_add(count, 2, "seq_cst")
    atomic_store(at, 7, "release")
    won = compare_exchange(at, 7, 9, "acq_rel", "acquire")
    lost = compare_exchange(at, 7, 11, "acq_rel", "acquire")
    last[0] = at
    return i64(before + atomic_load(count, "acquire")) * 10 + i64(won and not lost)


def test_atomic_accesses_and_variables():
    at = (INTEGER * 1)()
    assert run(atomics, at) == 21
    assert at[0] == 9


# --- errors ----------------------------------------------------------------------------------------------------------
REFUSED = [
    (bad.mixes, 1, "i64 and i32 are different types"),
    (bad.no_value, 0, "the end of the function is reached without a value"),
    (bad.divides, 1, "there is no FloorDiv of i64"),
    (bad.no_field, 1, "Node has no field missing"),
    (bad.too_few, 1, "takes 1 arguments, not 0"),
    (bad.wrong_argument, 1, "Node stands where i64 is wanted"),
    (bad.too_large, 1, "300 is no i8"),
    (bad.unknown, 1, "nothing_of_the_kind is not known"),
    (bad.no_statement, 1, "With is no statement of the native subset"),
    (bad.no_expression, 1, r"\[x\] is no expression of the native subset"),
    (bad.no_type, 0, r"list\[int\] is no type of the native subset"),
    (bad.not_native, 1, "run is not known"),
    (bad.changes_type, 2, "1.5 is no i64"),
    (bad.loops_over, 1, "a for loop has one variable, over range"),
    (bad.null_number, 1, "None is no i64"),
]


@pytest.mark.parametrize(
    ("function", "line", "message"), REFUSED, ids=[f.__name__ for f, *_ in REFUSED]
)
def test_refused(function: Any, line: int, message: str):
    """`line`: after that of `def`, which follows the decorator."""
    at = function.__code__.co_firstlineno + 1 + line if line else r"\d+"
    with pytest.raises(SubsetError, match=f"rejected_native_functions.py:{at}: .*{message}"):
        compile_functions(function)
