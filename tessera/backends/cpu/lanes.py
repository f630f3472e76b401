"""Writes instructions on vectors of `n` lanes for CPUs, including those that only some instruction sets have.

Mathematical functions without vector code call the C library for each lane."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from tessera.backends.cpu.emitter import Emitter
from tessera.backends.cpu.llvm_text import scalar_type
from tessera.backends.cpu.target import CpuFacts
from tessera.backends.elements.builder import Body, ElementBuilder, Near
from tessera.backends.elements.floats import Floats
from tessera.backends.elements.literals import vector_type
from tessera.backends.elements.power import power_in_fp64
from tessera.backends.elements.trigonometry import single_angle
from tessera.dtypes import bfloat16, dtype, float16, float32, float64
from tessera.ir.types import Type

# Mathematical functions with vector code; the others call the C library.
VECTOR = {
    float32: {
        "exp", "exp2", "exp10", "expm1", "log", "log2", "log10", "log1p", "tanh", "sinh", "cosh", "erf", "sin", "cos",
        "tan", "asin", "acos", "atan", "asinh", "acosh", "atanh", "fast_rcbrt", "erfinv_ratio",
        "bessel_i0", "bessel_i1", "bessel_j0", "bessel_j1", "bessel_y0", "bessel_y1",
    },
    float64: {"exp", "exp2", "log", "log2", "sin", "cos", "asinh", "acosh", "atanh", "remainder"},
}  # fmt: skip
EASY = {"sqrt", "sqrt_rn", "rsqrt", "floor", "ceil", "trunc", "rint", "round"}
Writing = Callable[[Emitter, list[str]], str]


def _symbol(name: str, t: dtype) -> str:
    """Return the C library's name of a function."""
    return name if t is float64 else name + "f"


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

    def type(self, t: Type) -> str:
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

    # --- mathematical functions ---------------------------------------------------------------------------
    def own(self, name: str, t: dtype, *args: str) -> str | None:
        if name in ("div", "rcp") or name in EASY or name in VECTOR[t]:
            return None
        if t is float32 and name in SINGLE:
            return self.shared(name, t, args, SINGLE[name])
        if t is float32 and name == "fmod":
            return self.beyond(name, t, args, _near_fmod)
        if t is float32 and name == "remainder":
            return self.beyond(name, t, args, _near_remainder)
        return self._lanewise(_symbol(name, t), t, args)

    def _lanewise(self, symbol: str, t: dtype, args: Sequence[str]) -> str:
        """Call a function of the C library for each lane, inside a function that all uses share."""
        element = self.type(t)

        def body(x: ElementBuilder, names: list[str]) -> str:
            # Not `em.declare`: the definition stays when the code that asked for it is discarded.
            types = ", ".join([element] * len(names))
            self.em.declarations[f"declare {element} @{symbol}({types})"] = None
            ty, last = x.vector(element), "poison"
            for k in range(x.n):
                lane = [
                    v if x.n == 1 else x.pure(f"extractelement {ty} {v}, i64 {k}") for v in names
                ]
                call = ", ".join(f"{element} {v}" for v in lane)
                found = x.pure(f"call {element} @{symbol}({call})")
                if x.n == 1:
                    return found
                last = x.pure(f"insertelement {ty} {last}, {element} {found}, i64 {k}")
            return last

        return self.shared(symbol, t, args, body)

    def shared(self, name: str, t: dtype, args: Sequence[str], body: Body) -> str:
        def write(em: Emitter, names: list[str]) -> str:
            return body(Lanes(em, self.facts, self.n), names)

        return self._call(f"tessera.{name}.{self.suffix(self.type(t))}", t, args, write)

    def beyond(self, name: str, t: dtype, args: Sequence[str], near: Near) -> str:
        """Call the library's function for all lanes if any is out of range, inside a function that all uses share."""

        def write(em: Emitter, names: list[str]) -> str:
            inner = Lanes(em, self.facts, self.n)
            result, far = near(inner, names)
            if self.n > 1:
                far = em.call("i1", f"llvm.vector.reduce.or.v{self.n}i1", f"<{self.n} x i1> {far}")
            em.stmt(f"br i1 {far}, label %far, label %near")
            em.stmt("far:")
            with em.arm():
                slow = inner._lanewise(_symbol(name, t), t, names)
                em.stmt(f"ret {self.vector(self.type(t))} {slow}")
            em.stmt("near:")
            return result

        return self._call(f"tessera.{name}.near.{self.suffix(self.type(t))}", t, args, write)

    def _call(self, name: str, t: dtype, args: Sequence[str], write: Writing) -> str:
        ty, em = self.vector(self.type(t)), self.em
        if f"@{name}" not in em.globals:
            em.globals[f"@{name}"] = None
            inner = Emitter(em.declarations, em.globals)
            names = [inner.parameter(f"%x{i}") for i in range(len(args))]
            result = write(inner, names)
            params = ", ".join(f"{ty} {v}" for v in names)
            head = f"define internal {ty} @{name}({params}) nounwind {{"
            em.globals[f"{head}\n  {inner.body()}\n  ret {ty} {result}\n}}"] = None
        return em.op(f"call {ty} @{name}({', '.join(f'{ty} {a}' for a in args)})")

    slow_underflow = (
        True  # 88 ns a vector on a Sapphire Rapids, 5 on a Zen 4 (benchmarks/cpu.py, softmax)
    )

    # --- AVX-512 ------------------------------------------------------------------------------------------
    @property
    def has_scale(self) -> bool:  # type: ignore[override]
        return self.has_edges

    def scale(self, q: str, n: str, within: str) -> str:
        ty = self.vector("float")
        return self.masked("scalef", f"{ty} {q}", f"{ty} {n}", f"{ty} zeroinitializer", mask=within)

    @property
    def has_edges(self) -> bool:
        """Whether `masked` may be used on fp32 lanes."""
        return self.facts.edges and self.n in (4, 8, 16)

    def masked(self, name: str, *operands: str, mask: str = "") -> str:
        """Call an AVX-512 intrinsic on the fp32 lanes of `mask` (all without one), with the default rounding."""
        bits, rounding = ("i16", ("i32 4",)) if self.n == 16 else ("i8", ())
        if mask and self.n == 4:
            mask = self.em.shuffle("i1", mask, "zeroinitializer", 4, list(range(8)))
        where = self.em.op(f"bitcast <{max(self.n, 8)} x i1> {mask} to {bits}") if mask else "-1"
        name = f"llvm.x86.avx512.mask.{name}.ps.{32 * self.n}"
        return self.em.call(
            vector_type("float", self.n), name, *operands, f"{bits} {where}", *rounding
        )


# --- fp32 computed in fp64 ----------------------------------------------------------------------------------
def _power(x: ElementBuilder, arguments: list[str]) -> str:
    return power_in_fp64(Floats(x, float32), *arguments)


def _atan2(x: ElementBuilder, arguments: list[str]) -> str:
    wide = [x.convert("fpext", "float", v, "double") for v in arguments]
    return x.convert("fptrunc", "double", single_angle(Floats(x, float64), *wide), "float")


def _rest(
    x: ElementBuilder, arguments: list[str], rounding: str, most: float
) -> tuple[str, str, str]:
    """Return (rest, dividend, far) in fp64 after the quotient's whole part; exact, as is the quotient below `most`."""
    m = Floats(x, float64)
    p, q = (x.convert("fpext", "float", v, "double") for v in arguments)
    whole = m.call(rounding, m.div(p, q))
    far = m.cmp("uge", m.abs(whole), m.const(most))
    far = m.either(far, m.cmp("oeq", m.abs(q), m.const(math.inf)))
    return m.fma(m.neg(whole), q, p), p, far


def _near_fmod(x: ElementBuilder, arguments: list[str]) -> tuple[str, str]:
    """Return fmod with the sign of the dividend; exact since product and difference are for |a/b| < 2^28."""
    rest, p, far = _rest(x, arguments, "trunc", 2.0**28)
    return x.convert("fptrunc", "double", Floats(x, float64).sign_of(rest, p), "float"), far


def _near_remainder(x: ElementBuilder, arguments: list[str]) -> tuple[str, str]:
    """The quotient of two numbers of 24 bits is not nearer to a half than 2^-27: below 2^24 fp64 tells them apart."""
    m = Floats(x, float64)
    rest, p, far = _rest(x, arguments, "rint", 2.0**24)
    rest = m.select(m.cmp("oeq", rest, m.const(0.0)), m.sign_of(rest, p), rest)
    return x.convert("fptrunc", "double", rest, "float"), far


SINGLE = {"pow": _power, "atan2": _atan2}
