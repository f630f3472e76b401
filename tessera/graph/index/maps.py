"""Defines index maps: functions from index tuples to index tuples, with a text that reads back.

transpose = parse_map("(d0, d1) -> (d1, d0)")
flatten = parse_map("(d0) -> (d0 // 8, d0 % 8)")
transpose.compose(flatten)          →  (d0) -> (d0 % 8, d0 // 8)
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from tessera.graph.index.atoms import Dim, Sym
from tessera.graph.index.expr import Expr, atom_expr, dim, expr, maximum, minimum
from tessera.graph.index.ranges import Ranges, simplify

_DIM = re.compile(r"d\d+")
_MAP = re.compile(r"\s*\(([^()]*)\)\s*->\s*\((.*)\)\s*", re.DOTALL)


@dataclass(frozen=True, slots=True, init=False)
class IndexMap:
    """A function of `dims` indices; `results` are expressions of `Dim(0)` … `Dim(dims - 1)` and symbols."""

    dims: int
    results: tuple[Expr, ...]

    def __init__(self, dims: int, results: Sequence[Expr | int]):
        object.__setattr__(self, "dims", dims)
        object.__setattr__(self, "results", tuple(map(expr, results)))

    @classmethod
    def identity(cls, dims: int) -> IndexMap:
        return cls(dims, [dim(k) for k in range(dims)])

    @property
    def is_identity(self) -> bool:
        return self == IndexMap.identity(self.dims)

    def compose(self, inner: IndexMap) -> IndexMap:
        """The map that applies `inner` first: `a.compose(b)(x)` is `a(b(x))`."""
        if len(inner.results) != self.dims:
            raise ValueError(f"{self} takes {self.dims} indices, {inner} gives another number")
        return self.at(inner.results, inner.dims)

    def at(self, indices: Sequence[Expr | int], dims: int) -> IndexMap:
        """The map of `dims` indices that this one is where its own are `indices`."""
        return _at(self, tuple(indices), dims)

    def subs(self, mapping: Mapping[Any, Expr | int]) -> IndexMap:
        """With other expressions in place of symbols (or dimensions)."""
        return IndexMap(self.dims, [r.subs(mapping) for r in self.results])

    def simplify(self, ranges: Ranges) -> IndexMap:
        """The same map for indices within `ranges`."""
        return IndexMap(self.dims, [simplify(r, ranges) for r in self.results])

    def evaluate(self, indices: Sequence[Any], symbols: Mapping[str, int]) -> list[Any]:
        """The values for indices (ints or NumPy arrays that broadcast) and symbols, by name."""
        env: dict[Any, Any] = {Sym(name): value for name, value in symbols.items()}
        env |= {Dim(k): value for k, value in enumerate(indices)}
        return [r.evaluate(env) for r in self.results]

    @property
    def syms(self) -> frozenset[str]:
        return frozenset[str]().union(*(r.syms for r in self.results))

    def __str__(self) -> str:
        names = ", ".join(f"d{k}" for k in range(self.dims))
        return f"({names}) -> ({', '.join(map(str, self.results))})"

    def text(self) -> str:
        """As an attribute of an op."""
        return f"map<{self}>"


@lru_cache(maxsize=1 << 14)  # passes ask the same of most loads again and again
def _at(map: IndexMap, indices: tuple[Expr | int, ...], dims: int) -> IndexMap:
    mapping: dict[Any, Expr | int] = {Dim(k): e for k, e in enumerate(indices)}
    return IndexMap(dims, [r.subs(mapping) for r in map.results])


def parse_map(text: str) -> IndexMap:
    """The inverse of `str(map)`. ValueError for text that is no map."""
    found = _MAP.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is no index map: write `(d0, d1) -> (d1, d0 // 2)`")
    names = [name.strip() for name in found[1].split(",") if name.strip()]
    if names != [f"d{k}" for k in range(len(names))]:
        raise ValueError(f"the indices of {text!r} are not d0, d1, ...")
    inner = _tree(f"({found[2]},)" if found[2].strip() else "()", text)
    assert isinstance(inner, ast.Tuple)
    results = [_read(node, text) for node in inner.elts]
    over = [k for r in results for k in r.dims if k >= len(names)]
    if over:
        raise ValueError(f"{text!r} has no index d{over[0]}")
    return IndexMap(len(names), results)


def parse_expr(text: str) -> Expr:
    """The inverse of `str(expr)`. ValueError for text that is no expression.

    >>> parse_expr("d0 * 4 + s0 // 2")
    <d0 * 4 + s0 // 2>
    """
    return _read(_tree(text, text), text)


def _tree(text: str, whole: str) -> ast.expr:
    try:
        return ast.parse(text.strip(), mode="eval").body
    except SyntaxError:
        raise ValueError(f"{whole!r} is no index expression") from None


def _read(node: ast.expr, text: str) -> Expr:
    match node:
        case ast.Constant(int(value)) if not isinstance(value, bool):
            return expr(value)
        case ast.Name(name):
            return dim(int(name[1:])) if _DIM.fullmatch(name) else atom_expr(Sym(name))
        case ast.UnaryOp(ast.USub(), operand):
            return -_read(operand, text)
        case ast.BinOp(lhs, op, rhs):
            return _binary(op, _read(lhs, text), _read(rhs, text), text)
        case ast.Call(ast.Name("min" | "max" as name), [lhs, rhs]):
            fn = minimum if name == "min" else maximum
            return fn(_read(lhs, text), _read(rhs, text))
        case _:
            raise ValueError(f"{text!r} is no index expression: {ast.unparse(node)}")


def _binary(op: ast.operator, a: Expr, b: Expr, text: str) -> Expr:
    match op:
        case ast.Add():
            return a + b
        case ast.Sub():
            return a - b
        case ast.Mult():
            return a * b
        case ast.FloorDiv():
            return a // b
        case ast.Mod():
            return a % b
        case _:
            raise ValueError(f"{text!r} has an operator other than + - * // %")


def estimate(n: Expr, leaf: Callable[[Any], int]) -> int:
    """What a size comes to with guesses for its symbols: 0 where they make it divide by 0, as no call does."""
    try:
        return int(n.compute(leaf))
    except ZeroDivisionError:
        return 0
