"""Implements atomic loads and stores, special registers and dependencies between launches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tessera.dtypes import UNSIGNED_INTS, pointer_type
from tessera.errors import InvalidArgument, TypeMismatch, UnsupportedLanguageConstruct
from tessera.frontend.semantics.memory import into_pointer, mask_of, pointer_of
from tessera.frontend.semantics.registry import impl
from tessera.frontend.semantics.values import (
    bitcast_raw,
    broadcast_raw,
    const_raw,
    elem,
    fit,
    operand_of,
    shape,
    static,
    tile,
    wrap,
)  # fmt: skip
from tessera.ir import Attributes, Value
from tessera.ir.types import ElementType
from tessera.language import atomics as tl
from tessera.language.extra import cuda as tl_cuda
from tessera.language.extra import hip as tl_hip
from tessera.language.values import tensor
from tessera.ops import AtomicRmwOp, GridDependencyOp, LoadOp, SpecialRegisterOp
from tessera.ops.memory import SCOPES

if TYPE_CHECKING:
    from tessera.frontend.frontend import FrontEnd

_UNSIGNED = {d.bits: d for d in UNSIGNED_INTS}


def _ordering(sem: object, scope: object, default: str) -> Attributes:
    order, where = static(sem, "sem") or default, static(scope, "scope") or "gpu"
    if order not in (default, "relaxed"):
        raise InvalidArgument(
            f"Memory semantic {order} not supported", help=f"sem is {default!r} or 'relaxed'"
        )
    if where not in SCOPES:
        raise InvalidArgument(
            f"Memory semantic {where} not supported", help=f"scope is one of {SCOPES}"
        )
    return {"sem": order, "scope": where}


def _as_bits(fe: FrontEnd, ptr: Value, function: str) -> tuple[Value, ElementType]:
    """Return the addresses as pointers to unsigned ints of the element's width, and that int type."""
    e = elem(ptr).element_ty
    if e.bits not in (32, 64):
        raise TypeMismatch(f"{function} does not support {e}", help="elements have 32 or 64 bits")
    bits = _UNSIGNED[e.bits]
    return bitcast_raw(fe, ptr, pointer_type(bits, elem(ptr).address_space)), bits


@impl(tl.atomic_load)
def atomic_load_impl(
    fe: FrontEnd, pointer: object, mask: object = None, sem: object = None, scope: object = None
) -> tensor:
    ptr, limit = pointer_of(pointer, "tl.atomic_load"), mask_of(fe, mask)
    order = _ordering(sem, scope, "acquire")
    dims = into_pointer(ptr, 0, limit)
    limit = None if limit is None else broadcast_raw(fe, limit, dims)
    if order["sem"] == "relaxed":
        return wrap(fe.builder.emit(LoadOp(ptr, limit, volatile=True)))
    words, bits = _as_bits(fe, ptr, "atomic_load")
    nothing = const_raw(fe, 0, tile(shape(ptr), bits))
    old = fe.builder.emit(AtomicRmwOp(words, nothing, limit, kind="or", **order))
    return wrap(bitcast_raw(fe, old, elem(ptr).element_ty))


@impl(tl.atomic_store)
def atomic_store_impl(
    fe: FrontEnd,
    pointer: object,
    val: object,
    mask: object = None,
    sem: object = None,
    scope: object = None,
) -> None:
    ptr, limit = pointer_of(pointer, "tl.atomic_store"), mask_of(fe, mask)
    if elem(ptr).const:
        raise TypeMismatch(
            "Cannot store to a constant pointer",
            help="the parameter is annotated `tl.const`: store through another one",
        )
    order = _ordering(sem, scope, "release")
    words, bits = _as_bits(fe, ptr, "atomic_store")
    value = operand_of(val)
    dims = into_pointer(ptr, value, limit)
    limit = None if limit is None else broadcast_raw(fe, limit, dims)
    v = bitcast_raw(fe, fit(fe, value, elem(ptr).element_ty, dims), bits)
    fe.builder.insert(AtomicRmwOp(words, v, limit, kind="xchg", **order))
    return


# --- registers and launches -------------------------------------------------------------------------------------
@impl(tl.globaltimer)
def globaltimer_impl(fe: FrontEnd) -> tensor:
    return wrap(fe.builder.emit(SpecialRegisterOp(name="globaltimer")))


@impl(tl_cuda.smid)
def smid_impl(fe: FrontEnd) -> tensor:
    return wrap(fe.builder.emit(SpecialRegisterOp(name="smid")))


@impl(tl_cuda.gdc_wait)
def gdc_wait_impl(fe: FrontEnd) -> None:
    fe.builder.insert(GridDependencyOp(kind="wait"))
    return


@impl(tl_cuda.gdc_launch_dependents)
def gdc_launch_dependents_impl(fe: FrontEnd) -> None:
    fe.builder.insert(GridDependencyOp(kind="launch_dependents"))
    return


def _only_amd(name: str) -> Any:
    def refuse(fe: FrontEnd) -> Any:
        raise UnsupportedLanguageConstruct(
            f"extra.hip.{name} needs an AMD GPU", help="there is no back end for AMD GPUs"
        )

    return refuse


for _name in tl_hip.__all__:
    impl(getattr(tl_hip, _name))(_only_amd(_name))
