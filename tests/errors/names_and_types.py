"""Full texts of errors about names, types and shapes of values."""

# ruff: noqa: E501  messages stand as they are printed
from __future__ import annotations

from typing import Any

import pytest

from tessera import errors

CASES: list[Any] = []


def case(name: str, kind: type, source: str, text: str, **constants: Any) -> None:
    CASES.append(pytest.param(kind, source, text, constants, id=name))


case(
    "unknown name",
    errors.UnknownName,
    """
    @jit
    def k(p, n):
        offs = tl.arange(0, 16)
        x = tl.load(p + ofs)
    """,
    """
    error[unknown-name]: ofs is not defined
      --> kernel.py:7:21 in k (at 3:20:)
       |
     7 |     x = tl.load(p + ofs)
       |                     ^^^
      = help: did you mean `offs`?
    """,
)

case(
    "unknown builtin of Python",
    errors.UnknownName,
    """
    @jit
    def k(p, n):
        tl.store(p, abs(n))
    """,
    """
    error[unknown-name]: abs is not defined
      --> kernel.py:6:17 in k (at 2:16:)
       |
     6 |     tl.store(p, abs(n))
       |                 ^^^
      = help: write `tl.abs(x)`
    """,
)

case(
    "unknown operation",
    errors.UnknownName,
    """
    @jit
    def k(p, n):
        tl.lod(p)
    """,
    """
    error[unknown-name]: module tessera.language has no attribute 'lod'
      --> kernel.py:6:5 in k (at 2:4:)
       |
     6 |     tl.lod(p)
       |     ^^^^^^
      = help: did you mean `tl.load`?
    """,
)

case(
    "unknown method",
    errors.UnknownName,
    """
    @jit
    def k(p, n):
        y = n.two(tl.float32)
    """,
    """
    error[unknown-name]: a tensor (int32[]) has no attribute 'two'
      --> kernel.py:6:9 in k (at 2:8:)
       |
     6 |     y = n.two(tl.float32)
       |         ^^^^^
      = help: did you mean `to`?
    """,
)

case(
    "name defined in one branch",
    errors.UnknownName,
    """
    @jit
    def k(p, n):
        if n > 3:
            q = 1
        tl.store(p, q)
    """,
    """
    error[unknown-name]: q is not defined
      --> kernel.py:8:17 in k (at 4:16:)
       |
     8 |     tl.store(p, q)
       |                 ^
      = note: it is assigned in one branch only of the `if` at kernel.py:6:8
      = help: give it a value before: every path must define it
    """,
)

case(
    "name defined in a loop",
    errors.UnknownName,
    """
    @jit
    def k(p, n):
        for i in range(n):
            last = i
        tl.store(p, last)
    """,
    """
    error[unknown-name]: last is not defined
      --> kernel.py:8:17 in k (at 4:16:)
       |
     8 |     tl.store(p, last)
       |                 ^^^^
      = note: it is assigned only inside the loop at kernel.py:6:5
      = help: give it a value before: every path must define it
    """,
)

case(
    "global variable",
    errors.ForbiddenGlobal,
    """
    N = 5

    @jit
    def k(p, n):
        z = n + N
    """,
    """
    error[forbidden-global]: Cannot access global variable N from within @jit'ed function.
      --> kernel.py:8:13 in k (at 2:12:)
       |
     8 |     z = n + N
       |             ^
      = help: a kernel sees only globals that cannot change under it: write `N = tl.constexpr(...)`, or pass the value as a `tl.constexpr` parameter
    """,
)

case(
    "ordinary function",
    errors.ForbiddenGlobal,
    """
    def helper(x):
        return x

    @jit
    def k(p, n):
        z = helper(n)
    """,
    """
    error[forbidden-global]: Unsupported function referenced: helper is an ordinary Python function
      --> kernel.py:9:9 in k (at 2:8:)
       |
     9 |     z = helper(n)
       |         ^^^^^^
      = help: put `@tessera.jit` on helper, or `@tessera.constexpr_function` to run it at compile time
    """,
)

case(
    "run-time value where a constexpr is needed",
    errors.NotConstexpr,
    """
    @jit
    def k(p, n):
        offs = tl.arange(0, n)
    """,
    """
    error[not-constexpr]: arange's arguments must be of type tl.constexpr, got int32[]
      --> kernel.py:6:12 in k (at 2:11:)
       |
     6 |     offs = tl.arange(0, n)
       |            ^^^^^^^^^^^^^^^
      = help: annotate the parameter of k: `n: tl.constexpr`; each value is compiled on its own
    """,
)

case(
    "run-time argument of a Python function",
    errors.NotConstexpr,
    """
    import math

    @jit
    def k(p, n):
        x = math.sqrt(n)
    """,
    """
    error[not-constexpr]: every argument of the Python function sqrt() must be known at compile time, got int32
      --> kernel.py:8:9 in k (at 2:8:)
       |
     8 |     x = math.sqrt(n)
       |         ^^^^^^^^^^^^
      = help: write `tl.sqrt(...)`
    """,
)

case(
    "wrong dtype",
    errors.TypeMismatch,
    """
    @jit
    def k(p, n):
        x = tl.load(n)
    """,
    """
    error[type-mismatch]: Unsupported ptr type int32[] in `tl.load`
      --> kernel.py:6:17 in k (at 2:16:)
       |
     6 |     x = tl.load(n)
       |                 ^
      = help: the first argument is a pointer or a tile of pointers, such as `x + offsets` of an array argument `x`
    """,
)

case(
    "float offset",
    errors.TypeMismatch,
    """
    @jit
    def k(p, f):
        x = tl.load(p + f)
    """,
    """
    error[type-mismatch]: invalid operands of type pointer<fp32> and tessera.language.float32
      --> kernel.py:6:17 in k (at 2:16:)
       |
     6 |     x = tl.load(p + f)
       |                 ^^^^^
      = help: only integers are added to a pointer, which moves it: divide with `//`, cast with `.to(tl.int32)`; the value that it points to is `tl.load(p)`
    """,
)

case(
    "element of a pointer",
    errors.UnsupportedLanguageConstruct,
    """
    @jit
    def k(p, q):
        tl.store(p, q[0])
    """,
    """
    error[unsupported-syntax]: unsupported tensor index: 0
      --> kernel.py:6:17 in k (at 2:16:)
       |
     6 |     tl.store(p, q[0])
       |                 ^^^^
      = help: only None and `:` index a tensor; elements are chosen with `tl.gather` or `tl.sum(tl.where(i == 3, x, 0))`, or read from memory by `tl.load`
    """,
)

case(
    "result of a function without return",
    errors.CompilationError,
    """
    @jit
    def double(x):
        y = x * 2

    @jit
    def k(p, n):
        tl.store(p, double(n) + 1)
    """,
    """
    error[compilation]: TypeError: unsupported operand type(s) for +: 'NoneType' and 'int'
      --> kernel.py:10:17 in k (at 2:16:)
        |
     10 |     tl.store(p, double(n) + 1)
        |                 ^^^^^^^^^^^^^
      = help: None is what a function without `return` gives, and an argument that was passed as None
    """,
)

case(
    "extents of a pointer",
    errors.CompilationError,
    """
    @jit
    def k(p, n):
        tl.store(p, p.shape[0])
    """,
    """
    error[compilation]: index 0 is out of range for a tuple of 0
      --> kernel.py:6:17 in k (at 2:16:)
       |
     6 |     tl.store(p, p.shape[0])
       |                 ^^^^^^^^^^
      = help: a pointer does not know its array's extents, and a scalar has none: pass them as arguments
    """,
)

case(
    "a dtype of another library",
    errors.InvalidArgument,
    """
    @jit
    def k(p, n):
        tl.store(p, n.to("torch.float16"))
    """,
    """
    error[invalid-argument]: invalid argument "dtype" of cast(): expected a dtype such as tl.float32, got 'torch.float16'
      --> kernel.py:6:22 in k (at 2:21:)
       |
     6 |     tl.store(p, n.to("torch.float16"))
       |                      ^^^^^^^^^^^^^^^
      = help: write `tl.float16`
    """,
)

case(
    "a recursion without end",
    errors.CompilationError,
    """
    @jit
    def k(p, n):
        k(p, n - 1)
    """,
    """
    error[compilation]: calls nest more than 200 deep in k()
      --> kernel.py:6:5 in k (at 2:4:)
       |
     6 |     k(p, n - 1)
       |     ^^^^^^^^^^^
      ... 201 times ...
      = help: write a loop; a recursion must end at compile time, by a constexpr condition
    """,
)

case(
    "a list that grows",
    errors.UnknownName,
    """
    @jit
    def k(p, n):
        xs = []
        xs.append(n)
    """,
    """
    error[unknown-name]: a value of type tuple has no attribute 'append'
      --> kernel.py:7:5 in k (at 3:4:)
       |
     7 |     xs.append(n)
       |     ^^^^^^^^^
      = help: sequences in a kernel do not change; `xs = xs + (x,)` in a `tl.static_range` loop makes a longer one
    """,
)

case(
    "mismatched shapes",
    errors.ShapeMismatch,
    """
    @jit
    def k(p, n):
        x = tl.arange(0, 16) + tl.arange(0, 32)
    """,
    """
    error[shape-mismatch]: Cannot make_shape_compatible: incompatible dimensions at index 0: 16 and 32
      --> kernel.py:6:9 in k (at 2:8:)
       |
     6 |     x = tl.arange(0, 16) + tl.arange(0, 32)
       |         ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
      = help: the shapes are [16] and [32]: extents must be equal or 1
    """,
)

case(
    "extent that is no power of two, through inlined calls",
    errors.InvalidArgument,
    """
    @jit
    def inner(x):
        return x + tl.arange(0, 7)

    @jit
    def middle(x):
        y = inner(x)
        return y

    @jit
    def k(p, n):
        z = middle(n) * 2
    """,
    """
    error[invalid-argument]: arange's range must be a power of 2, got 7
      --> kernel.py:15:9 in k (at 2:8:)
        |
     15 |     z = middle(n) * 2
        |         ^^^^^^^^^
      --> kernel.py:10:9 in middle (at 2:8:)
        |
     10 |     y = inner(x)
        |         ^^^^^^^^
      --> kernel.py:6:29 in inner (at 2:28:)
       |
     6 |     return x + tl.arange(0, 7)
       |                             ^
      = help: use tessera.next_power_of_2(n) and mask the elements from n on
    """,
)
