"""Operations over whole tiles: `dot`, reductions and scans by a given function, histogram, gather."""

from __future__ import annotations

from typing import Any

from tessera.dtypes import float32
from tessera.language.builtin import builtin


@builtin
def dot(
    input: Any,
    other: Any,
    acc: Any = None,
    input_precision: Any = None,
    allow_tf32: Any = None,
    max_num_imprecise_acc: Any = None,
    out_dtype: Any = None,
) -> Any:
    """Matrix product `input[.., M, K] @ other[.., K, N] + acc[.., M, N]`.

    Operands: two fp8, or twice the same of int8, fp16, bf16, fp32, fp64. The result is int32 for int8, fp32 for bf16
    and fp32, fp64 for fp64, else `out_dtype` (default: acc's dtype, or fp32). `input_precision` says how fp32 operands
    are multiplied: "tf32", "tf32x3", "ieee", "bf16x3", "bf16x6". K is at least 16 (16-bit), 32 (8-bit), 8 (32-bit).
    CPUs that multiply bf16 in hardware (AVX512-BF16, AMX) take subnormal bf16 operands, those below 2**-126, for 0.
    """


@builtin
def dot_scaled(
    lhs: Any,
    lhs_scale: Any,
    lhs_format: Any,
    rhs: Any,
    rhs_scale: Any,
    rhs_format: Any,
    acc: Any = None,
    fast_math: Any = False,
    lhs_k_pack: Any = True,
    rhs_k_pack: Any = True,
    out_dtype: Any = float32,
) -> Any:
    """Matrix product of operands in a microscaling format, each group of 16 or 32 along K with a scale of its own.

    Formats: "e2m1" (uint8, two values a byte, low nibble first, packed along K, or along M or N where `…_k_pack` is
    False), "e4m3" and "e5m2" (fp8 or uint8), "bf16", "fp16" (or uint16). Scales: [.., M, K/g] and [.., N, K/g], uint8
    as 2**(s - 127) (255: NaN) or fp8e4nv, or None. The result is fp32. Scaled operands are rounded to bf16 (fp16 if an
    operand is fp16) and multiplied there, which is exact for the 4- and 8-bit formats while nothing underflows;
    of subnormal bf16 on CPUs see `dot`.
    """


@builtin
def reduce(input: Any, axis: Any, combine_fn: Any, keep_dims: Any = False) -> Any:
    """Combine all elements along `axis` (None: all of them) by the jitted `combine_fn`.

    `input` is a tensor or a tuple of n tensors of one shape; `combine_fn(a0…, b0…)` gets 2n scalars and returns n.
    It must be associative and commutative. `keep_dims` keeps the axis with extent 1.
    """


@builtin
def associative_scan(input: Any, axis: Any, combine_fn: Any, reverse: Any = False) -> Any:
    """Inclusive prefix combination along `axis` by the associative, jitted `combine_fn`; from the end if `reverse`."""


@builtin
def histogram(input: Any, num_bins: Any, mask: Any = None) -> Any:
    """How often each of 0 … num_bins-1 occurs in a 1-D integer tile, as int32; others and masked-off do not count."""


@builtin
def gather(src: Any, index: Any, axis: Any) -> Any:
    """`src` with the coordinate on `axis` taken from the integer tile `index`, whose shape the result has.

    Ranks are equal and so are all extents but that of `axis`; indices out of range are undefined.
    """


@builtin
def widen_for_sum(input: Any, dtype: Any = None) -> Any:
    """`input` cast to what `sum` accumulates in: `dtype`, or at least 32 bits for ints; floats stay."""


@builtin
def widen_for_max(input: Any, return_indices: Any = False) -> Any:
    """`input` cast to what `max` compares in: at least 32 bits; with indices only bf16 widens."""


@builtin
def promote_bf16(input: Any) -> Any:
    """`input` as fp32 if it is bf16, else unchanged."""


@builtin
def bits_of(input: Any) -> Any:
    """`input` bit-cast to the signed int of its width (int1 becomes int8)."""


@builtin
def from_bits(input: Any, dtype: Any) -> Any:
    """The inverse of `bits_of`."""
