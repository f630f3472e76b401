"""Mistakes with what must be known at compile time, and with dtypes."""

# ruff: noqa: E501  a mistake is one line
from __future__ import annotations

from tests.errors.mistakes.kit import in_kernel, in_program

CASES = [
    in_kernel("a run-time end of arange", "j = «tl.arange(0, n)»", "not-constexpr", "tl.constexpr"),
    in_kernel("a range that is no power of two", "j = tl.arange(0, «12»)", "invalid-argument", "mask"),
    in_kernel("an empty range", "j = tl.arange(4, «4»)", "invalid-argument", "greater"),
    in_kernel("arange with one argument", "j = «tl.arange(BLOCK)»", "compilation", "arange(start, end)"),
    in_kernel("arange with a step", "j = «tl.arange(0, BLOCK, 2)»", "compilation", "arange(start, end)"),
    in_kernel("arange of floats", "j = «tl.arange(0.0, 16.0)»", "not-constexpr", "int"),
    in_kernel("a run-time shape", "y = «tl.zeros((n,), tl.float32)»", "not-constexpr", "tl.constexpr"),
    in_kernel("a shape that is no power of two", "y = «tl.zeros((12,), tl.float32)»", "shape-mismatch", "next_power_of_2"),
    in_kernel("a shape of floats", "y = «tl.zeros((BLOCK / 2,), tl.float32)»", "not-constexpr", "//"),
    in_kernel("a negative extent", "y = «tl.zeros((-4,), tl.float32)»", "shape-mismatch", "power of 2"),
    in_kernel("a tile that is too large", "y = «tl.zeros((2048, 1024), tl.float32)»", "shape-mismatch", "loop"),
    in_kernel("a string for a dtype", "y = tl.zeros((BLOCK,), «'float32'»)", "invalid-argument", "tl.float32"),
    in_kernel("NumPy's dtype", "y = tl.zeros((BLOCK,), «np.float32»)", "invalid-argument", "tl.float32"),
    in_kernel("no dtype", "y = «tl.zeros((BLOCK,))»", "compilation", "dtype"),
    in_kernel("a dtype as a function", "y = «tl.float32(n)»", "type-mismatch", ".to("),
    in_kernel("a tile for the value of full", "y = tl.full((BLOCK,), «t», tl.float32)", "shape-mismatch", "broadcast"),
    in_kernel("a run-time axis", "y = tl.sum(t, axis=«n»)", "not-constexpr", "known at compile time"),
    in_kernel("a run-time number of largest elements", "y = tl.topk(t, «n»)", "not-constexpr", "tl.constexpr"),
    in_kernel("a run-time axis of program_id", "j = «tl.program_id(n)»", "not-constexpr", "tl.constexpr"),
    in_kernel("the fourth axis", "j = tl.program_id(«3»)", "invalid-argument", "three"),
    in_kernel("a run-time static_range", "for j in «tl.static_range(n)»:\n    t += 1", "not-constexpr", "end of tl.static_range"),
    in_kernel("a run-time start of static_range", "for j in «tl.static_range(n, 4)»:\n    t += 1", "not-constexpr", "start of tl.static_range"),
    in_kernel("a run-time range in a comprehension", "y = [j for j in «range(n)»]", "not-constexpr", "`for`"),
    in_kernel("a run-time static_assert", "tl.static_assert(«n > 3»)", "not-constexpr", "tl.device_assert"),
    in_kernel("a static_assert that fails", "«tl.static_assert(BLOCK > 16, 'too small')»", "static-assert", "BLOCK"),
    in_kernel("an f-string of a run-time value", "y = f'{«n»}'", "not-constexpr", "tl.device_print"),
    in_kernel("a constexpr assigned twice", "y: tl.constexpr = 1\n«y»: tl.constexpr = 2", "compilation", "a name of its own"),
    in_kernel("a division by zero at compile time", "y = t + «BLOCK // 0»", "compilation", "0"),
    in_kernel("a string and a number", "y = «'a' + 1»", "compilation", "TypeError"),
    in_kernel("a run-time option", "y = «tl.load(x + i, cache_modifier=n)»", "not-constexpr", "tl.constexpr"),
    in_kernel("int() of a run-time value", "y = «int(f)»", "not-constexpr", ".to(tl.int32)"),
    in_kernel("float() of a tile", "y = «float(i)»", "not-constexpr", ".to(tl.float32)"),
    in_kernel("len() of a scalar", "y = «len(n)»", "not-constexpr", "argument"),
    in_kernel("None in arithmetic", "y = «None + 1»", "compilation", "passed as None"),
    in_kernel("a comparison of a constexpr with a string", "y = «BLOCK < 'a'»", "compilation", "16, 'a'"),
    in_kernel("an index behind a tuple", "y = «(1, 2)[2]»", "compilation", "0 to 1"),
    in_kernel("a run-time index of a tuple", "y = «(1, 2)[n]»", "not-constexpr", "tl.static_range"),
    in_kernel("an int that does not fit its type", "y = «i.to(tl.int8) + 300»", "type-mismatch", ".to("),
    in_kernel("a negative number for an unsigned tile", "y = «i.to(tl.uint8) * -1»", "type-mismatch", ".to("),
    in_kernel("a literal of more than 64 bits", "y = «n + 2**70»", "type-mismatch", "64 bits"),
    in_kernel("a cast to no dtype", "y = t.to(«16»)", "invalid-argument", "tl.float"),
    in_kernel("a cast without a dtype", "y = «t.to()»", "compilation", "dtype"),
    in_kernel("a bitcast to another size", "y = «t.to(tl.int8, bitcast=True)»", "type-mismatch", "size"),
    in_kernel("a cast of a pointer to int32", "y = «x.to(tl.int32)»", "type-mismatch", "tl.int64"),
    in_kernel("a cast of a tile to a pointer", "y = «t.to(tl.pointer_type(tl.float32))»", "type-mismatch", "tl.int64"),
    in_kernel("a rounding mode that there is none", "y = t.to(tl.float16, fp_downcast_rounding=«'up'»)", "invalid-argument", "rtne"),
    in_kernel("exp of int", "y = «tl.exp(i)»", "type-mismatch", ".to(tl.float32)"),
    in_kernel("sqrt of fp16", "y = «tl.sqrt(t.to(tl.float16))»", "type-mismatch", ".to(tl.float32)"),
    in_kernel("libdevice of int", "y = «tl.extra.libdevice.exp2(i)»", "type-mismatch", ".to(tl.float32)"),
    in_kernel("fdiv of ints", "y = «tl.fdiv(i, i)»", "type-mismatch", "`/`"),
    in_kernel("bits of floats", "y = «t & 3»", "type-mismatch", ".to("),
    in_kernel("shift of floats", "y = «t << 3»", "type-mismatch", ".to("),
    in_kernel("inversion of floats", "y = «~t»", "type-mismatch", ".to("),
    in_kernel("floor division of floats", "y = «t // 2»", "type-mismatch", "tl.floor"),
    in_kernel("division of mixed signs", "y = «i // i.to(tl.uint32)»", "type-mismatch", ".to("),
    in_kernel("a power of a tile", "y = «t ** 2»", "unsupported-syntax", "tl.exp2"),
    in_kernel("a matrix product by @", "y = «t @ t»", "unsupported-syntax", "tl.dot"),
    in_program(
        "a block size that is no power of two",
        """
        @tessera.jit
        def k(x, BLOCK: tl.constexpr):
            i = tl.arange(0, «BLOCK»)
            tl.store(x + i, 1.0, mask=i < 10)

        k[(1,)](x, BLOCK=10)
        """,
        "invalid-argument", "next_power_of_2",
    ),
    in_program(
        "a float for a block size",
        """
        @tessera.jit
        def k(x, BLOCK: tl.constexpr):
            i = «tl.arange(0, BLOCK)»
            tl.store(x + i, 1.0)

        k[(1,)](x, BLOCK=16 / 2)
        """,
        "not-constexpr", "int",
    ),
    in_program(
        "an array for a constexpr",
        """
        @tessera.jit
        def k(x, W: tl.constexpr):
            «tl.store(x, W + 1.0)»

        k[(1,)](x, W=np.ones(3))
        """,
        "type-mismatch", "pass",
    ),
    in_program(
        "a dictionary for a constexpr",
        """
        @tessera.jit
        def k(x, W: tl.constexpr):
            tl.store(x, «W["a"]»)

        k[(1,)](x, W={"b": 1})
        """,
        "compilation", "correct the values",
    ),
    in_program(
        "a parameter that lacks its annotation",
        """
        @tessera.jit
        def k(x, BLOCK):
            i = «tl.arange(0, BLOCK)»
            tl.store(x + i, 1.0)

        k[(1,)](x, 16)
        """,
        "not-constexpr", "BLOCK: tl.constexpr",
    ),
    in_program(
        "an argument of a called function that lacks its annotation",
        """
        @tessera.jit
        def f(n):
            return «tl.arange(0, n)»

        @tessera.jit
        def k(x, n):
            tl.store(x + f(n), 1.0)

        k[(1,)](x, 16)
        """,
        "not-constexpr", "n: tl.constexpr",
    ),
]  # fmt: skip
