"""Defines what the shared lowering of elements asks of a back end: to write instructions, and its own ways of a few."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from tessera.backends.elements.literals import float_literal, literal, splat_literal, vector_type
from tessera.dtypes import dtype, float32, float64
from tessera.ir.types import Type

_SUFFIXES = {
    "float": "f32", "double": "f64", "half": "f16", "bfloat": "bf16", "ptr": "p0",
}  # fmt: skip

# Writes a function's body for its arguments: the result, or the result and an i1 where it does not hold.
Body = Callable[["ElementBuilder", list[str]], str]
Near = Callable[["ElementBuilder", list[str]], tuple[str, str]]


class ElementBuilder(ABC):
    """Writes instructions on one element (`n` is 1) or on vectors of `n` elements by short names.

    Operands and results are texts: names of LLVM values, or constants. Types are those of one element, in LLVM's words.
    """

    __slots__ = ()
    n: int

    # --- what each back end says ------------------------------------------------------------------------
    @property
    @abstractmethod
    def flags(self) -> str:
        """The fast-math flags of sums, differences and products of the program."""

    @abstractmethod
    def pure(self, text: str) -> str:
        """The value of an instruction without effects; equal ones need not be written twice."""

    @abstractmethod
    def intrinsic(self, result: str, name: str, *args: str) -> str:
        """A pure call of `name`, which is declared; arguments are `type text`."""

    @abstractmethod
    def type(self, t: Type) -> str:
        """The LLVM type that holds an element of `t`."""

    def is_native(self, t: dtype) -> bool:
        """Whether LLVM computes with the float `t`; if not, an integer holds its bits."""
        return not self.type(t).startswith("i")

    # --- conversions that some targets have instructions for ----------------------------------------------
    def widened(self, text: str, t: dtype) -> str | None:
        """A float of fewer than 32 bits that is not native as fp32, or None."""
        return None

    def narrowed(self, text: str, source: dtype, target: dtype, rounding: str) -> str | None:
        """`source` as a float of fewer bits, or None."""
        return None

    def extended(self, name: str, source: str, text: str, target: str) -> str:
        """An integer in a wider type, by `sext` or `zext`."""
        return self.convert(name, source, text, target)

    # --- integers ---------------------------------------------------------------------------------------------
    def divided(self, t: dtype, a: str, b: str) -> str | None:
        """The quotient toward zero by an instruction that never traps and gives any number where b is 0, or None."""
        return None

    def shifted(self, name: str, t: dtype, a: str, b: str) -> str | None:
        """The shift `name` (shl, lshr, ashr) by an instruction that takes every amount as unsigned, or None."""
        return None

    # --- mathematical functions (floats.py) -----------------------------------------------------------------
    has_scale = False  # whether there is `scale`

    def own(self, name: str, t: dtype, *args: str) -> str | None:
        """Emit a function of fp32 or fp64 (an opcode, or "div", "rcp") in the target's own way, if it has one; else
        None."""
        return None

    def is_inlined(self, name: str, t: dtype) -> bool:
        """Whether a function of the table is written in place; if not, as a function of the module."""
        return True

    @abstractmethod
    def shared(self, name: str, t: dtype, args: Sequence[str], body: Body) -> str:
        """Call a function of the module, which `body` writes at its first use."""

    @abstractmethod
    def beyond(self, name: str, t: dtype, args: Sequence[str], near: Near) -> str:
        """`near`, and where that does not hold the target's version for large arguments."""

    def scale(self, q: str, n: str, within: str) -> str:
        """fp32 q * 2^n for any whole n, infinity and NaN, where the i1 `within` is set; else 0."""
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
        """What the names of overloaded intrinsics end in."""
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
