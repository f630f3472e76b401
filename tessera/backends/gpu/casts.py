"""Converts registers between element types: pairs of narrow floats by the target's instructions, other types by the
shared casts (elements/casts.py)."""

from __future__ import annotations

from tessera.analysis.scratch import conversion_plan, staging
from tessera.backends.elements.arith import TABLE
from tessera.backends.elements.casts import cast, narrow_to_odd
from tessera.backends.gpu.access import access_for
from tessera.backends.gpu.elementwise import map_registers
from tessera.backends.gpu.lowering import FunctionLowering, lowers
from tessera.backends.gpu.scalar import Scalar
from tessera.dtypes import bfloat16, dtype, float16, float32, float64
from tessera.ir import Value, elem_of
from tessera.layout import Access, MatrixGroup, SharedExchange
from tessera.ops import ConvertLayoutOp, DescriptorStoreOp, arith


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
    map_registers(fl, op, TABLE[arith.CastOp])


def _paired(fl: FunctionLowering, op: arith.CastOp, source: dtype, target: dtype) -> bool:
    """Convert fp32 to fp16 or bf16, two registers by one instruction. Return whether the cast is of that kind."""
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
    """Return the distance of registers whose 16-bit results share a 32-bit one: as in shared memory if they are written
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
    """Convert two registers at a time where the hardware can (e4m3, e5m2), else by integer arithmetic."""
    names, x = fl.get(op.x), fl.scalars
    if source.is_fp8():
        found = fl.target.convert_float8(fl.w, source, float16, names)
        if found is not None:
            names, source = found, float16
    if source is not target and target.is_fp8() and op.rounding == "rtne":
        wide = [_float32(x, v, source) for v in names]
        found = fl.target.convert_float8(fl.w, float32, target, wide)
        if found is not None:
            fl.set(op.result, found)
            return
        names, source = wide, float32
    fl.set(op.result, [cast(x, v, source, target, op.rounding) for v in names])


def _float32(x: Scalar, text: str, source: dtype) -> str:
    return narrow_to_odd(x, text) if source is float64 else cast(x, text, source, float32)
