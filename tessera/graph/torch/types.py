"""Translates types, sizes and symbols between torch and the graph IR."""

# pyright: basic
# torch gives most of its values no type.
from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from hashlib import sha256
from typing import Any

import sympy
import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true
from torch.utils._sympy.functions import CleanDiv, FloorDiv, Mod, ModularIndexing, PythonMod

from tessera import dtypes
from tessera.dtypes import dtype
from tessera.graph.index import Expr, expr, maximum, minimum, size, sym
from tessera.graph.ir.types import ForeignType, TensorType, row_major

Size = int | Expr
Places = dict[tuple[str, int], tuple[int, ...] | None]  # of results, by target and their number
# Externs of our own: a random number, a copy on another device, the elements of one tensor written to another.
SEED, MOVE, WRITE = "tessera.seed", "tessera.move", "tessera.write"
PRODUCT = "aten.mm.default"  # torch's, which rules call, too

ELEMENTS: dict[torch.dtype, dtype] = {
    torch.bool: dtypes.int1, torch.uint8: dtypes.uint8, torch.int8: dtypes.int8, torch.int16: dtypes.int16,
    torch.int32: dtypes.int32, torch.int64: dtypes.int64, torch.uint16: dtypes.uint16, torch.uint32: dtypes.uint32,
    torch.uint64: dtypes.uint64, torch.float16: dtypes.float16, torch.bfloat16: dtypes.bfloat16,
    torch.float32: dtypes.float32, torch.float64: dtypes.float64, torch.float8_e4m3fn: dtypes.float8e4nv,
    torch.float8_e5m2: dtypes.float8e5,
}  # fmt: skip


TORCH_TYPES = {elem: name for name, elem in ELEMENTS.items()}


class NotLowered(Exception):
    """An operation, or one use of it, that runs as an extern, or a graph that eager runs as a whole; the text is the
    reason that `explain` shows."""


def element_of(of: torch.dtype) -> dtype:
    if of not in ELEMENTS:
        raise NotLowered(f"there is no type for {str(of).removeprefix('torch.')}")
    return ELEMENTS[of]


def torch_type(elem: Any) -> torch.dtype:
    if elem not in TORCH_TYPES:
        raise NotLowered(f"there are no kernels for {elem.short}")
    return TORCH_TYPES[elem]


def any_torch_type(elem: Any) -> torch.dtype:
    """Torch's type of an element, foreign ones included."""
    return getattr(torch, elem.name) if isinstance(elem, ForeignType) else torch_type(elem)


def foreign_or_element(of: torch.dtype) -> dtype | ForeignType:
    """The element type, which for what kernels do not compute with is foreign."""
    return ELEMENTS.get(of) or ForeignType(str(of).removeprefix("torch."), 8 * of.itemsize)


def tensor_type(fake: Any) -> TensorType:
    """The type of a tensor with exactly its strides."""
    shape, strides = sizes_of(fake.shape), sizes_of(fake.stride())
    given = None if strides == row_major(shape) else strides
    return TensorType(shape, foreign_or_element(fake.dtype), given, str(fake.device))


# What stands for sizes that the index algebra has no expressions for, such as `int(n * 0.5)`: symbols of our own.
COMPUTED: dict[str, sympy.Expr] = {}
ROUNDED = ("TruncToInt", "FloorToInt", "CeilToInt", "RoundToInt")


def _computed_size(e: Any) -> Expr:
    """The symbol for a size that Python computes in each call."""
    if not all(str(symbol).startswith("s") for symbol in e.free_symbols):
        raise NotLowered("a size depends on the data")
    name = f"s_{sha256(str(e).encode()).hexdigest()[:12]}"
    COMPUTED[name] = e
    return sym(name)


def from_sympy(e: Any) -> Expr:
    """The index expression that a size of Dynamo's stands for."""
    if e.is_Integer:
        return expr(int(e))
    if e.is_Symbol:
        if not str(e).startswith("s"):
            raise NotLowered("a size depends on the data")
        return sym(str(e))
    if e.func.__name__ in ROUNDED:
        return _computed_size(e)
    of = [from_sympy(a) for a in e.args] if not isinstance(e, sympy.Pow) else []
    if isinstance(e, sympy.Add):
        return sum(of, expr(0))
    if isinstance(e, sympy.Mul):
        return reduce(lambda a, b: a * b, of, expr(1))
    if isinstance(e, sympy.Pow) and e.exp.is_Integer and e.exp > 0:
        return from_sympy(sympy.Mul(*[e.base] * int(e.exp), evaluate=False))
    if isinstance(e, (FloorDiv, CleanDiv)):
        return of[0] // of[1]
    if isinstance(e, (Mod, PythonMod)):
        return of[0] % of[1]
    if isinstance(e, ModularIndexing):
        return of[0] // of[1] % of[2]
    if e.func.__name__ in ("Max", "Min"):
        join = maximum if e.func.__name__ == "Max" else minimum
        return reduce(join, of)
    raise NotLowered(f"a size is {e}")


def size_of(value: Any) -> Size:
    """A size, stride or index of torch's: an int, or an expression of symbols."""
    if not isinstance(value, torch.SymInt):
        return int(value)
    e, hint = value.node.expr, value.node.hint
    # Torch leaves `s // 4` as it is where a guard says that it is 1, so that tensors of this size are broadcast.
    if hint in (0, 1) and not e.is_Symbol and statically_known_true(value == hint):
        return hint
    return size(from_sympy(e))


def sizes_of(values: Sequence[Any]) -> tuple[Size, ...]:
    return tuple(size_of(v) for v in values)
