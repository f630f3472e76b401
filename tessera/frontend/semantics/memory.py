"""Implements loads, stores and atomics through pointers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tessera.dtypes import SIGNED_INTS, UNSIGNED_INTS, int1, pointer_type
from tessera.errors import InvalidArgument, ShapeMismatch, TypeMismatch, suggestion
from tessera.frontend.semantics.block_ptr import load_block, store_block
from tessera.frontend.semantics.registry import impl
from tessera.frontend.semantics.type_promotion import common_shape
from tessera.frontend.semantics.values import (
    NUMBERS,
    bitcast_raw,
    broadcast_raw,
    const_raw,
    describe,
    elem,
    fit,
    operand_of,
    sequence,
    shape,
    shape_of_operand,
    static,
    to_value,
    wrap,
)  # fmt: skip
from tessera.ir import Attributes, TileType, Value
from tessera.ir.types import ElementType
from tessera.language import atomics
from tessera.language import memory as tl
from tessera.language.block_pointer import block_pointer
from tessera.language.values import tensor
from tessera.ops import (
    AndOp,
    AtomicCasOp,
    AtomicRmwOp,
    CmpOp,
    LoadOp,
    SelectOp,
    StoreOp,
    XorOp,
)  # fmt: skip
from tessera.ops.memory import CACHE_LOAD, CACHE_STORE, EVICTION, SCOPES, SEMANTICS

if TYPE_CHECKING:
    from tessera.frontend.frontend import FrontEnd

_SIGNED = {d.bits: d for d in SIGNED_INTS}
_UNSIGNED = {d.bits: d for d in UNSIGNED_INTS}


# --- arguments ---------------------------------------------------------------------------------------------
def _option(x: object, allowed: tuple[str, ...], argument: str, function: str) -> str:
    value = static(x, f"{argument} of {function}()")
    value = "" if value is None else value
    if value not in allowed:
        near = suggestion(str(value), [x for x in allowed if x])
        raise InvalidArgument(
            argument=argument, function=function, problem=f"{value!r} is not one of {allowed}",
            help=near or f"give one of {', '.join(map(repr, allowed))}",
        )  # fmt: skip
    return value


def _cache(x: object, allowed: tuple[str, ...], function: str) -> str:
    """Return a cache modifier; its leading dot is optional."""
    value = static(x, f"cache_modifier of {function}()")
    if isinstance(value, str) and value and "." + value in allowed:
        return "." + value
    return _option(x, allowed, "cache_modifier", function)


def _eviction(x: object, function: str) -> str:
    policy = _option(x, (*EVICTION, "evict_normal"), "eviction_policy", function)
    return "" if policy == "evict_normal" else policy


def pointer_of(x: object, function: str) -> Value:
    if isinstance(x, tensor) and isinstance(elem(x.handle), pointer_type):
        return x.handle
    remedy = "the first argument is a pointer or a tile of pointers, such as `x + offsets` of an array argument `x`"
    if hasattr(x, "block_shape"):
        remedy = "a descriptor has methods of its own: `desc.load([i, ...])`, `desc.store([i, ...], value)`"
    raise TypeMismatch(
        f"Unsupported ptr type {describe(x)} in `{function}`", argument="pointer", help=remedy
    )


def mask_of(fe: FrontEnd, x: object) -> Value | None:
    """Return the mask as int1; None if it is always true."""
    if x is None:
        return None
    o = operand_of(x)
    if isinstance(o, NUMBERS):
        return None if o else const_raw(fe, False, int1)
    if elem(o) != int1:
        raise TypeMismatch(
            f"Mask must have boolean scalar type, got {elem(o)}", help="compare, for example `mask != 0`"
        )  # fmt: skip
    return o


def _no_block_arguments(boundary_check: object, padding: str) -> None:
    if sequence(boundary_check) or padding:
        raise InvalidArgument(
            "`padding_option` or `boundary_check` argument is not supported for loading a tensor of pointers "
            "or loading a scalar",
            help="because the compiler does not know the boundary; use `mask` and `other`",
        )


_CHECKS = "give `boundary_check=(0, ...)`, the dimensions that may reach beyond the array, and `padding_option`"
_CONST = "the parameter is annotated `tl.const`: store through another one"


# --- load and store -------------------------------------------------------------------------------------------
@impl(tl.load)
def load_impl(
    fe: FrontEnd,
    pointer: object,
    mask: object = None,
    other: object = None,
    boundary_check: object = (),
    padding_option: object = "",
    cache_modifier: object = "",
    eviction_policy: object = "",
    volatile: object = False,
) -> tensor:
    padding = _option(padding_option, ("", "zero", "nan"), "padding_option", "load")
    how = {
        "cache": _cache(cache_modifier, CACHE_LOAD, "load"),
        "eviction": _eviction(eviction_policy, "load"),
        "volatile": bool(static(volatile, "volatile")),
    }
    if isinstance(pointer, block_pointer):
        if mask is not None or other is not None:
            raise InvalidArgument(
                "`mask` and `other` arguments cannot be specified for loading block pointers",
                help=_CHECKS,
            )
        return wrap(load_block(fe, pointer, boundary_check, padding, how))
    _no_block_arguments(boundary_check, padding)
    ptr = pointer_of(pointer, "tl.load")
    if other is not None and mask is None:
        raise InvalidArgument(
            "`other` cannot be provided without `mask`",
            argument="other",
            help="give a mask, as `i < n`",
        )
    fill = None if other is None else operand_of(other)
    return wrap(load(fe, ptr, mask_of(fe, mask), fill, how))


def load(fe: FrontEnd, ptr: Value, mask: Value | None, other: Any, how: Attributes) -> Value:
    """Load; pointer, mask and `other` (an operand) are broadcast together."""
    dims = shape(ptr)
    for what, x in (("Mask", mask), ("Other", other if mask is not None else None)):
        if x is None:
            continue
        if not dims and shape_of_operand(x):
            raise _larger_than_pointer(what, shape_of_operand(x))
        dims = common_shape(dims, shape_of_operand(x))
    ptr = broadcast_raw(fe, ptr, dims)
    if mask is None:
        return fe.builder.emit(LoadOp(ptr, **how))
    fill = None if other is None else fit(fe, other, elem(ptr).element_ty, dims)
    return fe.builder.emit(LoadOp(ptr, broadcast_raw(fe, mask, dims), fill, **how))


@impl(tl.store)
def store_impl(
    fe: FrontEnd,
    pointer: object,
    value: object,
    mask: object = None,
    boundary_check: object = (),
    cache_modifier: object = "",
    eviction_policy: object = "",
) -> None:
    how = {
        "cache": _cache(cache_modifier, CACHE_STORE, "store"),
        "eviction": _eviction(eviction_policy, "store"),
    }
    if isinstance(pointer, block_pointer):
        if mask is not None:
            raise InvalidArgument(
                "`mask` argument cannot be specified for storing to block pointers", help=_CHECKS
            )
        return store_block(fe, pointer, operand_of(value), boundary_check, how)
    _no_block_arguments(boundary_check, "")
    ptr = pointer_of(pointer, "tl.store")
    if elem(ptr).const:
        raise TypeMismatch("Cannot store to a constant pointer", help=_CONST)
    store(fe, ptr, operand_of(value), mask_of(fe, mask), how)
    return None


def store(fe: FrontEnd, ptr: Value, value: Any, mask: Value | None, how: Attributes) -> None:
    """Store; `value` (an operand) and mask take the pointer's shape."""
    dims = into_pointer(ptr, value, mask)
    v = fit(fe, value, elem(ptr).element_ty, dims)
    m = None if mask is None else broadcast_raw(fe, mask, dims)
    fe.builder.insert(StoreOp(ptr, v, m, **how))


def _larger_than_pointer(what: str, dims: tuple[int, ...]) -> ShapeMismatch:
    return ShapeMismatch(
        f"{what} argument cannot be block type if pointer argument is not a block",
        help=f"the {what.lower()} has shape {list(dims)}: add offsets of this shape to the pointer, as "
        f"`p + tl.arange(0, {dims[-1]})`",
    )


def into_pointer(ptr: Value, value: Any, mask: Value | None) -> tuple[int, ...]:
    """Return the pointer's shape; reject a value or a mask that is larger."""
    dims = shape(ptr)
    for what, x in (("Value", value), ("Mask", mask)):
        have = () if x is None else shape_of_operand(x)
        if have and not dims:
            raise _larger_than_pointer(what, have)
        together = common_shape(dims, have)
        if together != dims:
            raise ShapeMismatch(
                f"Expected pointer argument to have shape {list(together)} but got {list(dims)}",
                help=f"the {what.lower()} has shape {list(have)}; broadcast the pointer first",
            )
    return dims


# --- atomics ----------------------------------------------------------------------------------------------------
_WIDE_INTS = ("int32", "int64", "uint32", "uint64")
_WIDE = (*_WIDE_INTS, "fp32", "fp64")
_ATOMIC_TYPES = dict.fromkeys(("max", "min", "and", "or", "xor", "xchg"), _WIDE) | {
    "add": (*_WIDE, "fp16", "bf16")
}
_SMALL_INTS = ("int8", "int16", "uint8", "uint16")
_SMALL_ATOMICS = ("cpu", "interpreter")  # back ends whose machine has atomics of 8 and 16 bits


def _ordering(sem: object, scope: object) -> Attributes:
    order = static(sem, "sem") or "acq_rel"
    if order not in SEMANTICS:
        raise InvalidArgument(
            f"Memory semantic {order} not supported",
            argument="sem",
            help=f"sem is one of {SEMANTICS}",
        )
    where = static(scope, "scope") or "gpu"
    if where not in SCOPES:
        raise InvalidArgument(
            f"Memory semantic {where} not supported",
            argument="scope",
            help=f"scope is one of {SCOPES}",
        )
    return {"sem": order, "scope": where}


def _atomic(kind: str) -> Any:
    def atomic_impl(
        fe: FrontEnd,
        pointer: object,
        val: object,
        mask: object = None,
        sem: object = None,
        scope: object = None,
    ) -> Any:
        ptr = pointer_of(pointer, f"tl.atomic_{kind}")
        e = elem(ptr).element_ty
        if elem(ptr).const:
            raise TypeMismatch("Cannot store to a constant pointer", help=_CONST)
        takes = _ATOMIC_TYPES[kind]
        if fe.options.backend_name in _SMALL_ATOMICS:
            takes = (*takes, *_SMALL_INTS)
        if e.name not in takes:
            raise TypeMismatch(
                f"atomic_{kind} does not support {e}", help=f"it takes {', '.join(takes)}"
            )
        value, m = operand_of(val), mask_of(fe, mask)
        dims = into_pointer(ptr, value, m)
        v = fit(fe, value, e, dims)
        m = None if m is None else broadcast_raw(fe, m, dims)
        return wrap(atomic_rmw(fe, kind, ptr, v, m, _ordering(sem, scope)))

    return atomic_impl


for _kind in _ATOMIC_TYPES:
    impl(getattr(atomics, f"atomic_{_kind}"))(_atomic(_kind))


def atomic_rmw(
    fe: FrontEnd, kind: str, ptr: Value, v: Value, mask: Value | None, order: Attributes
) -> Value:
    """Return the old value. Floats, except in "add", act as integers of their width."""
    e = elem(v)
    if not e.is_floating() or kind == "add":
        return fe.builder.emit(AtomicRmwOp(ptr, v, mask, kind=kind, **order))
    unsigned = _UNSIGNED[e.bits]
    if kind in ("max", "min"):
        return _float_extremum(fe, kind, ptr, v, mask, order)
    old = AtomicRmwOp(
        _retype(fe, ptr, unsigned), bitcast_raw(fe, v, unsigned), mask, kind=kind, **order
    )
    return bitcast_raw(fe, fe.builder.emit(old), e)


def _retype(fe: FrontEnd, ptr: Value, e: ElementType) -> Value:
    """Return the same addresses as pointers to `e`."""
    return bitcast_raw(fe, ptr, pointer_type(e, elem(ptr).address_space))


def _float_extremum(
    fe: FrontEnd, kind: str, ptr: Value, v: Value, mask: Value | None, order: Attributes
) -> Value:
    """Emit an atomic min or max of floats as two integer atomics on their bits. Floats without a sign bit order as
    signed ints do, and those with one in the reverse order of unsigned ints."""
    e = elem(v)
    signed, unsigned = _SIGNED[e.bits], _UNSIGNED[e.bits]
    as_signed = bitcast_raw(fe, v, signed)
    zero = const_raw(fe, 0, as_signed.type)
    plus = fe.builder.emit(CmpOp(as_signed, zero, predicate="ge"))
    minus = fe.builder.emit(XorOp(plus, const_raw(fe, True, plus.type)))
    if mask is not None:
        plus = fe.builder.emit(AndOp(plus, mask))
        minus = fe.builder.emit(AndOp(minus, mask))
    other = "min" if kind == "max" else "max"
    up = fe.builder.emit(AtomicRmwOp(_retype(fe, ptr, signed), as_signed, plus, kind=kind, **order))
    down = fe.builder.emit(
        AtomicRmwOp(
            _retype(fe, ptr, unsigned), bitcast_raw(fe, v, unsigned), minus, kind=other, **order
        )
    )
    return fe.builder.emit(SelectOp(plus, bitcast_raw(fe, up, e), bitcast_raw(fe, down, e)))


@impl(atomics.atomic_cas)
def atomic_cas_impl(
    fe: FrontEnd,
    pointer: object,
    cmp: object,
    val: object,
    sem: object = None,
    scope: object = None,
) -> tensor:
    ptr = pointer_of(pointer, "tl.atomic_cas")
    e = elem(ptr).element_ty
    if e.bits not in (16, 32, 64):
        raise TypeMismatch(
            "atomic_cas only supports elements with width {16, 32, 64}", help=f"got {e}"
        )
    expected, value = (to_value(fe, operand_of(x)) for x in (cmp, val))
    want = TileType(shape(ptr), e) if shape(ptr) else e
    if e.is_int():  # bits are compared, whatever the operands' signedness
        expected, value = (
            bitcast_raw(fe, v, e) if elem(v).is_int() and elem(v).bits == e.bits else v
            for v in (expected, value)
        )
    for what, v in (("cmp", expected), ("val", value)):
        if v.type != want:
            raise TypeMismatch(
                f"{what} of atomic_cas must have the type {want.short} of the elements, got {v.type.short}",
                help="nothing is cast or broadcast here: use `.to(...)` and tl.full",
            )
    order = _ordering(sem, scope)
    if not e.is_floating():
        return wrap(fe.builder.emit(AtomicCasOp(ptr, expected, value, **order)))
    bits = _UNSIGNED[e.bits]
    parts = (_retype(fe, ptr, bits), bitcast_raw(fe, expected, bits), bitcast_raw(fe, value, bits))
    return wrap(bitcast_raw(fe, fe.builder.emit(AtomicCasOp(*parts, **order)), e))
