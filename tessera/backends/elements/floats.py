"""Writes arithmetic on one float type, fp32 or fp64, and holds the table of the math functions written with it.

A function is written once, for elements and vectors of every target (exponentials.py, trigonometry.py, power.py). A
target offers what it does better itself as `ElementBuilder.own`: ex2 and rsqrt on a GPU, the C library on a CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tessera.backends.elements.builder import ElementBuilder
from tessera.dtypes import dtype, float64
from tessera.errors import InternalError

Body = Callable[..., str]
FUNCTIONS: dict[tuple[str, dtype], Body] = {}
INTRINSICS = {
    "sqrt": "sqrt", "sqrt_rn": "sqrt", "floor": "floor", "ceil": "ceil", "trunc": "trunc", "rint": "rint",
    "round": "round",
}  # fmt: skip

APPROXIMATE = {
    "fast_log2": "log2",
    "normal_log2": "log2",
    "fast_sin": "sin",
    "fast_cos": "cos",
}  # and what they are elsewhere; `normal_log2` may take subnormal numbers for 0


def function(name: str, *types: dtype) -> Callable[[Body], Body]:
    """Register fn(m, *arguments) -> result as the function `name` (an opcode) of these float types."""

    def register(fn: Body) -> Body:
        for t in types:
            FUNCTIONS[name, t] = fn
        return fn

    return register


def evaluate(x: ElementBuilder, name: str, t: dtype, *args: str) -> str:
    """Evaluate the function `name` (an opcode) of fp32 or fp64: by the target's own version, else by the table,
    else in fp64."""
    if name in APPROXIMATE:
        found = x.approximate(name, t, *args)
        if found is not None:
            return found
        name = APPROXIMATE[name]
    own = x.own(name, t, *args)
    if own is not None:
        return own
    if name in INTRINSICS:
        return x.call(INTRINSICS[name], x.type(t), *args)
    m = Floats(x, t)
    if name == "rsqrt":
        return m.op("fdiv", m.const(1.0), m.call("sqrt", *args))
    body = FUNCTIONS.get((name, t))
    if body is None and t is float64:
        raise InternalError(f"there is no {name} of fp64")
    if body is None:
        wide = [x.convert("fpext", "float", v, "double") for v in args]
        return x.convert("fptrunc", "double", evaluate(x, name, float64, *wide), "float")
    if x.is_inlined(name, t):
        return body(m, *args)
    return x.shared(name, t, args, lambda inner, operands: body(Floats(inner, t), *operands))


class Floats:
    """Arithmetic on elements of one float type."""

    __slots__ = ("double", "int", "t", "type", "x")

    def __init__(self, x: ElementBuilder, t: dtype) -> None:
        self.x, self.t, self.double = x, t, t is float64
        self.type, self.int = ("double", "i64") if self.double else ("float", "i32")

    @property
    def mantissa(self) -> int:
        """The number of bits after the binary point."""
        return self.t.mantissa

    def const(self, value: float) -> str:
        return self.x.constant(self.t, value)

    def op(self, name: str, a: str, b: str) -> str:
        return self.x.op(name, self.type, a, b)

    def add(self, a: str, b: str) -> str:
        return self.op("fadd", a, b)

    def sub(self, a: str, b: str) -> str:
        return self.op("fsub", a, b)

    def mul(self, a: str, b: str) -> str:
        return self.op("fmul", a, b)

    def div(self, a: str, b: str) -> str:
        """Divide: by the target's fast fp32 quotient if it has one; correctly rounded in fp64."""
        return self.x.own("div", self.t, a, b) or self.op("fdiv", a, b)

    def reciprocal(self, a: str) -> str:
        return self.x.own("rcp", self.t, a) or self.op("fdiv", self.const(1.0), a)

    def neg(self, a: str) -> str:
        return self.x.op("fneg", self.type, a)

    def call(self, name: str, *args: str) -> str:
        return self.x.call(name, self.type, *args)

    def math(self, name: str, *args: str) -> str:
        """Return a mathematical function of the same type."""
        return evaluate(self.x, name, self.t, *args)

    def fma(self, a: str, b: str, c: str) -> str:
        return self.call("fma", a, b, c)

    def abs(self, a: str) -> str:
        return self.call("fabs", a)

    def sign_of(self, size: str, sign: str) -> str:
        return self.call("copysign", size, sign)

    # --- choices ------------------------------------------------------------------------------------------
    def cmp(self, predicate: str, a: str, b: str) -> str:
        return self.x.cmp(f"fcmp {predicate}", self.type, a, b)

    def below(self, a: str, bound: float) -> str:
        return self.cmp("olt", a, self.const(bound))

    def select(self, c: str, a: str, b: str) -> str:
        return self.x.select(self.type, c, a, b)

    def both(self, a: str, b: str) -> str:
        return self.x.op("and", "i1", a, b)

    def either(self, a: str, b: str) -> str:
        return self.x.op("or", "i1", a, b)

    def negated(self, a: str) -> str:
        return self.x.op("xor", "i1", a, self.x.int("i1", 1))

    def at_most(self, a: str, bound: float) -> str:
        """Return the lesser one; NaN stays NaN."""
        limit = self.const(bound)
        return self.select(self.cmp("olt", limit, a), limit, a)

    def at_least(self, a: str, bound: float) -> str:
        limit = self.const(bound)
        return self.select(self.cmp("ogt", limit, a), limit, a)

    # --- bits ---------------------------------------------------------------------------------------------
    def iconst(self, value: int) -> str:
        return self.x.int(self.int, value)

    def iop(self, name: str, a: str, b: str | int) -> str:
        return self.x.op(name, self.int, a, b if isinstance(b, str) else self.iconst(b))

    def bits(self, a: str) -> str:
        return self.x.convert("bitcast", self.type, a, self.int)

    def from_bits(self, a: str) -> str:
        return self.x.convert("bitcast", self.int, a, self.type)

    def to_float(self, a: str) -> str:
        return self.x.convert("sitofp", self.int, a, self.type)

    def power_of_two(self, n: str) -> str:
        """Return 2^n for an integer n in the range of exponents."""
        exponent = self.iop("shl", self.iop("add", n, self.t.bias), self.mantissa)
        return self.from_bits(exponent)

    # --- pieces of many functions ----------------------------------------------------------------------------
    def polynomial(self, coefficients: Sequence[float], at: str) -> str:
        """Evaluate a polynomial by Horner's rule; the lowest power comes first."""
        total = self.const(coefficients[-1])
        for c in reversed(coefficients[:-1]):
            total = self.fma(total, at, self.const(c))
        return total

    def shifter(self) -> str:
        """Return a constant whose sum with a number of moderate size has the nearest integer in its low bits."""
        return self.const(1.5 * 2.0**self.mantissa)

    def scaled(self, q: str, n: str) -> str:
        """Return q * 2^n for an integer n, in two steps, because 2^n alone may overflow or be subnormal."""
        half = self.iop("ashr", n, 1)
        for part in (half, self.iop("sub", n, half)):
            q = self.mul(q, self.power_of_two(part))
        return q
