"""Reduces words over a whole warp by one instruction: sums, extrema, bits, and where an extremum is.

On an H200 it takes 44 cycles where five shuffles, each with a maximum behind it, take 135, and half of their issue
slots (2026-11-30). Floats are compared as integers of the same order: those of negative numbers have all bits but the
sign inverted."""

from __future__ import annotations

from tessera.analysis.extremum import extremum
from tessera.backends.elements.arith import is_float
from tessera.backends.gpu.elementwise import from_float32, to_float32
from tessera.backends.gpu.lowering import FunctionLowering
from tessera.backends.gpu.packing import from_reg32, to_reg32
from tessera.backends.gpu.types import llvm_type
from tessera.dtypes import dtype, int1
from tessera.ir import Op, elem_of
from tessera.ops import arith, tile

Row = list[str]
WORDS: dict[type[Op], str] = {
    arith.AddOp: "add", arith.MinOp: "min", arith.MaxOp: "max", arith.AndOp: "and", arith.OrOp: "or",
    arith.XorOp: "xor",
}  # fmt: skip
LOWEST, HIGHEST = -(1 << 31), (1 << 31) - 1


def kind_of(op: tile.ReduceOp) -> str:
    """Return what the instruction has to find of all lanes; "" if it cannot."""
    elems = _elems(op)
    if len(elems) < len(op.inputs) or any(e.bits > 32 for e in elems):
        return ""
    if len(elems) == 1:
        first, *others = op.combine
        fits = len(others) == 1 and set(first.operands) == set(op.combine.args)
        word = WORDS.get(type(first), "") if fits else ""
        return word if not is_float(elems[0]) or word in ("min", "max") else ""
    if len(elems) != 2 or not elems[1].is_int() or int1 in elems:
        return ""
    return extremum(op.combine)


def _elems(op: tile.ReduceOp) -> list[dtype]:
    return [e for v in op.inputs if isinstance(e := elem_of(v.type), dtype)]


def of_a_warp(fl: FunctionLowering, op: tile.ReduceOp, kind: str, rows: list[Row]) -> list[Row]:
    """Combine the registers of all lanes of a warp; each lane gets the result."""
    elem = _elems(op)[0]
    if len(rows) == 2:
        found = [_place(fl, op, kind, x, i) for x, i in zip(*rows, strict=True)]
        return [list(row) for row in zip(*found, strict=True)]
    first = op.combine.first
    nan_wins = isinstance(first, arith.MinOp | arith.MaxOp) and first.propagate_nan
    keys = [_key(fl, elem, x, kind, nan_wins) for x in rows[0]]
    return [[_unkeyed(fl, elem, _reduced(fl, elem, kind, key)) for key in keys]]


def _place(
    fl: FunctionLowering, op: tile.ReduceOp, kind: str, x: str, index: str
) -> tuple[str, str]:
    """Return the extremum of a warp's numbers, and the lowest index of those equal to it."""
    w, (elem, at) = fl.w, _elems(op)
    key = _key(fl, elem, x, kind, False, zeros_differ=False)
    best = _reduced(fl, elem, kind, key)
    mine = w.pure(f"icmp eq i32 {key}, {best}")
    place = fl.scalars.word(index, at, at.signed)
    last = str(HIGHEST if at.signed else -1)
    lowest = _reduced(fl, at, "min", w.pure(f"select i1 {mine}, i32 {place}, i32 {last}"))
    found = _unkeyed(fl, elem, best)
    # Both zeros have one key: the element itself is found, where anybody asks for it.
    if is_float(elem) and op.results[0].uses:
        taken = w.and_("i1", mine, w.pure(f"icmp eq i32 {place}, {lowest}"))
        bits = w.pure(f"select i1 {taken}, i32 {to_reg32(fl, elem, x)[0]}, i32 0")
        found = from_reg32(fl, elem, [fl.target.reduce_warp(w, "or", bits)])
    return found, fl.scalars.convert("trunc", "i32", lowest, llvm_type(at))


def _reduced(fl: FunctionLowering, elem: dtype, kind: str, word: str) -> str:
    unsigned = kind in ("min", "max") and (elem is int1 or not (is_float(elem) or elem.signed))
    return fl.target.reduce_warp(fl.w, f"u{kind}" if unsigned else kind, word)


def _key(
    fl: FunctionLowering, elem: dtype, x: str, kind: str, nan_wins: bool, zeros_differ: bool = True
) -> str:
    """Return a word that is ordered as the number is."""
    if not is_float(elem):
        return fl.scalars.word(x, elem, elem.signed and elem is not int1)
    wide = to_float32(fl.scalars, elem, x)
    if not zeros_differ:
        wide = fl.w.pure(f"fadd float {wide}, 0.0")  # -0 becomes 0
    bits = fl.w.pure(f"bitcast float {wide} to i32")
    nan = fl.w.pure(f"fcmp uno float {wide}, 0.0")
    end = HIGHEST if (kind == "max") == nan_wins else LOWEST
    return fl.w.pure(f"select i1 {nan}, i32 {end}, i32 {_turned(fl, bits)}")


def _unkeyed(fl: FunctionLowering, elem: dtype, key: str) -> str:
    if not is_float(elem):
        return fl.scalars.convert("trunc", "i32", key, llvm_type(elem))
    return from_float32(fl.scalars, elem, fl.w.pure(f"bitcast i32 {_turned(fl, key)} to float"))


def _turned(fl: FunctionLowering, bits: str) -> str:
    """Invert all bits but the sign of negative words; done twice, it changes nothing."""
    sign = fl.w.pure(f"ashr i32 {bits}, 31")
    return fl.w.pure(f"xor i32 {bits}, {fl.w.pure(f'lshr i32 {sign}, 1')}")
