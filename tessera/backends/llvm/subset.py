"""Defines the names of the native subset: the typed part of Python that `subset_compiler` turns into LLVM IR.

A function of the subset is written like any other, so editors, pyright and ruff read it; it runs only when compiled:

    class Node(Struct):
        next: Node | None
        value: i64

    @native(exported=True)
    def total(node: Node | None) -> i64:
        found = 0
        while node is not None:
            found += node.value
            node = node.next
        return found

    code = load_functions("lists", {"total": __name__})  # subset_loader

The subset has, with these meanings:

    types        bool, i8 … i64, u8 … u64, u128, f32, f64; bytes (a C string); `Pointer[T]`; classes derived from
                 `Struct`, whose values are addresses; `Callable[[…], T]`, an address too; `object`: any address.
                 `T | None` is T: it makes pyright check that None, the null address, is handled
    structs      fields in C's layout; `Annotated[Pointer[T], n]` is an array of n T in place; its value is its address
    integers     wrap around; both operands have one type, and literals take that of the other one; `i32(x)` converts;
                 `>>` goes by the type's sign; `//` and `%` are for unsigned types
    statements   assignments, if, while, for over `range`, break, continue, return, calls. An `if` about a name of the
                 module that is True or False compiles the branch that is taken
    names        local variables have the type of their first value; other names are constants, functions and variables
                 of the module
    functions    those marked `native`; those of C, marked `external`, whose bodies are `...`; those below
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar, overload

T = TypeVar("T")
S = TypeVar("S", bound="Struct")
F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class Scalar:
    """A type of numbers. `llvm`: its name in LLVM IR; `signed` is None for floating point."""

    name: str
    llvm: str
    bytes: int
    signed: bool | None = True


if TYPE_CHECKING:
    i8 = i16 = i32 = i64 = u8 = u16 = u32 = u64 = u128 = int
    f32 = f64 = float
else:
    i8, i16, i32, i64 = (Scalar(f"i{8 * n}", f"i{8 * n}", n) for n in (1, 2, 4, 8))
    u8, u16, u32, u64, u128 = (Scalar(f"u{8 * n}", f"i{8 * n}", n, False) for n in (1, 2, 4, 8, 16))
    f32, f64 = Scalar("f32", "float", 4, None), Scalar("f64", "double", 8, None)


class Struct:
    """Base of structures. A value of a class derived from it is the address of such a structure."""


class Pointer(Generic[T]):
    """The address of one T or of several: `p[i]` reads and writes, `p + i` is the address of element i."""

    def __getitem__(self, index: int) -> T:
        raise NotImplementedError

    def __setitem__(self, index: int, value: T) -> None:
        raise NotImplementedError

    def __add__(self, count: int) -> Pointer[T]:
        raise NotImplementedError


# --- functions -------------------------------------------------------------------------------------------------------
class Linkage(NamedTuple):
    """How LLVM knows a function: its symbol, whether it is a C function, whether it is exported, its attributes."""

    symbol: str
    external: bool = False
    exported: bool = False
    attributes: str = "nounwind"


LINKAGE: dict[Any, Linkage] = {}


@overload
def native(function: F, /) -> F: ...
@overload
def native(*, exported: bool = False, attributes: str = "") -> Callable[[F], F]: ...
def native(function: Any = None, /, *, exported: bool = False, attributes: str = "") -> Any:
    """Mark a function for `compile_functions`; `exported`: the loader sees its symbol. `attributes`: LLVM's."""

    def mark(f: F) -> F:
        words = f"{attributes} nounwind".strip()
        symbol = f.__name__ if exported else f"{f.__module__}.{f.__name__}"
        LINKAGE[f] = Linkage(symbol, exported=exported, attributes=words)
        return f

    return mark if function is None else mark(function)


@overload
def external(function: F, /) -> F: ...
@overload
def external(*, symbol: str) -> Callable[[F], F]: ...
def external(function: Any = None, /, *, symbol: str = "") -> Any:
    """Declare a C function or an LLVM intrinsic; `symbol`: its name, if it differs from the function's."""

    def mark(f: F) -> F:
        LINKAGE[f] = Linkage(symbol or f.__name__, external=True)
        return f

    return mark if function is None else mark(function)


class GlobalVariable:
    def __init__(self, kind: Any) -> None:
        self.kind = kind


def variable(kind: type[T]) -> Pointer[T]:
    """Return the address of a zero-initialised variable of the module; assign it to a name of the module."""
    found: Any = GlobalVariable(kind)
    return found


# --- what the compiler knows by itself -------------------------------------------------------------------------------
def address(field: T) -> Pointer[T]:
    """Return the address of a field, `address(x.f)`."""
    raise NotImplementedError


def integer(value: object) -> i64:
    """Return an address as a number."""
    raise NotImplementedError


def array(kind: type[T], count: int, align: int = 8) -> Pointer[T]:
    """Return memory on the stack, not cleared, until the function returns. If the count is only known at run time, it
    must not be in a loop."""
    raise NotImplementedError


def local(kind: type[S]) -> S:
    """Return a structure on the stack, not cleared, until the function returns."""
    raise NotImplementedError


def item(first: S, index: int) -> S:
    """Return structure number `index` of an array of structures."""
    raise NotImplementedError


def memcpy(to: object, source: object, size: int) -> None:
    raise NotImplementedError


def memset(to: object, value: int, size: int) -> None:
    raise NotImplementedError


def atomic_load(at: Pointer[T], order: str) -> T:
    """Load atomically. `order`, here and below, is a literal: LLVM's name of the memory ordering."""
    raise NotImplementedError


def atomic_store(at: Pointer[T], value: T, order: str) -> None:
    raise NotImplementedError


def atomic_add(at: Pointer[T], value: T, order: str) -> T:
    """Add, and return the old value."""
    raise NotImplementedError


def compare_exchange(at: Pointer[T], old: T, new: T, order: str, failed: str) -> bool:
    """Write `new` if the value is `old`; return whether it was. `failed`: the ordering if it was not."""
    raise NotImplementedError
