"""Makes counter-based random numbers: Philox 4×32 (or 4×64), uniform and normal.

The n-th number of a stream is a pure function of (seed, n): a round multiplies two of four counter words by fixed
odd constants and mixes the halves of the products with the others and with a key that grows by a constant.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tessera.dtypes import float32, int32, int64, uint32, uint64
from tessera.language import arithmetic, creation, hints, values
from tessera.language.callable import library

__all__ = [
    "pair_uniform_to_normal", "philox", "philox_impl", "rand", "rand4x", "randint", "randint4x", "randn", "randn4x",
    "uint_to_uniform_float",
]  # fmt: skip

if TYPE_CHECKING:
    from tessera.language.kernel_typing import constexpr
    from tessera.language.operand_types import Operand
    from tessera.language.values import tensor
else:
    from tessera.language.values import constexpr

DEFAULT_ROUNDS: constexpr = values.constexpr(10)  # number of Philox rounds of `rand` and the others
N_ROUNDS_DEFAULT = DEFAULT_ROUNDS

_TWO_PI: constexpr = values.constexpr(6.283185307179586)


@library
def philox_impl(
    c0: tensor,
    c1: tensor,
    c2: tensor,
    c3: tensor,
    k0: tensor,
    k1: tensor,
    n_rounds: constexpr = DEFAULT_ROUNDS,
):
    """The four words of `n_rounds` Philox rounds on four counters and two keys, all uint32 or all uint64.

    The operands broadcast; the result is a tuple of four tiles of their dtype.

    Source: J. K. Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011 (Philox 4x32 and 4x64).

    Raises:
        static-assert: the dtype is another one: `tl.philox_impl(i, i, i, i, i, i)`.

    Example:
        >>> z = tl.zeros([8], tl.uint32)
        >>> tl.philox_impl(i.to(tl.uint32), z, z, z, z, z)[0] % 1000
        uint32[8]: 541, 164, 633, 825, 324, 315, 560, 705
    """
    if c0.dtype == uint32:
        key_a: constexpr = 0x9E3779B9
        key_b: constexpr = 0xBB67AE85
        round_a: constexpr = 0xD2511F53
        round_b: constexpr = 0xCD9E8D57
    else:
        hints.static_assert(c0.dtype == uint64, "philox counters are uint32 or uint64")
        key_a: constexpr = 0x9E3779B97F4A7C15
        key_b: constexpr = 0xBB67AE8584CAA73B
        round_a: constexpr = 0xD2E7470EE14C6C93
        round_b: constexpr = 0xCA5A826395121157
    for _ in hints.static_range(n_rounds):
        high_a = arithmetic.umulhi(round_a, c0)
        high_b = arithmetic.umulhi(round_b, c2)
        low_a = arithmetic.mul(c0, round_a, sanitize_overflow=False)
        low_b = arithmetic.mul(c2, round_b, sanitize_overflow=False)
        c0 = high_b ^ c1 ^ k0
        c2 = high_a ^ c3 ^ k1
        c1 = low_b
        c3 = low_a
        k0 = arithmetic.add(k0, key_a, sanitize_overflow=False)
        k1 = arithmetic.add(k1, key_b, sanitize_overflow=False)
    return c0, c1, c2, c3


@library
def philox(
    seed: Operand,
    c0: tensor,
    c1: tensor,
    c2: tensor,
    c3: tensor,
    n_rounds: constexpr = DEFAULT_ROUNDS,
):
    """Four words of the stream `seed` at the counter (c0, c1, c2, c3), as a tuple of tiles of uint32 or uint64.

    The seed is an integer scalar; the counters are ints of 32 or 64 bits, whose width the words have. Source: as for
    `philox_impl`.

    Raises:
        static-assert: the seed is no integer: `tl.philox(1.5, i, i, i, i)`.

    Example:
        >>> z = tl.zeros([8], tl.uint32)
        >>> tl.philox(42, i.to(tl.uint32), z, z, z)[0] % 1000
        uint32[8]: 643, 303, 13, 981, 260, 593, 92, 673
    """
    wide = creation.to_tensor(seed)
    hints.static_assert(wide.dtype.is_int(), "the seed of a random function must be an integer")
    wide = wide.to(uint64)
    c0 = creation.to_tensor(c0)
    c1 = creation.to_tensor(c1)
    c2 = creation.to_tensor(c2)
    c3 = creation.to_tensor(c3)
    if c0.dtype.primitive_bitwidth == 32:
        k0 = wide.to(uint32)
        k1 = (wide >> 32).to(uint32)
        word: constexpr = uint32
    else:
        k0 = wide
        k1 = creation.zeros_like(wide)
        word: constexpr = uint64
    return philox_impl(c0.to(word), c1.to(word), c2.to(word), c3.to(word), k0, k1, n_rounds)


@library
def randint4x(seed: Operand, offset: Operand, n_rounds: constexpr = DEFAULT_ROUNDS):
    """Random bits: a tuple of four uint32 tiles in the shape of `offset`, a tensor of ints.

    Equal seeds and offsets give equal bits, on every target. The four words of a counter cost as much as one.

    Raises:
        static-assert: the seed is no integer: `tl.randint4x(1.5, i)`.
        unknown-name: the offset is a number instead of a tensor: `tl.randint4x(42, 5)`.

    Example:
        >>> tl.randint4x(42, i)[3] % 1000
        uint32[8]: 207, 651, 921, 71, 959, 615, 970, 423
    """
    low = offset.to(uint32)
    zero = creation.zeros_like(low)
    if offset.dtype.primitive_bitwidth > 32:
        high = (offset >> 32).to(uint32)
    else:
        high = zero
    return philox(seed, low, high, zero, zero, n_rounds)


@library
def randint(seed: Operand, offset: Operand, n_rounds: constexpr = DEFAULT_ROUNDS):
    """Random bits: a uint32 tile in the shape of `offset`, a tensor of ints; the first of `randint4x`.

    Raises:
        static-assert: the seed is no integer: `tl.randint(1.5, i)`.

    Example:
        >>> tl.randint(42, i) % 1000
        uint32[8]: 643, 303, 13, 981, 260, 593, 92, 673
    """
    return randint4x(seed, offset, n_rounds)[0]


@library
def uint_to_uniform_float(x: tensor):
    """Random bits of 32 or 64 as fp32, uniform in [0, 1), in the shape of `x`.

    Raises:
        type-mismatch: the width is another one: `tl.uint_to_uniform_float(n.to(tl.uint8))`.

    Example:
        >>> tl.uint_to_uniform_float(n.to(tl.uint32) << 28)
        fp32[8]: 0.375, 0.125, 0.5, 0.125, 0.625, 0.875, 0.25, 0.75
    """
    if x.dtype.primitive_bitwidth == 32:
        scale: constexpr = 4.6566127342e-10
        x = x.to(int32, bitcast=True)
    else:
        scale: constexpr = 1.0842020432385337e-19
        x = x.to(int64, bitcast=True)
    x = arithmetic.where(x < 0, ~x, x)
    return x.to(float32) * scale


@library
def rand(seed: Operand, offset: Operand, n_rounds: constexpr = DEFAULT_ROUNDS):
    """Random numbers, uniform in [0, 1): an fp32 tile in the shape of `offset`, a tensor of ints.

    Raises:
        static-assert: the seed is no integer: `tl.rand(1.5, i)`.

    Example:
        >>> tl.rand(42, i)
        fp32[8]: 0.77408, 0.0245627, 0.348266, 0.540801, 0.652836, 0.629695, 0.450964, 0.716721
    """
    return uint_to_uniform_float(randint(seed, offset, n_rounds))


@library
def rand4x(seed: Operand, offsets: Operand, n_rounds: constexpr = DEFAULT_ROUNDS):
    """Random numbers, uniform in [0, 1): a tuple of four fp32 tiles in the shape of `offsets`, a tensor of ints.

    Raises:
        static-assert: the seed is no integer: `tl.rand4x(1.5, i)`.

    Example:
        >>> tl.rand4x(42, i)[1]
        fp32[8]: 0.937173, 0.654127, 0.683369, 0.65872, 0.321909, 0.586936, 0.513725, 0.816171
    """
    a, b, c, d = randint4x(seed, offsets, n_rounds)
    return (
        uint_to_uniform_float(a),
        uint_to_uniform_float(b),
        uint_to_uniform_float(c),
        uint_to_uniform_float(d),
    )


@library
def pair_uniform_to_normal(u1: tensor, u2: tensor):
    """Two independent standard normal fp32 tiles from two that are uniform in [0, 1), as a tuple.

    Source: G. E. P. Box and M. E. Muller, "A note on the generation of random normal deviates", 1958.

    Raises:
        shape-mismatch: the operands do not broadcast: `tl.pair_uniform_to_normal(x, i16.to(tl.float32))`.

    Example:
        >>> u = tl.rand(42, i)
        >>> tl.pair_uniform_to_normal(u, u)[0]
        fp32[8]: 0.107866, 2.69033, -0.840871, -1.07255, -0.529422, -0.659733, -1.20261, -0.169419
    """
    u1 = arithmetic.maximum(1.0e-7, u1)
    angle = _TWO_PI * u2
    radius = arithmetic.sqrt(-2.0 * arithmetic.log(u1))
    return radius * arithmetic.cos(angle), radius * arithmetic.sin(angle)


@library
def randn(seed: Operand, offset: Operand, n_rounds: constexpr = DEFAULT_ROUNDS):
    """Random numbers of the standard normal distribution: an fp32 tile in the shape of `offset`, a tensor of ints.

    Raises:
        static-assert: the seed is no integer: `tl.randn(1.5, i)`.

    Example:
        >>> tl.randn(42, i)
        fp32[8]: 0.660613, -1.54271, -0.590464, -0.601625, -0.403203, -0.821837, -1.25735, 0.329644
    """
    a, b, _, _ = randint4x(seed, offset, n_rounds)
    first, _ = pair_uniform_to_normal(uint_to_uniform_float(a), uint_to_uniform_float(b))
    return first


@library
def randn4x(seed: Operand, offset: Operand, n_rounds: constexpr = DEFAULT_ROUNDS):
    """Random numbers of the standard normal distribution: a tuple of four fp32 tiles in the shape of `offset`.

    `offset` is a tensor of ints.

    Raises:
        static-assert: the seed is no integer: `tl.randn4x(1.5, i)`.

    Example:
        >>> tl.randn4x(42, i)[1]
        fp32[8]: -0.275227, -2.24345, -1.327, -0.931372, 0.830834, -0.499623, -0.108699, -0.746641
    """
    u1, u2, u3, u4 = rand4x(seed, offset, n_rounds)
    n1, n2 = pair_uniform_to_normal(u1, u2)
    n3, n4 = pair_uniform_to_normal(u3, u4)
    return n1, n2, n3, n4
