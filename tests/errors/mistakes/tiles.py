"""Mistakes with shapes, dot products, reductions and scans."""

# ruff: noqa: E501  a mistake is one line
from __future__ import annotations

from tests.errors.mistakes.kit import in_kernel, in_program

SQUARE = "a = tl.zeros((BLOCK, BLOCK), tl.float32)\n"

CASES = [
    in_kernel("tiles of different lengths", "y = «t + tl.arange(0, 32)»", "shape-mismatch", "equal or 1"),
    in_kernel("a row where a column is meant", SQUARE + "y = «a + tl.arange(0, 8)[:, None]»", "shape-mismatch", "equal or 1"),
    in_kernel("broadcast of another rank", "y = «tl.broadcast_to(t, (16, 16))»", "shape-mismatch", "[:, None]"),
    in_kernel("broadcast to another extent", "y = «tl.broadcast_to(t, (32,))»", "shape-mismatch", "extent 1"),
    in_kernel("reshape to another size", "y = «tl.reshape(t, (8, 4))»", "shape-mismatch", "16"),
    in_kernel("reshape with -1", "y = «tl.reshape(t, (-1, 4))»", "shape-mismatch", "-1"),
    in_kernel("reshape to a run-time shape", "y = «tl.reshape(t, (n, 4))»", "not-constexpr", "tl.constexpr"),
    in_kernel("trans of one dimension", "y = «tl.trans(t)»", "shape-mismatch", "[:, None]"),
    in_kernel(".T of one dimension", "y = «t.T»", "compilation", "tl.permute"),
    in_kernel("permute of too few dimensions", SQUARE + "y = «tl.permute(a, 0)»", "shape-mismatch", "0, 1"),
    in_kernel("permute with a repeated dimension", SQUARE + "y = «tl.permute(a, 0, 0)»", "shape-mismatch", "once"),
    in_kernel("expand_dims behind the last", "y = tl.expand_dims(t, «3»)", "invalid-argument", "axis"),
    in_kernel("an index of a tile", "y = «t[0]»", "unsupported-syntax", "tl.sum"),
    in_kernel("a slice of a tile", "y = «t[0:4]»", "unsupported-syntax", "tl.load"),
    in_kernel("a mask as an index", "y = «t[i > 3]»", "unsupported-syntax", "tl.where"),
    in_kernel("a tile as an index", "y = «t[i]»", "unsupported-syntax", "tl.gather"),
    in_kernel("an assignment to an element", "«t[0]» = 1.0", "unsupported-syntax", "tl.where"),
    in_kernel("an augmented assignment to an element", "«t[0]» += 1.0", "unsupported-syntax", "tl.where"),
    in_kernel("iteration over a tile", "for v in «t»:\n    n += 1", "unsupported-syntax", "tl.sum"),
    in_kernel("cat of different dtypes", "y = «tl.cat(t, i, can_reorder=True)»", "shape-mismatch", ".to("),
    in_kernel("cat of a list", "y = «tl.cat([t, t])»", "compilation", "cat(input, other"),
    in_kernel("join of different dtypes", "y = «tl.join(t, i)»", "type-mismatch", ".to("),
    in_kernel("join of different shapes", "y = «tl.join(t, tl.zeros((8,), tl.float32))»", "shape-mismatch", "shape"),
    in_kernel("split of another extent", "y = «tl.split(t)»", "shape-mismatch", "reshape"),
    in_kernel("stacking", "y = «tl.stack»((t, t))", "unknown-name", "tl.join"),
    in_kernel("squeeze of a full dimension", "y = «tl.squeeze(t, 0)»", "shape-mismatch", "extent"),
    in_kernel("item of many elements", "y = «t.item()»", "shape-mismatch", "tl.sum"),
    in_kernel("a reduction over no dimension", "y = tl.sum(t, axis=«1»)", "invalid-argument", "axis"),
    in_kernel("a reduction by dim", "y = «tl.sum(t, dim=0)»", "compilation", "axis"),
    in_kernel("a reduction with keepdim", "y = «tl.max(t, 0, keepdim=True)»", "compilation", "keep_dims"),
    in_kernel("a reduction of a scalar", "y = «tl.sum(n, 0)»", "shape-mismatch", "scalar"),
    in_kernel("a reduction of two axes", SQUARE + "y = tl.sum(a, axis=«(0, 1)»)", "not-constexpr", "None"),
    in_kernel("a reduction by a lambda", "y = tl.reduce(t, 0, «lambda a, b: a + b»)", "unsupported-syntax", "@tessera.jit"),
    in_kernel("a reduction by an operation", "y = tl.reduce(t, 0, «tl.sum»)", "not-constexpr", "two scalars"),
    in_kernel("max of tiles", "y = tl.max(t, «i»)", "not-constexpr", "tl.maximum"),
    in_kernel("argmax without an axis", "y = «tl.argmax(t)»", "compilation", "axis"),
    in_kernel("a scan of a scalar", "y = «tl.cumsum(n, 0)»", "shape-mismatch", "scalar"),
    in_kernel("a scan over no dimension", "y = tl.cumsum(t, «1»)", "invalid-argument", "axis"),
    in_kernel("sort of a scalar", "y = «tl.sort(n)»", "static-assert", "a tile, not a scalar"),
    in_kernel("softmax of int", "y = «tl.softmax(i)»", "type-mismatch", ".to(tl.float32)"),
    in_kernel("gather with floats", "y = tl.gather(t, «t», 0)", "type-mismatch", ".to(tl.int32)"),
    in_kernel("histogram of floats", "y = «tl.histogram(t, 16)»", "type-mismatch", ".to(tl.int32)"),
    in_kernel("where without a third operand", "y = «tl.where(i > 3, t)»", "compilation", "y"),
    in_kernel("where of different shapes", "y = «tl.where(i > 3, t, tl.zeros((8,), tl.float32))»", "shape-mismatch", "equal or 1"),
    in_kernel("maximum of one operand", "y = «tl.maximum(t)»", "compilation", "maximum(x, y"),
    in_kernel("dot of vectors", "y = «tl.dot(t, t)»", "shape-mismatch", "[M, K]"),
    in_kernel("dot of other inner extents", SQUARE + "y = «tl.dot(a, tl.zeros((32, 16), tl.float32))»", "shape-mismatch", "tl.trans"),
    in_kernel("dot of different dtypes", SQUARE + "y = «tl.dot(a, a.to(tl.float16))»", "type-mismatch", ".to("),
    in_kernel("dot of ints of 32 bits", SQUARE + "b = a.to(tl.int32)\ny = «tl.dot(b, b)»", "type-mismatch", "int8"),
    in_kernel("dot with an accumulator of another shape", SQUARE + "y = tl.dot(a, a, «tl.zeros((8, 16), tl.float32)»)", "shape-mismatch", "[16, 16]"),
    in_kernel("dot with an accumulator of another dtype", SQUARE + "y = tl.dot(a, a, «a.to(tl.float16)»)", "type-mismatch", "float32"),
    in_kernel("dot with a misspelt precision", SQUARE + "y = tl.dot(a, a, input_precision=«'tf31'»)", "invalid-argument", "tf32"),
    in_kernel("dot with a numpy-like option", SQUARE + "y = «tl.dot(a, a, precision='ieee')»", "compilation", "input_precision"),
    in_kernel("dot of pointers", "y = «tl.dot(x, x)»", "type-mismatch", "tl.load"),
    in_kernel("dot_scaled without scales", SQUARE + "y = «tl.dot_scaled(a, a)»", "compilation", "scale"),
    in_kernel("multiple_of a run-time value", "y = «tl.multiple_of(i, n)»", "not-constexpr", "tl.constexpr"),
    in_kernel("assume of a tile", "«tl.assume(i > 3)»", "type-mismatch", "scalar"),
    in_program(
        "a reduction whose function changes the dtype",
        """
        @tessera.jit
        def widen(a, b):
            return (a + b).to(tl.float64)

        @tessera.jit
        def k(x):
            tl.store(x, «tl.reduce(tl.arange(0, 16), 0, widen)»)

        k[(1,)](x)
        """,
        "type-mismatch", ".to(",
    ),
    in_program(
        "a reduction whose function returns a tile",
        """
        @tessera.jit
        def spread(a, b):
            return a + b + tl.arange(0, 2)

        @tessera.jit
        def k(x):
            tl.store(x, «tl.reduce(tl.arange(0, 16), 0, spread)»)

        k[(1,)](x)
        """,
        "type-mismatch", "scalars",
    ),
    in_program(
        "a tile in a function for map_elementwise",
        """
        @tessera.jit
        def spread(a):
            return «a + tl.arange(0, 16)»

        @tessera.jit
        def k(x):
            tl.store(x + tl.arange(0, 16), tl.map_elementwise(spread, tl.arange(0, 16)))

        k[(1,)](x)
        """,
        "unsupported-syntax", "give tiles as arguments",
    ),
    in_program(
        "a reduction whose function takes one value",
        """
        @tessera.jit
        def k(x):
            tl.store(x, tl.reduce(tl.arange(0, 16), 0, «double»))

        k[(1,)](x)
        """,
        "compilation", "two",
    ),
]  # fmt: skip
