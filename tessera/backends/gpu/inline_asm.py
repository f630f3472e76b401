"""Lowers assembly from the kernel's source, which takes `pack` elements of each operand at a time.

Elements of fewer than 32 bits are packed in registers of the width that the constraint letter gives (`h`: 16 bits,
else 32): with pack=4, four bytes fill one `r` register.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tessera.backends.gpu.lowering import FunctionLowering, lowers, registers_of
from tessera.backends.gpu.memory import copies, groups, layout_of, registers
from tessera.backends.gpu.packing import as_bits, from_bits
from tessera.backends.gpu.types import memory_bits
from tessera.ir import ElementType, elem_of
from tessera.language import assembly
from tessera.ops import InlineAsmOp, VolatileAsmOp


@lowers(InlineAsmOp, VolatileAsmOp)
def _inline_asm(fl: FunctionLowering, op: Any) -> None:
    outputs, inputs, _ = assembly.registers(op.constraints, op.loc)
    results, args = list(op.results), list(op.args)
    for what, given, values in ("outputs", outputs, results), ("inputs", inputs, args):
        widths = [memory_bits(elem_of(v.type)) for v in values]
        assembly.check(what, len(given), widths, op.pack, op.loc)
    layout, count = layout_of(results[0]), registers_of(results[0].type)
    rows = [registers(fl, v, count) for v in args]
    names = [[""] * count for _ in results]
    live = groups(layout, count, 1)
    for start in range(0, len(live), op.pack):
        chunk = live[start : start + op.pack]
        padded = [*chunk, *[chunk[0]] * (op.pack - len(chunk))]
        given: list[str] = []
        kinds = iter(inputs)
        for v, row in zip(args, rows, strict=True):
            given += _packed(fl, elem_of(v.type), [row[i] for i in padded], kinds)
        regs = iter(_call(fl, op, outputs, given))
        for v, row in zip(results, names, strict=True):
            found = _unpacked(fl, elem_of(v.type), op.pack, regs)
            for i, x in zip(chunk, found):
                row[i] = x
    for v, row in zip(results, names, strict=True):
        fl.set(v, copies(layout, row))


def _packed(fl: FunctionLowering, elem: ElementType, names: Sequence[str], kinds: Any) -> list[str]:
    """Return elements packed in registers of the given types, with their types."""
    w, bits = fl.w, memory_bits(elem)
    per = assembly.per_register(bits, len(names))
    result: list[str] = []
    for start in range(0, len(names), per):
        kind = next(kinds)
        size = assembly.BITS[kind]
        reg = ""
        for k, x in enumerate(names[start : start + per]):
            part = as_bits(fl, elem, x)
            if bits < size:
                part = w.pure(f"zext i{bits} {part} to i{size}")
            if k:
                part = w.pure(f"or i{size} {reg}, {w.pure(f'shl i{size} {part}, {k * bits}')}")
            reg = part
        result.append(f"{kind} {_retyped(fl, reg, f'i{size}', kind)}")
    return result


def _unpacked(fl: FunctionLowering, elem: ElementType, pack: int, regs: Any) -> list[str]:
    w, bits = fl.w, memory_bits(elem)
    per = assembly.per_register(bits, pack)
    result: list[str] = []
    for _ in range(0, pack, per):
        kind, reg = next(regs)
        size = assembly.BITS[kind]
        reg = _retyped(fl, reg, kind, f"i{size}")
        for k in range(per):
            part = w.pure(f"lshr i{size} {reg}, {k * bits}") if k else reg
            if bits < size:
                part = w.pure(f"trunc i{size} {part} to i{bits}")
            result.append(from_bits(fl, elem, part))
    return result


def _retyped(fl: FunctionLowering, x: str, have: str, want: str) -> str:
    return x if have == want else fl.w.pure(f"bitcast {have} {x} to {want}")


def _call(
    fl: FunctionLowering, op: Any, outputs: Sequence[str], given: Sequence[str]
) -> list[tuple[str, str]]:
    """Emit one invocation. Return (type, name) of each output register."""
    text = "".join(c if c.isprintable() and c not in '"\\' else f"\\{ord(c):02X}" for c in op.asm)
    result = outputs[0] if len(outputs) == 1 else "{" + ", ".join(outputs) + "}"
    constraints = op.constraints.replace(" ", "")
    value = fl.w.asm(text, constraints, given, result, pure=isinstance(op, InlineAsmOp))
    if len(outputs) == 1:
        return [(result, value)]
    return list(zip(outputs, fl.w.unpack_struct(value, result, len(outputs)), strict=True))
