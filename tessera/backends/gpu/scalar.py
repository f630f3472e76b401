"""Writes instructions on one element in a register of a GPU's thread, with the target's own ways of a few."""

from __future__ import annotations

from typing import Any

from tessera.backends.elements.builder import ElementBuilder
from tessera.backends.gpu.target import GpuTarget
from tessera.backends.gpu.types import llvm_type
from tessera.backends.gpu.writer import Writer, split
from tessera.dtypes import dtype

FAR = 1 << 30  # constants below cannot carry an index of the thread past 32 bits


class Scalar(ElementBuilder):
    """Writes to the body `w` of one function; floats of 16 bits are LLVM's, those of 8 bits integers."""

    __slots__ = ("contract", "target", "w")
    n = 1

    def __init__(self, w: Writer, target: GpuTarget, *, contract: bool = False) -> None:
        self.w, self.target, self.contract = w, target, contract

    @property
    def flags(self) -> str:
        return "contract" if self.contract else ""

    def pure(self, text: str) -> str:
        return self.w.pure(text)

    def intrinsic(self, result: str, name: str, *args: str) -> str:
        return self.w.call(result, name, args)

    def type(self, t: Any) -> str:
        return llvm_type(t)

    def hardware(self, name: str, t: dtype, *args: str) -> str | None:
        """The target's own instruction for a function of fp32 or fp64, or None."""
        return self.target.math(self.w, name, llvm_type(t), args)

    def narrowed(self, text: str, source: dtype, target: dtype, rounding: str) -> str | None:
        if rounding == "rtne":
            return None
        return self.target.math(self.w, f"to_{target.name}_{rounding}", llvm_type(source), [text])

    def extended(self, name: str, source: str, text: str, target: str) -> str:
        base, constant = split(self.w.offsets, text)
        if target == "i64" and self.w.is_of_thread(base) and 0 <= constant < FAR:
            # An index of the thread plus a small constant does not wrap: the constant stays apart, for addresses.
            base = self.convert(name, source, base, target)
            return self.w.add_const(target, base, constant)
        return self.convert(name, source, text, target)
