"""Defines what the SIMT lowering asks of a GPU: the interface that each target's primitives fill in.

Every method writes instructions through the given Writer. A register is an LLVM value; addresses of shared memory
are i32, as the target's instructions take them. Instructions add the constant offset of a Place themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tessera.backends.gpu.writer import Writer
from tessera.ir import ElementType


@dataclass(frozen=True, slots=True)
class Access:
    """How one vector of a global access is moved: `count` registers of `bits`, and the cache hints of the op."""

    bits: int
    count: int
    cache: str = ""
    eviction: str = ""
    volatile: bool = False


@dataclass(frozen=True, slots=True)
class PackedShape:
    """`count` registers of LLVM type `type` and `bits` each that hold one vector, `per_reg` elements in each."""

    type: str
    bits: int
    count: int
    per_reg: int


Regs = Sequence[str]
Place = tuple[str, int]  # an address, and an offset in bytes
Order = tuple[str, str]  # of an atomic: semantics ("acquire") and scope ("gpu")


class GpuTarget(Protocol):
    """Emits the target's instructions."""

    warp_size: int

    def facts(self) -> Any:
        """Return the row of hardware facts of this architecture."""

    def header(self) -> list[str]:
        """Return the first lines of the module: the triple and the program's shared memory `@smem`."""
        ...

    def kernel_attributes(self, num_warps: int, ctas: int, loops: bool, counted: bool) -> str:
        """Return the LLVM attributes of a kernel; `ctas`: how many are to share an SM, 0 if that is open; `loops`:
        whether it has any; `counted`: whether the number of iterations of each is known."""
        ...

    def thread_index(self, w: Writer) -> str: ...
    def program_id(self, w: Writer, axis: int) -> str: ...
    def num_programs(self, w: Writer, axis: int) -> str: ...
    def cta_rank(self, w: Writer) -> str: ...
    def special_register(self, w: Writer, name: str) -> str: ...
    def grid_dependency(self, w: Writer, kind: str) -> None: ...
    def barrier(self, w: Writer) -> None: ...
    def warp_barrier(self, w: Writer) -> None: ...
    def proxy_fence(self, w: Writer) -> None: ...
    def shuffle_xor(self, w: Writer, reg: str, mask: int) -> str: ...
    def shuffle_index(self, w: Writer, reg: str, lane: str) -> str: ...
    def reduce_warp(self, w: Writer, kind: str, reg: str) -> str:
        """Combine an i32 of all lanes of a warp: "add", "and", "or", "xor", "min", "max", "umin" or "umax"."""
        ...

    def load_global(
        self, w: Writer, at: Place, access: Access, type: str, mask: str, other: Regs
    ) -> list[str]:
        """Load `count` values of `type` at address + offset where `mask`; elsewhere return `other` (zeros if empty)."""
        ...

    def store_global(
        self, w: Writer, at: Place, access: Access, type: str, regs: Regs, mask: str
    ) -> None: ...

    def load_shared(self, w: Writer, at: Place, shape: PackedShape) -> list[str]: ...
    def store_shared(
        self, w: Writer, at: Place, shape: PackedShape, regs: Regs, mask: str
    ) -> None: ...

    def load_matrix(self, w: Writer, at: Place, count: int, trans: bool) -> list[str]:
        """Load `count` 8x8 matrices of 16-bit elements, an i32 of each. Lane l gives the address of row l % 8 of matrix
        l / 8."""
        ...

    def store_matrix(self, w: Writer, at: Place, regs: Regs, trans: bool) -> None:
        """The inverse of `load_matrix`."""
        ...

    def async_copy(
        self,
        w: Writer,
        shared: Place,
        source: Place,
        bytes: int,
        mask: str,
        access: Access,
        skip: bool = False,
        read: str = "",
    ) -> None:
        """Copy `bytes` (4, 8, 16) asynchronously where `mask`, write zeros elsewhere. `read`: an i32, how many of these
        bytes are read; zeros are written for the rest."""
        ...

    def async_commit(self, w: Writer) -> None: ...
    def async_wait(self, w: Writer, pending: int) -> None: ...

    def round_tf32(self, w: Writer, x: str) -> str: ...
    def narrow_pair(self, w: Writer, type: str, low: str, high: str) -> str:
        """Return <2 x type> (half or bfloat) of two fp32 numbers, rounded to nearest even."""
        ...

    def mma(
        self, w: Writer, asm: str, acc_type: str, acc: Regs, a: Regs, b: Regs, reg: str
    ) -> list[str]:
        """Emit one matrix instruction of a warp: accumulators of `acc_type`, registers of A and B of type `reg`."""
        ...

    def memory_fence(self, w: Writer, scope: str) -> None:
        """Order this thread's accesses before and after the fence, as threads of `scope` see them."""
        ...

    def atomic_width(self, kind: str, elem: ElementType) -> int:
        """Return the most adjacent elements that `atomic_add_vector` takes; 1: there is no such instruction."""
        ...

    def atomic_add_vector(
        self, w: Writer, elem: ElementType, at: Place, values: Regs, mask: str, scope: str
    ) -> None: ...

    def has_atomic(self, kind: str, elem: ElementType) -> bool:
        """Whether `atomic` can do this. If not, a loop over `atomic_cas` does."""
        ...

    def atomic(
        self,
        w: Writer,
        kind: str,
        elem: ElementType,
        at: Place,
        value: str,
        mask: str,
        order: Order,
        want_result: bool,
    ) -> str: ...

    def atomic_cas(
        self, w: Writer, bits: int, at: Place, expected: str, value: str, mask: str, order: Order
    ) -> str: ...

    def atomic_shared_add(self, w: Writer, address: str, value: str, mask: str) -> None: ...
    def math(self, w: Writer, name: str, type: str, args: Regs) -> str | None:
        """Emit a fast hardware function (exp2, rsqrt, ...); return None if the target has none for the type."""
        ...

    def convert_float8(
        self, w: Writer, source: ElementType, target: ElementType, values: Regs
    ) -> list[str] | None:
        """Convert between 8-bit floats and fp16 or fp32 by hardware; return None if it cannot."""
        ...

    def assert_fail(self, w: Writer, message: str, file: str, line: int, function: str) -> None: ...
    def trap(self, w: Writer) -> None: ...
    def print(self, w: Writer, format: str, args: Sequence[tuple[object, str]]) -> None: ...
