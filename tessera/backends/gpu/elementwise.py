"""Lowers arithmetic on each register alone: integers, floats, comparisons, pointers (casts: casts.py, math:
mathlib.py)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tessera.backends.gpu.lowering import FunctionLowering, lowers
from tessera.backends.gpu.types import POINTER, literal, llvm_type, memory_bits
from tessera.backends.gpu.writer import Writer, is_number, split
from tessera.dtypes import bfloat16, float16, float32, float64, int1, pointer_type
from tessera.ir import ElementType, Op, Value, elem_of
from tessera.ops import arith

Element = Callable[..., str]


def elementwise(*classes: type[Op]) -> Callable[[Element], Element]:
    """Register `fn(fl, op, elem, *names) -> name`: one element; `elem` is the type of the first operand."""

    def register(fn: Element) -> Element:
        def lower(fl: FunctionLowering, op: Op) -> None:
            map_registers(fl, op, fn)

        lowers(*classes)(lower)
        return fn

    return register


def map_registers(fl: FunctionLowering, op: Op, fn: Element, equal: int = 0) -> None:
    """Apply `fn` to each register, once for equal operands; lists of one value stand for all registers. Registers
    whose numbers differ only in bits of `equal` are known to get the same result."""
    lists = [fl.get(v) for v in op.operands]
    count = max([len(names) for names in lists])
    rows = [names if len(names) == count else names * count for names in lists]
    if equal and count > 1:
        rows = [[names[i & ~equal] for i in range(count)] for names in rows]
    elem = elem_of(op.operands[0].type)
    done: dict[tuple[str, ...], str] = {}
    result: list[str] = []
    for names in zip(*rows):
        found = done.get(names)
        if found is None:
            found = done[names] = fn(fl, op, elem, *names)
        result.append(found)
    fl.set(op.results[0], result)


# --- constants ---------------------------------------------------------------------------------------------
@lowers(arith.ConstOp)
def _const(fl: FunctionLowering, op: arith.ConstOp) -> None:
    t = op.result.type
    count = t.layout.size("register") if getattr(t, "layout", None) is not None else 1
    fl.set(op.result, [literal(elem_of(t), op.value)] * count)


# --- integers and floats --------------------------------------------------------------------------------------
FLOAT_BINARY = {"add": "fadd", "sub": "fsub", "mul": "fmul"}
PAIRED = (float16, bfloat16)
SHARED_DIVISOR = 4  # elements for each divisor, from which on its reciprocal is taken once


@lowers(arith.AddOp, arith.SubOp, arith.MulOp)
def _sum(fl: FunctionLowering, op: Any) -> None:
    elem = elem_of(op.lhs.type)
    if elem in PAIRED and max(len(fl.get(op.lhs)), len(fl.get(op.rhs))) % 2 == 0:
        _paired(fl, op, elem)
        return
    map_registers(fl, op, _float_sum if elem.is_floating() else _int_sum)


def _float_sum(fl: FunctionLowering, op: Op, elem: ElementType, a: str, b: str) -> str:
    return fl.w.pure(f"{FLOAT_BINARY[op.opcode]} {fl.contract}{llvm_type(elem)} {a}, {b}")


def _int_sum(fl: FunctionLowering, op: Op, elem: ElementType, a: str, b: str) -> str:
    w, t = fl.w, llvm_type(elem)
    if elem is int1:
        return w.and_(t, a, b) if op.opcode == "mul" else w.pure(f"xor i1 {a}, {b}")
    if op.opcode == "add":
        return w.add(t, a, b)
    if op.opcode == "mul":
        if _has_high_half(op, elem):
            return w.pure(f"trunc i64 {_wide_product(w, elem, a, b)} to {t}")
        return w.mul(t, a, b)
    if is_number(b):
        return w.add(t, a, str(-int(b)))
    base, constant = split(w.offsets, a)
    if not base:
        return w.pure(f"sub {t} {a}, {b}")
    return w.add_const(t, w.pure(f"sub {t} {base}, {b}"), constant)


def _paired(fl: FunctionLowering, op: Any, elem: Any) -> None:
    """Two 16-bit floats in one instruction, for neighbouring registers."""
    w, t = fl.w, llvm_type(elem)
    left, right = fl.get(op.lhs), fl.get(op.rhs)
    count = max(len(left), len(right))
    left, right = (x if len(x) == count else x * count for x in (left, right))
    how = f"{FLOAT_BINARY[op.opcode]} {fl.contract}<2 x {t}>"
    result: list[str] = []
    for i in range(0, len(left), 2):
        a, b = w.pair(t, left[i], left[i + 1]), w.pair(t, right[i], right[i + 1])
        result += w.unpair(t, w.pure(f"{how} {a}, {b}"))
    fl.set(op.result, result)


@lowers(arith.DivOp)
def _divide(fl: FunctionLowering, op: arith.DivOp) -> None:
    # Not cheap, and what follows from equal quotients is then computed once as well.
    divisors, count = fl.get(op.rhs), max(len(fl.get(op.lhs)), len(fl.get(op.rhs)))
    fast = elem_of(op.lhs.type) in (float16, bfloat16, float32) and not op.exact
    shared = fast and count >= SHARED_DIVISOR * len(set(divisors)) and not is_number(divisors[0])
    map_registers(fl, op, _div_by_few if shared else _div, _constant_bits(fl, op.result))


def _div(fl: FunctionLowering, op: Any, elem: Any, a: str, b: str) -> str:
    w, t = fl.w, llvm_type(elem)
    if not elem.is_floating():
        if elem is int1:
            return a
        return w.pure(f"{'sdiv' if elem.signed else 'udiv'} {t} {a}, {b}")
    if elem is float64 or op.exact:
        return w.pure(f"fdiv {t} {a}, {b}")
    wide = [widen(fl, elem, x) for x in (a, b)]
    fast = fl.target.math(w, "div", "float", wide) or w.pure(f"fdiv float {wide[0]}, {wide[1]}")
    return narrow(fl, elem, fast)


def _div_by_few(fl: FunctionLowering, op: Op, elem: ElementType, a: str, b: str) -> str:
    """As the fast division of all floats computes it, but what depends on the divisor alone is computed once: its
    reciprocal, and the power of two that keeps both in range."""
    w = fl.w
    a, b = (widen(fl, elem, x) for x in (a, b))
    size = w.call("float", "llvm.fabs.f32", [f"float {b}"])
    quarter, grown, one = (literal(float32, x) for x in (0.25, 2.0**24, 1.0))
    tiny = w.pure(f"fcmp olt float {size}, {literal(float32, 2.0**-126)}")
    huge = w.pure(f"fcmp ogt float {size}, {literal(float32, 2.0**126)}")
    scale = w.pure(f"select i1 {tiny}, float {grown}, float {one}")
    scale = w.pure(f"select i1 {huge}, float {quarter}, float {scale}")
    scaled = w.pure(f"fmul float {b}, {scale}")
    inverse = fl.target.math(w, "rcp", "float", [scaled]) or w.pure(f"fdiv float {one}, {scaled}")
    scaled = w.pure(f"fmul float {a}, {scale}")
    return narrow(fl, elem, w.pure(f"fmul float {scaled}, {inverse}"))


def widen(fl: FunctionLowering, elem: ElementType, x: str) -> str:
    """A 16-bit float as fp32."""
    return x if elem is float32 else fl.w.pure(f"fpext {llvm_type(elem)} {x} to float")


def narrow(fl: FunctionLowering, elem: ElementType, x: str) -> str:
    return x if elem is float32 else fl.w.pure(f"fptrunc float {x} to {llvm_type(elem)}")


def integer_remainder(fl: FunctionLowering, op: Op, elem: ElementType, a: str, b: str) -> str:
    if elem is int1:
        return "false"
    return fl.w.pure(f"{'srem' if elem.signed else 'urem'} {llvm_type(elem)} {a}, {b}")


@elementwise(arith.AndOp, arith.OrOp, arith.XorOp, arith.ShlOp)
def _bits(fl: FunctionLowering, op: Op, elem: ElementType, a: str, b: str) -> str:
    w, t = fl.w, llvm_type(elem)
    if op.opcode == "and":
        return w.and_(t, a, b)
    if op.opcode == "shl" and is_number(b) and 0 <= int(b) < elem.bits:
        return w.mul(t, a, str(1 << int(b)))
    return w.pure(f"{op.opcode} {t} {a}, {b}")


@elementwise(arith.ShrOp)
def _shr(fl: FunctionLowering, op: Op, elem: ElementType, a: str, b: str) -> str:
    return fl.w.pure(f"{'ashr' if elem.signed else 'lshr'} {llvm_type(elem)} {a}, {b}")


@elementwise(arith.MinOp, arith.MaxOp)
def _min_max(fl: FunctionLowering, op: Any, elem: Any, a: str, b: str) -> str:
    w, t = fl.w, llvm_type(elem)
    if elem.is_floating():
        name = f"llvm.{op.opcode}{'imum' if op.propagate_nan else 'num'}.{elem.ptx}"
        return w.call(t, name, [f"{t} {a}", f"{t} {b}"])
    if elem is int1:
        return w.pure(f"{'and' if op.opcode == 'min' else 'or'} i1 {a}, {b}")
    name = f"llvm.{'s' if elem.signed else 'u'}{op.opcode}.{t}"
    return w.call(t, name, [f"{t} {a}", f"{t} {b}"])


@elementwise(arith.MulHiOp)
def _mul_high(fl: FunctionLowering, op: Op, elem: ElementType, a: str, b: str) -> str:
    w, t, wide = fl.w, llvm_type(elem), f"i{2 * elem.bits}"
    product = _wide_product(w, elem, a, b)
    return w.pure(f"trunc {wide} {w.pure(f'lshr {wide} {product}, {elem.bits}')} to {t}")


def _wide_product(w: Writer, elem: ElementType, a: str, b: str) -> str:
    t, wide, ext = llvm_type(elem), f"i{2 * elem.bits}", "sext" if elem.signed else "zext"
    x, y = (w.pure(f"{ext} {t} {v} to {wide}") for v in sorted((a, b)))
    return w.pure(f"mul {wide} {x}, {y}")


def _has_high_half(op: Op, elem: ElementType) -> bool:
    """Whether the high half of this product of 32-bit integers is computed too: one instruction gives both."""
    operands = set(op.operands)
    return elem.bits == 32 and any(
        isinstance(user, arith.MulHiOp) and set(user.operands) == operands
        for v in operands
        if not isinstance(v.op, arith.ConstOp)
        for user in v.users()
    )


@elementwise(arith.CopySignOp)
def _copy_sign(fl: FunctionLowering, op: Op, elem: ElementType, a: str, b: str) -> str:
    t = llvm_type(elem)
    return fl.w.call(t, f"llvm.copysign.{elem.ptx}", [f"{t} {a}", f"{t} {b}"])


@elementwise(arith.FmaOp)
def _fma(fl: FunctionLowering, op: Op, elem: ElementType, x: str, y: str, z: str) -> str:
    t = llvm_type(elem)
    return fl.w.call(t, f"llvm.fma.{elem.ptx}", [f"{t} {x}", f"{t} {y}", f"{t} {z}"])


@elementwise(arith.NegOp)
def _neg(fl: FunctionLowering, op: Op, elem: ElementType, x: str) -> str:
    w, t = fl.w, llvm_type(elem)
    if elem.is_floating() and elem.bits == 16:
        bits = w.pure(f"bitcast {t} {x} to i16")
        if flipped := fl.target.math(w, "flip_sign", "i16", [bits]):
            return w.pure(f"bitcast i16 {flipped} to {t}")
    if elem.is_floating():
        return w.pure(f"fneg {t} {x}")
    return x if elem is int1 else w.pure(f"sub {t} 0, {x}")


@elementwise(arith.AbsOp)
def _abs(fl: FunctionLowering, op: Op, elem: ElementType, x: str) -> str:
    w, t = fl.w, llvm_type(elem)
    if elem.is_floating() and elem.bits == 16:
        bits = w.pure(f"bitcast {t} {x} to i16")  # for ptxas' sake, as the sign above
        return w.pure(f"bitcast i16 {w.pure(f'and i16 {bits}, 32767')} to {t}")
    if elem.is_floating():
        return w.call(t, f"llvm.fabs.{elem.ptx}", [f"{t} {x}"])
    if not elem.signed:
        return x
    # Not by the instruction, of whose results ptxas assumes that none is negative: that of the least number is.
    negative = w.pure(f"ashr {t} {x}, {elem.bits - 1}")
    flipped = w.pure(f"xor {t} {x}, {negative}")
    return w.add(t, flipped, w.pure(f"lshr {t} {x}, {elem.bits - 1}"))


@elementwise(arith.PopcOp)
def _popc(fl: FunctionLowering, op: Op, elem: ElementType, x: str) -> str:
    return _count(fl, elem, x, "llvm.ctpop", [])


@elementwise(arith.ClzOp)
def _clz(fl: FunctionLowering, op: Op, elem: ElementType, x: str) -> str:
    return _count(fl, elem, x, "llvm.ctlz", ["i1 false"])


def _count(fl: FunctionLowering, elem: Any, x: str, name: str, extra: list[str]) -> str:
    w, t = fl.w, llvm_type(elem)
    if elem.bits < 32:  # the top bits of the wider type are zero: clz counts them too
        x = w.pure(f"zext {t} {x} to i32")
        result = w.call("i32", f"{name}.i32", [f"i32 {x}", *extra])
        return w.add("i32", result, str(elem.bits - 32)) if extra else result
    result = w.call(t, f"{name}.{t}", [f"{t} {x}", *extra])
    return result if elem.bits == 32 else w.pure(f"trunc {t} {result} to i32")


# --- choices -------------------------------------------------------------------------------------------------
SIGNED = {"eq": "eq", "ne": "ne", "lt": "slt", "le": "sle", "gt": "sgt", "ge": "sge"}
UNSIGNED = {"eq": "eq", "ne": "ne", "lt": "ult", "le": "ule", "gt": "ugt", "ge": "uge"}
ORDERED = {"eq": "oeq", "ne": "une", "lt": "olt", "le": "ole", "gt": "ogt", "ge": "oge"}


@lowers(arith.CmpOp)
def _compare(fl: FunctionLowering, op: arith.CmpOp) -> None:
    map_registers(fl, op, _cmp, _constant_bits(fl, op.result))


def _constant_bits(fl: FunctionLowering, v: Value) -> int:
    """Bits of register numbers that move within runs of equal elements, as masks have in front of a row's end."""
    layout = getattr(v.type, "layout", None)
    if layout is None:
        return 0
    constancy = fl.axis.facts(v).constancy
    bits = 0
    for i, base in enumerate(layout.bases("register")):
        if all(c < run for c, run in zip(base, constancy)):
            bits |= 1 << i
    return bits


def _cmp(fl: FunctionLowering, op: Any, elem: Any, a: str, b: str) -> str:
    t = llvm_type(elem)
    if isinstance(elem, pointer_type):
        return fl.w.pure(f"icmp {UNSIGNED[op.predicate]} {t} {a}, {b}")
    if elem.is_floating():
        return fl.w.pure(f"fcmp {ORDERED[op.predicate]} {t} {a}, {b}")
    table = SIGNED if elem.signed else UNSIGNED
    return fl.w.pure(f"icmp {table[op.predicate]} {t} {a}, {b}")


@elementwise(arith.SelectOp)
def _select(fl: FunctionLowering, op: Op, elem: ElementType, c: str, a: str, b: str) -> str:
    if c in ("true", "false") or a == b:
        return a if c == "true" else b
    t = llvm_type(elem_of(op.results[0].type))
    return fl.w.pure(f"select i1 {c}, {t} {a}, {t} {b}")


@elementwise(arith.IsNanOp)
def _isnan(fl: FunctionLowering, op: Op, elem: ElementType, x: str) -> str:
    return fl.w.pure(f"fcmp uno {llvm_type(elem)} {x}, {x}")


@lowers(arith.HintOp)
def _hint(fl: FunctionLowering, op: arith.HintOp) -> None:
    fl.set(op.result, fl.get(op.x))


# --- pointers ---------------------------------------------------------------------------------------------------
@elementwise(arith.AddPtrOp)
def _addptr(fl: FunctionLowering, op: Any, elem: Any, pointer: str, offset: str) -> str:
    """A base that registers share plus a constant number of bytes.

    The constant part of a signed 32-bit offset is taken out of the sign extension: an offset whose sum wraps around is
    no address inside any array.
    """
    w = fl.w
    size = memory_bits(elem.element_ty) // 8
    kind = elem_of(op.offset.type)
    if is_number(offset):
        return w.gep(pointer, "", _extended(kind, int(offset)) * size)
    base, constant = split(w.offsets, offset) if kind.signed or kind.bits == 64 else (offset, 0)
    if kind.bits < 32:
        base, constant = offset, 0
    if kind.bits < 64:
        base = w.pure(f"{'sext' if kind.signed else 'zext'} {llvm_type(kind)} {base} to i64")
    scaled = w.pure(f"shl i64 {base}, {size.bit_length() - 1}") if size > 1 else base
    return w.gep(pointer, scaled, constant * size)


def _extended(kind: Any, value: int) -> int:
    return value if kind.signed else value & ((1 << kind.bits) - 1)


@elementwise(arith.BitcastOp)
def _bitcast(fl: FunctionLowering, op: Op, elem: ElementType, x: str) -> str:
    return bitcast(fl, elem, elem_of(op.results[0].type), x)


def bitcast(fl: FunctionLowering, source: Any, target: Any, x: str) -> str:
    """The same bits as another type of the same width."""
    a, b = llvm_type(source), llvm_type(target)
    if a == b:
        return x
    if a == POINTER:
        x, a = fl.w.pure(f"ptrtoint {a} {x} to i64"), "i64"
    if b == POINTER:
        if a != "i64":
            x = fl.w.pure(f"bitcast {a} {x} to i64")
        return fl.w.pure(f"inttoptr i64 {x} to {b}")
    return x if a == b else fl.w.pure(f"bitcast {a} {x} to {b}")
