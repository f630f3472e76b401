"""Runs LLVM's own intrinsics, which every GPU has."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from tessera.backends.nvidia.primitives.lanes import FLOAT, bits_of, mask_int, round_bf16, signed
from tessera.backends.nvidia.primitives.row import Lanes
from tessera.interp.arith import fma_f64


def _round(x: Lanes) -> Lanes:
    return np.copysign(np.floor(np.abs(x).astype(np.longdouble) + 0.5), x)


ON_BITS: dict[str, Callable[[str], int]] = {
    "ctpop": lambda t: t.count("1"), "ctlz": lambda t: len(t) - len(t.lstrip("0")),
    "cttz": lambda t: len(t) - len(t.rstrip("0")), "bitreverse": lambda t: int(t[::-1], 2),
}  # fmt: skip
SIMPLE: dict[str, Callable[..., Lanes]] = {
    "minnum": np.fmin, "maxnum": np.fmax, "minimum": np.minimum, "maximum": np.maximum, "fabs": np.abs,
    "copysign": np.copysign, "trunc": np.trunc, "floor": np.floor, "ceil": np.ceil, "rint": np.rint, "sqrt": np.sqrt,
    "round": _round,
}  # fmt: skip


def intrinsic(result: str, name: str, slots: list[int]) -> Callable[[list[Any]], Any] | None:
    """Return what a step runs for a call of `name`; None if it is not known."""
    meaning = _meaning(result, name) if name.startswith("llvm.") else None
    return None if meaning is None else lambda env: meaning(*[env[s] for s in slots])


def _meaning(result: str, name: str) -> Callable[..., Lanes] | None:
    key = name.split(".")[1]
    if key in ("fptosi", "fptoui"):
        bits = int(name.split(".")[3][1:])
        return partial(_saturate, bits, key == "fptosi")
    if key in ("smin", "smax", "umin", "umax"):
        return _extreme(key, bits_of(result))
    if key == "fma":
        return partial(fma, result)
    if key == "abs":
        return partial(_absolute, bits_of(result))
    if key == "fshl":
        return _funnel
    if key in ON_BITS:
        return partial(_on_bits, ON_BITS[key], bits_of(result))
    plain = SIMPLE.get(key)
    return plain and partial(_as_given, plain)


def _absolute(bits: int, x: Lanes, *rest: Lanes) -> Lanes:
    return mask_int(np.abs(signed(x, bits)).view(np.uint64), bits)


def _on_bits(count: Callable[[str], int], bits: int, x: Lanes, *rest: Lanes) -> Lanes:
    return np.array([count(f"{int(v):0{bits}b}") for v in x], np.uint64)


def _as_given(f: Callable[..., Lanes], *args: Lanes) -> Lanes:
    return f(*args).astype(args[0].dtype)


def _extreme(key: str, bits: int) -> Callable[[Lanes, Lanes], Lanes]:
    how = np.minimum if key.endswith("min") else np.maximum
    if key[0] == "u":
        return how
    return lambda x, y: mask_int(how(signed(x, bits), signed(y, bits)).view(np.uint64), bits)


def fma(type: str, x: np.ndarray, y: np.ndarray, z: np.ndarray) -> np.ndarray:
    """Return x y + z, rounded once."""
    if type == "double":
        return fma_f64(x, y, z)
    exact = x.astype(np.float64) * y.astype(np.float64) + z.astype(np.float64)
    return round_bf16(exact) if type == "bfloat" else exact.astype(FLOAT[type])


def _funnel(high: np.ndarray, low: np.ndarray, by: np.ndarray) -> np.ndarray:
    s = by & np.uint64(63)
    right = np.where(s == 0, np.uint64(1), np.uint64(64) - s)
    return (high << s) | np.where(s == 0, np.uint64(0), low >> right)


def _saturate(bits: int, is_signed: bool, x: np.ndarray) -> np.ndarray:
    low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if is_signed else (0, (1 << bits) - 1)
    numbers = [
        0 if np.isnan(v) else low if v <= low else high if v >= high else int(v)
        for v in x.astype(float)
    ]
    return np.array([n & ((1 << bits) - 1) for n in numbers], np.uint64)
