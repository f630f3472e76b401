"""Conversions between element types, as the language's cast table says.

8-bit floats convert by hardware where the target has it (e4m3, e5m2), else in integer arithmetic: widening multiplies
by a power of two in fp32 so that subnormals come out normalised; narrowing rounds the fp32 bits to nearest even.
"""

from __future__ import annotations

from typing import Any

from tessera.analysis.scratch import conversion_plan, staging
from tessera.backends.gpu.access import access_for
from tessera.backends.gpu.elementwise import bitcast, map_registers
from tessera.backends.gpu.lowering import FunctionLowering, lowers
from tessera.backends.gpu.types import float_literal, literal, llvm_type
from tessera.backends.gpu.writer import split
from tessera.dtypes import (
    NanEncoding,
    bfloat16,
    dtype,
    float16,
    float32,
    float64,
    int1,
    int64,
    pointer_type,
    uint64,
)  # fmt: skip
from tessera.errors import InternalError
from tessera.ir import Op, Value, elem_of
from tessera.layout import Access, MatrixGroup, SharedExchange
from tessera.ops import ConvertLayoutOp, DescriptorStoreOp, arith

FAR = 1 << 30  # constants below cannot carry an index of the thread past 32 bits


@lowers(arith.CastOp)
def _cast(fl: FunctionLowering, op: arith.CastOp) -> None:
    source, target = elem_of(op.x.type), elem_of(op.result.type)
    if source == target:
        fl.set(op.result, fl.get(op.x))
        return
    if isinstance(source, dtype) and isinstance(target, dtype) and source.is_floating():
        if target.is_fp8() or source.is_fp8():
            _float8(fl, op, source, target)
            return
        if target.is_floating() and _paired(fl, op, source, target):
            return
    map_registers(fl, op, _element)


def _element(fl: FunctionLowering, op: Op, source: Any, x: str) -> str:
    return convert(fl, source, elem_of(op.results[0].type), x, op.attrs["rounding"])


def convert(fl: FunctionLowering, source: Any, target: Any, x: str, rounding: str = "rtne") -> str:
    """One element of another type, by value; 8-bit floats are not handled here."""
    w = fl.w
    if isinstance(source, pointer_type) or isinstance(target, pointer_type):
        return _pointer(fl, source, target, x)
    a, b = llvm_type(source), llvm_type(target)
    if target is int1:
        if source.is_floating():
            return w.pure(f"fcmp une {a} {x}, {literal(source, 0.0)}")
        return w.pure(f"icmp ne {a} {x}, 0")
    if source.is_floating():
        if target.is_floating():
            return _float_to_float(fl, source, target, x, rounding)
        return _float_to_int(fl, source, target, x)
    if target.is_floating():
        how = "sitofp" if source.signed else "uitofp"
        return w.pure(f"{how} {a} {x} to {b}")
    if a == b:
        return x
    if target.bits < source.bits:
        return w.pure(f"trunc {a} {x} to {b}")
    how = "sext" if source.signed else "zext"
    base, constant = split(w.offsets, x)
    if target.bits == 64 and w.is_of_thread(base) and 0 <= constant < FAR:
        # An index of the thread plus a small constant does not wrap: the constant stays apart, for addresses.
        return w.add_const(b, w.pure(f"{how} {a} {base} to {b}"), constant)
    return w.pure(f"{how} {a} {x} to {b}")


def _pointer(fl: FunctionLowering, source: Any, target: Any, x: str) -> str:
    w = fl.w
    if isinstance(source, pointer_type) and isinstance(target, pointer_type):
        return x
    if isinstance(source, pointer_type):
        if target is int1:
            return w.pure(f"icmp ne {llvm_type(source)} {x}, null")
        if target in (int64, uint64):
            return bitcast(fl, source, target, x)
        raise InternalError(f"a pointer does not convert to {target}")
    wide = convert(fl, source, int64, x)
    return bitcast(fl, int64, target, wide)


def _float_to_float(
    fl: FunctionLowering, source: dtype, target: dtype, x: str, rounding: str
) -> str:
    w, a, b = fl.w, llvm_type(source), llvm_type(target)
    if target.bits > source.bits:
        return w.pure(f"fpext {a} {x} to {b}")
    if target.bits == source.bits:  # fp16 and bf16 meet in fp32
        wide = w.pure(f"fpext {a} {x} to float")
        return _narrow(fl, float32, target, wide, rounding)
    return _narrow(fl, source, target, x, rounding)


def _narrow(fl: FunctionLowering, source: dtype, target: dtype, x: str, rounding: str) -> str:
    w = fl.w
    if rounding == "rtz":
        found = fl.target.math(w, f"to_{target.name}_rtz", llvm_type(source), [x])
        if found is None:
            raise InternalError(f"no conversion of {source} to {target} that rounds toward zero")
        return found
    if source is float64 and target is bfloat16:
        # In two steps through fp32 the sum of two roundings can be wrong: round to odd first.
        x, source = _round_to_odd(fl, x), float32
    return w.pure(f"fptrunc {llvm_type(source)} {x} to {llvm_type(target)}")


def _round_to_odd(fl: FunctionLowering, x: str) -> str:
    """fp64 → fp32 with an inexact result made odd, so that a second rounding is right."""
    w = fl.w
    near = w.pure(f"fptrunc double {x} to float")
    back = w.pure(f"fpext float {near} to double")
    bits = w.pure(f"bitcast float {near} to i32")
    size = w.call("double", "llvm.fabs.f64", [f"double {x}"])
    size_back = w.call("double", "llvm.fabs.f64", [f"double {back}"])
    above = w.pure(f"fcmp ogt double {size_back}, {size}")
    inexact = w.pure(f"fcmp one double {size_back}, {size}")
    lower = w.pure(f"sub i32 {bits}, {w.pure(f'zext i1 {above} to i32')}")
    odd = w.pure(f"or i32 {lower}, 1")
    return w.pure(f"bitcast i32 {w.pure(f'select i1 {inexact}, i32 {odd}, i32 {bits}')} to float")


def _float_to_int(fl: FunctionLowering, source: dtype, target: dtype, x: str) -> str:
    """Toward zero, saturating at 16, 32 or 64 bits, 0 for NaN; 8-bit targets go through 16 bits."""
    w = fl.w
    if source in (float16, bfloat16):
        x, source = w.pure(f"fpext {llvm_type(source)} {x} to float"), float32
    bits = max(target.bits, 16)
    suffix = "f64" if source is float64 else "f32"
    name = f"llvm.fpto{'s' if target.signed else 'u'}i.sat.i{bits}.{suffix}"
    found = w.call(f"i{bits}", name, [f"{llvm_type(source)} {x}"])
    return found if bits == target.bits else w.pure(f"trunc i{bits} {found} to i{target.bits}")


def _paired(fl: FunctionLowering, op: arith.CastOp, source: dtype, target: dtype) -> bool:
    """fp32 → fp16 or bf16, two registers in one instruction; whether it applied."""
    w, names = fl.w, fl.get(op.x)
    if source is not float32 or target not in (float16, bfloat16) or op.rounding != "rtne":
        return False
    if len(names) % 2:
        return False
    t, step = target.llvm, _partner(fl, op.result)
    result = [""] * len(names)
    for i in [i for i in range(len(names)) if not i & step]:
        pair = fl.target.narrow_pair(w, t, names[i], names[i + step])
        result[i], result[i + step] = w.unpair(t, pair)
    fl.set(op.result, result)
    return True


def _partner(fl: FunctionLowering, v: Value) -> int:
    """How far apart the registers are whose 16 bits are to share a word: as they will lie in shared memory if they go
    there next, else neighbours."""
    for user in v.users():
        access: Access | None = None
        if isinstance(user, DescriptorStoreOp):
            layout = staging(user, fl.num_warps).layout
            access = access_for(user.value.type.layout, layout, 16, fl.target.facts().has_stmatrix)
        elif isinstance(user, ConvertLayoutOp):
            plan = conversion_plan(user, fl.target.facts())
            access = plan.rounds[0].store if isinstance(plan, SharedExchange) else None
        if access is not None:
            group = access.groups[0]
            reg = group.reg32[0] if isinstance(group, MatrixGroup) else group.registers
            step = reg[0] ^ reg[1] if len(reg) > 1 else 1
            return step if step.bit_count() == 1 else 1
    return 1


# --- 8-bit floats -----------------------------------------------------------------------------------------------
def _float8(fl: FunctionLowering, op: arith.CastOp, source: dtype, target: dtype) -> None:
    names = fl.get(op.x)
    if source.is_fp8():
        middle = [_widen8(fl, source, x) for x in names]
        hardware = fl.target.convert_float8(fl.w, source, float16, names)
        if hardware is not None:
            middle = [convert(fl, float16, float32, x) for x in hardware]
            if target is float16:
                fl.set(op.result, hardware)
                return
        if target.is_fp8():
            fl.set(op.result, _narrow8(fl, target, middle, op.rounding))
            return
        fl.set(op.result, [_from_float32(fl, target, x) for x in middle])
        return
    if source is float64:
        wide = [_round_to_odd(fl, x) for x in names]
    else:
        wide = [convert(fl, source, float32, x) if source is not float32 else x for x in names]
    fl.set(op.result, _narrow8(fl, target, wide, op.rounding))


def _from_float32(fl: FunctionLowering, target: dtype, x: str) -> str:
    return x if target is float32 else convert(fl, float32, target, x)


def _narrow8(fl: FunctionLowering, target: dtype, wide: list[str], rounding: str) -> list[str]:
    if rounding == "rtne":
        found = fl.target.convert_float8(fl.w, float32, target, wide)
        if found is not None:
            return found
    return [_to_float8(fl, target, x, rounding) for x in wide]


def _widen8(fl: FunctionLowering, source: dtype, x: str) -> str:
    """The fp32 value of an 8-bit float: its bits moved into place are the value times 2**(bias - 127)."""
    w = fl.w
    bits = w.pure(f"zext i8 {x} to i32")
    magnitude = w.pure(f"shl i32 {w.pure(f'and i32 {bits}, 127')}, {23 - source.mantissa}")
    scale = float_literal(float32, 2.0 ** (127 - source.bias))
    value = w.pure(f"fmul float {w.pure(f'bitcast i32 {magnitude} to float')}, {scale}")
    raw = w.pure(f"bitcast float {value} to i32")
    sign = w.pure(f"shl i32 {w.pure(f'and i32 {bits}, 128')}, 24")
    if source.nans is NanEncoding.IEEE:
        special = w.pure(f"icmp uge i32 {magnitude}, {(1 << (7 - source.mantissa)) - 1 << 23}")
        huge = w.pure(f"or i32 {magnitude}, {0x7F800000}")
        raw = w.pure(f"select i1 {special}, i32 {huge}, i32 {raw}")
    elif source.nans is NanEncoding.ALL_ONES:
        special = w.pure(f"icmp eq i32 {w.pure(f'and i32 {bits}, 127')}, 127")
        raw = w.pure(f"select i1 {special}, i32 {0x7FC00000}, i32 {raw}")
    raw = w.pure(f"or i32 {raw}, {sign}")
    if source.nans is NanEncoding.NEGATIVE_ZERO:
        special = w.pure(f"icmp eq i32 {bits}, 128")
        raw = w.pure(f"select i1 {special}, i32 {0x7FC00000}, i32 {raw}")
    return w.pure(f"bitcast i32 {raw} to float")


def _to_float8(fl: FunctionLowering, target: dtype, x: str, rounding: str) -> str:
    """Round fp32 to an 8-bit float, saturating. Scaling by 2**(bias' - bias) lets subnormals form in fp32's own bits:
    an added magic number aligns them, larger values round by adding half of the last place kept."""
    w, drop = fl.w, 23 - target.mantissa
    bits = w.pure(f"bitcast float {x} to i32")
    size = w.call("float", "llvm.fabs.f32", [f"float {x}"])
    bound = float_literal(float32, target.largest)
    clamped = w.call("float", "llvm.minnum.f32", [f"float {size}", f"float {bound}"])
    raw = w.pure(f"bitcast float {clamped} to i32")
    smallest = 2.0 ** (1 - target.bias)  # least normal number
    step = float_literal(float32, 2.0 ** (1 - target.bias - target.mantissa + 23))
    if rounding == "rtz":
        half = "0"
        scale = float_literal(float32, 2.0 ** (target.bias - 1 + target.mantissa))
        scaled = w.pure(f"fmul float {clamped}, {scale}")
        small = w.pure(f"fptoui float {scaled} to i32")
        subnormal = w.pure(f"add i32 {small}, 0")
    else:
        odd = w.pure(f"and i32 {w.pure(f'lshr i32 {raw}, {drop}')}, 1")
        half = w.pure(f"add i32 {odd}, {(1 << (drop - 1)) - 1}")
        magic = w.pure(f"fadd float {clamped}, {step}")
        subnormal = w.pure(f"and i32 {w.pure(f'bitcast float {magic} to i32')}, 255")
    rounded = w.pure(f"lshr i32 {w.pure(f'add i32 {raw}, {half}')}, {drop}")
    normal = w.pure(f"sub i32 {rounded}, {(127 - target.bias) << target.mantissa}")
    is_small = w.pure(f"fcmp olt float {clamped}, {float_literal(float32, smallest)}")
    code = w.pure(f"select i1 {is_small}, i32 {subnormal}, i32 {normal}")
    sign = w.pure(f"and i32 {w.pure(f'lshr i32 {bits}, 24')}, 128")
    signed = w.pure(f"or i32 {code}, {sign}")
    if target.nans is NanEncoding.NEGATIVE_ZERO:
        signed = w.pure(f"select i1 {w.pure(f'icmp eq i32 {code}, 0')}, i32 0, i32 {signed}")
    nan = w.pure(f"fcmp uno float {x}, {x}")
    result = w.pure(f"select i1 {nan}, i32 {target.nan_code}, i32 {signed}")
    return w.pure(f"trunc i32 {result} to i8")
