"""Implements `extra.libdevice`, `extra.cuda` and `target_info`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any

from tessera.dtypes import dtype, float32, float64, int32, int64, uint32, uint64
from tessera.errors import TypeMismatch
from tessera.frontend.semantics.registry import impl
from tessera.frontend.semantics.type_promotion import promote_types
from tessera.frontend.semantics.values import (
    NUMBERS,
    bitcast_raw,
    broadcast_values,
    cast,
    cast_raw,
    elem,
    operand_of,
    static,
    static_int,
    to_value,
    wrap,
)  # fmt: skip
from tessera.ir import Op, Value
from tessera.language import target_info as tl_target
from tessera.language.extra import cuda as tl_cuda
from tessera.language.extra import libdevice_base, libdevice_rounding
from tessera.language.extra import libdevice_ops as tl
from tessera.language.values import constexpr, tensor
from tessera.language.values import tuple as tl_tuple
from tessera.ops import (
    DIRECTED,
    MATH_OPS,
    AbsOp,
    Atan2Op,
    ClzOp,
    CopySignOp,
    DirectedOp,
    DivOp,
    IsNanOp,
    MulHiOp,
    PopcOp,
    PowOp,
    RemainderOp,
    RemOp,
)  # fmt: skip

if TYPE_CHECKING:
    from tessera.frontend.frontend import FrontEnd

_FLOATS = (float32, float64)
_INTS = (int32, int64, uint32, uint64)


def _operands(
    fe: FrontEnd, function: str, allowed: tuple[dtype, ...], args: Sequence[object]
) -> list[Value]:
    """Return the operands in one of the allowed dtypes: as they are, else promoted like operands of operators."""
    values = [to_value(fe, operand_of(x)) for x in args]
    found = list(dict.fromkeys(map(elem, values)))
    if len(found) == 1 and found[0] in allowed:
        return values
    numbers = all(isinstance(t, dtype) for t in found)
    if numbers and all(isinstance(operand_of(x), NUMBERS) for x in args):
        to = reduce(promote_types, [*found, float32])  # numbers alone
    else:
        to = reduce(promote_types, found) if numbers and len(found) > 1 else found[0]
    if to not in allowed:
        raise TypeMismatch(
            f"libdevice.{function} takes {' or '.join(d.name for d in allowed)}, got "
            f"{' and '.join(map(str, found))}",
            help="cast the operands first: `x.to(tl.float32)`",
        )
    return [cast(fe, v, to) for v in values]


def _operand(fe: FrontEnd, x: object, allowed: tuple[dtype, ...], function: str) -> Value:
    return _operands(fe, function, allowed, [x])[0]


_KINDS = {
    "f": _FLOATS, "f32": (float32,), "f64": (float64,), "i": _INTS, "i32": (int32,), "i64": (int64,), "u32": (uint32,),
    "u64": (uint64,),
}  # fmt: skip


def _typed(fe: FrontEnd, function: str, kinds: str, args: Sequence[object]) -> list[tensor]:
    """Return the operands as tensors of one dtype among `kinds`."""
    allowed = tuple(d for k in kinds.split() for d in _KINDS[k])
    return [wrap(v) for v in _operands(fe, function, allowed, args)]


@impl(libdevice_base.typed)
def typed_impl(fe: FrontEnd, function: object, kinds: object, *args: object) -> tensor | tl_tuple:
    found = _typed(fe, str(static(function, "function")), str(static(kinds, "kinds")), args)
    return found[0] if len(found) == 1 else tl_tuple(found)


def _rounded(name: str, arity: int) -> Any:
    _, fn, kinds, mode = libdevice_rounding.ROUNDED[name]

    def run(fe: FrontEnd, *args: object) -> Any:
        own = name.partition("_")[0] in DIRECTED and fe.options.backend_name == "cuda"
        if own and mode != "rn":
            return _directed(fe, name, args)
        return fe.call(fn, [*_typed(fe, name, kinds, args), constexpr(mode)], {})

    def one(fe: FrontEnd, arg0: object) -> Any:
        return run(fe, arg0)

    def two(fe: FrontEnd, arg0: object, arg1: object) -> Any:
        return run(fe, arg0, arg1)

    def three(fe: FrontEnd, arg0: object, arg1: object, arg2: object) -> Any:
        return run(fe, arg0, arg1, arg2)

    return (one, two, three)[arity - 1]


def _directed(fe: FrontEnd, name: str, args: Sequence[object]) -> tensor:
    """Round by the instruction itself, which GPUs have, in any direction."""
    values = broadcast_values(fe, _operands(fe, name, _FLOATS, args))
    function, _, direction = name.partition("_")
    return wrap(fe.builder.emit(DirectedOp(values, function=function, direction=direction)))


for _name, (_stub, *_rest) in libdevice_rounding.ROUNDED.items():
    impl(_stub)(_rounded(_name, len(_stub.signature.parameters)))


def _unary(op: type[Op], allowed: tuple[dtype, ...], function: str) -> Any:
    def unary_impl(fe: FrontEnd, arg0: object) -> Any:
        return wrap(fe.builder.emit(op(_operand(fe, arg0, allowed, function))))

    return unary_impl


for _name in tl.UNARY:
    impl(getattr(tl, _name))(_unary(MATH_OPS[_name], _FLOATS, _name))
for _name in tl.FAST:
    impl(getattr(tl, f"{_name}f"))(_unary(MATH_OPS[_name], (float32,), f"{_name}f"))
for _name in tl.PARTS:
    impl(getattr(tl, _name))(_unary(MATH_OPS[_name], (float32,), _name))
impl(tl.isnan)(_unary(IsNanOp, _FLOATS, "isnan"))
impl(tl.clz)(_unary(ClzOp, _INTS, "clz"))
impl(tl.popc)(_unary(PopcOp, _INTS, "popc"))


@impl(tl.abs)
def abs_impl(fe: FrontEnd, arg0: object) -> tensor:
    return wrap(fe.builder.emit(AbsOp(_operand(fe, arg0, (*_FLOATS, int32, int64), "abs"))))


def _same(
    fe: FrontEnd, x: object, y: object, allowed: tuple[dtype, ...], function: str
) -> list[Value]:
    """Return two operands of one dtype, in their common shape."""
    return broadcast_values(fe, _operands(fe, function, allowed, [x, y]))


def _binary(op: type[Op], allowed: tuple[dtype, ...], function: str, **attrs: Any) -> Any:
    def binary_impl(fe: FrontEnd, arg0: object, arg1: object) -> Any:
        return wrap(fe.builder.emit(op(*_same(fe, arg0, arg1, allowed, function), **attrs)))

    return binary_impl


impl(tl.atan2)(_binary(Atan2Op, _FLOATS, "atan2"))
impl(tl.copysign)(_binary(CopySignOp, _FLOATS, "copysign"))
impl(tl.remainder)(_binary(RemainderOp, _FLOATS, "remainder"))
impl(tl.fmod)(_binary(RemOp, _FLOATS, "fmod"))
impl(tl.div_rn)(_binary(DivOp, _FLOATS, "div_rn", exact=True))
impl(tl.mulhi)(_binary(MulHiOp, _INTS, "mulhi"))


@impl(tl.pow)
def pow_impl(fe: FrontEnd, arg0: object, arg1: object) -> tensor:
    x, y = (to_value(fe, operand_of(arg)) for arg in (arg0, arg1))
    if elem(x) in _FLOATS and elem(y) is int32:
        y = cast_raw(fe, y, elem(x))
    else:
        x, y = _operands(fe, "pow", _FLOATS, [arg0, arg1])
    return wrap(fe.builder.emit(PowOp(*broadcast_values(fe, [x, y]))))


def _bits(have: dtype, to: dtype, function: str) -> Any:
    def bits_impl(fe: FrontEnd, arg0: object) -> Any:
        return wrap(bitcast_raw(fe, _operand(fe, arg0, (have,), function), to))

    return bits_impl


impl(tl.float_as_int)(_bits(float32, int32, "float_as_int"))
impl(tl.int_as_float)(_bits(int32, float32, "int_as_float"))
impl(tl.double_as_longlong)(_bits(float64, int64, "double_as_longlong"))
impl(tl.longlong_as_double)(_bits(int64, float64, "longlong_as_double"))


# --- facts of the launch ------------------------------------------------------------------------------------
@impl(tl_cuda.num_warps)
def num_warps_impl(fe: FrontEnd) -> constexpr:
    return constexpr(fe.options.num_warps)


@impl(tl_cuda.num_threads)
def num_threads_impl(fe: FrontEnd) -> constexpr:
    return constexpr(fe.options.num_warps * 32)


@impl(tl_target.current_target)
def current_target_impl(fe: FrontEnd) -> constexpr:
    return constexpr(fe.options.target)


def backend_of(fe: FrontEnd) -> str:
    return str(getattr(fe.options.target, "backend", fe.options.backend_name))


@impl(tl_target.is_cuda)
def is_cuda_impl(fe: FrontEnd) -> constexpr:
    return constexpr(backend_of(fe) == "cuda")


@impl(tl_target.is_hip)
def is_hip_impl(fe: FrontEnd) -> constexpr:
    return constexpr(backend_of(fe) == "hip")


@impl(tl_target.is_hip_cdna3, tl_target.is_hip_cdna4, tl_target.is_hip_gfx1250)
def is_hip_family_impl(fe: FrontEnd) -> constexpr:
    return constexpr(False)  # no back end distinguishes them by family


@impl(tl_target.cuda_capability_geq)
def cuda_capability_geq_impl(fe: FrontEnd, major: object, minor: object = 0) -> constexpr:
    wanted = static_int(major, "major") * 10 + static_int(minor, "minor")
    return constexpr(backend_of(fe) == "cuda" and int(fe.options.target.arch) >= wanted)
