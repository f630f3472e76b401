"""Mistakes with pointers, masks, block pointers, descriptors and atomics."""

# ruff: noqa: E501  a mistake is one line
from __future__ import annotations

from tests.errors.mistakes.kit import in_kernel, in_program

BLOCKS = "b = tl.make_block_ptr(x, (16,), (1,), (0,), (8,), (0,))\n"
DESC = "d = tl.make_tensor_descriptor(x, (16,), (1,), (8,))\n"

CASES = [
    in_kernel("load of a value", "y = tl.load(«t»)", "type-mismatch", "pointer"),
    in_kernel("load of an index", "y = tl.load(«i»)", "type-mismatch", "x + offsets"),
    in_kernel("load of a number", "y = tl.load(«0»)", "type-mismatch", "pointer"),
    in_kernel("load without arguments", "y = «tl.load()»", "compilation", "pointer"),
    in_kernel("a misspelt mask", "y = «tl.load(x + i, maks=i < n)»", "compilation", "`mask`"),
    in_kernel("a mask of ints", "y = «tl.load(x + i, mask=i)»", "type-mismatch", "compare"),
    in_kernel("a mask of another shape", "y = «tl.load(x + i, mask=tl.arange(0, 32) < n)»", "shape-mismatch", "equal or 1"),
    in_kernel("a mask of a scalar pointer", "y = «tl.load(x, mask=i < n)»", "shape-mismatch", "tl.arange(0, 16)"),
    in_kernel("other without a mask", "y = tl.load(x + i, other=«0.0»)", "invalid-argument", "mask"),
    in_kernel("other of another shape", "y = «tl.load(x + i, mask=i < n, other=tl.zeros((8,), tl.float32))»", "shape-mismatch", "equal or 1"),
    in_kernel("a misspelt eviction policy", "y = tl.load(x + i, eviction_policy=«'evict_frist'»)", "invalid-argument", "evict_first"),
    in_kernel("a misspelt cache modifier", "y = tl.load(x + i, cache_modifier=«'.cq'»)", "invalid-argument", ".cg"),
    in_kernel("a cache modifier of stores", "y = tl.load(x + i, cache_modifier=«'.wb'»)", "invalid-argument", ".cg"),
    in_kernel("boundary_check of a pointer", "y = «tl.load(x + i, boundary_check=(0,))»", "invalid-argument", "mask"),
    in_kernel("an index in brackets", "y = «x[i]»", "unsupported-syntax", "tl.load(p + i)"),
    in_kernel("an assignment through brackets", "«x[i]» = t", "unsupported-syntax", "tl.store"),
    in_kernel("a float offset", "y = tl.load(«x + f»)", "type-mismatch", ".to(tl.int32)"),
    in_kernel("a sum of pointers", "y = tl.load(«x + out»)", "type-mismatch", "offset"),
    in_kernel("a product with a pointer", "y = tl.load(«x * 2»)", "type-mismatch", "tl.load"),
    in_kernel("arithmetic with a pointer for its value", "y = «x + 1.0»", "type-mismatch", "tl.load"),
    in_kernel("a comparison of pointers", "y = «x < out»", "type-mismatch", "tl.int64"),
    in_kernel("a negated pointer", "y = tl.load(x + i * 2 - «-x»)", "type-mismatch", "tl.load"),
    in_kernel("exp of a pointer", "y = «tl.exp(x)»", "type-mismatch", "tl.load"),
    in_kernel("store to a value", "tl.store(«t», 1.0)", "type-mismatch", "pointer"),
    in_kernel("store without a value", "«tl.store(out + i)»", "compilation", "value"),
    in_kernel("operands of store in the other order", "tl.store(«t», out + i)", "type-mismatch", "pointer"),
    in_kernel("store of a larger tile", "«tl.store(out, t)»", "shape-mismatch", "tl.arange(0, 16)"),
    in_kernel("store of another shape", "«tl.store(out + i, tl.zeros((32,), tl.float32))»", "shape-mismatch", "shape"),
    in_kernel("store with other", "«tl.store(out + i, t, other=0.0)»", "compilation", "mask"),
    in_kernel("store with an integer mask", "«tl.store(out + i, t, mask=n)»", "type-mismatch", "compare"),
    in_kernel("store of a pointer", "«tl.store(out + i, x + i)»", "type-mismatch", "tl.load"),
    in_kernel("an atomic on a value", "tl.atomic_add(«t», 1.0)", "type-mismatch", "pointer"),
    in_kernel("an atomic of another dtype", "«tl.atomic_max((out + i).to(tl.pointer_type(tl.float16)), t)»", "type-mismatch", "int32"),
    in_kernel("an atomic with a misspelt order", "tl.atomic_add(out + i, t, sem=«'relax'»)", "invalid-argument", "relaxed"),
    in_kernel("an atomic with a misspelt scope", "tl.atomic_add(out + i, t, scope=«'block'»)", "invalid-argument", "cta"),
    in_kernel("an atomic exchange of a tile through a scalar pointer", "«tl.atomic_xchg(out, t)»", "shape-mismatch", "tl.arange(0, 16)"),
    in_kernel("a block pointer of wrong ranks", "b = «tl.make_block_ptr(x, (16, 16), (16,), (0, 0), (4, 4), (1, 0))»", "shape-mismatch", "strides"),
    in_kernel("a block pointer of a tile of pointers", "b = tl.make_block_ptr(«x + i», (16,), (1,), (0,), (8,), (0,))", "type-mismatch", "scalar"),
    in_kernel("a block pointer without an order", "b = «tl.make_block_ptr(x, (16,), (1,), (0,), (8,))»", "compilation", "order"),
    in_kernel("a block pointer with a run-time block", "b = «tl.make_block_ptr(x, (16,), (1,), (0,), (n,), (0,))»", "not-constexpr", "tl.constexpr"),
    in_kernel("a block pointer with a wrong order", "b = tl.make_block_ptr(x, (16, 1), (1, 1), (0, 0), (4, 1), «(0, 2)»)", "invalid-argument", "permutation"),
    in_kernel("a mask with a block pointer", BLOCKS + "y = «tl.load(b, mask=i < n)»", "invalid-argument", "boundary_check"),
    in_kernel("boundary_check of no dimension", BLOCKS + "y = «tl.load(b, boundary_check=(1,))»", "invalid-argument", "0"),
    in_kernel("padding without boundary_check", BLOCKS + "y = tl.load(b, boundary_check=(0,), padding_option=«'one'»)", "invalid-argument", "zero"),
    in_kernel("advance whose result is dropped", BLOCKS + "«tl.advance(b, (8,))»", "compilation", "b = tl.advance"),
    in_kernel("advance of another rank", BLOCKS + "b = tl.advance(b, «(8, 0)»)", "shape-mismatch", "offset"),
    in_kernel("an offset added to a block pointer", BLOCKS + "b = «b + 8»", "type-mismatch", "tl.advance"),
    in_kernel("a block pointer, deprecated", BLOCKS.replace("tl.make", "«tl.make", 1).rstrip() + "»", "warning", "make_tensor_descriptor"),
    in_kernel("a descriptor with a short block", "d = tl.make_tensor_descriptor(x, (16,), (1,), «(2,)»)", "shape-mismatch", "16 bytes"),
    in_kernel("a descriptor with a stride", "d = «tl.make_tensor_descriptor(x, (4, 4), (8, 2), (4, 4))»", "shape-mismatch", "1"),
    in_kernel("a descriptor of wrong ranks", "d = «tl.make_tensor_descriptor(x, (16,), (16, 1), (4, 4))»", "shape-mismatch", "shape"),
    in_kernel("a descriptor of a tile of pointers", "d = tl.make_tensor_descriptor(«x + i», (16,), (1,), (8,))", "type-mismatch", "scalar"),
    in_kernel("load of a descriptor without offsets", DESC + "y = «d.load()»", "compilation", "offsets"),
    in_kernel("load of a descriptor with too many offsets", DESC + "y = d.load(«[0, 0]»)", "shape-mismatch", "offset"),
    in_kernel("tl.load of a descriptor", DESC + "y = tl.load(«d»)", "type-mismatch", ".load("),
    in_kernel("a mask of a descriptor", DESC + "y = «d.load([0], mask=i < n)»", "compilation", "outside"),
    in_kernel("store of a descriptor in another shape", DESC + "d.store([0], «t»)", "shape-mismatch", "block shape"),
    in_kernel("a misspelt method of a descriptor", DESC + "y = «d.laod»([0])", "unknown-name", "load"),
    in_kernel("a descriptor and an offset", DESC + "y = «d + 8»", "type-mismatch", ".load("),
    in_program(
        "a load behind the array",
        """
        @tessera.jit
        def k(x, out):
            i = tl.arange(0, 32)
            tl.store(out + i % 16, «tl.load(x + i)»)

        k[(1,)](x, out, debug="check")
        """,
        "out-of-bounds", "mask",
    ),
    in_program(
        "a store behind the array",
        """
        @tessera.jit
        def k(out):
            i = tl.program_id(0) * 16 + tl.arange(0, 16)
            «tl.store(out + i, 1.0)»

        k[(2,)](out, debug="check")
        """,
        "out-of-bounds", "mask",
    ),
    in_program(
        "two programs that store to one element",
        """
        @tessera.jit
        def k(out):
            «tl.store(out, tl.program_id(0))»

        k[(2,)](out, debug="check")
        """,
        "race", "tl.atomic_add",
    ),
    in_program(
        "a sum of elements that nothing has stored",
        """
        from tessera.testing import uninitialised

        @tessera.jit
        def k(x, out):
            tl.store(out, tl.sum(«tl.load(x + tl.arange(0, 16))»))

        k[(1,)](uninitialised(np.empty(16, np.float32)), out, debug="check")
        """,
        "uninitialised-read", "store the element before",
    ),
    in_program(
        "an index that overflows",
        """
        @tessera.jit
        def k(out, n):
            j = «n * n»
            tl.store(out, j)

        k[(1,)](out, 100000, debug="check")
        """,
        "integer-overflow", ".to(",
    ),
    in_program(
        "a logarithm of zero",
        """
        @tessera.jit
        def k(x, out):
            i = tl.arange(0, 16)
            tl.store(out + i, «tl.log(tl.load(x + i) - 1)»)

        k[(1,)](x, out, debug="check")
        """,
        "not-finite", "mask",
    ),
    in_program(
        "a device_assert that fails",
        """
        @tessera.jit
        def k(x, out):
            i = tl.arange(0, 16)
            «tl.device_assert(tl.load(x + i) > 1, "too small")»

        k[(1,)](x, out, debug="check")
        """,
        "device-assert", "too small",
    ),
]  # fmt: skip
