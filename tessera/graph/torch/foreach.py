"""Takes operations on lists of tensors, of which optimizers consist, apart into the operation on each."""

# pyright: basic
# torch gives most of its values no type.
from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

aten = torch.ops.aten
# Operations whose name for one tensor is the same, then the others.
NAMES = (
    "abs", "acos", "add", "addcdiv", "addcmul", "asin", "atan", "ceil", "clamp_max", "clamp_min", "clone", "copy",
    "cos", "cosh", "div", "erf", "erfc", "exp", "expm1", "floor", "frac", "lerp", "lgamma", "log", "log10", "log1p",
    "log2", "max", "mul", "neg", "pow", "reciprocal", "round", "rsqrt", "sigmoid", "sign", "sin", "sinh", "sqrt", "sub",
    "tan", "tanh", "trunc",
)  # fmt: skip
OTHERS = {
    "maximum": "clamp_min",
    "minimum": "clamp_max",
    "norm": "linalg_vector_norm",
    "zero": "zeros_like",
}
BY_KEYWORD = {"addcdiv", "addcmul"}  # their last argument


def foreach_decompositions() -> dict[Any, Callable[..., Any]]:
    """Overload -> function, for the functional overloads of the `_foreach_` operations."""
    found: dict[Any, Callable[..., Any]] = {}
    for name, single in {**{n: n for n in NAMES}, **OTHERS}.items():
        packet = getattr(aten, f"_foreach_{name}", None)
        for overload in packet.overloads() if packet is not None else ():
            keyword = name in BY_KEYWORD
            if "out" not in overload and not (keyword and overload == "Tensor"):
                found[getattr(packet, overload)] = partial(_each, getattr(aten, single), keyword)
    return found


def _each(one: Callable[..., Any], keyword: bool, *args: Any, **kwargs: Any) -> list[Any]:
    """The operation on the first elements of all lists, on the second ones, and so on."""
    if keyword and len(args) > 3:
        *args, kwargs["value"] = args  # type: ignore[assignment]

    def of(k: int, value: Any) -> Any:
        return value[k] if isinstance(value, (list, tuple)) else value

    return [
        one(*(of(k, a) for a in args), **{name: of(k, a) for name, a in kwargs.items()})
        for k in range(max(len(a) for a in args if isinstance(a, (list, tuple))))
    ]
