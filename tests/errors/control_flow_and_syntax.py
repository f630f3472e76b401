"""Full texts of errors about control flow, calls and unsupported syntax."""

# ruff: noqa: E501  messages stand as they are printed
from __future__ import annotations

from typing import Any

import pytest

from tessera import errors

CASES: list[Any] = []


def case(name: str, kind: type, source: str, text: str, **constants: Any) -> None:
    CASES.append(pytest.param(kind, source, text, constants, id=name))


case(
    "loop-carried type",
    errors.LoopCarriedType,
    """
    @jit
    def k(p, n):
        acc = 0
        for i in range(n):
            acc += 1.5
    """,
    """
    error[loop-carried-type]: Loop-carried variable acc has initial type int32 but is re-assigned to fp32 in loop! Please make sure that the type stays consistent.
      --> kernel.py:8:9 in k (at 4:8:)
       |
     8 |         acc += 1.5
       |         ^^^^^^^^^^
      = note: the initial value is assigned at kernel.py:6:5
      = help: begin with a float, as `acc = 0.0`, or cast the later value with `.to(tl.int32)`
    """,
)

case(
    "loop-carried shape in a while",
    errors.LoopCarriedType,
    """
    @jit
    def k(p, n):
        acc = 0
        while n > 0:
            acc = acc + tl.arange(0, 4)
            n -= 1
    """,
    """
    error[loop-carried-type]: Loop-carried variable acc has initial type int32 but is re-assigned to <[4], int32> in loop! Please make sure that the type stays consistent.
      --> kernel.py:8:9 in k (at 4:8:)
       |
     8 |         acc = acc + tl.arange(0, 4)
       |         ^^^^^^^^^^^^^^^^^^^^^^^^^^^
      = note: the initial value is assigned at kernel.py:6:5
      = help: begin with a tile: `acc = tl.zeros([4], tl.int32)`
    """,
)

case(
    "loop-carried constexpr",
    errors.LoopCarriedType,
    """
    @jit
    def k(p, n, B: tl.constexpr):
        for i in range(n):
            B = B * 2
    """,
    """
    error[loop-carried-type]: Loop-carried variable B has initial type constexpr[4] but is re-assigned to int32 in loop! Please make sure that the type stays consistent.
      --> kernel.py:7:9 in k (at 3:8:)
       |
     7 |         B = B * 2
       |         ^^^^^^^^^
      = help: a constexpr cannot change in a loop: start from a variable, `x = B`
    """,
    B=4,
)

case(
    "branches of different types",
    errors.BranchMismatch,
    """
    @jit
    def k(p, n):
        if n > 3:
            q = 1
        else:
            q = 2.0
    """,
    """
    error[branch-mismatch]: Mismatched type for q between then block (int32) and else block (fp32)
      --> kernel.py:9:9 in k (at 5:8:)
       |
     9 |         q = 2.0
       |         ^^^^^^^
      = note: the then block assigns it at kernel.py:7:9
      = help: no promotion happens where branches join: give both one type and shape, by `.to(...)` or `tl.full`
    """,
)

case(
    "branch that changes a type",
    errors.BranchMismatch,
    """
    @jit
    def k(p, n):
        q = tl.zeros((4,), tl.float32)
        if n > 3:
            q = q.to(tl.float16)
    """,
    """
    error[branch-mismatch]: Mismatched type for q between then block (<[4], fp16>) and else block (<[4], fp32>)
      --> kernel.py:8:9 in k (at 4:8:)
       |
     8 |         q = q.to(tl.float16)
       |         ^^^^^^^^^^^^^^^^^^^^
      = note: before the `if` it is <[4], fp32>
      = help: no promotion happens where branches join: give both one type and shape, by `.to(...)` or `tl.full`
    """,
)

case(
    "returns of different types",
    errors.ReturnMismatch,
    """
    @jit
    def f(x):
        if x > 1:
            return 1.0
        return x

    @jit
    def k(p, n):
        y = f(n)
    """,
    """
    error[return-mismatch]: Return type mismatch: fp32 and int32
      --> kernel.py:12:9 in k (at 2:8:)
        |
     12 |     y = f(n)
        |         ^^^^
      --> kernel.py:6:5 in f (at 2:4:)
       |
     6 |     if x > 1:
       |     ^^^^^^^^^
      = help: every `return` of a function must give the same types: cast with `.to(...)`
    """,
)

case(
    "conditional expression of different types",
    errors.TypeMismatch,
    """
    @jit
    def k(p, n):
        y = 1.0 if n else n
    """,
    """
    error[type-mismatch]: Ternary expression with dynamic condition has inconsistent types fp32 and int32
      --> kernel.py:6:9 in k (at 2:8:)
       |
     6 |     y = 1.0 if n else n
       |         ^^^^^^^^^^^^^^^
      = help: both sides must have one type and shape: cast with `.to(...)`, or use `tl.where`
    """,
)

case(
    "tuple of another length in a loop",
    errors.LoopCarriedType,
    """
    @jit
    def k(p, n):
        t = (n, n)
        for i in range(n):
            t = (i, i, i)
    """,
    """
    error[loop-carried-type]: Loop-carried variable t has initial type tuple<int32, int32> but is re-assigned to tuple<int32, int32, int32> in loop! Please make sure that the type stays consistent.
      --> kernel.py:8:9 in k (at 4:8:)
       |
     8 |         t = (i, i, i)
       |         ^^^^^^^^^^^^^
      = note: the initial value is assigned at kernel.py:6:5
      = help: a loop carries tuples of one length; an unrolled `tl.static_range` loop may make a longer one
    """,
)

case(
    "mask of another shape",
    errors.ShapeMismatch,
    """
    @jit
    def k(p, n):
        tl.store(p + tl.arange(0, 8), 1.0, mask=tl.arange(0, 4) < n)
    """,
    """
    error[shape-mismatch]: Cannot make_shape_compatible: incompatible dimensions at index 0: 8 and 4
      --> kernel.py:6:5 in k (at 2:4:)
       |
     6 |     tl.store(p + tl.arange(0, 8), 1.0, mask=tl.arange(0, 4) < n)
       |     ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
      = help: the shapes are [8] and [4]: extents must be equal or 1
    """,
)

case(
    "static assertion",
    errors.CompileTimeAssertionFailure,
    """
    @jit
    def k(p, B: tl.constexpr):
        tl.static_assert(B % 16 == 0, "B must be divisible by 16")
    """,
    """
    error[static-assert]: B must be divisible by 16
      --> kernel.py:6:5 in k (at 2:4:)
       |
     6 |     tl.static_assert(B % 16 == 0, "B must be divisible by 16")
       |     ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
      = help: the kernel demands `B % 16 == 0`, with B = 4
    """,
    B=4,
)

case(
    "condition that is a tile",
    errors.ShapeMismatch,
    """
    @jit
    def k(p, n):
        if n < tl.arange(0, 4):
            pass
    """,
    """
    error[shape-mismatch]: Boolean value of Tensor with more than one value is ambiguous
      --> kernel.py:6:8 in k (at 2:7:)
       |
     6 |     if n < tl.arange(0, 4):
       |        ^^^^^^^^^^^^^^^^^^^
      = help: reduce it to a scalar first, or choose element by element with `tl.where`
    """,
)

case(
    "condition that is a float at compile time",
    errors.UnsupportedLanguageConstruct,
    """
    @jit
    def k(p, B: tl.constexpr):
        if B:
            pass
    """,
    """
    error[unsupported-syntax]: `if` conditionals can only accept values of type {bool, int, NoneType}, not objects of type float
      --> kernel.py:6:8 in k (at 2:7:)
       |
     6 |     if B:
       |        ^
      = help: compare: `x != 0`
    """,
    B=4.0,
)

case(
    "while without end at compile time",
    errors.NotConstexpr,
    """
    @jit
    def k(p, n):
        while True:
            pass
    """,
    """
    error[not-constexpr]: the condition of a `while` must be a run-time value, got constexpr[True]
      --> kernel.py:6:11 in k (at 2:10:)
       |
     6 |     while True:
       |           ^^^^
      = help: a loop that is known at compile time is written with `tl.static_range`; one that only `break` ends may have the condition `True`
    """,
)

case(
    "and of integers",
    errors.TypeMismatch,
    """
    @jit
    def k(p, n):
        if n and n > 1:
            pass
    """,
    """
    error[type-mismatch]: Cannot bitcast data-type of size 32 to data-type of size 1
      --> kernel.py:6:8 in k (at 2:7:)
       |
     6 |     if n and n > 1:
       |        ^^^^^^^^^^^
      = help: `and`, `or` and `not` take int1: compare first, as `x != 0` or `x == 0`
    """,
)

case(
    "returns of different types from inside a loop",
    errors.ReturnMismatch,
    """
    @jit
    def f(n, x):
        for i in range(n):
            if i > 3:
                return x
        return n

    @jit
    def k(p, n, f1):
        tl.store(p, f(n, f1))
    """,
    """
    error[return-mismatch]: Return type mismatch: fp32 and int32
      --> kernel.py:13:17 in k (at 2:16:)
        |
     13 |     tl.store(p, f(n, f1))
        |                 ^^^^^^^^
      --> kernel.py:6:5 in f (at 2:4:)
       |
     6 |     for i in range(n):
       |     ^^^^^^^^^^^^^^^^^^
      = help: every `return` of a function must give the same types: cast with `.to(...)`
    """,
)

case(
    "recursion of a called function",
    errors.CompilationError,
    """
    def noinline(fn):
        return jit(fn, noinline=True)

    @noinline
    def f(n):
        if n > 1:
            return f(n - 1)
        return n

    @jit
    def k(p, n):
        tl.store(p, f(n))
    """,
    """
    error[compilation]: the noinline function f() calls itself
      --> kernel.py:10:16 in f (at 3:15:)
        |
     10 |         return f(n - 1)
        |                ^^^^^^^^
      = note: f() is called at kernel.py:15:17
      = help: a called function cannot be recursive at run time: write a loop
    """,
)

case(
    "a tile for a called function",
    errors.TypeMismatch,
    """
    def noinline(fn):
        return jit(fn, noinline=True)

    @noinline
    def f(n):
        return n

    @jit
    def k(p, n):
        tl.store(p, f(tl.arange(0, 4)))
    """,
    """
    error[type-mismatch]: Function f is marked noinline, but was called with non-scalar argument n:int32[4]
      --> kernel.py:13:17 in k (at 2:16:)
        |
     13 |     tl.store(p, f(tl.arange(0, 4)))
        |                 ^^^^^^^^^^^^^^^^^^
      = help: leave `noinline` out, or pass pointers and scalars
    """,
)

case(
    "a breakpoint in compiled code",
    errors.UnsupportedLanguageConstruct,
    """
    @jit
    def k(p, n):
        if n > 3:
            breakpoint()
    """,
    """
    error[unsupported-syntax]: `breakpoint()` stops the interpreter only, and this kernel is compiled
      --> kernel.py:7:9 in k (at 3:8:)
       |
     7 |         breakpoint()
       |         ^^^^^^^^^^^^
      = help: set TESSERA_INTERPRET=1
    """,
)

case(
    "an operator that an aggregate does not define",
    errors.TypeMismatch,
    """
    from tessera.language.aggregate import aggregate

    @aggregate
    class Pair:
        a: tl.tensor

    @jit
    def k(p, n):
        tl.store(p, 2 * Pair(n))
    """,
    """
    error[type-mismatch]: the operator `*` is not supported between constexpr[2] and Pair(a: int32)
      --> kernel.py:12:17 in k (at 2:16:)
        |
     12 |     tl.store(p, 2 * Pair(n))
        |                 ^^^^^^^^^^^
      = help: define `__mul__` in the aggregate, or compute with its fields
    """,
)

case(
    "a variable changes its type where a loop is left",
    errors.BranchMismatch,
    """
    @jit
    def k(p, n, f1):
        x = n
        for i in range(n):
            if i > 3:
                x = f1
                break
            x += 1
        tl.store(p, x)
    """,
    """
    error[branch-mismatch]: Mismatched type for x between then block (fp32) and else block (int32)
      --> kernel.py:9:13 in k (at 5:12:)
       |
     9 |             x = f1
       |             ^^^^^^
      = note: before the `if` it is int32
      = help: no promotion happens where branches join: give both one type and shape, by `.to(...)` or `tl.full`
    """,
)

case(
    "try",
    errors.UnsupportedLanguageConstruct,
    """
    @jit
    def k(p, n):
        try:
            pass
        except ValueError:
            pass
    """,
    """
    error[unsupported-syntax]: `try` is not supported in a kernel
      --> kernel.py:6:5 in k (at 2:4:)
       |
     6 |     try:
       |     ^^^^
      = help: a kernel has no exceptions; test the condition with `if`
    """,
)

case(
    "lambda",
    errors.UnsupportedLanguageConstruct,
    """
    @jit
    def k(p, n):
        f = lambda x: x
    """,
    """
    error[unsupported-syntax]: `lambda` is not supported in a kernel
      --> kernel.py:6:9 in k (at 2:8:)
       |
     6 |     f = lambda x: x
       |         ^^^^^^^^^^^
      = help: write a function under `@tessera.jit`
    """,
)

case(
    "assignment to an element",
    errors.UnsupportedLanguageConstruct,
    """
    @jit
    def k(p, n):
        x = tl.arange(0, 8)
        x[0] = 1
    """,
    """
    error[unsupported-syntax]: __setitem__ is not supported in a kernel
      --> kernel.py:7:5 in k (at 3:4:)
       |
     7 |     x[0] = 1
       |     ^^^^
      = help: values are immutable: choose elements with `tl.where(i == 3, new, x)`; memory is written with `tl.store(p + i, x)`
    """,
)

case(
    "index of a tile",
    errors.UnsupportedLanguageConstruct,
    """
    @jit
    def k(p, n):
        x = tl.arange(0, 8)[2]
    """,
    """
    error[unsupported-syntax]: unsupported tensor index: 2
      --> kernel.py:6:9 in k (at 2:8:)
       |
     6 |     x = tl.arange(0, 8)[2]
       |         ^^^^^^^^^^^^^^^^^^
      = help: only None and `:` index a tensor; elements are chosen with `tl.gather` or `tl.sum(tl.where(i == 3, x, 0))`, or read from memory by `tl.load`
    """,
)

case(
    "iteration over a tensor",
    errors.UnsupportedLanguageConstruct,
    """
    @jit
    def k(p, n):
        for x in p:
            pass
    """,
    """
    error[unsupported-syntax]: Only `range`, `tl.range` and `tl.static_range` iterators are currently supported
      --> kernel.py:6:14 in k (at 2:13:)
       |
     6 |     for x in p:
       |              ^
      = help: a tile is computed with as a whole: `tl.sum(x)` and `tl.where` visit all elements; `tl.load(p + i)` reads one
    """,
)

case(
    "power of a tensor",
    errors.UnsupportedLanguageConstruct,
    """
    @jit
    def k(p, n):
        a = n ** 2
    """,
    """
    error[unsupported-syntax]: the operator `**` is not supported on tensors
      --> kernel.py:6:9 in k (at 2:8:)
       |
     6 |     a = n ** 2
       |         ^^^^^^
      = help: use `tl.exp2(y * tl.log2(x))`, or multiply
    """,
)

case(
    "constexpr assigned twice",
    errors.CompilationError,
    """
    @jit
    def k(p, n):
        x: tl.constexpr = 3
        x: tl.constexpr = 4
    """,
    """
    error[compilation]: x is already defined. constexpr cannot be reassigned.
      --> kernel.py:7:5 in k (at 3:4:)
       |
     7 |     x: tl.constexpr = 4
       |     ^
      = help: give the compile-time value a name of its own
    """,
)

case(
    "not enough values to unpack",
    errors.CompilationError,
    """
    @jit
    def k(p, n):
        a, b, c = 1, 2
    """,
    """
    error[compilation]: not enough values to unpack (expected 3, got 2)
      --> kernel.py:6:5 in k (at 2:4:)
       |
     6 |     a, b, c = 1, 2
       |     ^^^^^^^
      = help: give 2 names
    """,
)

case(
    "unknown argument",
    errors.CompilationError,
    """
    @jit
    def k(p, n):
        x = tl.load(p, mas=n > 0)
    """,
    """
    error[compilation]: load() has no argument 'mas'
      --> kernel.py:6:9 in k (at 2:8:)
       |
     6 |     x = tl.load(p, mas=n > 0)
       |         ^^^^^^^^^^^^^^^^^^^^^
      = help: did you mean `mask`? its arguments are: pointer, mask, other, boundary_check, padding_option, cache_modifier, eviction_policy, volatile
    """,
)

case(
    "missing argument of a jitted function",
    errors.CompilationError,
    """
    @jit
    def f(x, y):
        return x

    @jit
    def k(p, n):
        f(n)
    """,
    """
    error[compilation]: f() misses the argument 'y'
      --> kernel.py:10:5 in k (at 2:4:)
        |
     10 |     f(n)
        |     ^^^^
      = help: the call is f(x, y)
    """,
)

case(
    "error of Python at compile time",
    errors.CompilationError,
    """
    @jit
    def k(p, B: tl.constexpr):
        a = B // 0
    """,
    """
    error[compilation]: ZeroDivisionError: integer division or modulo by zero
      --> kernel.py:6:9 in k (at 2:8:)
       |
     6 |     a = B // 0
       |         ^^^^^^
      = help: Python computes this while the kernel is compiled, with 4, 0: correct the values
    """,
    B=4,
)

case(
    "float bound of a loop",
    errors.TypeMismatch,
    """
    @jit
    def k(p, f):
        for i in range(f):
            pass
    """,
    """
    error[type-mismatch]: For loop bounds and step must all be ints, are (constexpr[0], fp32, constexpr[1])
      --> kernel.py:6:14 in k (at 2:13:)
       |
     6 |     for i in range(f):
       |              ^^^^^^^^
      = help: bounds are integer scalars: cast with `.to(tl.int32)`; those of a tile are reduced first, as `tl.max(x)`
    """,
)

case(
    "f-string of a run-time value",
    errors.NotConstexpr,
    """
    @jit
    def k(p, n):
        tl.static_print(f"n = {n}")
    """,
    """
    error[not-constexpr]: Cannot evaluate f-string containing non-constexpr conversion values, got int32
      --> kernel.py:6:28 in k (at 2:27:)
       |
     6 |     tl.static_print(f"n = {n}")
       |                            ^
      = help: print run-time values with `tl.device_print`
    """,
)

case(
    "columns count characters, not bytes",
    errors.UnknownName,
    """
    @jit
    def k(p, n):
        é: "ä" = 1; ü = tl.load(ñ)
    """,
    """
    error[unknown-name]: ñ is not defined
      --> kernel.py:6:29 in k (at 2:28:)
       |
     6 |     é: "ä" = 1; ü = tl.load(ñ)
       |                             ^
      = help: assign it before this line, or make it a parameter of the function
    """,
)
