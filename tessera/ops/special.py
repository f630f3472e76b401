"""Defines what depends on the machine: assembly of the target, special registers, dependencies between launches."""

from __future__ import annotations

from collections.abc import Sequence

from tessera.dtypes import int32, int64
from tessera.ir import Effect, Op, Type, Value, attr, operand, require
from tessera.ops.arith import Elementwise

__all__ = ["GridDependencyOp", "InlineAsmOp", "SpecialRegisterOp", "VolatileAsmOp"]

REGISTERS = {"globaltimer": int64, "smid": int32, "clock": int32}
DEPENDENCIES = ("wait", "launch_dependents")


class InlineAsmOp(Elementwise, opcode="inline_asm"):
    """Assembly of the target applied to `pack` elements of each operand at a time; result types are given.

    `constraints` are LLVM's, outputs first. Elements below 32 bits are packed in 32-bit registers.
    """

    args: tuple[Value, ...] = operand(variadic=True)
    asm: str = attr()
    constraints: str = attr()
    pack: int = attr(default=1)


class VolatileAsmOp(Op, opcode="volatile_asm", effects=Effect.READ | Effect.WRITE):
    """Like `inline_asm`, for assembly with effects: it is neither dropped, merged nor moved across accesses."""

    args: tuple[Value, ...] = operand(variadic=True)
    asm: str = attr()
    constraints: str = attr()
    pack: int = attr(default=1)


class SpecialRegisterOp(Op, opcode="special_register", effects=Effect.READ | Effect.WRITE):
    """The current value of a register: "globaltimer" (int64, nanoseconds), "smid" (int32) or "clock" (int32, the low
    half of the SM's; traced builds only)."""

    name: str = attr()

    def infer(self) -> Sequence[Type]:
        return (REGISTERS[self.name],)

    def verify(self) -> None:
        require(self.name in REGISTERS, self, lambda: f"unknown register {self.name!r}")


class GridDependencyOp(Op, opcode="grid_dependency", effects=Effect.SYNC):
    """Programmatic dependent launch: "wait" for the previous grid, or let the next start ("launch_dependents")."""

    kind: str = attr()

    def verify(self) -> None:
        require(self.kind in DEPENDENCIES, self, lambda: f"unknown dependency {self.kind!r}")
