"""Functions that are not of the native subset; the first ones are wrong for Python's type checkers, too."""

# ruff: noqa: F821, F841, RET503
# pyright: reportReturnType=false, reportAttributeAccessIssue=false, reportCallIssue=false
# pyright: reportArgumentType=false, reportUndefinedVariable=false
from __future__ import annotations

from tessera.backends.llvm.subset import Pointer, Struct, i8, i32, i64, native


class Node(Struct):
    value: i64


@native
def collatz(n: i64) -> i64:
    return n


def run(x: int) -> int:
    return x


@native
def mixes(x: i64, y: i32) -> i64:
    return x + y


@native
def no_value(x: i64) -> i64:
    if x > 1:
        return 2


@native
def divides(x: i64) -> i64:
    return x // 2


@native
def no_field(x: Node) -> i64:
    return x.missing


@native
def too_few() -> i64:
    return collatz()


@native
def wrong_argument(x: Node) -> i64:
    return collatz(x)


@native
def too_large() -> i8:
    return 300


@native
def unknown() -> i64:
    return nothing_of_the_kind


@native
def no_statement() -> None:
    with open("x"):
        pass


@native
def no_expression(x: i64) -> i64:
    return [x]


@native
def no_type(x: list[int]) -> None: ...


@native
def not_native() -> i64:
    return run(3)


@native
def changes_type(x: i64) -> i64:
    y = x
    y = 1.5
    return x


@native
def loops_over(x: Pointer[i64]) -> None:
    for _ in x:
        pass


@native
def null_number() -> i64:
    return None
