"""Defines the interface of a back end to the shared lowering: it writes instructions, some in its own way."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from tessera.backends.elements.literals import float_literal, literal, splat_literal, vector_type
from tessera.dtypes import dtype, float32, float64
from tessera.ir.types import Type

_SUFFIXES = {
    "float": "f32", "double": "f64", "half": "f16", "bfloat": "bf16", "ptr": "p0",
}  # fmt: skip

# Writes a function's body for its arguments; returns the result, or the result and an i1 where it is not valid.
Body = Callable[["ElementBuilder", list[str]], str]
Near = Callable[["ElementBuilder", list[str]], tuple[str, str]]


class ElementBuilder(ABC):
    """Writes instructions on one element (`n` is 1) or on vectors of `n` elements through short methods.

    Operands and results are texts: names of LLVM values, or constants. Types are LLVM's for one element.
    """

    __slots__ = ()
    n: int

    # --- what each back end says ------------------------------------------------------------------------
    @property
    @abstractmethod
    def flags(self) -> str:
        """The fast-math flags of the program's sums, differences and products."""

    @abstractmethod
    def pure(self, text: str) -> str:
        """Return the value of an instruction without effects; equal ones need not be written twice."""

    @abstractmethod
    def intrinsic(self, result: str, name: str, *args: str) -> str:
        """Call the pure function `name`, and declare it; arguments are `type text`."""

    @abstractmethod
    def type(self, t: Type) -> str:
        """Return the LLVM type that holds an element of `t`."""

    def is_native(self, t: dtype) -> bool:
        """Whether LLVM computes with the float `t`; if not, an integer holds its bits."""
        return not self.type(t).startswith("i")

    # --- conversions that some targets have instructions for ----------------------------------------------
    def widened(self, text: str, t: dtype) -> str | None:
        """Widen a non-native float of fewer than 32 bits to fp32; None if there is no instruction."""
        return None

    def narrowed(self, text: str, source: dtype, target: dtype, rounding: str) -> str | None:
        """Narrow `source` to a float of fewer bits; None if there is no instruction."""
        return None

    def extended(self, name: str, source: str, text: str, target: str) -> str:
        """Extend an integer to a wider type, by `sext` or `zext`."""
        return self.convert(name, source, text, target)

    def truncated(self, text: str, t: dtype) -> str | None:
        """Round fp32 toward zero to 32 or 64 bits, where there is an instruction that saturates; NaN gives 0."""
        return None

    # --- integers ---------------------------------------------------------------------------------------------
    def divided(self, t: dtype, a: str, b: str) -> str | None:
        """Divide toward zero by an instruction that never traps and gives any number where b is 0; None if there is
        none."""
        return None

    def shifted(self, name: str, t: dtype, a: str, b: str) -> str | None:
        """Shift (shl, lshr, ashr) by an instruction that takes every amount as unsigned; None if there is none."""
        return None

    # --- mathematical functions (floats.py) -----------------------------------------------------------------
    has_scale = False  # whether there is `scale`
    slow_underflow = (
        False  # whether a result below the normal numbers takes longer than another one
    )

    def own(self, name: str, t: dtype, *args: str) -> str | None:
        """Emit a function of fp32 or fp64 (an opcode, or "div", "rcp") in the target's own way; return None if it has
        none."""
        return None

    def approximate(self, name: str, t: dtype, *args: str) -> str | None:
        """Emit the instruction for a function whose error need not be small everywhere; return None if there is
        none."""
        return None

    def is_inlined(self, name: str, t: dtype) -> bool:
        """Whether a function of the table is inlined; if not, it becomes a function of the module."""
        return True

    @abstractmethod
    def shared(self, name: str, t: dtype, args: Sequence[str], body: Body) -> str:
        """Call a function of the module, which `body` writes at its first use."""

    @abstractmethod
    def beyond(self, name: str, t: dtype, args: Sequence[str], near: Near) -> str:
        """Return `near` where it is valid, and elsewhere the target's version for large arguments."""

    def rarely(self, t: dtype, rare: str, usual: str, other: Callable[[], str]) -> str:
        """Return `usual`, and where the i1 `rare` is set what `other` writes, which a target may branch around."""
        return self.select(self.type(t), rare, other(), usual)

    def scale(self, q: str, n: str, within: str) -> str:
        """Return fp32 q * 2^n for any whole n, infinity and NaN, where the i1 `within` is set; elsewhere 0."""
        raise NotImplementedError

    # --- instructions -----------------------------------------------------------------------------------
    def vector(self, element: str) -> str:
        return vector_type(element, self.n)

    def op(self, name: str, element: str, *operands: str) -> str:
        return self.pure(f"{name} {vector_type(element, self.n)} {', '.join(operands)}")

    def cmp(self, name: str, element: str, a: str, b: str) -> str:
        return self.pure(f"{name} {vector_type(element, self.n)} {a}, {b}")

    def select(self, element: str, c: str, a: str, b: str) -> str:
        ty, bits = vector_type(element, self.n), vector_type("i1", self.n)
        return self.pure(f"select {bits} {c}, {ty} {a}, {ty} {b}")

    def convert(self, name: str, source: str, text: str, target: str) -> str:
        if source == target:
            return text
        return self.pure(
            f"{name} {vector_type(source, self.n)} {text} to {vector_type(target, self.n)}"
        )

    def call(self, base: str, element: str, *operands: str, extra: tuple[str, ...] = ()) -> str:
        """Call an overloaded intrinsic whose operands and result have one type."""
        ty = vector_type(element, self.n)
        typed = [f"{ty} {x}" for x in operands]
        return self.intrinsic(ty, f"llvm.{base}.{self.suffix(element)}", *typed, *extra)

    def suffix(self, element: str) -> str:
        """Return the suffix of overloaded intrinsics' names."""
        short = _SUFFIXES.get(element, element)
        return short if self.n == 1 else f"v{self.n}{short}"

    # --- constants ----------------------------------------------------------------------------------------
    def int(self, element: str, value: int) -> str:
        return splat_literal(element, str(value), self.n)

    def f32(self, value: float) -> str:
        return splat_literal("float", float_literal(value, float32), self.n)

    def f64(self, value: float) -> str:
        return splat_literal("double", float_literal(value, float64), self.n)

    def constant(self, t: Type, value: float) -> str:
        element = self.type(t)
        return splat_literal(element, literal(value, t, element), self.n)
