"""Implements `dot_scaled`: operands are unpacked and scaled in fp32, rounded to 16 bits and multiplied.

An e2m1 code has the layout of the top bits of an fp16 whose exponent is 14 too small: shifted there and multiplied by
2**14 it is the value, subnormals included. A scale 2**(s - 127) is the fp32 whose exponent field is s.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tessera.dtypes import (
    bfloat16,
    float8e4nv,
    float8e5,
    float16,
    float32,
    int8,
    int16,
    uint8,
    uint16,
    uint32,
)
from tessera.errors import InvalidArgument, ShapeMismatch, TypeMismatch
from tessera.frontend.semantics.dot import dot
from tessera.frontend.semantics.elementwise import as_dtype
from tessera.frontend.semantics.math import binary_op, compare_op, where
from tessera.frontend.semantics.registry import impl
from tessera.frontend.semantics.shape import expand_dims, join, reshape, transpose
from tessera.frontend.semantics.values import (
    bitcast_raw,
    broadcast_to,
    cast_raw,
    elem,
    operand_of,
    shape,
    static,
    to_value,
    wrap,
)  # fmt: skip
from tessera.ir import Value
from tessera.language import combine as tl
from tessera.language.values import constexpr, tensor

if TYPE_CHECKING:
    from tessera.frontend.frontend import FrontEnd

_CARRIERS = {
    "e2m1": (uint8,), "e4m3": (float8e4nv, uint8), "e5m2": (float8e5, uint8), "bf16": (bfloat16, uint16, int16),
    "fp16": (float16, uint16, int16),
}  # fmt: skip


@dataclass(frozen=True)
class _Side:
    """One operand: `name` for messages, the position of K, the values' format and how e2m1 is packed."""

    name: str
    k: int
    format: str
    k_pack: bool


@impl(tl.dot_scaled)
def dot_scaled_impl(
    fe: FrontEnd,
    lhs: object,
    lhs_scale: object,
    lhs_format: object,
    rhs: object,
    rhs_scale: object,
    rhs_format: object,
    acc: object = None,
    fast_math: object = False,
    lhs_k_pack: object = True,
    rhs_k_pack: object = True,
    out_dtype: object = float32,
) -> tensor:
    if as_dtype(out_dtype, "dot_scaled") is not float32:
        raise TypeMismatch("dot_scaled() gives float32 only", help="cast the result")
    sides = (
        _side("lhs", -1, lhs_format, lhs_k_pack), _side("rhs", -2, rhs_format, rhs_k_pack)
    )  # fmt: skip
    values = [_unpacked(fe, s, to_value(fe, operand_of(x))) for s, x in zip(sides, (lhs, rhs))]
    factors = [_optional(fe, x) for x in (lhs_scale, rhs_scale)]
    groups = [None if f is None else _group(s, v, f) for s, v, f in zip(sides, values, factors)]
    if None not in groups and groups[0] != groups[1]:
        raise ShapeMismatch(
            f"Operands must have the same scale factor; (lhs: {groups[0]} vs rhs: {groups[1]})",
            help="give both scales with 16 or both with 32 elements of K for each factor",
        )
    to = float16 if "fp16" in [s.format for s in sides] else bfloat16
    a, b = (
        cast_raw(fe, _scaled(fe, s, v, f, g), to)
        for s, v, f, g in zip(sides, values, factors, groups)
    )
    c = None if acc is None else to_value(fe, operand_of(acc))
    return wrap(dot(fe, a, b, c, "ieee", None, float32))


def _optional(fe: FrontEnd, x: object) -> Value | None:
    absent = x is None or (isinstance(x, constexpr) and x.value is None)
    return None if absent else to_value(fe, operand_of(x))


def _side(name: str, k: int, format: object, k_pack: object) -> _Side:
    kind = static(format, f"{name}_format")
    if not isinstance(kind, str) or kind.lower() not in _CARRIERS:
        raise InvalidArgument(
            argument=f"{name}_format", function="dot_scaled", problem=f"{kind!r} is not one of {tuple(_CARRIERS)}",
            help="the format is that of the elements: `e2m1` is fp4, `e4m3` and `e5m2` are fp8",
        )  # fmt: skip
    along_k = bool(static(k_pack, f"{name}_k_pack"))
    if not along_k and kind.lower() != "e2m1":
        raise InvalidArgument(
            "only mxfp4 inputs can be packed along a dimension different than K",
            argument=f"{name}_k_pack", help="leave it out",
        )  # fmt: skip
    return _Side(name, k, kind.lower(), along_k)


# --- values ------------------------------------------------------------------------------------------------------
def _unpacked(fe: FrontEnd, side: _Side, v: Value) -> Value:
    """Return the operand's values as fp32."""
    e, kinds = elem(v), _CARRIERS[side.format]
    if len(shape(v)) < 2 or e not in kinds:
        raise TypeMismatch(
            f"{side.name} of dot_scaled() in format {side.format} is a matrix of "
            f"{' or '.join(k.name for k in kinds)}, got {wrap(v)}",
            argument=side.name, help=f"name the format of what is given, or cast it: "
            f"`{side.name}_format` says how its bits are read",
        )  # fmt: skip
    if side.format == "e2m1":
        return _nibbles(fe, side, v)
    return cast_raw(fe, bitcast_raw(fe, v, kinds[0]), float32)


def _nibbles(fe: FrontEnd, side: _Side, v: Value) -> Value:
    low, high = binary_op(fe, "and", v, 15), binary_op(fe, "rshift", v, 4)
    codes = join(fe, low, high)
    rank = len(shape(v))
    axis = rank + side.k if side.k_pack else rank + (-2 if side.k == -1 else -1)
    if axis == rank - 2:  # [.., R, C, 2] → [.., R, 2, C]
        codes = transpose(fe, codes, (*range(rank - 1), rank, rank - 1))
    dims = tuple(n * 2 if d == axis else n for d, n in enumerate(shape(v)))
    codes = cast_raw(fe, reshape(fe, codes, dims), uint16)
    sign = binary_op(fe, "lshift", binary_op(fe, "and", codes, 8), 12)
    size = binary_op(fe, "lshift", binary_op(fe, "and", codes, 7), 9)
    bits = bitcast_raw(fe, binary_op(fe, "or", sign, size), float16)
    return binary_op(fe, "mul", cast_raw(fe, bits, float32), 16384.0)


# --- scales ------------------------------------------------------------------------------------------------------
def _group(side: _Side, v: Value, scale: Value) -> int:
    """Return how many elements along K share a scale."""
    k, outer = shape(v)[side.k], shape(v)[-3 - side.k]
    dims = shape(scale)
    if len(dims) != len(shape(v)) or dims[-2] != outer or dims[:-2] != shape(v)[:-2]:
        raise ShapeMismatch(
            f"{side.name}_scale must have shape [.., {outer}, K / 16 or K / 32], got {list(dims)}",
            help="scales are not transposed: [M, K/g] and [N, K/g]",
        )
    group = k // dims[-1]
    if group not in (16, 32) or group * dims[-1] != k:
        raise ShapeMismatch(
            f"scale factor must be 16 or 32. Got {group}",
            help="a scale has K / 16 or K / 32 columns, K being the extent before packing",
        )
    return group


def _scaled(fe: FrontEnd, side: _Side, v: Value, scale: Value | None, group: int | None) -> Value:
    if scale is None or group is None:
        return v
    factor = _factor(fe, side, scale)
    rank = len(shape(factor))
    wide = broadcast_to(fe, expand_dims(fe, factor, rank), (*shape(factor), group))
    wide = reshape(fe, wide, (*shape(factor)[:-1], shape(factor)[-1] * group))
    if side.k == -2:
        wide = transpose(fe, wide, (*range(rank - 2), rank - 1, rank - 2))
    return binary_op(fe, "mul", v, wide)


def _factor(fe: FrontEnd, side: _Side, scale: Value) -> Value:
    """Return scales as fp32."""
    if elem(scale) is float8e4nv:
        return cast_raw(fe, scale, float32)
    if elem(scale) is int8:  # the same bits, from arrays without unsigned bytes
        scale = bitcast_raw(fe, scale, uint8)
    if elem(scale) is not uint8:
        raise TypeMismatch(
            f"{side.name}_scale is a matrix of uint8 or fp8e4nv, got {wrap(scale)}",
            argument=f"{side.name}_scale", help="give the exponents as uint8, biased by 127",
        )  # fmt: skip
    code = cast_raw(fe, scale, uint32)
    normal = bitcast_raw(fe, binary_op(fe, "lshift", code, 23), float32)
    least = where(fe, compare_op(fe, "eq", code, 0), 2.0**-126, normal)
    half = where(fe, compare_op(fe, "eq", code, 0), 0.5, 1.0)
    factor = binary_op(fe, "mul", least, half)  # 2**-127 is subnormal
    return where(fe, compare_op(fe, "eq", code, 255), float("nan"), factor)
