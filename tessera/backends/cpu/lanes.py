"""Writes instructions on vectors of `n` lanes for CPUs, with those that only some instruction sets have."""

from __future__ import annotations

from typing import Any

from tessera.backends.cpu.emitter import Emitter
from tessera.backends.cpu.llvm_text import scalar_type
from tessera.backends.cpu.target import CpuFacts
from tessera.backends.elements.builder import ElementBuilder
from tessera.backends.elements.literals import vector_type
from tessera.dtypes import bfloat16, dtype, float16, float32


class Lanes(ElementBuilder):
    """Emits instructions on `n` lanes. Floats narrower than 32 bits are integers in the LLVM IR."""

    __slots__ = ("em", "facts", "n")

    def __init__(self, em: Emitter, facts: CpuFacts, n: int) -> None:
        self.em, self.facts, self.n = em, facts, n

    @property
    def flags(self) -> str:
        return self.em.flags

    def pure(self, text: str) -> str:
        return self.em.op(text)

    def intrinsic(self, result: str, name: str, *args: str) -> str:
        return self.em.call(result, name, *args)

    def type(self, t: Any) -> str:
        return scalar_type(t)

    def widened(self, text: str, t: dtype) -> str | None:
        if t is float16 and self.facts.half_convert:
            return self.convert("fpext", "half", self.convert("bitcast", "i16", text, "half"), "float")  # fmt: skip
        return None

    def narrowed(self, text: str, source: dtype, target: dtype, rounding: str) -> str | None:
        half = target is float16 and self.facts.half_convert
        brain = target is bfloat16 and self.facts.bf16_convert and self.n >= 4
        if source is not float32 or rounding != "rtne" or not (half or brain):
            return None
        native = "half" if half else "bfloat"
        return self.convert(
            "bitcast", native, self.convert("fptrunc", "float", text, native), "i16"
        )

    # --- AVX-512 ------------------------------------------------------------------------------------------
    @property
    def has_edges(self) -> bool:
        """Whether `masked` may be used on fp32 lanes."""
        return self.facts.edges and self.n in (4, 8, 16)

    def masked(self, name: str, *operands: str, mask: str = "") -> str:
        """An intrinsic of AVX-512 on fp32 lanes, where `mask` (everywhere without one); the default rounding."""
        bits, rounding = ("i16", ("i32 4",)) if self.n == 16 else ("i8", ())
        if mask and self.n == 4:
            mask = self.em.shuffle("i1", mask, "zeroinitializer", 4, list(range(8)))
        where = self.em.op(f"bitcast <{max(self.n, 8)} x i1> {mask} to {bits}") if mask else "-1"
        name = f"llvm.x86.avx512.mask.{name}.ps.{32 * self.n}"
        return self.em.call(
            vector_type("float", self.n), name, *operands, f"{bits} {where}", *rounding
        )
