"""Defines functions of one float, element by element: one class each, by which meanings and lowerings are found."""

from __future__ import annotations

from tessera.ops.arith import FloatUnary

__all__ = [
    "MATH_OPS", "AcosOp", "AcoshOp", "AsinOp", "AsinhOp", "AtanOp", "AtanhOp", "BesselI0Op", "BesselI1Op",
    "BesselJ0Op", "BesselJ1Op", "BesselY0Op", "BesselY1Op", "CeilOp", "CosOp", "CoshOp", "ErfOp",
    "ErfinvRatioOp", "Exp10Op", "Exp2Op", "ExpOp", "Expm1Op", "FastCosOp", "FastLog2Op", "FastRcbrtOp", "FastSinOp",
    "FloorOp", "Log10Op", "Log1pOp", "Log2Op", "LogOp", "RintOp", "RoundOp", "RsqrtOp",
    "SinOp", "SinhOp", "SqrtOp", "SqrtRnOp", "TanOp", "TanhOp", "TruncOp",
]  # fmt: skip


class ExpOp(FloatUnary, opcode="exp"):
    """E to the power x (fast: 2 ulp in fp32, subnormals flushed on GPUs)."""


class Exp2Op(FloatUnary, opcode="exp2"):
    """2 to the power x (fast)."""


class Exp10Op(FloatUnary, opcode="exp10"):
    """10 to the power x."""


class Expm1Op(FloatUnary, opcode="expm1"):
    """E to the power x, minus 1, accurate near 0."""


class LogOp(FloatUnary, opcode="log"):
    """Natural logarithm."""


class Log2Op(FloatUnary, opcode="log2"):
    """Logarithm to base 2."""


class Log10Op(FloatUnary, opcode="log10"):
    """Logarithm to base 10."""


class Log1pOp(FloatUnary, opcode="log1p"):
    """Natural logarithm of 1 + x, accurate near 0."""


class FastLog2Op(FloatUnary, opcode="fast_log2"):
    """Logarithm to base 2, with an absolute error near 1 where a target has an instruction for it."""


class FastRcbrtOp(FloatUnary, opcode="fast_rcbrt"):
    """1 / cube root of a positive normal number, 0 or infinity, off by 4e-6 at most: a start for Newton's method."""


class ErfinvRatioOp(FloatUnary, opcode="erfinv_ratio"):
    """erfinv(y) / y for the y with 1 - y * y = x: infinite at 0."""


class BesselI0Op(FloatUnary, opcode="bessel_i0"):
    """Modified Bessel function of the first kind, order 0, of x >= 0."""


class BesselI1Op(FloatUnary, opcode="bessel_i1"):
    """Modified Bessel function of the first kind, order 1, of x >= 0."""


class BesselJ0Op(FloatUnary, opcode="bessel_j0"):
    """Bessel function of the first kind, order 0, of x >= 0."""


class BesselJ1Op(FloatUnary, opcode="bessel_j1"):
    """Bessel function of the first kind, order 1, of x >= 0."""


class BesselY0Op(FloatUnary, opcode="bessel_y0"):
    """Bessel function of the second kind, order 0, of x >= 0."""


class BesselY1Op(FloatUnary, opcode="bessel_y1"):
    """Bessel function of the second kind, order 1, of x >= 0."""


class FastSinOp(FloatUnary, opcode="fast_sin"):
    """Sine of x in radians, with an error that grows with |x| where a target has an instruction for it."""


class FastCosOp(FloatUnary, opcode="fast_cos"):
    """Cosine of x in radians, as `FastSinOp`."""


class SinOp(FloatUnary, opcode="sin"):
    """Sine of x in radians, full range."""


class CosOp(FloatUnary, opcode="cos"):
    """Cosine of x in radians, full range."""


class TanOp(FloatUnary, opcode="tan"):
    """Tangent of x in radians, full range."""


class AsinOp(FloatUnary, opcode="asin"):
    """Inverse sine."""


class AcosOp(FloatUnary, opcode="acos"):
    """Inverse cosine."""


class AtanOp(FloatUnary, opcode="atan"):
    """Inverse tangent."""


class SinhOp(FloatUnary, opcode="sinh"):
    """Hyperbolic sine."""


class CoshOp(FloatUnary, opcode="cosh"):
    """Hyperbolic cosine."""


class TanhOp(FloatUnary, opcode="tanh"):
    """Hyperbolic tangent."""


class AsinhOp(FloatUnary, opcode="asinh"):
    """Inverse hyperbolic sine."""


class AcoshOp(FloatUnary, opcode="acosh"):
    """Inverse hyperbolic cosine; NaN below 1."""


class AtanhOp(FloatUnary, opcode="atanh"):
    """Inverse hyperbolic tangent; NaN outside of [-1, 1]."""


class ErfOp(FloatUnary, opcode="erf"):
    """Error function."""


class SqrtOp(FloatUnary, opcode="sqrt"):
    """Square root (fast in fp32)."""


class SqrtRnOp(FloatUnary, opcode="sqrt_rn"):
    """Square root, correctly rounded."""


class RsqrtOp(FloatUnary, opcode="rsqrt"):
    """1 / square root (fast)."""


class FloorOp(FloatUnary, opcode="floor"):
    """Largest integer not above x."""


class CeilOp(FloatUnary, opcode="ceil"):
    """Smallest integer not below x."""


class TruncOp(FloatUnary, opcode="trunc"):
    """Integer part of x."""


class RintOp(FloatUnary, opcode="rint"):
    """Nearest integer, ties to even."""


class RoundOp(FloatUnary, opcode="round"):
    """Nearest integer, ties away from zero."""


MATH_OPS: dict[str, type[FloatUnary]] = {cls.opcode: cls for cls in FloatUnary.__subclasses__()}
