# ruff: noqa: E501  one row, one line
"""What a kernel may contain, rule by rule: statements, branches, loops, calls, names, expressions, tuples, aggregates.

Each row is the body of a kernel with int32 parameters `n` = 6 and `m` = -7, the constant `one` = 1 and a pointer `p`;
what it puts out is compared. Rows of the second table are refused with a text.
"""

from __future__ import annotations

import linecache
import math  # noqa: F401  the rows use it
import re
import textwrap
from typing import Any, NamedTuple

import numpy as np
import pytest

import tessera.language as tl
from tessera import errors, interp
from tessera.frontend import lower_kernel
from tessera.frontend.semantics.registry import impl
from tessera.language.aggregate import aggregate, constexpr_function
from tessera.language.builtin import builtin
from tessera.language.callable import JITCallable as jit
from tests.errors.kernel_source import OPTIONS

SEVEN = tl.constexpr(7)
NAMES = tl.constexpr(("a", "b"))
PLAIN = 3


class Point(NamedTuple):
    x: Any
    y: Any


@constexpr_function
def half(x):
    return x // 2


@constexpr_function
def pair_of(x):
    return (x, x + 1)


@constexpr_function
def bits_of(x):
    return x.dtype.primitive_bitwidth if isinstance(x, tl.tensor) else 0


@constexpr_function
def extents_of(x):
    return tuple(int(n) for n in x.shape)


@constexpr_function
def truth(x):
    return 1 if x else 0


@jit
def is_constant(x):
    return isinstance(x, tl.constexpr)


@jit
def add(a, b=5, *, c=0):
    return a + b + c


@jit
def total(*values):
    s = 0
    for v in tl.static_range(len(values)):
        s += values[v]
    return s


@jit
def twice(f: tl.constexpr, x):
    return f(f(x))


@jit
def successor(x):
    return x + 1


@jit
def divmod_of(a, b):
    return a // b, a % b


@jit
def swap(point):
    return Point(point.y, point.x)


@jit
def factorial(k: tl.constexpr):
    if k <= 1:
        return 1
    else:
        return k * factorial(k - 1)


@jit
def nothing(x):
    x + 1  # pyright: ignore[reportUnusedExpression]


@jit
def equal_constants(x):
    if x > 3:
        return 4
    return 4


@aggregate
class Box:
    value: tl.tensor
    size: tl.constexpr
    origin: tl.tuple

    @jit
    def __init__(self, value, size=2):
        self.value = value + 0
        self.size = size
        self.origin = (value, 1)  # pyright: ignore[reportAttributeAccessIssue]

    @jit
    def area(self):
        return self.value * self.size

    @constexpr_function
    def bytes(self, item):
        return self.size.value * item

    @staticmethod
    @jit
    def of(x):
        return Box(x, 3)

    @jit
    def __getitem__(self, i):
        return self.origin[i]


@aggregate
class Named(Box):
    tag: tl.constexpr

    @jit
    def __init__(self, value, tag):
        self.value = value
        self.size = 10
        self.origin = (1, 2)  # pyright: ignore[reportAttributeAccessIssue]
        self.tag = tag


def closure_of(k):
    factor = tl.constexpr(k)

    @jit
    def scale(x):
        return x * factor

    return scale


scale_by_11 = closure_of(11)


VALUES: list[Any] = []
REFUSED: list[Any] = []


def row(rule: str, body: str, *want: float) -> None:
    VALUES.append(
        pytest.param(body, want, id=f"{rule}: {body.strip().splitlines()[-1].strip()[:50]}")
    )


def refused(rule: str, body: str, kind: type, text: str) -> None:
    REFUSED.append(
        pytest.param(body, kind, text, id=f"{rule}: {body.strip().splitlines()[-1].strip()[:50]}")
    )


# --- B1 statements
row("B1", "x = 3\nput(is_constant(x))", 0)
row("B1", "x: tl.constexpr = 3\nput(is_constant(x), x)", 1, 3)
row("B1", "x: tl.constexpr\nx = 4\nput(is_constant(x))", 1)
row("B1", "x: int = 3\nput(is_constant(x))", 0)
row("B1", "a, (b, c) = n, (m, 2)\nput(a, b, c)", 6, -7, 2)
row("B1", "x = n\nx += 2\nx *= 3\nx -= m\nx //= 2\nx <<= 1\nx |= 1\nput(x)", 31)
row("B1", "put((x := n + 1), x)", 7, 7)
row("B1", "'a docstring'\npass\nput(1)", 1)
row("B1", "d = tl.int64\ny = None\nput((n.to(d)).dtype == tl.int64, y is None)", 1, 1)
row("B1", "x = 2147483648\nput(x.dtype == tl.uint32, (x * 2).dtype == tl.uint32)", 1, 1)
refused(
    "B1",
    "x: tl.constexpr = 1\nx: tl.constexpr = 2",
    errors.CompilationError,
    "x is already defined. constexpr cannot be reassigned.",
)
refused(
    "B1",
    "x = tl.arange(0, 4)\nx[0] = 1",
    errors.UnsupportedLanguageConstruct,
    "__setitem__ is not supported",
)
refused(
    "B1",
    "x = n\nx.y = 1",
    errors.UnsupportedLanguageConstruct,
    "Attribute assignment is not supported",
)
row("B1", "a, b = (n, m, 1)\nput(a, b)", 6, -7)
refused(
    "B1",
    "a, b, c = (n, m)",
    errors.CompilationError,
    "not enough values to unpack (expected 3, got 2)",
)
refused(
    "B1",
    "a = b = 1",
    errors.UnsupportedLanguageConstruct,
    "simultaneous multiple assignment is not supported",
)
for _bad in ("x = 'abc'", "x = (1, 'abc')", "x = successor", "x = tl.load", "x, y = n, half"):
    refused("B1", _bad, errors.TypeMismatch, "cannot convert ")
row("B1", "x: tl.constexpr = 'abc'\nput(len(x), len((x, 'b')))", 3, 2)
row("B1", "with scope('a', n) as x, scope('b', 2):\n    y = x + 1\nput(x, y)", 6, 7)
row("B1", "s = 0\nfor i in range(3):\n    with scope('a', i) as x:\n        s += x\nput(s)", 3)
row("B1", "y = 0\nif n > 3:\n    with scope('a', n) as x:\n        y = x\nput(y)", 6)
for _bad in ("return", "if n:\n        return", "for i in range(n):\n        return"):
    refused(
        "B1",
        f"with scope('a', n):\n    {_bad}",
        errors.UnsupportedLanguageConstruct,
        "Cannot have `return`, `break` or `continue` statements inside `with`",
    )
row(
    "B1",
    "with scope('a', n) as x:\n    for i in range(n):\n        if i > 2:\n            break\n        x += 1\nput(x)",
    9,
)
refused("B1", "a, *b = (n, m, 1)", errors.UnsupportedLanguageConstruct, "a starred target")
for _bad, _what in (
    ("try:\n    pass\nexcept ValueError:\n    pass", "`try`"), ("import os", "`import`"), ("global q", "`global`"),
    ("del n", "`del`"), ("x = lambda a: a", "`lambda`"), ("def f():\n    pass", "a nested function definition"),
    ("x = {1: 2}", "a dict display"), ("x = {1}", "a set display"), ("x = total(i for i in (1, 2))", "a generator expression"),
    ("raise ValueError", "`raise`"), ("class A:\n    pass", "a class definition"),
):  # fmt: skip
    refused(
        "B1", _bad, errors.UnsupportedLanguageConstruct, f"{_what} is not supported in a kernel"
    )

refused(
    "B1",
    "with n:\n    pass",
    errors.UnsupportedLanguageConstruct,
    "`with` takes an operation that gives a context manager, not int32",
)
row(
    "B1",
    "for i in tl.static_range(3):\n    k: tl.constexpr = i * 2\n    put(is_constant(k), k)",
    1,
    0,
    1,
    2,
    1,
    4,
)

# --- B2 if
row("B2", "if n > 3:\n    x = 1\nelse:\n    x = 2\nput(x)", 1)
row("B2", "if True:\n    x = 1\nelse:\n    x = undefined_name\nput(x)", 1)
row("B2", "if one is None:\n    x = 1\nelif one == 1:\n    x = 5\nelse:\n    x = 2\nput(x)", 5)
row("B2", "x = 1\nif n:\n    x = 2\nif p:\n    x += 10\nput(x)", 12)
refused(
    "B2",
    "if 1.5:\n    pass",
    errors.UnsupportedLanguageConstruct,
    "conditionals can only accept values of type",
)
refused("B2", "if n > 1:\n    y = 1\nput(y)", errors.UnknownName, "y is not defined")
refused(
    "B2", "x = 1\nif n > 1:\n    x = 1.5\nput(x)", errors.BranchMismatch, "Mismatched type for x"
)
refused("B2", "if tl.arange(0, 4) > 1:\n    pass", errors.CompilationError, "ambiguous")

# --- B3 boolean operators
row("B3", "put(0 or 3, len(() and undefined), (1 and 2))", 3, 0, 2)
row("B3", "put((n > 3) and (m > 0), (n > 3) or (m > 0), not (n > 3))", 0, 1, 0)
row("B3", "put(1 < n < 7, 1 < n < 6, -8 <= m < n <= 6)", 1, 0, 1)
row(
    "B3",
    "put(is_constant(4 in (3, 4)), 'a' in ('b', 'c'), n.dtype not in [tl.int64, tl.int8])",
    1,
    0,
    1,
)
row("B3", "put(one is None, one is not None)", 0, 1)
row("B3", "put(n if n > m else m, 1.5 if one == 1 else n)", 6, 1.5)
refused("B3", "put(n and m)", errors.TypeMismatch, "int1")
refused(
    "B3",
    "put(n if n > m else 1.5)",
    errors.TypeMismatch,
    "Ternary expression with dynamic condition has inconsistent types",
)

for _bad in ("put(n in (1, 2))", "put(3 not in (1, n))"):
    refused(
        "B3", _bad, errors.UnsupportedLanguageConstruct,
        "in` with a run-time value is not supported in a kernel",
    )  # fmt: skip

# --- B4 loops
row("B4", "s = 0\nfor i in range(n):\n    s += i\nput(s)", 15)
row("B4", "s = 0\nfor i in tl.range(8, m, -3, num_stages=2, flatten=True):\n    s += i\nput(s)", 10)
row("B4", "for i in tl.static_range(3):\n    pass\nput(is_constant(i), i)", 1, 2)
row("B4", "s = 0\nfor i in tl.static_range(5, 1, -2):\n    s = s * 10 + i\nput(s)", 53)
row("B4", "x = n\nwhile tl.condition(x > 1, disable_licm=True):\n    x = x // 2\nput(x)", 1)
row("B4", "s = n.to(tl.int64)\nfor i in range(s):\n    put(i.dtype == tl.int64)\n    break", 1)
row(
    "B4",
    "s = 0\nfor i in range(4):\n    if i == 1:\n        continue\n    if i == n - 3:\n        break\n    s += i + 10\nput(s)",
    22,
)
refused(
    "B4",
    "for i in range(1.5):\n    pass",
    errors.TypeMismatch,
    "For loop bounds and step must all be ints",
)
refused(
    "B4",
    "x = 1\nfor i in range(n):\n    x = 1.5\nput(x)",
    errors.LoopCarriedType,
    "Loop-carried variable x has initial type int32 but is re-assigned to fp32",
)
refused("B4", "for i in range(n):\n    t = i\nput(t)", errors.UnknownName, "t is not defined")
refused(
    "B4",
    "for i in range(n):\n    pass\nelse:\n    pass",
    errors.UnsupportedLanguageConstruct,
    "`else` of a loop",
)

refused(
    "B4",
    "while n > 3:\n    n -= 1\nelse:\n    pass",
    errors.UnsupportedLanguageConstruct,
    "`else` of a loop",
)
for _bad in ("(1, 2)", "NAMES", "[n]", "list((1, 2))"):
    refused(
        "B4",
        f"for i in {_bad}:\n    put(1)",
        errors.UnsupportedLanguageConstruct,
        "Only `range`, `tl.range` and `tl.static_range` iterators are currently supported",
    )

refused(
    "B4",
    "for i in tl.static_range(0, 3, 0):\n    put(i)",
    errors.TypeMismatch,
    "the step of a range must not be 0",
)
refused(
    "B4",
    "for i in tl.range(n, num_stages=m):\n    put(i)",
    errors.NotConstexpr,
    "the argument num_stages of tl.range",
)

# --- B5 calls
row("B5", "put(add(n), add(n, 1), add(n, c=10), add(b=1, a=2, c=3))", 11, 7, 21, 6)
row("B5", "put(total(1, n, m), total(*(1, 2)), total())", 0, 3, 0)
row("B5", "put(twice(successor, n), twice(scale_by_11, 1))", 8, 121)
row("B5", "q, r = divmod_of(m, 2)\nput(q, r, *divmod_of(-7, 2))", -3, -1, -4, 1)
row("B5", "put(is_constant(3), is_constant(n), is_constant((3)))", 1, 0, 1)
row("B5", "put(factorial(5), is_constant(factorial(4)))", 120, 1)
row("B5", "put(nothing(n) is None)", 1)
row("B5", "put(is_constant(equal_constants(n)), equal_constants(n))", 1, 4)
row(
    "B5", "fs: tl.constexpr = [successor, scale_by_11]\nput(fs[1](n), [f(2) for f in fs][0])", 66, 3
)
row("B5", "put(math.sqrt(16.0), 'ab'.upper() == 'AB')", 4, 1)
refused("B5", "add(**n)", errors.TypeMismatch, "`**` is not supported in a call")
refused("B5", "put(add(n, 1, 2))", errors.CompilationError, "takes 2 positional arguments")
refused("B5", "put(add(n, d=2))", errors.CompilationError, "has no argument 'd'")

# --- B6 names
row("B6", "put(SEVEN, is_constant(SEVEN), len(NAMES))", 7, 1, 2)
row("B6", "put(math.pi > 3, float('inf') > 1, int(3.7), max(n, m), min(2, 3))", 1, 1, 3, 6, 2)
row(
    "B6",
    "put(len((1, 2, n)), list((1, n))[1], getattr(n, 'dtype') == tl.int32, hasattr(n, 'shape'))",
    3,
    6,
    1,
    1,
)
refused(
    "B6",
    "put(PLAIN)",
    errors.ForbiddenGlobal,
    "Cannot access global variable PLAIN from within @jit'ed function.",
)
refused("B6", "put(min(float('nan'), 1.0))", errors.TypeMismatch, "min() of nan")
refused("B6", "put(max(-0.0, 1.0))", errors.TypeMismatch, "max() of -0.0")
refused("B6", "put(abs(n))", errors.UnknownName, "abs is not defined")
refused(
    "B6",
    "put(closure_of(n))",
    errors.ForbiddenGlobal,
    "Unsupported function referenced: closure_of",
)
refused("B6", "put(sucessor(n))", errors.UnknownName, "sucessor is not defined")

# --- B7 expressions
row("B7", "put(m // 2, m % 2, m // -2, 7 % -2, -7 // 2)", -3, -1, 3, -1, -4)
row("B7", "put(2 ** 5, +3, SEVEN ** 2, 'a' + 'b' == 'ab')", 32, 3, 49, 1)
row(
    "B7",
    "put(SEVEN.value, n.dtype == tl.int32, tl.arange(0, 8).numel, tl.zeros([2, 4], tl.int8).shape[1])",
    7,
    1,
    8,
    4,
)
row(
    "B7",
    "x = tl.arange(0, 4)[:, None]\nput(x.shape[0] * 10 + x.shape[1], tl.sum(tl.sum(x.T[None], 2), 1)[:].shape[0])",
    41,
    1,
)
row(
    "B7",
    "x = tl.zeros([SEVEN > 0, 4], tl.int8)\nput(x.shape[0], tl.arange(SEVEN > 9, 4).numel)",
    1,
    4,
)
row(
    "B7",
    "put(tl.arange(0, SEVEN > 0).numel, tl.reshape(tl.arange(0, 2), (True, 2)).shape[0])",
    1,
    1,
)
row("B7", "x = tl.arange(0, 4)\nput(x[:, :].shape[0], len(x[None, :, :].shape))", 4, 2)
row("B7", "put(f'{SEVEN:>4}' == '7', f'{1.5:.3f}' == '1.5')", 1, 1)
row("B7", "put(f'{SEVEN}-{1 + 1}' == '7-2', f'{tl.int32}' == 'int32')", 1, 1)
refused(
    "B7", "put(n ** 2)", errors.UnsupportedLanguageConstruct, "`**` is not supported on tensors"
)
refused(
    "B7", "put(+n)", errors.UnsupportedLanguageConstruct, "unary `+` is not supported on tensors"
)
refused("B7", "x = tl.arange(0, 4)\nput(x[1])", errors.CompilationError, "unsupported tensor index")
refused(
    "B7",
    "put(f'{n}' == '')",
    errors.NotConstexpr,
    "Cannot evaluate f-string containing non-constexpr conversion values",
)

# --- B8 tuples
row(
    "B8",
    "t = (n, 2)\nput(t[0], t[1:][0], (t + (3,))[2], len(t * 2), is_constant(t[1]))",
    6,
    2,
    3,
    4,
    0,
)
row(
    "B8",
    "put(*[x * x for x in (1, n, 3)], *[x for x in (1, 2, 3, 4) if x % 2 == 0])",
    1,
    36,
    9,
    2,
    4,
)
row("B8", "put(*[a * b for a, b in ((1, 2), (n, 4))])", 2, 24)
row("B8", "q = swap(Point(n, y=m))\nput(q.x, q.y, q[0], (1, 2) == (1, 2))", -7, 6, -7, 1)
row(
    "B8",
    "t = (n, (m, 1))\nfor i in range(2):\n    t = (t[1][0], (t[0], i))\nput(t[0], t[1][0], t[1][1])",
    6,
    -7,
    1,
)
row("B8", "t = tl.tuple((n, 4))\nput(t[1], len(tl.tuple()))", 4, 0)
row("B8", "put((n, 2) == (6, 2), (n, (m, 1)) == (6, (m, 2)), (n,) == (n, 1))", 1, 0, 0)
refused("B8", "t = (1, 2)\nput((n, 2) != t)", errors.NotConstexpr, "a comparison of tuples")
refused("B8", "t = (1, 2)\nput(t[n])", errors.NotConstexpr, "the index of a tuple")

# --- B9 aggregates
row(
    "B9",
    "b = Box(n)\nput(b.area(), b.bytes(4), b.origin[1], is_constant(b.size), b[0])",
    12,
    8,
    1,
    1,
    6,
)
row(
    "B9",
    "b = Box.of(n)\nfor i in range(3):\n    b = Box(b.area(), 3)\nput(b.value, b.area())",
    162,
    486,
)
row("B9", "b = Named(n, 'x')\nput(b.area(), b.tag == 'x', isinstance(b, Box))", 60, 1, 1)
row("B9", "b = tl.aggregate_replace(Box(n), value=m)\nput(b.area(), b[0])", -14, 6)
row("B9", "b = Box(n)\nif n > 3:\n    b = Box(m)\nput(b.value, b.origin[0])", -7, -7)
refused("B9", "b = Named(n, m)", errors.CompilationError, "field 'tag' of aggregate Named must be ")
refused("B9", "b = Box(n)\nb.value = m", errors.CompilationError, "immutable aggregate Box")
refused(
    "B9", "put(Box(n) + 1)", errors.TypeMismatch, "the operator `+` is not supported between Box"
)
refused("B9", "put(-Box(n))", errors.TypeMismatch, "the operator unary `-` is not supported on Box")

# --- B10 compile-time helpers
row(
    "B10",
    "tl.static_assert(SEVEN == 7, 'seven')\nput(half(SEVEN), is_constant(half(8)), pair_of(3)[1])",
    3,
    1,
    4,
)
row("B10", "put(tl.constexpr(3), is_constant(tl.constexpr(tl.constexpr(3))))", 3, 1)
row(
    "B10",
    "x = tl.constexpr(n)\nput(x, tl.constexpr(n) * 2, is_constant(tl.constexpr(n)))",
    6,
    12,
    0,
)
refused(
    "B10",
    "tl.static_assert(SEVEN == 8, 'not seven')",
    errors.CompileTimeAssertionFailure,
    "not seven",
)
refused(
    "B10",
    "tl.static_assert(n == 8)",
    errors.NotConstexpr,
    "Assertion condition could not be determined at compile-time",
)
row(
    "B10", "t = tl.zeros((4, 8), tl.int8)\nput(bits_of(n), bits_of(t), *extents_of(t))", 32, 8, 4, 8
)
refused("B10", "put(half(n))", errors.NotConstexpr, "what the Python function half() computes with")
refused(
    "B10", "put(truth(n))", errors.NotConstexpr, "what the Python function truth() computes with"
)
refused("B10", "put(half('a'))", errors.CompilationError, "TypeError")


class Scope:
    """A context manager, as an operation for a profiler would give."""

    def __init__(self, value: Any):
        self.value = value

    def __enter__(self) -> Any:
        return self.value

    def __exit__(self, *args: object) -> None: ...


@builtin
def scope(name, value):
    """Test operation."""


@impl(scope)
def _scope(fe: Any, name: Any, value: Any) -> Scope:
    return Scope(fe.to_tensor(value))


@jit
def put(*values):
    """Print each value on a line of its own."""
    for i in tl.static_range(len(values)):
        tl.device_print("x", values[i] + 0)


def lower(body: str, name: str) -> Any:
    """The module of a kernel with this body, which sees the globals of this file."""
    text = "def k(p, n, m, one: tl.constexpr):\n" + textwrap.indent(body, "    ") + "\n"
    file = f"<rule {name}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    scope = dict(globals())
    exec(compile(text, file, "exec"), scope)
    signature = {"p": "*fp32", "n": "i32", "m": "i32", "one": "constexpr"}
    return lower_kernel(jit(scope["k"]), signature, {"one": 1}, {}, OPTIONS)


@pytest.mark.filterwarnings("ignore:1 of 3 values are dropped")
@pytest.mark.parametrize(("body", "want"), VALUES)
def test_rule(body: str, want: tuple[float, ...], capsys: pytest.CaptureFixture[str], request: Any):
    module = lower(body, request.node.name)
    interp.run(module, (1, 1, 1), [np.zeros(1, np.float32), 6, -7])
    shown = capsys.readouterr().out.splitlines()
    found = [float({"True": 1, "False": 0}.get(x := line.rsplit(": ", 1)[1], x)) for line in shown]
    assert found == [float(w) for w in want]


@pytest.mark.filterwarnings("ignore:1 of 3 values are dropped")
@pytest.mark.parametrize(("body", "kind", "text"), REFUSED)
def test_refusal(body: str, kind: type, text: str, request: Any):
    with pytest.raises(kind) as caught:
        lower(body, request.node.name)
    assert text in str(caught.value)
    assert "-->" in str(caught.value)


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ("x = tl.arange(0, 1) + n\nif x > 1:\n    put(1)", "a condition should be a scalar"),
        ("x = tl.arange(0, 4) > 1\ny = x and x", "use `&`"),
        ("x = tl.arange(0, 4) > 1\ny = x or x", "use `|`"),
        ("put(tl.sum(max(tl.arange(0, 4), 2)))", "use `tl.maximum`"),
    ],
)
def test_deprecated_forms_warn(body: str, text: str):
    with pytest.warns(UserWarning, match=re.escape(text)):
        lower(body, text)
