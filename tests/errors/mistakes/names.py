"""Mistakes with names: misspelt ones, those of other libraries, and what a kernel cannot see."""

# ruff: noqa: E501  a mistake is one line
from __future__ import annotations

from tests.errors.mistakes.kit import in_kernel, in_program

CASES = [
    in_kernel("a misspelt variable", "tl.store(out + i, «tt»)", "unknown-name", "did you mean `t`"),
    in_kernel("a misspelt parameter", "tl.store(out + i, t, mask=i < «m»)", "unknown-name", "assign"),
    in_kernel("a misspelt constexpr parameter", "j = tl.arange(0, «BLOK»)", "unknown-name", "`BLOCK`"),
    in_kernel("a misspelt operation", "j = «tl.arrange»(0, BLOCK)", "unknown-name", "`tl.arange`"),
    in_kernel("a misspelt dtype", "y = t.to(«tl.flaot16»)", "unknown-name", "`tl.float16`"),
    in_kernel("a dtype by its short name", "y = t.to(«tl.fp16»)", "unknown-name", "`tl.float16`"),
    in_kernel("Python's name of a dtype", "y = t.to(«tl.float»)", "unknown-name", "tl.float32"),
    in_kernel("NumPy's name of a dtype", "y = t.to(«tl.bool_»)", "unknown-name", "`tl.int1`"),
    in_kernel("a misspelt method", "y = «t.rehsape»(4, 4)", "unknown-name", "`reshape`"),
    in_kernel("a method of torch's tensors", "y = «t.float»()", "unknown-name", "`.to(tl.float32)`"),
    in_kernel("a method of NumPy's arrays", "y = «t.astype»(tl.float16)", "unknown-name", "x.to(dtype)"),
    in_kernel("the size of a tile as in torch", "m = «t.size»(0)", "unknown-name", "x.shape[0]"),
    in_kernel("the mean of a tile", "y = «t.mean»()", "unknown-name", "tl.sum"),
    in_kernel("a method of a number that is known", "y = «BLOCK.to»(tl.float32)", "unknown-name", "`tl.to_tensor(BLOCK).to`"),
    in_kernel("the transpose of a tile as in torch", "y = «t.t»()", "unknown-name", "tl.trans"),
    in_kernel("a tile of ones", "y = «tl.ones»((BLOCK,), tl.float32)", "unknown-name", "tl.full"),
    in_kernel("a tile without values", "y = «tl.empty»((BLOCK,), tl.float32)", "unknown-name", "tl.zeros"),
    in_kernel("matmul for dot", "y = «tl.matmul»(t, t)", "unknown-name", "tl.dot"),
    in_kernel("tanh, which is in libdevice", "y = «tl.tanh»(t)", "unknown-name", "libdevice.tanh"),
    in_kernel("pow, which is in libdevice", "y = «tl.pow»(t, 2.0)", "unknown-name", "libdevice.pow"),
    in_kernel("isnan, which is in libdevice", "y = «tl.isnan»(t)", "unknown-name", "libdevice.isnan"),
    in_kernel("relu", "y = «tl.relu»(t)", "unknown-name", "tl.maximum"),
    in_kernel("the mean, as an operation", "y = «tl.mean»(t)", "unknown-name", "tl.sum"),
    in_kernel("concatenate for cat", "y = «tl.concatenate»(t, t)", "unknown-name", "tl.cat"),
    in_kernel("transpose for trans", "y = «tl.transpose»(t)", "unknown-name", "tl.trans"),
    in_kernel("CUDA's thread index", "j = «tl.thread_id»(0)", "unknown-name", "tl.arange"),
    in_kernel("CUDA's block index", "j = «tl.block_id»(0)", "unknown-name", "tl.program_id"),
    in_kernel("CUDA's barrier", "«tl.syncthreads»()", "unknown-name", "tl.debug_barrier"),
    in_kernel("an unknown function of a module", "y = «tl.extra.libdevice.tahn»(t)", "unknown-name", "did you mean `tl.extra.libdevice."),
    in_kernel("a name that is like no other", "y = «tl.qqqqqq»(t)", "unknown-name", "the language reference"),
    in_kernel("a variable that is like no other", "y = «qqqqqq» + t", "unknown-name", "assign"),
    in_kernel("abs of Python", "y = «abs»(t)", "unknown-name", "tl.abs"),
    in_kernel("sum of Python", "y = «sum»(t)", "unknown-name", "tl.sum"),
    in_kernel("round of Python", "y = «round»(t)", "unknown-name", "libdevice.rint"),
    in_kernel("pow of Python", "y = «pow»(t, 2)", "unknown-name", "tl.exp2"),
    in_kernel("enumerate of Python", "for j, v in «enumerate»((1, 2)):\n    t += v", "unknown-name", "range(len("),
    in_kernel("zip of Python", "for a, b in «zip»((1, 2), (3, 4)):\n    t += a", "unknown-name", "range(len("),
    in_kernel("bool of Python", "y = «bool»(n)", "unknown-name", "!= 0"),
    in_kernel("any of Python", "y = «any»(t > 0)", "unknown-name", "tl.max"),
    in_kernel("sorted of Python", "y = «sorted»(t)", "unknown-name", "tl.sort"),
    in_kernel("open of Python", "y = «open»('x')", "unknown-name", "before the launch"),
    in_kernel("math.exp of a tile", "y = «math.exp(t)»", "not-constexpr", "tl.exp"),
    in_kernel("numpy.exp of a tile", "y = «np.exp(t)»", "not-constexpr", "tl.exp"),
    in_kernel("numpy.maximum of a tile", "y = «np.maximum(t, 0)»", "not-constexpr", "`tl.maximum"),
    in_kernel("numpy.zeros in a kernel", "y = «t + np.zeros(16)»", "type-mismatch", "as its arguments"),
    in_kernel("a global number", "y = t * «SIZE»", "forbidden-global", "tl.constexpr"),
    in_kernel("a misspelt global", "y = tl.load(«idx2» + i)", "unknown-name", "`idx`"),
    in_kernel("a variable of one branch", "if n > 3:\n    y = t\ntl.store(out + i, «y»)", "unknown-name", "every path"),
    in_kernel(
        "a variable of a loop", "for j in range(n):\n    y = t * j\ntl.store(out + i, «y»)", "unknown-name", "before",
    ),
    in_kernel("a variable before its assignment", "tl.store(out + i, «y»)\ny = t", "unknown-name", "before"),
    in_program(
        "an ordinary function",
        """
        def scale(a):
            return a * 2

        @tessera.jit
        def k(x):
            tl.store(x, «scale»(tl.load(x)))

        k[(1,)](x)
        """,
        "forbidden-global", "@tessera.jit",
    ),
    in_program(
        "an ordinary class",
        """
        class Pair:
            pass

        @tessera.jit
        def k(x):
            p = «Pair»()
            tl.store(x, 1.0)

        k[(1,)](x)
        """,
        "forbidden-global", "aggregate",
    ),
    in_program(
        "an enum",
        """
        import enum

        class Mode(enum.IntEnum):
            ADD = 1

        @tessera.jit
        def k(x, MODE: tl.constexpr):
            tl.store(x, 1.0, mask=MODE == «Mode».ADD)

        k[(1,)](x, Mode.ADD)
        """,
        "forbidden-global", "X = tl.constexpr(Mode.X)",
    ),
    in_program(
        "a global dictionary",
        """
        TABLE = {"a": 1}

        @tessera.jit
        def k(x):
            tl.store(x, «TABLE»["a"])

        k[(1,)](x)
        """,
        "forbidden-global", "tl.constexpr",
    ),
    in_program(
        "a global scalar of NumPy",
        """
        SCALE = np.float32(2)

        @tessera.jit
        def k(x):
            tl.store(x, «SCALE»)

        k[(1,)](x)
        """,
        "forbidden-global", "tl.constexpr(...)",
    ),
    in_program(
        "a global array",
        """
        @tessera.jit
        def k(x):
            tl.store(x, tl.load(«out»))

        k[(1,)](x)
        """,
        "forbidden-global", "argument",
    ),
    in_program(
        "an ordinary function that computes with a tile",
        """
        @tessera.constexpr_function
        def scale(a):
            return a * 2

        @tessera.jit
        def k(x):
            tl.store(x, «scale(tl.load(x))»)

        k[(1,)](x)
        """,
        "not-constexpr", "@tessera.jit",
    ),
    in_program(
        "a constant that changes",
        """
        SCALE = tl.constexpr(2)

        @tessera.jit
        def k(x):
            tl.store(x, SCALE)

        k[(1,)](x)
        SCALE = tl.constexpr(3)
        «k[(1,)](x)»
        """,
        "changed-global", "tl.constexpr",
    ),
]  # fmt: skip
