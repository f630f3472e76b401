"""Defines the values a kernel computes with: run-time tensors and descriptors, compile-time constants, tuples of
both.

The front end creates them; on the host only `constexpr` and `tuple` can be used. A tensor's `handle` is opaque here.
"""

from __future__ import annotations

import builtins
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from tessera.dtypes import block_type, dtype, pointer_type
from tessera.errors import KernelOnly

if TYPE_CHECKING:
    from tessera.language.tensor_methods import TensorMethods
else:

    class TensorMethods:  # the front end computes operators and finds methods by METHODS
        __slots__ = ()


__all__ = ["const", "constexpr_type", "slice", "tensor", "tuple", "tuple_type"]

METHODS: dict[
    str, Any
] = {}  # name of a tensor method → builtin or function of the language that takes the tensor first
DESCRIPTOR_METHODS: dict[str, Any] = {}  # the same for tensor descriptors

_python: Any = operator
class_of: Any = type  # `type`, where the classes are only known to the kernel


def unwrap(x: Any) -> Any:
    """Return the value of a constexpr (in tuples and lists element by element), or `x` itself."""
    if isinstance(x, constexpr):
        return x.value
    if isinstance(x, tuple):
        return x.rebuild([unwrap(v) for v in x.values]).plain() if x.is_constexpr() else x
    if type(x) in (builtins.tuple, builtins.list):
        return type(x)(unwrap(v) for v in x)
    return x


class constexpr_type:
    """The type of a compile-time value: the value itself."""

    __slots__ = ("value",)

    def __init__(self, value: Any):
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, constexpr_type) and self.value == other.value

    def __hash__(self) -> int:
        return hash(("constexpr_type", self.value))

    @property
    def name(self) -> str:
        return f"constexpr[{self.value}]"

    def mangle(self) -> str:
        return repr(self)

    def __repr__(self) -> str:
        return self.name


Binary = Callable[[Any, Any], Any]


def _binary(op: Binary) -> Any:
    def operate(self: constexpr, other: Any) -> constexpr:
        return constexpr(op(self.value, unwrap(other)))

    return operate


def _reflected(op: Binary) -> Any:
    def operate(self: constexpr, other: Any) -> constexpr:
        return constexpr(op(unwrap(other), self.value))

    return operate


def _unary(op: Callable[[Any], Any]) -> Any:
    def operate(self: constexpr) -> constexpr:
        return constexpr(op(self.value))

    return operate


class constexpr:
    """A value known at compile time. As an annotation it makes a parameter or a variable compile-time.

    Operators follow Python and give constexpr again; attributes other than `value` and `type` are those of the value.
    """

    __slots__ = ("value",)
    value: Any

    def __init__(self, value: Any):
        while isinstance(value, constexpr):
            value = value.value
        self.value = value

    @property
    def type(self) -> constexpr_type:
        return constexpr_type(self.value)

    def __repr__(self) -> str:
        return f"constexpr[{self.value}]"

    def __str__(self) -> str:
        return str(self.value)

    def __format__(self, spec: str) -> str:
        return format(self.value, spec)

    def __hash__(self) -> int:
        return hash((class_of(self.value), self.value))

    def __index__(self) -> int:
        return operator.index(self.value)

    def __bool__(self) -> bool:
        return bool(self.value)

    def __int__(self) -> int:
        return int(self.value)

    def __float__(self) -> float:
        return float(self.value)

    def __len__(self) -> int:
        return len(self.value)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.value)

    def __contains__(self, x: Any) -> bool:
        return unwrap(x) in self.value

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.value(*args, **kwargs)

    def __getitem__(self, index: Any) -> Any:
        return self.value[unwrap(index)]

    def __getattr__(self, name: str) -> Any:
        if (
            name.startswith("__") or name == "value"
        ):  # copy and pickle must not reach the wrapped value
            raise AttributeError(name)
        return getattr(self.value, name)

    def __reduce__(self) -> builtins.tuple[Any, ...]:
        return (constexpr, (self.value,))

    __add__, __radd__ = _binary(_python.add), _reflected(_python.add)
    __sub__, __rsub__ = _binary(_python.sub), _reflected(_python.sub)
    __mul__, __rmul__ = _binary(_python.mul), _reflected(_python.mul)
    __mod__, __rmod__ = _binary(_python.mod), _reflected(_python.mod)
    __truediv__, __rtruediv__ = _binary(_python.truediv), _reflected(_python.truediv)
    __floordiv__, __rfloordiv__ = _binary(_python.floordiv), _reflected(_python.floordiv)
    __pow__, __rpow__ = _binary(_python.pow), _reflected(_python.pow)
    __and__, __rand__ = _binary(_python.and_), _reflected(_python.and_)
    __or__, __ror__ = _binary(_python.or_), _reflected(_python.or_)
    __xor__, __rxor__ = _binary(_python.xor), _reflected(_python.xor)
    __lshift__, __rlshift__ = _binary(_python.lshift), _reflected(_python.lshift)
    __rshift__, __rrshift__ = _binary(_python.rshift), _reflected(_python.rshift)
    __eq__, __ne__ = _binary(_python.eq), _binary(_python.ne)
    __lt__, __le__ = _binary(_python.lt), _binary(_python.le)
    __gt__, __ge__ = _binary(_python.gt), _binary(_python.ge)
    __neg__, __pos__ = _unary(_python.neg), _unary(_python.pos)
    __invert__, __abs__ = _unary(_python.invert), _unary(abs)

    def logical_and(self, other: Any) -> constexpr:
        return constexpr(self.value and unwrap(other))

    def logical_or(self, other: Any) -> constexpr:
        return constexpr(self.value or unwrap(other))

    def not_(self) -> constexpr:
        return constexpr(not self.value)


class BoundMethod:
    """A method of a tensor, descriptor or aggregate: `function` and its first argument."""

    __slots__ = ("function", "receiver")

    def __init__(self, receiver: Any, function: Any):
        self.receiver = receiver
        self.function = function

    @property
    def __name__(self) -> str:
        return self.function.__name__

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(self.receiver, *args, **kwargs)


class run_time:
    """Base of values that are only known when the kernel runs."""

    __slots__ = ()
    if TYPE_CHECKING:
        type: Any


class tensor(run_time, TensorMethods):
    """A run-time value of a kernel: a scalar (`type` is a dtype or pointer type) or a tile (`type` is a block type)."""

    __slots__ = ("handle", "type")

    def __init__(self, handle: Any, type: Any):
        self.handle = handle
        self.type = type

    @property
    def dtype(self) -> Any:
        """The element type; for pointers the pointer type."""
        return self.type.scalar

    @property
    def shape(self) -> tuple:
        """The extents, as a tuple of constexpr; empty for a scalar."""
        return tuple([constexpr(n) for n in self.dims])

    @property
    def dims(self) -> builtins.tuple[int, ...]:
        """The extents as plain ints."""
        return self.type.shape if isinstance(self.type, block_type) else ()

    @property
    def numel(self) -> constexpr:
        return constexpr(self.type.numel if isinstance(self.type, block_type) else 1)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            try:
                return BoundMethod(self, METHODS[name])
            except KeyError:
                raise AttributeError(f"a tensor has no attribute {name!r}") from None

    def __bool__(self) -> bool:
        raise KernelOnly("the value of a tensor is not known while its kernel is compiled")

    def __str__(self) -> str:
        dims = ", ".join(map(str, self.dims))
        return f"{self.dtype}[{dims}]"

    __repr__ = __str__


class tuple_type:
    """The type of a tuple: the types of its elements, and their names if it is a named tuple."""

    __slots__ = ("fields", "types")

    def __init__(self, types: Sequence[Any], fields: Sequence[str] | None = None):
        self.types = list(types)
        self.fields = None if fields is None else list(fields)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, tuple_type):
            return False
        return self.types == other.types and self.fields == other.fields

    def __hash__(self) -> int:
        return hash(("tuple_type", *self.types))

    @property
    def name(self) -> str:
        return f"tuple<{', '.join(str(t) for t in self.types)}>"

    def __iter__(self) -> Iterator[Any]:
        return iter(self.types)

    def __len__(self) -> int:
        return len(self.types)

    def __getitem__(self, index: Any) -> Any:
        return self.types[unwrap(index)]

    def mangle(self) -> str:
        return "T" + "_".join(t.mangle() for t in self.types) + "T"

    def __repr__(self) -> str:
        return self.name


_BARE = (dtype, pointer_type, block_type)


def wrap(x: Any) -> Any:
    """Return a Python object as a language value: numbers and strings become constexpr, tuples and lists tuples."""
    if isinstance(x, (bool, int, float, str)):
        return constexpr(x)
    if isinstance(x, (builtins.tuple, builtins.list)):
        return tuple(x)
    if isinstance(x, constexpr) and (x.value is None or isinstance(x.value, _BARE)):
        return x.value
    return x


class tuple:
    """An immutable sequence of language values; `cls` is the NamedTuple class it was made from, if any."""

    __slots__ = ("cls", "values")

    def __init__(self, values: Any = (), type: Any = None, cls: Any = None):
        if isinstance(type, builtins.type):  # a NamedTuple class in the place of a tuple_type
            cls = type
        if cls is None and hasattr(values, "_fields"):
            cls = values.__class__
        self.values: list[Any] = [wrap(v) for v in values]
        self.cls = cls

    @property
    def fields(self) -> builtins.tuple[str, ...] | None:
        return None if self.cls is None else self.cls._fields

    @property
    def type(self) -> tuple_type:
        return tuple_type([type_of(v) for v in self.values], self.fields)

    def rebuild(self, values: Sequence[Any]) -> tuple:
        """Return the same kind of tuple with other values."""
        return tuple(values, cls=self.cls)

    def is_constexpr(self) -> bool:
        """Whether all elements are compile-time values."""
        return all(not is_runtime(v) for v in self.values)

    def plain(self) -> Any:
        """A Python tuple (or the named tuple) of the unwrapped elements."""
        values = [unwrap(v) for v in self.values]
        return self.cls(*values) if self.cls is not None else builtins.tuple(values)

    def __len__(self) -> int:
        return len(self.values)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.values)

    def __getitem__(self, index: Any) -> Any:
        index = unwrap(index)
        if isinstance(index, slice):
            index = builtins.slice(unwrap(index.start), unwrap(index.stop), unwrap(index.step))
        if isinstance(index, builtins.slice):
            return tuple(self.values[index])
        return self.values[index]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name in ("cls", "values"):
            raise AttributeError(name)
        if self.cls is not None and name in self.cls._fields:
            return self.values[self.cls._fields.index(name)]
        raise AttributeError(f"a tuple has no attribute {name!r}")

    def __add__(self, other: Any) -> tuple:
        return tuple([*self.values, *unwrap_sequence(other)])

    def __radd__(self, other: Any) -> tuple:
        return tuple([*unwrap_sequence(other), *self.values])

    def __mul__(self, count: Any) -> tuple:
        return tuple(self.values * operator.index(unwrap(count)))

    __rmul__ = __mul__

    def __eq__(self, other: object) -> Any:
        if not isinstance(other, (tuple, builtins.tuple, builtins.list)):
            return constexpr(False)
        theirs: list[Any] = list(other)  # pyright: ignore[reportUnknownArgumentType]
        equal = len(self) == len(theirs) and all(
            bool(unwrap(a) == unwrap(b)) for a, b in zip(self.values, theirs, strict=True)
        )
        return constexpr(equal)

    def __hash__(self) -> int:
        return hash(builtins.tuple(self.values))

    def __str__(self) -> str:
        return f"({', '.join(str(v) for v in self.values)}{',' if len(self.values) == 1 else ''})"

    __repr__ = __str__


def unwrap_sequence(x: Any) -> list[Any]:
    """Return the elements of a language tuple or a Python sequence."""
    if isinstance(x, constexpr):
        x = x.value
    return list(x.values if isinstance(x, tuple) else x)


class slice:
    """`start:stop:step` inside a subscript."""

    __slots__ = ("start", "step", "stop")

    def __init__(self, start: Any = None, stop: Any = None, step: Any = None):
        self.start, self.stop, self.step = start, stop, step

    def is_full(self) -> bool:
        return all(unwrap(x) is None for x in (self.start, self.stop, self.step))

    def __str__(self) -> str:
        parts = ["" if unwrap(x) is None else str(x) for x in (self.start, self.stop)]
        return ":".join(parts) + ("" if unwrap(self.step) is None else f":{self.step}")

    __repr__ = __str__


class const:
    """Annotation of a pointer parameter that the kernel only reads."""


def is_runtime(x: Any) -> bool:
    """Whether `x` is, or contains, a value that is only known when the kernel runs."""
    if isinstance(x, tuple):
        return any(is_runtime(v) for v in x.values)
    return isinstance(x, run_time)


def type_of(x: Any) -> Any:
    """Return the type that errors and `isinstance`-like code show for a language value."""
    if isinstance(x, (run_time, tuple, constexpr)):
        return x.type
    return constexpr_type(x)
