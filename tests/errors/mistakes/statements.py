"""Mistakes with control flow, and Python that kernels do not have."""

# ruff: noqa: E501  a mistake is one line
from __future__ import annotations

from tests.errors.mistakes.kit import in_kernel, in_program

CASES = [
    in_kernel("a tile as a condition", "if «t > 0»:\n    t += 1", "shape-mismatch", "tl.where"),
    in_kernel("a tile as the condition of while", "while «t > 0»:\n    t -= 1", "shape-mismatch", "scalar"),
    in_kernel("a tile in a conditional expression", "y = 1.0 if «t > 0» else 0.0", "shape-mismatch", "tl.where"),
    in_kernel("not of a tile of floats", "y = «not t»", "type-mismatch", "== 0"),
    in_kernel("and of masks", "y = tl.where(«i < n and i > 2», t, 0)", "warning", "`&`"),
    in_kernel("or of masks", "y = tl.where(«i < n or i > 2», t, 0)", "warning", "`|`"),
    in_kernel("a condition of floats", "if «1.5»:\n    t += 1", "unsupported-syntax", "compare"),
    in_kernel("a loop-carried dtype", "y = 0\nfor j in range(n):\n    «y += f»\ntl.store(out, y)", "loop-carried-type", "0.0"),
    in_kernel("a loop-carried shape", "y = 0.0\nfor j in range(n):\n    «y += t»\ntl.store(out + i, y)", "loop-carried-type", "tl.zeros"),
    in_kernel("a while-carried dtype", "y = n\nwhile y < 100:\n    «y = y * 1.5»", "loop-carried-type", ".to("),
    in_kernel("None before a loop", "y = None\nfor j in range(n):\n    «y = t»\ntl.store(out + i, y)", "loop-carried-type", "tl.zeros"),
    in_kernel("a list that grows in a loop", "ys = ()\nfor j in range(n):\n    «ys = ys + (t,)»", "loop-carried-type", "tl.static_range"),
    in_kernel("branches of different dtypes", "if n > 3:\n    y = 1\nelse:\n    «y = 1.5»\ntl.store(out, y)", "branch-mismatch", ".to("),
    in_kernel("branches of different shapes", "if n > 3:\n    y = t\nelse:\n    «y = 0.0»\ntl.store(out + i, y)", "branch-mismatch", "shape"),
    in_kernel("a conditional expression of different types", "y = «t if n > 3 else 0.0»", "type-mismatch", "shape"),
    in_kernel("a float bound", "for j in «range(f)»:\n    t += 1", "type-mismatch", ".to(tl.int32)"),
    in_kernel("a float literal as a bound", "for j in «range(1.5)»:\n    t += 1", "type-mismatch", "int"),
    in_kernel("a tile as a bound", "for j in «range(i)»:\n    t += 1", "type-mismatch", "scalar"),
    in_kernel("range with four arguments", "for j in «range(0, 4, 1, 1)»:\n    t += 1", "type-mismatch", "range(start, stop, step)"),
    in_kernel("a step of zero", "for j in «range(0, 4, 0)»:\n    t += 1", "type-mismatch", "step"),
    in_kernel("an unknown option of tl.range", "for j in «tl.range(0, 4, stages=2)»:\n    t += 1", "compilation", "num_stages"),
    in_kernel("iteration over a number", "for j in «n»:\n    t += 1", "unsupported-syntax", "range("),
    in_kernel("iteration over a pointer", "for v in «x»:\n    t += v", "unsupported-syntax", "tl.load"),
    in_kernel("iteration over a string", "for c in «'abc'»:\n    t += 1", "unsupported-syntax", "tl.static_range"),
    in_kernel("else of for", "for j in range(n):\n    t += 1\nelse:\n    «t += 2»", "unsupported-syntax", "behind the loop"),
    in_kernel("else of while", "while n > 3:\n    n -= 1\nelse:\n    «n += 2»", "unsupported-syntax", "behind the loop"),
    in_kernel("while True without an end", "while «True»:\n    t += 1", "not-constexpr", "break"),
    in_kernel("a value returned by a kernel", "«return t»", "warning", "tl.store"),
    in_kernel("try", "«try:\n    t += 1»\nfinally:\n    pass", "unsupported-syntax", "condition"),
    in_kernel("raise", "«raise ValueError('no')»", "unsupported-syntax", "tl.static_assert"),
    in_kernel("with", "with «x»:\n    pass", "unsupported-syntax", "outside"),
    in_kernel("import", "«import math»", "unsupported-syntax", "module"),
    in_kernel("from import", "«from math import pi»", "unsupported-syntax", "module"),
    in_kernel("lambda", "y = «lambda a: a + 1»", "unsupported-syntax", "@tessera.jit"),
    in_kernel("a function inside", "«def inner(a):\n    return a»", "unsupported-syntax", "@tessera.jit"),
    in_kernel("a class inside", "«class Inner:\n    pass»", "unsupported-syntax", "aggregate"),
    in_kernel("yield", "«yield t»", "unsupported-syntax", "tl.store"),
    in_kernel("global", "«global SIZE»", "unsupported-syntax", "parameter"),
    in_kernel("a dictionary", "y = «{'a': 1}»", "unsupported-syntax", "tuple"),
    in_kernel("a set", "y = «{1, 2}»", "unsupported-syntax", "tuple"),
    in_kernel("a comprehension of a dictionary", "y = «{j: j for j in (1, 2)}»", "unsupported-syntax", "tuple"),
    in_kernel("a comprehension of a set", "y = «{j for j in (1, 2)}»", "unsupported-syntax", "tuple"),
    in_kernel("a generator", "y = «(j for j in (1, 2))»", "unsupported-syntax", "list comprehension"),
    in_kernel("a condition in a comprehension over run-time values", "y = [j for j in (n, 2) if «j > 1»]", "not-constexpr", "tl.where"),
    in_kernel("match", "«match n:\n    case 1:\n        t += 1»", "unsupported-syntax", "if"),
    in_kernel("append to a list", "ys = [1, 2]\n«ys.append»(3)", "unknown-name", "+ (x,)"),
    in_kernel("in of a run-time value", "y = «n in (1, 2)»", "unsupported-syntax", "=="),
    in_kernel("in of a number", "y = «BLOCK in 5»", "compilation", "correct the values"),
    in_kernel("too many values to unpack", "a, b = «(1, 2, 3)»", "warning", "slice"),
    in_kernel("unpacking of a tile", "«a, b» = t", "compilation", "tl.split"),
    in_kernel("unpacking with a star", "a, «*b» = (1, 2, 3)", "unsupported-syntax", "slice"),
    in_kernel("keyword arguments of a dictionary", "y = tl.load(x, **«{'mask': True}»)", "type-mismatch", "name"),
    in_kernel("print of a value", "«print(t)»", "type-mismatch", "print("),
    in_kernel("print of an f-string", "print(f'{«t»}')", "not-constexpr", "tl.device_print"),
    in_kernel("device_print without a text", "tl.device_print(«t»)", "not-constexpr", "begin with a text"),
    in_kernel("an operation that is not called", "«y = tl.static_print»", "type-mismatch", "tl.constexpr"),
    in_kernel("a breakpoint in compiled code", "«breakpoint()»", "unsupported-syntax", "TESSERA_INTERPRET"),
    in_kernel("an attribute of a value", "y = t\ny = «y.value.x»", "unknown-name", "shape"),
    in_kernel("an assignment to an attribute", "«t.name» = 3", "unsupported-syntax", "variable"),
    in_kernel("a call of a value", "y = «t(3)»", "type-mismatch", "[...]"),
    in_kernel("a complex literal", "y = «t + 1j»", "type-mismatch", "two tiles"),
    in_kernel("bytes", "y = «b'a' + t»", "type-mismatch", "numbers"),
    in_program(
        "returns of different types",
        """
        @tessera.jit
        def f(n):
            «if n > 3:
                return 1»
            return 1.5

        @tessera.jit
        def k(x, n):
            tl.store(x, f(n))

        k[(1,)](x, 5)
        """,
        "return-mismatch", ".to(",
    ),
    in_program(
        "a function that returns nothing",
        """
        @tessera.jit
        def f(n):
            n + 1

        @tessera.jit
        def k(x, n):
            tl.store(x, «f(n) + 1»)

        k[(1,)](x, 5)
        """,
        "compilation", "return",
    ),
    in_program(
        "recursion",
        """
        @tessera.jit
        def f(n):
            return «f(n - 1)»

        @tessera.jit
        def k(x, n):
            tl.store(x, f(n))

        k[(1,)](x, 5)
        """,
        "compilation", "loop",
    ),
    in_program(
        "a missing argument of a function",
        """
        @tessera.jit
        def f(a, b):
            return a + b

        @tessera.jit
        def k(x, n):
            tl.store(x, «f(n)»)

        k[(1,)](x, 5)
        """,
        "compilation", "b",
    ),
    in_program(
        "a misspelt argument of a function",
        """
        @tessera.jit
        def f(a, scale):
            return a * scale

        @tessera.jit
        def k(x, n):
            tl.store(x, «f(n, scael=2)»)

        k[(1,)](x, 5)
        """,
        "compilation", "`scale`",
    ),
    in_program(
        "a launch of a kernel inside a kernel",
        """
        @tessera.jit
        def k(x, n):
            «double[(1,)]»(x)

        k[(1,)](x, 5)
        """,
        "type-mismatch", "double(",
    ),
    in_program(
        "keyword parameters",
        """
        @tessera.jit
        def k(x, **options):
            tl.store(x, 1.0)

        «k[(1,)](x, a=5)»
        """,
        "unsupported-syntax", "name",
    ),
    in_program(
        "an aggregate without annotations",
        """
        @tl.core.aggregate
        class Pair:
            def __init__(self, a):
                self.a = a

        @tessera.jit
        def k(x, n):
            p = «Pair(n)»
            tl.store(x, p.a)

        k[(1,)](x, 5)
        """,
        "compilation", "annotat",
    ),
]  # fmt: skip
