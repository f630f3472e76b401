"""Writes around what ptxas translates wrongly.

Differences of 64 bits from the upper half of a product, zero-extended (a quotient by a constant, mostly): ptxas 13.0
makes of

    mul.hi.u32 %r3, %r1, %r2;                     IMAD.HI.U32 R13, P1, R1, R2, {0, -y}
    cvt.u64.u32 %rd1, %r3;            →           IMAD.X      R6, 0, -1, P1
    sub.s64 %rd3, %rd1, %rd2;

and borrows from the upper word by the carry of adding -y. Where y is 0 there is no carry, and the result is 2^32 too
small. The whole product, shifted, is subtracted from in the right way.

Absolute values and negatives of 16 bits: ptxas 13.0 widens the number, takes IABS or a difference of 32 bits, and
leaves it at that, so that the value of -32768, which is -32768 again in 16 bits, is 32768 for whoever widens it. The
same in 32 bits, narrowed, is right.
"""

from __future__ import annotations

import re

_HIGH = re.compile(r"^\tmul\.hi\.u32 \t(%r\d+), (.+);\n", re.M)
_WIDENED = re.compile(r"^\tcvt\.u64\.u32 \t(%rd\d+), (%r\d+);\n", re.M)
_SIGNS = re.compile(r"^\t(abs|neg)\.s16 \t(%rs\d+), (%rs\d+);", re.M)
_NARROWED = (
    r"\t{ .reg .b32 %wide; cvt.s32.s16 %wide, \3; \1.s32 %wide, %wide; cvt.u16.u32 \2, %wide; }"
)
_DIFFERENCE = re.compile(r"^\tsub\.s64 \t%rd\d+, (%rd\d+), ", re.M)


def avoid_faults(ptx: str) -> str:
    """Return PTX that ptxas translates rightly.

    Example: `mul.hi.u32 %r3, %r1, %r2; cvt.u64.u32 %rd1, %r3; sub.s64 %rd3, %rd1, %rd2` →
        `mul.hi.u32 %r3, %r1, %r2; mul.wide.u32 %rd1, %r1, %r2; shr.u64 %rd1, %rd1, 32; sub.s64 %rd3, %rd1, %rd2`
    """
    if "abs.s16" in ptx or "neg.s16" in ptx:
        ptx = _SIGNS.sub(_NARROWED, ptx)
    if "mul.hi.u32" not in ptx or "sub.s64" not in ptx:
        return ptx
    high = dict(_HIGH.findall(ptx))
    reduced = set(_DIFFERENCE.findall(ptx))
    for wide, narrow in _WIDENED.findall(ptx):
        if wide in reduced and narrow in high and _is_assigned_once(ptx, wide, narrow):
            ptx = ptx.replace(f"\tcvt.u64.u32 \t{wide}, {narrow};\n", "")
            line = f"\tmul.hi.u32 \t{narrow}, {high[narrow]};\n"
            product = f"\tmul.wide.u32 \t{wide}, {high[narrow]};\n\tshr.u64 \t{wide}, {wide}, 32;\n"
            ptx = ptx.replace(line, line + product)
    return ptx


def _is_assigned_once(ptx: str, *registers: str) -> bool:
    """Whether registers have one value: loops that carry one, and inline assembly that keeps one where its predicate is
    false, assign others to the same register."""
    start = r"(?:^|;)[\s{]*(?:@!?%p\d+\s+)?[a-z][\w.:]*\s+(?:{[^}\n]*)?"
    return all(len(re.findall(rf"{start}{r}\b", ptx, re.M)) == 1 for r in registers)
