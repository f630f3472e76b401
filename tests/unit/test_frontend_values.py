# ruff: noqa: F821, RUF005, RUF043, PT012  annotations are read as text; the operators are what is tested
"""The values of the language on the host: constexpr, tuple, aggregates, compile-time functions, jitted functions."""

# annotations of kernels name dtypes
# pyright: reportInvalidTypeForm=false, reportUndefinedVariable=false, reportArgumentType=false
from typing import Any, NamedTuple

import pytest

from tessera.dtypes import float32, int32, pointer_type
from tessera.errors import HostOnly, KernelOnly
from tessera.language import values as v
from tessera.language.aggregate import aggregate, constexpr_function, is_aggregate, replace_fields
from tessera.language.builtin import builtin
from tessera.language.callable import JITCallable
from tessera.language.descriptor import tensor_descriptor_type
from tessera.language.values import constexpr


def test_constexpr_computes_as_python():
    x = constexpr(constexpr(-7))
    assert type(x.value) is int
    for result, expected in (
        (x // 2, -4), (x % 3, 2), (2**x, 2**-7), (1 - x, 8), (x << 1, -14), (~x, 6), (x & 3, 1), (abs(x), 7),
    ):  # fmt: skip
        assert isinstance(result, constexpr)
        assert result.value == expected
    assert bool(x == -7)
    assert not bool(x > 0)
    assert [10, 11, 12][constexpr(1)] == 11
    assert {constexpr(3): "a"}[constexpr(3)] == "a"
    assert constexpr("ab").upper() == "AB"
    assert list(constexpr((1, 2))) == [1, 2]
    assert constexpr(max)(1, 2) == 2


def test_constexpr_of_a_dtype_compares_as_the_dtype():
    assert float32 == constexpr(float32)
    assert hash(float32) == hash(constexpr(float32).value)


class Pair(NamedTuple):
    first: int
    second: float


def test_tuple_keeps_named_fields_and_is_a_sequence():
    t = v.tuple(Pair(1, 2.0))
    assert t.second.value == 2.0
    assert len(t) == 2
    assert t[1:].plain() == (2.0,)
    assert (t + (3,)).plain() == (1, 2.0, 3)
    assert (v.tuple([0]) * constexpr(3)).plain() == (0, 0, 0)
    assert t.plain() == Pair(1, 2.0)
    assert bool(t == (1, 2.0))
    assert str(v.tuple((1, (2,))).type) == "tuple<constexpr[1], tuple<constexpr[2]>>"


def test_unwrap_goes_into_sequences():
    assert v.unwrap([constexpr(1), (constexpr(2),)]) == [1, (2,)]
    assert v.unwrap(v.tuple([1, "a"])) == (1, "a")


def test_constexpr_function_takes_plain_values_on_the_host():
    @constexpr_function
    def twice(n):
        assert type(n) is int
        return constexpr(2 * n)

    for n in (4, constexpr(4)):
        assert twice(n) == twice(n=n) == 8
        assert isinstance(twice(n), constexpr)  # as the function made it


def test_aggregates_are_complete_and_immutable():
    @aggregate
    class Base:
        a: constexpr

    @aggregate
    class Point(Base):
        x: object
        y: object = 5

    p = Point(3, x=4)
    fields: Any = p
    assert (fields.a.value, fields.x.value, fields.y.value) == (3, 4, 5)
    with pytest.raises(
        AttributeError, match="cannot assign to field 'x' on immutable aggregate Point"
    ):
        p.x = 1
    assert replace_fields(p, x=9).x.value == 9
    with pytest.raises(TypeError, match="leaves the field 'x' unset"):
        Point(3)  # pyright: ignore[reportCallIssue]
    with pytest.raises(TypeError, match="which is no aggregate"):

        @aggregate
        class Wrong(dict):
            a: object

    assert is_aggregate(Point)
    assert not is_aggregate(Pair)


@JITCallable
def kernel(p, n: "tl.int64", q: pointer_type(float32), r: "const *fp16", m: int, B: constexpr = 4):
    return n


def test_parameters_read_their_annotations():
    assert [x.annotation_type for x in kernel.params] == ["", "i64", "*fp32", "*kfp16", "i32", ""]
    assert [x.is_constexpr for x in kernel.params] == [False] * 5 + [True]
    assert kernel.constexprs == [5]
    assert kernel.params[5].default == 4
    assert kernel.params[3].is_const


def test_source_is_cut_at_the_definition():
    assert kernel.src.startswith("def kernel(p, n")
    assert kernel.def_file_line_number == kernel.starting_line_number + 1
    assert len(kernel.parse().body) == 1


def test_multi_line_strings_and_columns_survive_indentation():
    @JITCallable
    def inner(x):
        text = """one
    two"""
        return x, text

    node: Any = inner.parse().body[0]
    assert node.body[0].value.value == "one\n    two"
    assert node.body[1].col_offset == 8


def test_calls_from_the_host_are_refused():
    with pytest.raises(
        HostOnly, match="Cannot call @tessera.jit'd outside of the scope of a kernel"
    ):
        kernel(1)

    @builtin
    def load(pointer):
        """Stub."""

    with pytest.raises(KernelOnly, match="Did you forget to add @tessera.jit"):
        load(1)
    with pytest.raises(ValueError, match="@jit functions should be defined in a Python file"):
        scope: dict = {}
        exec("def f(): pass", scope)
        JITCallable(scope["f"])


A = constexpr(1)


@JITCallable
def callee(x):
    return x + A


@JITCallable
def caller(x):
    return callee(x)


def test_cache_key_follows_callees_and_captured_constants(monkeypatch: pytest.MonkeyPatch):
    def key() -> str:
        caller.hash = callee.hash = None
        return caller.cache_key

    first = key()
    assert key() == first
    assert [name for name, _ in caller.used_global_vals] == ["A"]
    monkeypatch.setitem(globals(), "A", constexpr(2))
    assert key() != first
    monkeypatch.undo()
    assert key() == first
    callee._unsafe_update_src("def callee(x):\n    return x - A\n")
    try:
        assert key() != first
    finally:
        del callee.__dict__["source"]
    assert key() == first


@JITCallable
def recursive(x, n: constexpr):
    return recursive(x, n - 1)


def test_recursive_functions_have_a_cache_key():
    assert len(recursive.cache_key) == 64


def test_types_print_like_the_type_strings():
    assert str(v.type_of(constexpr(3))) == "constexpr[3]"
    assert (
        tensor_descriptor_type(v.block_type(int32, (4,))).name == "tensor_descriptor<<[4], int32>>"
    )
