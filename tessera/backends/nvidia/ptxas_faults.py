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

Pairs of fp8: ptxas 12.8, which Triton 3.6 brings, lets the conversion of one pair write the register that holds the
other one, too (F2FP… PACK_AB_MERGE_C). Where both halves of a register are the same pair, or pairs lie in two registers
in both orders, it merges with a register that holds neither: `mov.b32 %r1, {%rs1, %rs1}` leaves what was there before.
ptxas 13.0 is right; for others such registers are made by `prmt` of words, with which nothing is merged.
"""

from __future__ import annotations

import re

_HIGH = re.compile(r"^\tmul\.hi\.u32 \t(%r\d+), (.+);\n", re.M)
_WIDENED = re.compile(r"^\tcvt\.u64\.u32 \t(%rd\d+), (%r\d+);\n", re.M)
_SIGNS = re.compile(r"^\t(abs|neg)\.s16 \t(%rs\d+), (%rs\d+);", re.M)
_NARROWED = (
    r"\t{ .reg .b32 %wide; cvt.s32.s16 %wide, \3; \1.s32 %wide, %wide; cvt.u16.u32 \2, %wide; }"
)
_PAIRS = re.compile(r"\bcvt\.\S*\.e[45]m[23]x2\.f(?:32|16x2) \s*(%rs\d+),")
_COPY = re.compile(r"^\tmov\.b16 \t(%rs\d+), (%rs\d+);", re.M)
_PACK = re.compile(r"^\tmov\.b32 \t(%r\d+), {(%rs\d+), (%rs\d+)};", re.M)
_PACK4 = re.compile(r"^\tmov\.b64 \t(%rd\d+), {(%rs\d+), (%rs\d+), (%rs\d+), (%rs\d+)};", re.M)
_WORDS = "{ .reg .b32 %low, %high; cvt.u32.u16 %low, {}; cvt.u32.u16 %high, {}; prmt.b32 {}, %low, %high, 0x5410; }"
MERGES_RIGHTLY = 13  # the first major release of ptxas that is known to
_DIFFERENCE = re.compile(r"^\tsub\.s64 \t%rd\d+, (%rd\d+), ", re.M)


def avoid_faults(ptx: str, release: str = "") -> str:
    """Return PTX that ptxas of a `release` (13.0.88; any, if it is not known) translates rightly.

    Example: `mul.hi.u32 %r3, %r1, %r2; cvt.u64.u32 %rd1, %r3; sub.s64 %rd3, %rd1, %rd2` →
        `mul.hi.u32 %r3, %r1, %r2; mul.wide.u32 %rd1, %r1, %r2; shr.u64 %rd1, %rd1, 32; sub.s64 %rd3, %rd1, %rd2`
    """
    if int(release.split(".")[0] or 0) < MERGES_RIGHTLY and _PAIRS.search(ptx):
        ptx = _without_merges(ptx)
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


def _without_merges(ptx: str) -> str:
    """Make registers of two 16-bit parts, of which one is a pair of fp8 or a copy of one, from words."""
    pairs, copies = set(_PAIRS.findall(ptx)), _COPY.findall(ptx)
    while more := {to for to, source in copies if source in pairs} - pairs:
        pairs |= more

    def words(to: str, low: str, high: str) -> str:
        return _WORDS.replace("{}", low, 1).replace("{}", high, 1).replace("{}", to, 1)

    def packed(found: re.Match[str]) -> str:
        return "\t" + words(*found.groups()) if pairs & {*found.groups()} else found[0]

    def packed4(found: re.Match[str]) -> str:
        to, *parts = found.groups()
        if not pairs & {*parts}:
            return found[0]
        halves = f"{words('%first', *parts[:2])} {words('%second', *parts[2:])}"
        return f"\t{{ .reg .b32 %first, %second; {halves} mov.b64 {to}, {{%first, %second}}; }}"

    return _PACK4.sub(packed4, _PACK.sub(packed, ptx))


def _is_assigned_once(ptx: str, *registers: str) -> bool:
    """Whether registers have one value: loops that carry one, and inline assembly that keeps one where its predicate is
    false, assign others to the same register."""
    start = r"(?:^|;)[\s{]*(?:@!?%p\d+\s+)?[a-z][\w.:]*\s+(?:{[^}\n]*)?"
    return all(len(re.findall(rf"{start}{r}\b", ptx, re.M)) == 1 for r in registers)
