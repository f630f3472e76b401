"""Element-wise operations: arithmetic, selection and the math functions."""

from __future__ import annotations

import enum
from typing import Any

from tessera.language.builtin import builtin


class PropagateNan(enum.Enum):
    """What `minimum`, `maximum` and `clamp` do with NaN: the other operand wins, or NaN wins."""

    NONE = 0
    ALL = 0xFFFF


@builtin
def add(x: Any, y: Any, sanitize_overflow: Any = True) -> Any:
    """`x + y`; `sanitize_overflow=False` leaves out the overflow check of debug builds."""


@builtin
def sub(x: Any, y: Any, sanitize_overflow: Any = True) -> Any:
    """`x - y`; `sanitize_overflow=False` leaves out the overflow check of debug builds."""


@builtin
def mul(x: Any, y: Any, sanitize_overflow: Any = True) -> Any:
    """`x * y`; `sanitize_overflow=False` leaves out the overflow check of debug builds."""


@builtin
def minimum(x: Any, y: Any, propagate_nan: Any = PropagateNan.NONE) -> Any:
    """The smaller of two operands, element by element; bf16 gives fp32. Numbers take their default dtype first."""


@builtin
def maximum(x: Any, y: Any, propagate_nan: Any = PropagateNan.NONE) -> Any:
    """The larger of two operands, element by element; bf16 gives fp32. Numbers take their default dtype first."""


@builtin
def clamp(x: Any, min: Any, max: Any, propagate_nan: Any = PropagateNan.NONE) -> Any:
    """`x` limited to [min, max]; undefined where min > max or a bound is NaN."""


@builtin
def where(condition: Any, x: Any, y: Any) -> Any:
    """`x` where `condition` (int1), else `y`; both are evaluated, all three broadcast, x and y promote as in `+`."""


@builtin
def logical_and(input: Any, other: Any) -> Any:
    """`input and other` of two int1 operands."""


@builtin
def logical_or(input: Any, other: Any) -> Any:
    """`input or other` of two int1 operands."""


@builtin
def abs(x: Any) -> Any:
    """|x| for any dtype; the smallest integer stays itself."""


@builtin
def exp(x: Any) -> Any:
    """e to the power x (fp32 or fp64).

    In fp32 within 2 ulp on CPUs; on GPUs quick, with an error of up to |x| ulp: `extra.libdevice.exp` is accurate.
    """


@builtin
def exp2(x: Any) -> Any:
    """2 to the power x (fp32 or fp64), within 2 ulp; GPUs flush subnormal fp32."""


@builtin
def log(x: Any) -> Any:
    """Natural logarithm (fp32 or fp64), within 2 ulp."""


@builtin
def log2(x: Any) -> Any:
    """Logarithm to base 2 (fp32 or fp64), within 2 ulp."""


@builtin
def sin(x: Any) -> Any:
    """Sine of x in radians, full range (fp32 or fp64), within 2.5 ulp in fp32, 2 in fp64."""


@builtin
def cos(x: Any) -> Any:
    """Cosine of x in radians, full range (fp32 or fp64), within 2.5 ulp in fp32, 2 in fp64."""


@builtin
def sqrt(x: Any) -> Any:
    """Square root (fp32 fast, fp64 correctly rounded)."""


@builtin
def sqrt_rn(x: Any) -> Any:
    """Square root of fp32, correctly rounded."""


@builtin
def rsqrt(x: Any) -> Any:
    """1 / sqrt(x) (fp32 or fp64), within 2 ulp; GPUs flush subnormal fp32."""


@builtin
def erf(x: Any) -> Any:
    """Error function (fp32 or fp64), within 2.5 ulp in fp32, 2 in fp64."""


@builtin
def floor(x: Any) -> Any:
    """Largest integer not above x, as a float (fp32 or fp64)."""


@builtin
def ceil(x: Any) -> Any:
    """Smallest integer not below x, as a float (fp32 or fp64)."""


@builtin
def fma(x: Any, y: Any, z: Any) -> Any:
    """`x * y + z` of floats, rounded once."""


@builtin
def fdiv(x: Any, y: Any, ieee_rounding: Any = False, approx: Any = False) -> Any:
    """Quotient of two floats: within 2 ulp in fp32, or correctly rounded with `ieee_rounding`.

    `approx` permits the quickest quotient, which is the default one here; it excludes `ieee_rounding`.
    """


@builtin
def div_rn(x: Any, y: Any) -> Any:
    """Quotient of two fp32, correctly rounded."""


@builtin
def umulhi(x: Any, y: Any) -> Any:
    """High half of the double-width product of 32- or 64-bit ints, their bits taken as unsigned."""


@builtin
def expect_zero(x: Any, mask: Any) -> Any:
    """`x` unchanged, with the promise that it is 0 where `mask` (int1) holds; debug builds assert it."""
