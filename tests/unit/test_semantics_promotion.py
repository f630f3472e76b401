"""Promotion, cell by cell, against the tables measured on the reference implementation."""

from __future__ import annotations

import pytest

import tessera.language as tl
from tessera import dtypes
from tessera.errors import CompilationError, ShapeMismatch, TypeMismatch
from tessera.frontend.semantics import math as sem_math
from tessera.frontend.semantics.type_promotion import as_constant, dtype_of_number
from tests.unit.semantics_kit import DTYPES, arg, call, front_end, ops, static

INTS = ["i1", "i8", "u8", "i16", "u16", "i32", "u32", "i64", "u64"]
FLOATS = ["e5", "e4nv", "f16", "bf16", "f32", "f64"]

# rows: left operand; columns: INTS
INT_TABLE = {
    "i1": "i1 i8 u8 i16 u16 i32 u32 i64 u64",
    "i8": "i8 i8 u8 i16 u16 i32 u32 i64 u64",
    "u8": "u8 u8 u8 i16 u16 i32 u32 i64 u64",
    "i16": "i16 i16 i16 i16 u16 i32 u32 i64 u64",
    "u16": "u16 u16 u16 u16 u16 i32 u32 i64 u64",
    "i32": "i32 i32 i32 i32 i32 i32 u32 i64 u64",
    "u32": "u32 u32 u32 u32 u32 u32 u32 i64 u64",
    "i64": "i64 i64 i64 i64 i64 i64 i64 i64 u64",
    "u64": "u64 u64 u64 u64 u64 u64 u64 u64 u64",
}
# rows: left operand; columns: any int, then FLOATS ("-": an error)
FLOAT_TABLE = {
    "e5": "- e5 f16 f16 f32 f32 f64",
    "e4nv": "- f16 e4nv f16 f32 f32 f64",
    "f16": "f16 f16 f16 f16 f16 f32 f64",
    "bf16": "f32 f32 f32 f16 bf16 f32 f64",
    "f32": "f32 f32 f32 f32 f32 f32 f64",
    "f64": "f64 f64 f64 f64 f64 f64 f64",
}
ADD = {(a, b): c for a, row in INT_TABLE.items() for b, c in zip(INTS, row.split(), strict=True)}
for _a, _row in FLOAT_TABLE.items():
    _with_int, *_with_float = _row.split()
    ADD |= {(_a, b): c for b, c in zip(FLOATS, _with_float, strict=True)}
    ADD |= {(_a, b): _with_int for b in INTS} | {(b, _a): _with_int for b in INTS}

pairs = pytest.mark.parametrize(("a", "b"), list(ADD))


def result(op: str, a: object, b: object) -> dtypes.dtype | None:
    """The dtype of `a op b` for tiles of the named dtypes; None for an error."""
    fe = front_end()
    x = arg(fe, a, 16) if isinstance(a, str) else static(a)
    y = arg(fe, b, 16) if isinstance(b, str) else static(b)
    try:
        return sem_math.binary(fe, op, x, y).dtype
    except TypeMismatch:
        return None


def named(name: str) -> dtypes.dtype | None:
    return None if name == "-" else DTYPES[name]


@pairs
@pytest.mark.parametrize("op", ["+", "-", "*"])
def test_arithmetic(op: str, a: str, b: str):
    assert result(op, a, b) is named(ADD[a, b])


def division(a: str, b: str) -> dtypes.dtype | None:
    x, y = DTYPES[a], DTYPES[b]
    if x.is_int() and y.is_int():
        return dtypes.float32 if x.signed == y.signed else None
    added = named(ADD[a, b])
    halves = {dtypes.float16, dtypes.bfloat16} & {x, y}
    return dtypes.float32 if halves and added in (dtypes.float16, dtypes.bfloat16) else added


@pairs
def test_true_division(a: str, b: str):
    assert result("/", a, b) is division(a, b)


@pairs
def test_floor_division_is_for_ints_of_one_signedness(a: str, b: str):
    x, y = DTYPES[a], DTYPES[b]
    allowed = x.is_int() and y.is_int() and x.signed == y.signed
    assert result("//", a, b) is (named(ADD[a, b]) if allowed else None)


@pairs
def test_remainder(a: str, b: str):
    x, y = DTYPES[a], DTYPES[b]
    if x.is_int() and y.is_int():
        assert result("%", a, b) is (named(ADD[a, b]) if x.signed == y.signed else None)
    else:
        assert result("%", a, b) is division(a, b)


@pairs
@pytest.mark.parametrize("op", ["&", "|", "^", "<<", ">>"])
def test_bitwise_is_for_ints(op: str, a: str, b: str):
    both = DTYPES[a].is_int() and DTYPES[b].is_int()
    assert result(op, a, b) is (named(ADD[a, b]) if both else None)


@pairs
def test_comparison(a: str, b: str):
    fe = front_end()
    x, y = arg(fe, a, 16), arg(fe, b, 16)
    if ADD[a, b] == "-":
        with pytest.raises(TypeMismatch, match="unexpected type"):
            sem_math.compare(fe, "<", x, y)
    else:
        assert sem_math.compare(fe, "<", x, y).dtype is dtypes.int1


@pairs
def test_where_and_extrema_promote_like_addition(a: str, b: str):
    want = named(ADD[a, b])
    fe = front_end()
    x, y, c = arg(fe, a, 16), arg(fe, b, 16), arg(fe, "i1", 16)
    if want is None:
        with pytest.raises(TypeMismatch):
            call(fe, tl.where, c, x, y)
        return
    assert call(fe, tl.where, c, x, y).dtype is want
    widened = dtypes.float32 if want is dtypes.bfloat16 else want
    assert call(fe, tl.maximum, x, y).dtype is widened
    assert call(fe, tl.minimum, x, y).dtype is widened


# a tensor of the left dtype op a number: (dtype, number, dtype of +, dtype of /)
WEAK = [
    ("i8", 1, "i8", "f32"), ("i8", True, "i8", "f32"), ("i8", 1.0, "f32", "f32"), ("u8", 255, "u8", "f32"),
    ("i64", 1.0, "f32", "f32"), ("i1", 1, "i32", "-"), ("i1", True, "i1", "f32"), ("i1", 0.5, "f32", "f32"),
    ("f16", 0.5, "f16", "f32"), ("f16", 1, "f16", "f32"), ("bf16", 1, "bf16", "f32"), ("bf16", 2.0, "bf16", "f32"),
    ("e5", 1.0, "e5", "e5"), ("e4nv", 1, "e4nv", "e4nv"), ("f32", 2**40, "f32", "f32"), ("f32", 1e300, "f32", "f32"),
    ("f64", 1, "f64", "f64"), ("u64", 2**63, "u64", "f32"), ("i32", 2**31 - 1, "i32", "f32"),
]  # fmt: skip


@pytest.mark.parametrize(("a", "number", "added", "divided"), WEAK)
def test_numbers_are_weak_in_operators(a: str, number: object, added: str, divided: str):
    for shape in ((16,), ()):
        fe = front_end()
        assert sem_math.binary(fe, "+", arg(fe, a, *shape), static(number)).dtype is named(added)
        assert sem_math.binary(fe, "+", static(number), arg(fe, a, *shape)).dtype is named(added)
    assert result("*", a, number) is named(added)
    assert result("/", a, number) is named(divided)


STRONG = [
    ("f16", 0.0, "f32"), ("f16", 0, "f16"), ("i8", 0, "i32"), ("bf16", 0.0, "f32"), ("bf16", 0, "f32"),
    ("f64", 0.0, "f64"),
]  # fmt: skip


@pytest.mark.parametrize(("a", "number", "want"), STRONG)
def test_numbers_are_strong_in_maximum(a: str, number: object, want: str):
    fe = front_end()
    assert call(fe, tl.maximum, arg(fe, a, 16), number).dtype is named(want)


def test_unsigned_comparison_with_a_negative_number_is_unsigned():
    fe = front_end()
    sem_math.compare(fe, "<", arg(fe, "u32", 4), static(-1))
    assert fe.builder.block is not None
    constants = [op for op in fe.builder.block if op.opcode == "const"]
    assert [c.attrs["value"] for c in constants] == [0xFFFFFFFF]


def test_scalars_that_are_tensors_are_strong():
    fe = front_end()
    assert sem_math.binary(fe, "*", arg(fe, "f16", 16), arg(fe, "f32")).dtype is dtypes.float32
    assert sem_math.binary(fe, "+", arg(fe, "i8", 16), arg(fe, "i32")).dtype is dtypes.int32


@pytest.mark.parametrize(
    ("a", "number", "text"),
    [
        ("i8", 300, "Scalar 300 is out of range for type int8"),
        ("u8", 256, "Scalar 256 is out of range for type uint8"),
        ("i32", 2**31, "Scalar 2147483648 is out of range for type int32"),
        (
            "u32",
            -1,
            "Cannot perform a binary operation between an unsigned tensor and a negative scalar",
        ),
    ],
)
def test_numbers_that_do_not_fit(a: str, number: int, text: str):
    fe = front_end()
    with pytest.raises(CompilationError, match=text):
        sem_math.binary(fe, "+", arg(fe, a, 16), static(number))


@pytest.mark.parametrize(
    ("number", "want"),
    [
        (True, "i1"), (0, "i32"), (-(2**31), "i32"), (2**31, "u32"), (2**32 - 1, "u32"), (2**32, "i64"),
        (-(2**31) - 1, "i64"),
        (2**63, "u64"), (0.0, "f32"), (float("inf"), "f32"), (float("nan"), "f32"), (1.5, "f32"), (2.0**-126, "f32"),
        (2.0**-127, "f64"), (3.5e38, "f64"),
    ],
)  # fmt: skip
def test_default_dtype_of_numbers(number: object, want: str):
    assert dtype_of_number(number) is named(want)  # type: ignore[arg-type]


def test_numbers_beyond_64_bits():
    with pytest.raises(CompilationError, match="Nonrepresentable integer 18446744073709551616"):
        dtype_of_number(2**64)


@pytest.mark.parametrize(
    ("number", "to", "want"),
    [
        (300.7, "i32", 300), (-1, "u8", 255), (200, "i8", -56), (0.1, "f32", 0.10000000149011612),
        (1e6, "f16", float("inf")),
        (-1e6, "f16", float("-inf")), (1.0 + 2**-8, "bf16", 1.0), (1.0 + 3 * 2**-8, "bf16", 1.015625), (2, "i1", True),
        (0.0, "i1", False), (float("inf"), "i32", 0), (3, "f64", 3.0),
    ],
)  # fmt: skip
def test_constants_of_a_dtype(number: object, to: str, want: object):
    got = as_constant(number, DTYPES[to])  # type: ignore[arg-type]
    assert got == want
    assert type(got) is type(want)


# --- shapes and pointers ------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("a", "b", "want"),
    [
        ((), (4,), (4,)),
        ((4, 1), (8,), (4, 8)),
        ((1, 8), (4, 1), (4, 8)),
        ((8,), (2, 4, 8), (2, 4, 8)),
    ],
)
def test_broadcasting(a: tuple[int, ...], b: tuple[int, ...], want: tuple[int, ...]):
    fe = front_end()
    assert sem_math.binary(fe, "+", arg(fe, "f32", *a), arg(fe, "f32", *b)).dims == want


def test_shapes_that_do_not_broadcast():
    fe = front_end()
    text = "Cannot make_shape_compatible: incompatible dimensions at index 1: 4 and 8"
    with pytest.raises(ShapeMismatch, match=text):
        sem_math.binary(fe, "+", arg(fe, "f32", 2, 4), arg(fe, "f32", 2, 8))


@pytest.mark.parametrize("offset", INTS)
def test_pointers_take_offsets_of_any_integer_dtype(offset: str):
    fe = front_end()
    p, i = arg(fe, "*f16"), arg(fe, offset, 32)
    for moved in (
        sem_math.binary(fe, "+", p, i),
        sem_math.binary(fe, "+", i, p),
        sem_math.binary(fe, "-", p, i),
    ):
        assert moved.dims == (32,)
        assert moved.dtype == p.dtype


@pytest.mark.parametrize(
    ("op", "a", "b", "text"),
    [
        ("+", "*f32", "*f32", "cannot add pointers together"),
        ("-", "*f32", "*f32", "invalid operands of type"),
        ("+", "*f32", "f32", "invalid operands of type"),
        ("-", "i32", "*f32", "invalid operands of type"),
        ("*", "*f32", "i32", "invalid operands of type"),
        ("&", "f32", "i32", "invalid operands of type"),
        ("//", "f32", "f32", "unexpected type fp32"),
        (
            "/",
            "i32",
            "u32",
            "Cannot use /, #, or % with int32 and uint32 because they have different signedness",
        ),
        ("+", "e5", "i8", "unexpected type fp8e5 and int8"),
    ],
)
def test_operands_that_do_not_fit(op: str, a: str, b: str, text: str):
    fe = front_end()
    with pytest.raises(TypeMismatch, match=text):
        sem_math.binary(fe, op, arg(fe, a, 8), arg(fe, b, 8))


def test_logical_operators_need_int1():
    fe = front_end()
    with pytest.raises(
        TypeMismatch, match="Cannot bitcast data-type of size 32 to data-type of size 1"
    ):
        sem_math.logical(fe, "and", arg(fe, "i32"), arg(fe, "i1"))
    assert sem_math.logical(fe, "or", arg(fe, "i1"), arg(fe, "i1")).dtype is dtypes.int1
    with pytest.raises(TypeMismatch, match="size 32 to data-type of size 1"):
        sem_math.unary(fe, "not", arg(fe, "f32"))


def test_int1_arithmetic_wraps():
    fe = front_end()
    x, y = arg(fe, "i1", 8), arg(fe, "i1", 8)
    for op in "+-*":
        sem_math.binary(fe, op, x, y)
    assert ops(fe) == ["xor", "xor", "and"]


def test_shift_direction_follows_the_left_dtype():
    fe = front_end()
    sem_math.binary(fe, ">>", arg(fe, "i32", 8), arg(fe, "u32", 8))
    # promoted to uint32, shifted as int32
    assert ops(fe) == ["cast", "bitcast", "bitcast", "shr", "bitcast"]


# --- no silly IR ----------------------------------------------------------------------------------------------
def test_a_number_beside_a_tile_is_one_constant():
    fe = front_end()
    sem_math.binary(fe, "*", arg(fe, "f16", 16), static(0.5))
    assert ops(fe) == ["const", "mul"]


def test_a_scalar_beside_a_tile_is_cast_before_it_is_spread():
    fe = front_end()
    sem_math.binary(fe, "*", arg(fe, "f32", 16), arg(fe, "f16"))
    assert ops(fe) == ["cast", "splat", "mul"]


def test_overflow_checks_of_debug_builds():
    fe = front_end(debug=True)
    call(fe, tl.add, arg(fe, "i32", 8), arg(fe, "i32", 8))
    assert ops(fe)[-2:] == ["assert", "add"]
    fe = front_end(debug=True)
    call(fe, tl.add, arg(fe, "i32", 8), arg(fe, "i32", 8), sanitize_overflow=False)
    assert ops(fe) == ["add"]
