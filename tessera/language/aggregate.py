"""Defines compile-time functions, and aggregates: classes whose instances group values of a kernel."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar, dataclass_transform

from tessera.language.by_name import ByName
from tessera.language.captures import CompileTimeFunction, fingerprint
from tessera.language.source_text import Sourced
from tessera.language.values import BoundMethod, class_of, constexpr, is_runtime, unwrap, wrap

PLAIN = frozenset((bool, float, int, str, type(None)))
FIELDS = "__aggregate_fields__"
T = TypeVar("T")


class ConstexprFunction(CompileTimeFunction, Sourced, ByName):
    """A Python function that runs while a kernel is compiled: constexpr in, constexpr out. On the host it also takes
    plain values, and returns what the function returns."""

    def __init__(self, fn: Callable[..., Any]):
        self.fn = fn
        functools.update_wrapper(self, fn, updated=())

    # Jitted functions have it, too: TorchInductor writes the functions that a kernel uses into its own programs.
    @property
    def __globals__(self) -> dict[str, Any]:
        return self.fn.__globals__  # type: ignore[attr-defined]

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else BoundMethod(instance, self)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not kwargs and PLAIN.issuperset(
            map(type, args)
        ):  # grids are computed this way at each launch
            return self.fn(*args)
        values = [unwrap(a) for a in args]
        return self.fn(*values, **{k: unwrap(v) for k, v in kwargs.items()})

    @property
    def cache_key(self) -> str:
        """Hash of the function's code and of everything that it can reach."""
        return fingerprint(self.fn)

    def __repr__(self) -> str:
        return f"constexpr_function({self.fn.__module__}:{self.fn.__qualname__})"


def constexpr_function(fn: Callable[..., Any]) -> Any:
    """Decorator: let kernels call an ordinary Python function with compile-time arguments.

    It runs while the kernel is compiled, and its result is a compile-time value. With other arguments the kernel does
    not compile (`not-constexpr`).

    Example:
        >>> @tessera.constexpr_function
        ... def half(n):
        ...     return n // 2
        >>> @tessera.jit
        ... def first_half(x, SIZE: tl.constexpr):
        ...     tl.store(x + tl.arange(0, half(SIZE)), 1.0)
        >>> x = np.zeros(4, np.float32)
        >>> _ = first_half[(1,)](x, SIZE=4)
        >>> x
        array([1., 1., 0., 0.], dtype=float32)
        >>> half(8)
        4
    """
    return ConstexprFunction(fn)


def is_aggregate(x: Any) -> bool:
    """Whether `x` is an aggregate class."""
    return isinstance(x, type) and FIELDS in x.__dict__


def is_aggregate_value(x: Any) -> bool:
    """Whether `x` is an instance of an aggregate class."""
    return hasattr(class_of(x), FIELDS)


@dataclass_transform()
def aggregate(cls: type[T]) -> type[T]:
    """Class decorator: kernels group values in instances of the class, whose annotated fields are immutable once made.

    Without an `__init__` of its own the class gets one that takes the fields in order. It raises TypeError when a base
    class is no aggregate.

    Example:
        >>> @tessera.aggregate
        ... class Span:
        ...     start: tl.tensor
        ...     size: tl.constexpr
        ...     @tessera.jit
        ...     def offsets(self):
        ...         return self.start + tl.arange(0, self.size)
        >>> @tessera.jit
        ... def second(x, SIZE: tl.constexpr):
        ...     span = Span(tl.program_id(0) * SIZE, tl.constexpr(SIZE))
        ...     tl.store(x + span.offsets(), 2.0)
        >>> x = np.zeros(4, np.float32)
        >>> _ = second[(1,)](x, SIZE=4)
        >>> x
        array([2., 2., 2., 2.], dtype=float32)
    """
    fields: dict[str, Any] = {}
    for base in reversed(cls.__mro__[1:-1]):
        if not is_aggregate(base):
            raise TypeError(
                f"aggregate {cls.__name__} inherits from {base.__name__}, which is no aggregate"
            )
        fields.update(getattr(base, FIELDS))
    fields.update(inspect.get_annotations(cls))
    setattr(cls, FIELDS, fields)
    own = cls.__dict__.get("__init__")
    if own is None:
        own = _make_init(fields, _defaults(cls, fields))
    if inspect.isfunction(own):
        cls.__init__ = _closing(own)
    for name, method in (
        ("__setattr__", _set),
        ("__repr__", _show),
        ("__eq__", _equal),
        ("__hash__", _hash),
    ):
        if name in ("__setattr__", "__hash__") or getattr(cls, name) is getattr(object, name):
            setattr(cls, name, method)
    return cls


def _defaults(cls: type, fields: dict[str, Any]) -> dict[str, Any]:
    """Return the values of fields that may be omitted; those of a base class are inherited."""
    found: dict[str, Any] = {}
    for base in reversed(cls.__mro__[:-1]):
        found.update((n, base.__dict__[n]) for n in fields if n in base.__dict__)
    return found


def _make_init(fields: dict[str, Any], defaults: dict[str, Any]) -> Callable[..., None]:
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        if len(args) > len(fields):
            raise TypeError(
                f"{class_of(self).__name__} has {len(fields)} fields, {len(args)} values were given"
            )
        given = dict(zip(fields, args, strict=False))
        for name, value in kwargs.items():
            if name not in fields or name in given:
                raise TypeError(f"{class_of(self).__name__}: unexpected argument {name!r}")
            given[name] = value
        for name, value in (defaults | given).items():
            setattr(self, name, wrap(value))

    return init


def _closing(init: Callable[..., None]) -> Callable[..., None]:
    """Return a plain `__init__` followed by the check that the instance is complete."""

    @functools.wraps(init)
    def wrapper(self: Any, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        if "_closed" not in self.__dict__:
            close(self)

    return wrapper


def close(instance: Any) -> None:
    """Check that every field is set, and forbid further changes."""
    fields = getattr(class_of(instance), FIELDS)
    missing = [n for n in fields if n not in instance.__dict__]
    if missing:
        raise TypeError(
            f"aggregate {class_of(instance).__name__} leaves the field {missing[0]!r} unset"
        )
    for name, annotation in fields.items():
        value = instance.__dict__[name]
        if is_runtime(value) if _constant(annotation) else not _fits(value, annotation):
            wanted = getattr(annotation, "__name__", annotation)
            raise TypeError(
                f"field {name!r} of aggregate {class_of(instance).__name__} must be {wanted}, got {value}"
            )
    instance.__dict__["_closed"] = True


def _constant(annotation: Any) -> bool:
    return annotation is constexpr or "constexpr" in str(annotation)


def _fits(value: Any, annotation: Any) -> bool:
    return isinstance(value, annotation) if isinstance(annotation, type) else True


def field_values(instance: Any) -> dict[str, Any]:
    """Return the fields of an aggregate in order of declaration."""
    return {n: instance.__dict__[n] for n in getattr(class_of(instance), FIELDS)}


def replace_fields(instance: Any, **changes: Any) -> Any:
    """Return a copy of an aggregate with some fields changed. Raises TypeError for an unknown field."""
    fields = getattr(class_of(instance), FIELDS)
    for name in changes:
        if name not in fields:
            raise TypeError(f"aggregate {class_of(instance).__name__} has no field {name!r}")
    new: Any = object.__new__(class_of(instance))
    new.__dict__.update({n: wrap(v) for n, v in (field_values(instance) | changes).items()})
    new.__dict__["_closed"] = True
    return new


def _set(self: Any, name: str, value: Any) -> None:
    if "_closed" in self.__dict__:
        raise AttributeError(
            f"cannot assign to field {name!r} on immutable aggregate {class_of(self).__name__}"
        )
    fields = getattr(class_of(self), FIELDS)
    if name not in fields:
        raise AttributeError(f"aggregate {class_of(self).__name__} has no field {name!r}")
    plain = _constant(fields[name]) and not isinstance(value, constexpr) and not is_runtime(value)
    self.__dict__[name] = constexpr(value) if plain else wrap(value)


def _show(self: Any) -> str:
    inner = ", ".join(f"{n}={self.__dict__.get(n)}" for n in getattr(class_of(self), FIELDS))
    return f"{class_of(self).__name__}({inner})"


def _equal(self: Any, other: object) -> bool:
    if class_of(self) is not class_of(other):
        return False
    theirs = field_values(other)
    return all(bool(v == theirs[n]) for n, v in field_values(self).items())


def _hash(self: Any) -> int:
    return hash((class_of(self), *field_values(self).values()))
