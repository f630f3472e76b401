"""Language values as lists of IR values and back, and how two of them join where control flow does."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tessera.ir import Value
from tessera.language.aggregate import field_values, is_aggregate_value, replace_fields
from tessera.language.values import constexpr, is_runtime, tensor, tensor_descriptor, type_of
from tessera.language.values import tuple as tl_tuple

NUMBERS = (bool, int, float)


def flatten(x: Any) -> list[Value]:
    """The IR values inside a language value, in a fixed order; compile-time parts hold none."""
    if isinstance(x, tensor):
        return [x.handle]
    if isinstance(x, tl_tuple):
        return [v for item in x.values for v in flatten(item)]
    if isinstance(x, tensor_descriptor):
        return [x.handle, *flatten(x.shape), *flatten(x.strides)]
    if is_aggregate_value(x):
        return [v for item in field_values(x).values() for v in flatten(item)]
    return []


def rebuild(x: Any, values: Iterator[Value]) -> Any:
    """A language value like `x` around other IR values, taken from `values`."""
    if isinstance(x, tensor):
        return tensor(next(values), x.type)
    if isinstance(x, tl_tuple):
        return x.rebuild([rebuild(item, values) for item in x.values])
    if isinstance(x, tensor_descriptor):
        handle = next(values)
        return tensor_descriptor(
            handle, rebuild(x.shape, values), rebuild(x.strides, values), x.type
        )
    if is_aggregate_value(x):
        return replace_fields(x, **{n: rebuild(v, values) for n, v in field_values(x).items()})
    return x


def same_type(a: Any, b: Any) -> bool:
    """Whether `b` may stand for `a` at run time: equal types, and equal values where known at compile time."""
    if a is b:
        return True
    if isinstance(a, tensor):
        return isinstance(b, tensor) and a.type == b.type
    if isinstance(a, tl_tuple):
        if not isinstance(b, tl_tuple) or a.cls is not b.cls or len(a) != len(b):
            return False
        return all(same_type(x, y) for x, y in zip(a.values, b.values, strict=True))
    if isinstance(a, tensor_descriptor):
        return (
            isinstance(b, tensor_descriptor) and a.type == b.type and len(a.shape) == len(b.shape)
        )
    if is_aggregate_value(a):
        if type(a) is not type(b):
            return False
        theirs = field_values(b)
        return all(same_type(v, theirs[n]) for n, v in field_values(a).items())
    return same_constant(a, b)


def same_constant(a: Any, b: Any) -> bool:
    """Whether two compile-time values are the same; 1, 1.0 and True differ."""
    if isinstance(a, constexpr) and isinstance(b, constexpr):
        a, b = a.value, b.value
    if is_runtime(a) or is_runtime(b):
        return False
    return a is b or (type(a) is type(b) and bool(a == b))


def is_number(x: Any) -> bool:
    """Whether `x` is a compile-time number, which an assignment turns into a tensor."""
    return isinstance(x, constexpr) and isinstance(x.value, NUMBERS)


def type_text(x: Any) -> str:
    """The type of a value as error messages name it."""
    if x is None:
        return "None"
    if is_aggregate_value(x):
        inner = ", ".join(f"{n}: {type_text(v)}" for n, v in field_values(x).items())
        return f"{type(x).__name__}({inner})"
    return str(type_of(x))
