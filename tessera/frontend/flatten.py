"""Flattens language values to lists of IR values and rebuilds them, and merges two of them where control flow joins."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from tessera.ir import Value
from tessera.language.aggregate import field_values, is_aggregate_value, replace_fields
from tessera.language.descriptor import tensor_descriptor
from tessera.language.values import constexpr, is_runtime, tensor, type_of
from tessera.language.values import tuple as tl_tuple

NUMBERS = (bool, int, float)


def parts_of(x: object) -> list[Any] | None:
    """Return the values that `x` groups: of a tuple, an aggregate or a descriptor; None if it is a single value."""
    if isinstance(x, tl_tuple):
        return x.values
    if isinstance(x, tensor_descriptor):
        return x.parts
    return list(field_values(x).values()) if is_aggregate_value(x) else None


def with_parts(x: object, parts: Sequence[object]) -> Any:
    """Return a group like `x` with other values."""
    if isinstance(x, (tl_tuple, tensor_descriptor)):
        return x.rebuild(parts)
    return replace_fields(x, **dict(zip(field_values(x), parts, strict=True)))


def same_group(a: object, b: object) -> bool:
    """Whether two groups are of one kind and have the same number of values."""
    if isinstance(a, tl_tuple):
        return isinstance(b, tl_tuple) and a.cls is b.cls and len(a) == len(b)
    if isinstance(a, tensor_descriptor):
        return isinstance(b, tensor_descriptor) and a.type == b.type
    return is_aggregate_value(a) and type(a) is type(b)


def flatten(x: object) -> list[Value]:
    """Return the IR values inside a language value, in a fixed order; compile-time parts have none."""
    if isinstance(x, tensor):
        return [x.handle]
    return [v for part in parts_of(x) or () for v in flatten(part)]


def rebuild(x: object, values: Iterator[Value]) -> Any:
    """Return a language value like `x` with other IR values, taken from `values`."""
    if isinstance(x, tensor):
        return tensor(next(values), x.type)
    parts = parts_of(x)
    return x if parts is None else with_parts(x, [rebuild(part, values) for part in parts])


def same_type(a: object, b: object) -> bool:
    """Whether `b` may replace `a` at run time: equal types, and equal values where known at compile time."""
    if a is b:
        return True
    if isinstance(a, tensor):
        return isinstance(b, tensor) and a.type == b.type
    mine = parts_of(a)
    if mine is None:
        return same_constant(a, b)
    theirs = parts_of(b) or ()
    return same_group(a, b) and all(map(same_type, mine, theirs))


def same_constant(a: object, b: object) -> bool:
    """Whether two compile-time values are equal; 1, 1.0 and True differ."""
    if isinstance(a, constexpr) and isinstance(b, constexpr):
        a, b = a.value, b.value
    if is_runtime(a) or is_runtime(b):
        return False
    return a is b or (type(a) is type(b) and bool(a == b))


def is_number(x: object) -> bool:
    """Whether `x` is a compile-time number, which an assignment turns into a tensor."""
    return isinstance(x, constexpr) and isinstance(x.value, NUMBERS)


def type_text(x: object) -> str:
    """Return the type of a value as error messages name it."""
    if x is None:
        return "None"
    if is_aggregate_value(x):
        inner = ", ".join(f"{n}: {type_text(v)}" for n, v in field_values(x).items())
        return f"{type(x).__name__}({inner})"
    return str(type_of(x))
