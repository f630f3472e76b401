"""Bessel functions of numbers that are not negative, in fp64 for results of fp32."""

from __future__ import annotations

import math

import numpy as np

EULER = 0.5772156649015329  # the limit of the harmonic numbers less their logarithms
TURN = 12.0  # from here on Hankel's expansion errs by e**-24 at most
TERMS = 20  # of it, which get smaller up to 2 * TURN


def bessel_i(x: np.ndarray, order: int) -> np.ndarray:
    """The series of x x / 4, whose terms are positive; beyond 100 it is infinite in fp32."""
    half = np.minimum(x, 100.0) / 2
    total = term = half**order
    for k in range(1, 250):  # the terms grow up to x / 2, and vanish before twice as many
        term = term * half**2 / (k * (k + order))
        total = total + term
    return np.where(x > 100, np.inf, total)


def bessel_j(x: np.ndarray, order: int) -> np.ndarray:
    return np.where(x < TURN, _series(x, order)[0], _expansion(x, order)[0])


def bessel_y(x: np.ndarray, order: int) -> np.ndarray:
    """Negative infinity at 0, NaN below."""
    j, rest = _series(x, order)
    half = np.where(x > 0, np.minimum(x, TURN) / 2, np.nan)
    near = (2 * np.log(half) * j - rest - order / half) / math.pi
    near = np.where(x == 0, -np.inf, near)
    return np.where(x < TURN, near, _expansion(x, order)[1])


def _series(x: np.ndarray, order: int) -> tuple[np.ndarray, np.ndarray]:
    """Return J and the sum of its terms, each times the digamma function at its two factorials."""
    half = np.minimum(x, TURN) / 2
    term = half**order
    digamma = -2 * EULER + order
    total, rest = term, term * digamma
    for k in range(1, 60):
        term = -term * half**2 / (k * (k + order))
        digamma += 1 / k + 1 / (k + order)
        total, rest = total + term, rest + term * digamma
    return total, rest


def _expansion(x: np.ndarray, order: int) -> tuple[np.ndarray, np.ndarray]:
    """Return J and Y of a large x."""
    far = np.where(x < TURN, TURN, x)
    term, sums = np.ones_like(far), [np.ones_like(far), np.zeros_like(far)]
    for k in range(1, TERMS):
        term = term * (4 * order**2 - (2 * k - 1) ** 2) / (8 * k * far)
        sums[k % 2] = sums[k % 2] + (term if k % 4 < 2 else -term)
    p, q = sums
    turn = (order / 2 + 0.25) * math.pi
    finite = np.where(np.isinf(far), 0.0, far)  # a wave without height
    cos = np.cos(finite) * math.cos(turn) + np.sin(finite) * math.sin(turn)
    sin = np.sin(finite) * math.cos(turn) - np.cos(finite) * math.sin(turn)
    size = np.sqrt(2 / (math.pi * far))
    return size * (p * cos - q * sin), size * (p * sin + q * cos)
