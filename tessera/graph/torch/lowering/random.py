"""Makes random numbers: Philox 4x32-10 of a seed that each call draws from torch's generator, and the place.

`torch.manual_seed` makes runs reproducible; the numbers are others than eager's (`options={"random": "eager"}` gives
those)."""

# pyright: basic
# torch gives most of its values no type.
from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from tessera.dtypes import dtype, float32, float64, int64, uint32, uint64
from tessera.graph.index import Expr, expr
from tessera.graph.ir.scalars import Scalar, function, where
from tessera.graph.ir.types import TensorType, row_major
from tessera.graph.torch.lowering.base import Lowering, Tensor, rule, whole
from tessera.graph.torch.lowering.pointwise import accumulator_of, cast
from tessera.graph.torch.types import SEED, NotLowered, sizes_of
from tessera.ops import arith

MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
ROUNDS = 10


def philox(counter: Sequence[Scalar], key: Sequence[Scalar]) -> list[Scalar]:
    """Four random words (uint32) of a counter of four and a key of two."""
    c, k = list(counter), list(key)
    for n in range(ROUNDS):
        low = [c[0] * MULTIPLIERS[0], c[2] * MULTIPLIERS[1]]
        high = [
            c[0].binary(arith.MulHiOp, MULTIPLIERS[0]),
            c[2].binary(arith.MulHiOp, MULTIPLIERS[1]),
        ]
        c = [high[1] ^ c[1] ^ k[0], low[1], high[0] ^ c[3] ^ k[1], low[0]]
        if n + 1 < ROUNDS:
            k = [k[0] + KEY_STEPS[0], k[1] + KEY_STEPS[1]]
    return c


def random_words(low: Lowering, device: str) -> Callable[[list[Expr], Sequence[Any]], list[Scalar]]:
    """What gives four random words for a coordinate in a shape: other ones for each operation of a graph."""
    if low.eager_random:
        raise NotLowered("random numbers are asked to be eager's")
    if device != low.g.device:
        raise NotLowered("numbers of another device's generator")
    if device not in low.seeds:
        seed = TensorType((1,), int64, None, device)
        (low.seeds[device],) = low.g.extern(SEED, [], [device], [seed], pure=False)
    seed, stream = low.seeds[device], low.streams
    low.streams += 1

    def words(i: list[Expr], shape: Sequence[Any]) -> list[Scalar]:
        drawn = low.load(whole(seed), [0]).bits(uint64)
        place = expr(0)
        for j, step in zip(i, row_major(shape), strict=True):
            place = place + j * step
        at = low.position(place).bits(uint64)
        halves = [at.to(uint32), (at >> 32).to(uint32)]
        counter = [*halves, low.const(stream, uint32), low.const(0, uint32)]
        return philox(counter, [drawn.to(uint32), (drawn >> 32).to(uint32)])

    return words


def fraction(words: Sequence[Scalar], elem: dtype) -> Scalar:
    """A number of [0, 1) with as many random bits as the type holds."""
    if elem == float64:
        high = (words[0].to(uint64) << 21) ^ (words[1].to(uint64) >> 11)
        return high.bits(int64).to(float64) * 2.0**-53
    bits = min(24, elem.mantissa + 1)
    return (words[0] >> (32 - bits)).to(float32) * 2.0**-bits


def normal(words: Sequence[Scalar], elem: dtype) -> Scalar:
    """A number of the standard normal distribution (Box and Muller)."""
    inside = float64 if elem == float64 else float32
    radius = 1 - fraction(words[:2], inside)
    angle = fraction(words[2:], inside) * (2 * math.pi)
    return function("sqrt", function("log", radius) * -2) * function("cos", angle)


def drawn(low: Lowering, value: Callable[[list[Scalar]], Scalar]) -> Tensor:
    shape, elem = low.shape, low.elem
    words = random_words(low, str(low.out.device))
    return low.map(lambda i: value(words(i, shape)).to(elem))


@rule("rand", "rand_like")
def rand(low: Lowering, *_: Any, **__: Any) -> Tensor:
    elem = low.elem
    return drawn(low, lambda words: fraction(words, elem))


@rule("randn", "randn_like")
def randn(low: Lowering, *_: Any, **__: Any) -> Tensor:
    elem = low.elem
    return drawn(low, lambda words: normal(words, elem))


@rule("uniform")
def uniform(low: Lowering, x: Tensor, start: float = 0.0, end: float = 1.0, **_: Any) -> Tensor:
    elem = low.elem
    return drawn(low, lambda words: fraction(words, elem) * (end - start) + start)


@rule("normal_functional")
def normal_functional(
    low: Lowering, x: Tensor, mean: float = 0.0, std: float = 1.0, **_: Any
) -> Tensor:
    elem = low.elem
    return drawn(low, lambda words: normal(words, elem) * std + mean)


@rule("bernoulli.p")
def bernoulli(low: Lowering, x: Tensor, p: float = 0.5, **_: Any) -> Tensor:
    return drawn(low, lambda words: fraction(words, float32) < p)


@rule("randint.low", "randint")
def randint(low: Lowering, *bounds: Any, **_: Any) -> Tensor:
    """The high half of a product of a random word of 64 bits and the range: no remainder's bias to speak of."""
    first, end = (0, bounds[0]) if len(bounds) == 2 else bounds[:2]
    if not (isinstance(first, int) and isinstance(end, int)):
        raise NotLowered("symbolic bounds")

    def value(words: list[Scalar]) -> Scalar:
        word = (words[0].to(uint64) << 32) ^ words[1].to(uint64)
        high = word.binary(arith.MulHiOp, end - first)
        return high.bits(int64) + first

    return drawn(low, value)


@rule("native_dropout")
def native_dropout(low: Lowering, x: Tensor, p: float, train: bool | None) -> list[Tensor]:
    if train is False or p == 0:
        like = low.out
        kept = low.loop(x.shape, lambda i: low.const(True, low.elem_of(like[1])), like[1])
        return [low.loop(x.shape, lambda i: low.load(x, i), like[0]), kept]
    shape, inside = sizes_of(low.out[0].shape), accumulator_of(low.elem_of(low.out[0]))
    words = random_words(low, x.device)
    scale = 0.0 if p == 1 else 1 / (1 - p)

    def body(i: list[Expr]) -> list[Scalar]:
        kept = fraction(words(i, shape), float32) >= p
        value = cast(low.load(x, i), inside) * scale
        return [where(kept, value, 0).rounded(low.elem_of(low.out[0])), kept]

    return low.loops(shape, body)
