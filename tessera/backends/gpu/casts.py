"""Converts registers between element types: pairs of narrow floats by the target's instructions, other types by the
shared casts (elements/casts.py)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tessera.analysis.scratch import conversion_plan, staging
from tessera.backends.elements.arith import TABLE
from tessera.backends.elements.casts import cast, narrow_to_odd
from tessera.backends.gpu.access import access_for
from tessera.backends.gpu.elementwise import map_registers
from tessera.backends.gpu.lowering import FunctionLowering, lowers
from tessera.backends.gpu.scalar import Scalar
from tessera.backends.gpu.writer import Writer
from tessera.dtypes import bfloat16, dtype, float16, float32, float64, int8, int64, uint8
from tessera.ir import ElementType, Value, elem_of
from tessera.ir.applications import apply
from tessera.layout import Access, MatrixGroup, SharedExchange
from tessera.ops import ConvertLayoutOp, DescriptorStoreOp, arith

BYTES = "<4 x i8>"
# 1024.0 in fp16, whose second byte is its exponent, and 2^23 in fp32 (IEEE 754).
HALF, FLOAT = 0x64, 0x4B000000


class Middle(NamedTuple):
    """The float in the middle of those whose last bit counts one, its bits, and how far they reach from it."""

    value: float
    bits: int
    reach: int


# 1.5 * 2^10 and 1.5 * 2^23 (IEEE 754).
MIDDLE_HALF = Middle(1536.0, 0x6600, 1 << 9)
MIDDLE_FLOAT = Middle(12582912.0, 0x4B400000, 1 << 22)


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
        if source is bfloat16 and target is float32:
            fl.set(op.result, _widened(fl, fl.get(op.x)))
            return
    elif target in (float16, bfloat16) and isinstance(source, dtype):
        if source in (int8, uint8) and _bytes(fl, op, source, target):
            return
        if _small(fl, op, source, target):
            return
    no_nan = source is float32 and target is int64 and _leaves_out_nan(op)
    map_registers(fl, op, _truncated if no_nan else TABLE[arith.CastOp])


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


def _truncated(x: Scalar, op: arith.CastOp, elem: ElementType, a: str) -> str:
    return x.truncated(a, int64, may_be_nan=False) or TABLE[arith.CastOp](x, op, elem, a)


def _leaves_out_nan(op: arith.CastOp) -> bool:
    """Whether the result is chosen only where a comparison holds that is false for NaN: `i if 0 <= x else 0`."""
    for user in op.result.users():
        work = [user.condition.op] if isinstance(user, arith.SelectOp) else []
        for test in work:
            work += [v.op for v in test.operands] if isinstance(test, arith.AndOp) else []
        tests = [t for t in work if isinstance(t, arith.CmpOp) and t.predicate != "ne"]
        if op.result in user.operands[2:] or not any(op.x in t.operands for t in tests):
            return False
    return True


def _widened(fl: FunctionLowering, names: Sequence[str]) -> list[str]:
    """Return bf16 as fp32, which has the same bits above 16 zeros. Two that came in one 32-bit register are taken from
    it by one instruction each; ptxas would take each out of it first."""
    w, result = fl.w, list[str]()
    for i, name in enumerate(names):
        word = w.packed.get(tuple(names[i & ~1 : (i & ~1) + 2]))
        if word is None:
            result.append(cast(fl.scalars, name, bfloat16, float32))
        else:
            high = w.pure(f"and i32 {word}, {-1 << 16}" if i % 2 else f"shl i32 {word}, 16")
            result.append(w.pure(f"bitcast i32 {high} to float"))
    return result


def _bytes(fl: FunctionLowering, op: arith.CastOp, source: dtype, target: dtype) -> bool:
    """Convert 8-bit integers that stand four to a register, two at a time. Return whether they do.

    A byte under the exponent of a number whose last bit counts one (1024 in fp16, 2^23 in fp32) is a float that is
    larger by that number; what it has too much is subtracted. Signed bytes are shifted by 128 first. A permutation of
    bytes and a subtraction take a tenth of the time of a conversion, and all steps are exact."""
    w, names = fl.w, fl.get(op.x)
    pairs = [names[i : i + 2] for i in range(0, len(names), 2)]
    places = [[w.parts.get(x, ("", 0)) for x in pair] for pair in pairs]
    together = all(len({vector for vector, _ in pair}) == 1 and pair[0][0] for pair in places)
    if len(names) % 2 or not together or not apply("byte-casts", op):
        return False
    result: list[str] = []
    for (vector, low), (_, high) in places:
        if source.signed:
            flipped = w.pure(
                f"xor i32 {w.pure(f'bitcast {BYTES} {vector} to i32')}, {0x80808080 - 2**32}"
            )
            vector = w.pure(f"bitcast i32 {flipped} to {BYTES}")
        result += _biased_half(w, vector, low, high, source.signed) if target is float16 else (
            _biased_float(fl, vector, low, high, source.signed)
        )  # fmt: skip
    fl.set(op.result, result)
    return True


def _biased_half(w: Writer, vector: str, low: int, high: int, signed: bool) -> tuple[str, str]:
    """Return two bytes of a register as fp16."""
    x, more = _under(w, vector, HALF, (low, 4, high, 4)), repr(1024.0 + 128 * signed)
    x = w.pure(f"bitcast {BYTES} {x} to <2 x half>")
    return w.unpair("half", w.pure(f"fsub <2 x half> {x}, {w.pair('half', more, more)}"))


def _biased_float(
    fl: FunctionLowering, vector: str, low: int, high: int, signed: bool
) -> tuple[str, str]:
    """Return two bytes of a register as bf16, by way of fp32."""
    w, wide, more = fl.w, list[str](), repr(2.0**23 + 128 * signed)
    for at in (low, high):
        x = w.pure(f"bitcast {BYTES} {_under(w, vector, FLOAT, (at, 4, 5, 7))} to float")
        wide.append(w.pure(f"fsub float {x}, {more}"))
    return w.unpair("bfloat", fl.target.narrow_pair(w, "bfloat", *wide))


def _small(fl: FunctionLowering, op: arith.CastOp, source: dtype, target: dtype) -> bool:
    """Convert integers of which it is known that they are small, two at a time. Return whether they are.

    Added to the bits of a float whose last bit counts one, an integer makes the float that is larger by that integer;
    what it has too much is subtracted. Both steps are exact, and take less time than a conversion."""
    w, names, reach = fl.w, fl.get(op.x), fl.ranges.reach(op.x)
    if reach is None or reach > MIDDLE_FLOAT.reach or source.bits > 32 or len(names) % 2:
        return False
    if not apply("small-casts", op):
        return False
    half = target is float16 and reach <= MIDDLE_HALF.reach
    step = _partner(fl, op.result)
    if source.bits < 32:
        wider = "sext" if source.signed else "zext"
        names = [w.pure(f"{wider} {source.llvm} {x} to i32") for x in names]
    result = [""] * len(names)
    for i in [i for i in range(len(names)) if not i & step]:
        pair = (names[i], names[i + step])
        if half:
            both = _half_pair(w, *pair, widened=source.bits < 32)
        else:
            both = _narrow_pair(fl, target.llvm, *pair)
        result[i], result[i + step] = w.unpair(target.llvm, both)
    fl.set(op.result, result)
    return True


def _half_pair(w: Writer, low: str, high: str, widened: bool) -> str:
    """Return two integers as fp16. Those that were `widened` to 32 bits just now are added one by one, which is a part
    of the same instruction; others at both places of a register, where a negative number borrows from the one above."""
    middle, more = MIDDLE_HALF.bits, repr(MIDDLE_HALF.value)
    if widened:
        larger = [
            w.pure(f"trunc i32 {w.pure(f'add i32 {x}, {middle}')} to i16") for x in (low, high)
        ]
        pair = w.pair("half", *[w.pure(f"bitcast i16 {x} to half") for x in larger])
    else:
        above = w.pure(f"mul i32 {high}, {1 << 16}")
        both = w.pure(f"add i32 {low}, {middle << 16 | middle}")
        pair = w.pure(f"bitcast i32 {w.pure(f'add i32 {above}, {both}')} to <2 x half>")
    return w.pure(f"fsub <2 x half> {pair}, {w.pair('half', more, more)}")


def _narrow_pair(fl: FunctionLowering, narrow: str, *pair: str) -> str:
    """Return two integers in a narrow type, by way of fp32."""
    w, more = fl.w, repr(MIDDLE_FLOAT.value)
    larger = [w.pure(f"add i32 {x}, {MIDDLE_FLOAT.bits}") for x in pair]
    wide = [w.pure(f"bitcast i32 {x} to float") for x in larger]
    low, high = (w.pure(f"fsub float {x}, {more}") for x in wide)
    return fl.target.narrow_pair(w, narrow, low, high)


def _under(w: Writer, vector: str, constant: int, bytes: Sequence[int]) -> str:
    """Return bytes of a register (0 to 3) and of a constant (4 to 7) in one register."""
    more = w.pure(f"bitcast i32 {constant} to {BYTES}")
    mask = ", ".join([f"i32 {n}" for n in bytes])
    return w.pure(f"shufflevector {BYTES} {vector}, {BYTES} {more}, <4 x i32> <{mask}>")


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
