"""Converts language values to IR values and back: constants, casts and broadcasts, which all semantics use.

There are three tiers. `xxx_impl` is registered for a builtin and takes language values (tensor, constexpr, tuple,
None). Functions without suffix take *operands*, an IR Value or a Python number that has no dtype yet; they check and
promote. `xxx_raw` functions emit ops and only assert.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tessera.dtypes import (
    MAX_TILE_ELEMENTS,
    block_type,
    dtype,
    float32,
    float64,
    int1,
    int64,
    is_power_of_two,
    pointer_type,
)
from tessera.errors import NotConstexpr, ShapeMismatch, TypeMismatch
from tessera.frontend.semantics.type_promotion import (
    Number,
    as_constant,
    common_shape,
    dtype_of_number,
)
from tessera.ir import TileType, Value, elem_of
from tessera.ir.types import ElementType, Type
from tessera.language.callable import JITCallable
from tessera.language.values import constexpr, tensor, type_of
from tessera.language.values import tuple as tl_tuple
from tessera.ops import (
    BitcastOp,
    BroadcastOp,
    CastOp,
    ConstOp,
    ExpandDimsOp,
    ReshapeOp,
    SplatOp,
)

if TYPE_CHECKING:
    from tessera.frontend.frontend import FrontEnd

Operand = Value | bool | int | float
NUMBERS = (bool, int, float)
LONGEST_SHOWN = 60  # characters of a compile-time value in a message
NO_EXTENTS = (
    "a pointer does not know its array's extents, and a scalar has none: pass them as arguments"
)
_POINTER_CASTS = "an address is cast to and from `tl.int64` only; the value that a pointer points to is `tl.load(p)`"
ABSENT = "None is what a function without `return` gives, and an argument that was passed as None"


# --- language values ↔ operands -------------------------------------------------------------------------
def operand_of(x: object) -> Operand:
    """Return the IR value of a tensor, or the number of a constexpr."""
    if isinstance(x, tensor):
        return x.handle
    given = x
    if isinstance(x, constexpr):
        x = x.value
    if isinstance(x, NUMBERS):
        return x
    shown = str(x) if len(str(x)) <= LONGEST_SHOWN else "a value"
    raise TypeMismatch(
        f"cannot convert {shown} of type {describe(x)} to tensor",
        help=_operand_for(x),
        operand=given,
    )


def _operand_for(x: object) -> str:
    """Return what to write in place of a value that is no operand."""
    if x is None:
        return ABSENT
    if hasattr(x, "load") and hasattr(x, "block_shape"):  # a descriptor
        return "read the elements with `desc.load([i, ...])`; offsets go into the brackets"
    if hasattr(x, "__array__"):
        return "a kernel sees arrays as its arguments only: pass it without `tl.constexpr`, and read it with `tl.load`"
    if isinstance(x, complex):
        return "compute with two tiles, one of the real and one of the imaginary parts"
    if isinstance(x, JITCallable):
        return f"pass an array there, or call the function: `{x.__name__}(...)`; operands are tensors and numbers"
    text = "; text is compared with `tl.constexpr` values only" if isinstance(x, str) else ""
    return f"operands are tensors and numbers{text}"


def wrap(v: Value) -> tensor:
    """Return the tensor whose handle is `v`."""
    t = v.type
    return tensor(v, block_type(t.elem, t.shape) if isinstance(t, TileType) else t)


def describe(x: object) -> str:
    """Return an error message's description of a language value."""
    if isinstance(x, (tensor, tl_tuple)):
        return str(x)
    if isinstance(x, constexpr):
        text = repr(x)
        short = len(text) <= LONGEST_SHOWN and "\n" not in text
        return text if short else f"constexpr[{type(x.value).__name__}]"
    return type(x).__name__ if x is not None else "None"


def spelled(e: ElementType) -> str:
    """Return an element type as kernels write it: `tl.float32`."""
    return (
        f"tl.{repr(e).rpartition('.')[2]}"
        if isinstance(e, dtype)
        else f"tl.pointer_type({spelled(e.element_ty)})"
    )


def static(x: object, what: str) -> Any:
    """Return the Python value of a compile-time argument. Raises NotConstexpr for a run-time one."""
    if isinstance(x, constexpr):
        return x.value
    if isinstance(x, tensor):
        raise NotConstexpr(what=what, got=str(type_of(x)))
    return x


def static_int(x: object, what: str) -> int:
    value = static(x, what)
    if not isinstance(value, int):
        raise NotConstexpr(what=what, got=describe(value))
    return int(value)


def sequence(x: object) -> list[Any]:
    """Return the elements of a tuple, a list or a constexpr holding one; a single value is one element."""
    if isinstance(x, constexpr):
        x = x.value
    if isinstance(x, tl_tuple):
        return list(x.values)
    plain: Any = x
    return list(plain) if isinstance(x, (tuple, list)) else [x]


def static_shape(fe: FrontEnd, shape: object) -> tuple[int, ...]:
    """Return a shape given as ints or as a sequence of them, each known at compile time."""
    dims: list[int] = []
    for i, s in enumerate(sequence(shape)):
        value = s.value if isinstance(s, constexpr) else s
        if not isinstance(value, int):
            raise NotConstexpr(
                f"Shape element {i} must have type `constexpr[int]`, got {describe(value)}",
                help="extents are ints: divide with `//`" if isinstance(value, float) else None,
            )
        dims.append(int(value))  # a condition is 0 or 1
    check_shape(fe, dims)
    return tuple(dims)


def is_extent(fe: FrontEnd, n: int) -> bool:
    """Whether a tile may have this extent: any power of two, and with `any_extent` on CPUs every positive number."""
    if is_power_of_two(n):
        return True
    return n > 0 and fe.options.any_extent and fe.options.backend_name == "cpu"


def check_shape(fe: FrontEnd, dims: Sequence[int]) -> None:
    """Reject shapes that no tile may have."""
    numel = 1
    for i, n in enumerate(dims):
        if not is_extent(fe, n):
            raise ShapeMismatch(
                f"Shape element {i} must be a power of 2, got {n}",
                help="give the extent as a number: -1 stands for nothing here"
                if n < 0
                else "use `tessera.next_power_of_2(n)` and mask what is beyond the end",
            )
        numel *= n
    if numel > MAX_TILE_ELEMENTS:
        raise ShapeMismatch(
            f"numel ({numel}) exceeds triton maximum tensor numel ({MAX_TILE_ELEMENTS})",
            help="use smaller blocks and a larger grid, or a loop",
        )


def varargs(values: Sequence[object]) -> list[Any]:
    """Return arguments given one by one, or as one tuple."""
    return sequence(values[0]) if len(values) == 1 else list(values)


# --- types ----------------------------------------------------------------------------------------------
def elem(v: Value) -> Any:
    """Return the element type of a value: dtype or pointer type."""
    t = v.type
    return t.elem if isinstance(t, TileType) else t


def shape(v: Value) -> tuple[int, ...]:
    t = v.type
    return t.shape if isinstance(t, TileType) else ()


def tile(dims: tuple[int, ...], e: ElementType) -> Type:
    """Return the IR type of a tile; the scalar type for an empty shape."""
    return TileType(dims, e) if dims else e


def elem_of_operand(x: Operand) -> Any:
    return elem(x) if isinstance(x, Value) else dtype_of_number(x)


def shape_of_operand(x: Operand) -> tuple[int, ...]:
    return shape(x) if isinstance(x, Value) else ()


# --- raw ------------------------------------------------------------------------------------------------
def const_raw(fe: FrontEnd, value: Number, t: Type) -> Value:
    """Return a constant of IR type `t`; the number is converted to the element type."""
    e = elem_of(t)
    return fe.builder.emit(ConstOp(value=as_constant(value, e), results=(t,)))


def broadcast_raw(fe: FrontEnd, v: Value, dims: tuple[int, ...]) -> Value:
    """Return `v` broadcast to `dims`, which it must fit."""
    t = v.type
    if not isinstance(t, TileType):
        if not dims:
            return v
        made = v.op
        if isinstance(made, ConstOp):
            return fe.builder.emit(ConstOp(value=made.value, results=(TileType(dims, t),)))
        return fe.builder.emit(SplatOp(v, results=(TileType(dims, t),)))
    if t.shape == dims:
        return v
    result = TileType(dims, t.elem)
    made = v.op
    if isinstance(made, SplatOp):
        return fe.builder.emit(SplatOp(made.x, results=(result,)))
    if isinstance(made, ConstOp):
        return fe.builder.emit(ConstOp(value=made.value, results=(result,)))
    for _ in range(len(dims) - len(t.shape)):
        v = fe.builder.emit(ExpandDimsOp(v, axis=0))
    if shape(v) == dims:
        return v
    return fe.builder.emit(BroadcastOp(v, results=(result,)))


def cast_raw(fe: FrontEnd, v: Value, to: ElementType, rounding: str = "rtne") -> Value:
    if elem(v) == to:
        return v
    return fe.builder.emit(CastOp(v, rounding=rounding, results=(tile(shape(v), to),)))


def bitcast_raw(fe: FrontEnd, v: Value, to: ElementType) -> Value:
    if elem(v) == to:
        return v
    return fe.builder.emit(BitcastOp(v, results=(tile(shape(v), to),)))


# --- typed ----------------------------------------------------------------------------------------------
def to_value(fe: FrontEnd, x: Operand) -> Value:
    """Return an operand as an IR value: numbers get their default dtype."""
    return x if isinstance(x, Value) else const_raw(fe, x, dtype_of_number(x))


def broadcast_to(fe: FrontEnd, v: Value, dims: tuple[int, ...]) -> Value:
    """Return `v` in shape `dims` of the same rank. Raises ShapeMismatch if it does not fit."""
    have = shape(v)
    if have == dims:
        return v
    if have:
        if len(have) != len(dims):
            raise ShapeMismatch(
                f"Cannot broadcast, rank mismatch: {list(have)}, {list(dims)}",
                help="add dimensions of extent 1 first: `x[:, None]` or `x[None, :]`",
            )
        for i, (m, n) in enumerate(zip(have, dims, strict=True)):
            if m not in (n, 1):
                raise ShapeMismatch(
                    f"Cannot broadcast, the expanded size of the tensor ({n}) must match the existing size ({m}) "
                    f"at non-singleton dimension {i}: {list(have)}, {list(dims)}",
                    help="only dimensions of extent 1 are broadcast: `x[:, None]` adds one",
                )
    return broadcast_raw(fe, v, dims)


def broadcast_values(fe: FrontEnd, values: Sequence[Value]) -> list[Value]:
    """Return all values in their common shape."""
    dims = shape(values[0])
    for v in values[1:]:
        dims = common_shape(dims, shape(v))
    return [broadcast_raw(fe, v, dims) for v in values]


def fit(fe: FrontEnd, x: Operand, e: ElementType, dims: tuple[int, ...]) -> Value:
    """Return an operand as a tile of element type `e` in `dims`; a number becomes one constant."""
    if isinstance(x, Value):
        return broadcast_raw(fe, cast(fe, x, e), dims)
    if isinstance(e, dtype):
        return const_raw(fe, x, tile(dims, e))
    return broadcast_raw(fe, cast(fe, to_value(fe, x), e), dims)


def check_supported(fe: FrontEnd, to: Any) -> None:
    """Reject fp8 types that the target cannot convert."""
    if to.is_fp8():
        known = fe.options.supported_fp8_dtypes
        if to.name not in known and to.short not in known and to._text not in known:
            raise TypeMismatch(
                f"type {to} not supported in this architecture. "
                f"The supported fp8 dtypes are {tuple(known)}",
                help="use one of those, or `tl.float16`",
            )


def cast(fe: FrontEnd, v: Value, to: ElementType, rounding: str | None = None) -> Value:
    """Return `v` converted by value to the dtype or pointer type `to`."""
    have = elem(v)
    if have == to:
        return v
    if isinstance(have, pointer_type) or isinstance(to, pointer_type):
        return _cast_pointer(fe, v, have, to)
    if have.is_fp8() or to.is_fp8():
        return _cast_fp8(fe, v, have, to, rounding)
    return cast_raw(fe, v, to, rounding or "rtne")


def _cast_fp8(fe: FrontEnd, v: Value, have: dtype, to: dtype, rounding: str | None) -> Value:
    if not (have.is_floating() and to.is_floating()):
        if to is int1:
            return cast_raw(fe, cast_raw(fe, v, float32), int1)
        raise TypeMismatch(
            f"cannot cast {have} to {to}", help="go through a wider float: `.to(tl.float32)`"
        )
    check_supported(fe, to)
    if (to.is_fp8() and have.is_fp8()) or float64 in (have, to):
        v = cast_raw(fe, v, float32)  # back ends convert fp8 from and to 16 and 32 bits only
    return cast_raw(fe, v, to, rounding or "rtne")


def _cast_pointer(fe: FrontEnd, v: Value, have: ElementType, to: ElementType) -> Value:
    if isinstance(have, pointer_type) and isinstance(to, pointer_type):
        return bitcast_raw(fe, v, to)
    if isinstance(have, pointer_type):
        if to.is_int() and to.bits == 64:
            return cast_raw(fe, cast_raw(fe, v, int64), to)
        if to is int1:
            return cast_raw(fe, cast_raw(fe, v, int64), int1)
    elif have.is_int():
        return cast_raw(fe, cast_raw(fe, v, int64), to)
    raise TypeMismatch(f"cannot cast {have} to {to}", help=_POINTER_CASTS)


def bitcast(fe: FrontEnd, v: Value, to: ElementType) -> Value:
    """Return the bits of `v` as `to`, of equal width; for pointers this is a cast."""
    have = elem(v)
    if have == to:
        return v
    if isinstance(have, pointer_type) or isinstance(to, pointer_type):
        return _cast_pointer(fe, v, have, to)
    if have.bits != to.bits:
        raise TypeMismatch(
            f"Cannot bitcast data-type of size {have.bits} to data-type of size {to.bits}",
            help=f"a bitcast keeps the size; `x.to({spelled(to)})` converts the value",
        )
    return bitcast_raw(fe, v, to)


def scalar_of_one(fe: FrontEnd, v: Value) -> Value:
    """Return the element of a one-element tile as a scalar."""
    return fe.builder.emit(ReshapeOp(v, results=(elem(v),)))


def to_bool(fe: FrontEnd, v: Value) -> Value:
    """Return `v != 0` as int1, for pointers, too."""
    return v if elem(v) == int1 else cast(fe, v, int1)


# --- the front end's own entry points ---------------------------------------------------------------------
def to_tensor(fe: FrontEnd, x: object) -> tensor:
    """Return a language value as a tensor: numbers become scalars of their default dtype, tensors stay."""
    return x if isinstance(x, tensor) else wrap(to_value(fe, operand_of(x)))


def condition(fe: FrontEnd, x: object) -> tensor:
    """Return the int1 condition of a run-time `if` or `while`: any scalar or one-element tile, `!= 0`."""
    v = to_value(fe, operand_of(x))
    dims = shape(v)
    if dims:
        if any(n != 1 for n in dims):
            raise ShapeMismatch(
                "Boolean value of Tensor with more than one value is ambiguous",
                help="reduce it to a scalar first, or choose element by element with `tl.where`",
            )
        fe.warn(
            f"a condition should be a scalar, not a tensor of shape {dims}: use `.item()`",
            UserWarning,
        )
        v = scalar_of_one(fe, v)
    return wrap(to_bool(fe, v))
