"""Writes instructions on one element in a register of a GPU thread, some of them the target's own."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from tessera.backends.elements.builder import Body, ElementBuilder, Near
from tessera.backends.elements.floats import evaluate
from tessera.backends.gpu.target import GpuTarget
from tessera.backends.gpu.types import llvm_type
from tessera.backends.gpu.writer import Writer, split
from tessera.dtypes import dtype, float32

IN_PLACE = {  # of fp32
    "exp10", "expm1", "log", "log2", "log10", "log1p", "tanh", "sinh", "cosh", "erf", "sin", "cos", "tan", "asin",
    "acos", "atan", "atan2", "pow", "fmod", "far_fmod", "asinh", "acosh", "atanh", "remainder", "fast_rcbrt",
    "erfinv_ratio", "bessel_i0", "bessel_i1", "bessel_j0", "bessel_j1", "bessel_y0", "bessel_y1",
}  # fmt: skip
FAR = 1 << 30  # smaller constants plus an index of the thread fit 32 bits


class Scalar(ElementBuilder):
    """Writes to the body `w` of one function; 16-bit floats have LLVM's types, 8-bit ones are integers."""

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

    # --- integers ---------------------------------------------------------------------------------------------
    def divided(self, t: dtype, a: str, b: str) -> str | None:
        if t.bits > 32:
            return None  # LLVM divides 64-bit numbers that are small in 32 bits
        wide = [self.word(v, t, t.signed) for v in (a, b)]
        found = self.target.math(self.w, "sdiv" if t.signed else "udiv", "i32", wide)
        return found and self.convert("trunc", "i32", found, llvm_type(t))

    def shifted(self, name: str, t: dtype, a: str, b: str) -> str | None:
        e = llvm_type(t)
        if t.bits > 32:
            amount = self.convert("trunc", e, self.call("umin", e, b, str(t.bits)), "i32")
            return self.target.math(self.w, name, e, [a, amount])
        wide = self.word(a, t, t.signed), self.word(b, t, False)
        found = self.target.math(self.w, name, "i32", wide)
        return found and self.convert("trunc", "i32", found, e)

    def word(self, text: str, t: dtype, signed: bool) -> str:
        """Extend an integer to 32 bits."""
        return self.convert("sext" if signed else "zext", llvm_type(t), text, "i32")

    # --- mathematical functions ---------------------------------------------------------------------------
    def own(self, name: str, t: dtype, *args: str) -> str | None:
        """Return the target's instruction; fp32 exp is exp2 of x log2(e)."""
        if name == "exp" and t is float32:
            return self.own(
                "exp2", t, self.op("fmul", "float", args[0], self.f32(math.log2(math.e)))
            )
        return self.target.math(self.w, name, llvm_type(t), args)

    def approximate(self, name: str, t: dtype, *args: str) -> str | None:
        return self.target.math(self.w, name, llvm_type(t), args)

    def is_inlined(self, name: str, t: dtype) -> bool:
        return t is float32 and name in IN_PLACE

    def shared(self, name: str, t: dtype, args: Sequence[str], body: Body) -> str:
        type, module = llvm_type(t), self.w.module
        symbol = f"@tessera.{name}.{type}"
        if symbol not in module.defined:
            module.defined.add(symbol)
            w = Writer(module)
            names = [f"%a{i}" for i in range(len(args))]
            result = body(Scalar(w, self.target), names)
            params = ", ".join(f"{type} {v}" for v in names)
            head = f"define internal {type} {symbol}({params}) nounwind memory(none) {{"
            lines = [head, "entry:", *w.prologue, *w.lines, f"  ret {type} {result}", "}"]
            module.functions.append("\n".join(lines))
        return self.pure(f"call {type} {symbol}({', '.join(f'{type} {a}' for a in args)})")

    def beyond(self, name: str, t: dtype, args: Sequence[str], near: Near) -> str:
        """Emit a branch that calls the module's function `far_...`."""
        found, far = near(self, list(args))
        return self.rarely(t, far, found, lambda: evaluate(self, f"far_{name}", t, *args))

    def rarely(self, t: dtype, rare: str, usual: str, other: Callable[[], str]) -> str:
        w, type = self.w, llvm_type(t)
        before, slow, after = w.block, w.label("far"), w.label("near")
        w.branch_if(rare, slow, after)
        with w.scope():
            w.start(slow)
            value = other()
            last = w.block
            w.branch(after)
        w.start(after)
        return w.emit(f"phi {type} [ {usual}, %{before} ], [ {value}, %{last} ]")

    # --- conversions ----------------------------------------------------------------------------------------
    def narrowed(self, text: str, source: dtype, target: dtype, rounding: str) -> str | None:
        if rounding == "rtne":
            return None
        return self.target.math(self.w, f"to_{target.name}_{rounding}", llvm_type(source), [text])

    def truncated(self, text: str, t: dtype, may_be_nan: bool = True) -> str | None:
        if t.bits == 64 and may_be_nan:  # for which its instruction gives any number
            is_number = self.cmp("fcmp ord", "float", text, text)
            text = self.select("float", is_number, text, self.f32(0.0))
        name = f"truncate_{'s' if t.signed else 'u'}{'64' if t.bits == 64 else ''}"
        return self.target.math(self.w, name, "float", [text])

    def extended(self, name: str, source: str, text: str, target: str) -> str:
        base, constant = split(self.w.offsets, text)
        if target == "i64" and self.w.is_of_thread(base) and 0 <= constant < FAR:
            # An index of the thread plus a small constant does not wrap: the constant stays separate, for addresses.
            base = self.convert(name, source, base, target)
            return self.w.add_const(target, base, constant)
        return self.convert(name, source, text, target)
