"""Computes what a graph makes of its symbolic sizes and the index algebra has no expressions for.

`1 / n`, `n ** -0.5` and the like are computed in Python, once in each call, as eager computes them; kernels and externs
get them as fp64 arguments. Sizes that come of such floats, as `int(n * 0.5)` does, are symbols of our own."""

# pyright: basic
# torch gives most of its values no type.
from __future__ import annotations

import math
import operator
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from functools import reduce
from typing import Any

import sympy
import torch
from torch.fx import Node

from tessera.dtypes import float64
from tessera.graph.index import expr
from tessera.graph.ir.build import GraphBuilder
from tessera.graph.torch.lowering.base import Float
from tessera.graph.torch.types import COMPUTED, NotLowered, from_sympy

Values = Mapping[str, int]
Computed = Callable[[Values], Any]


def divided(a: float, b: float) -> float:
    """The quotient; of a division by zero what floats of tensors give: torch divides so itself (`2 / (n - 1)` in the
    gradient of a variance)."""
    try:
        return a / b
    except ZeroDivisionError:
        return math.nan if a == 0 or a != a else math.copysign(math.inf, a)


# Functions of numbers by the names of their sympy classes.
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "Add": lambda *terms: reduce(operator.add, terms), "Mul": lambda *factors: math.prod(factors),
    "Max": max, "Min": min, "Abs": abs,
    "IntTrueDiv": divided, "FloatTrueDiv": divided, "FloorDiv": operator.floordiv, "CleanDiv": operator.floordiv,
    "Mod": operator.mod, "PythonMod": operator.mod, "ModularIndexing": lambda a, b, c: a // b % c,
    "Pow": operator.pow, "FloatPow": operator.pow, "PowByNatural": operator.pow, "Identity": lambda x: x,
    "ToFloat": float, "TruncToFloat": lambda x: float(math.trunc(x)), "TruncToInt": math.trunc,
    "FloorToInt": math.floor, "CeilToInt": math.ceil, "RoundToInt": round, "RoundDecimal": round,
    **{f"OpaqueUnaryFn_{name}": getattr(math, name) for name in (
        "sqrt", "exp", "log", "log2", "sin", "cos", "tan", "sinh", "cosh", "tanh", "asin", "acos", "atan",
    )},
}  # fmt: skip


def computed(e: Any) -> Computed:
    """An expression of sympy's as a function of its symbols' values."""
    if e.is_Symbol:
        return operator.itemgetter(str(e))
    if e.is_Number:
        number = int(e) if e.is_Integer else float(e)
        return lambda values: number
    if e.func.__name__ not in FUNCTIONS:
        raise NotLowered(f"a number is {e}")
    function, parts = FUNCTIONS[e.func.__name__], [computed(a) for a in e.args]
    return lambda values: function(*(part(values) for part in parts))


class Numbers:
    """The floats of one graph, each an argument of the IR, and sizes that are rounded floats, which are symbols.
    `known`: the symbols whose values a call tells."""

    def __init__(self, g: GraphBuilder, known: Collection[str]) -> None:
        self.g, self.known = g, known
        self.values: dict[sympy.Expr, Float] = {}
        self.computed: list[Computed] = []
        self.computed_sizes: dict[str, Computed] = {}

    def sizes(self, nodes: Iterable[Node]) -> None:
        """Find the symbols of our own that are in the sizes of torch's graph. Raises `NotLowered`."""
        for node in nodes:
            value = node.meta.get("val")
            for x in value if isinstance(value, (list, tuple)) else [value]:
                strided = isinstance(x, torch.Tensor) and x.layout == torch.strided
                tensor: Any = x if strided else None
                for n in [x] if tensor is None else (*tensor.shape, *tensor.stride()):
                    self._size(n)

    def _size(self, n: Any) -> None:
        if not isinstance(n, torch.SymInt) or isinstance(n.node.expr, sympy.Symbol):
            return
        size = expr(0)
        with suppress(NotLowered):  # what needs such a size says so
            size = from_sympy(n.node.expr)
        for name in sorted(size.syms & COMPUTED.keys()):
            self._check(COMPUTED[name])
            self.computed_sizes[name] = computed(COMPUTED[name])

    def _check(self, e: Any) -> None:
        if not {str(s) for s in e.free_symbols} <= set(self.known):
            raise NotLowered("a number depends on what no argument tells")

    def of(self, value: Any) -> Float:
        """The number that a SymFloat stands for; `NotLowered` for one that depends on the data."""
        e = value.node.expr
        if e not in self.values:
            self._check(e)
            number = computed(e)
            self.computed.append(lambda values: float(number(values)))
            self.values[e] = Float(self.g.input(f"number_{len(self.values)}", float64))
        return self.values[e]
