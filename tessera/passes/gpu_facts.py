"""Defines what GPU passes know of the machine: frozen rows that a target fills in. No pass asks for an architecture's
name."""

from __future__ import annotations

from dataclasses import dataclass

from tessera.dtypes import dtype, float32, float64

CTA_BYTES = 1024  # of shared memory that the system takes for each CTA


@dataclass(frozen=True, slots=True)
class MmaRow:
    """One matrix instruction of a warp: acc[m,n] += a[m,k] @ b[k,n].

    `name` identifies the row in `MmaOp.instruction`; `asm` is how the target spells it. `operand_bits` is the
    width of an operand's element in the fragment layouts (`layout.mma_operand`). With `rounds_to` set, operands
    are `a`/`b` elements (fp32) whose low mantissa bits the lowering must round away first ("tf32":
    `cvt.rna.tf32`)."""

    name: str
    asm: str
    m: int
    n: int
    k: int
    a: dtype
    b: dtype
    acc: dtype
    rounds_to: str = ""

    def __post_init__(self) -> None:
        if self.a.bits != self.b.bits:
            raise ValueError(f"{self.name}: operands of {self.a.bits} and {self.b.bits} bits")
        if self.k * self.a.bits != 256:
            raise ValueError(f"{self.name}: a row of A is 256 bits, not {self.k * self.a.bits}")
        if (self.m, self.n) != ((8, 8) if self.a is float64 else (16, 8)):
            raise ValueError(f"{self.name}: no fragment layout for {self.m}x{self.n}")
        if self.rounds_to and self.a is not float32:
            raise ValueError(f"{self.name}: only fp32 operands are rounded")

    @property
    def operand_bits(self) -> int:
        return self.a.bits

    def registers(self, operand: int, threads: int = 32) -> int:
        """Elements that one thread holds of A (0), B (1) or the accumulator (2)."""
        return (self.m * self.k, self.k * self.n, self.m * self.n)[operand] // threads


@dataclass(frozen=True, slots=True)
class WgmmaRow:
    """One matrix instruction of a group of four warps: acc[64,n] += a[64,k] @ b[k,n], n any multiple of 8 up to
    `max_n`.

    `asm` has a place {n} for n. Shared operands are contiguous along K unless `transposable`. `rounds_to` as in
    MmaRow, but the hardware drops the bits."""

    name: str
    asm: str
    k: int
    a: dtype
    b: dtype
    acc: dtype
    transposable: bool = False
    rounds_to: str = ""
    max_n: int = 256

    def __post_init__(self) -> None:
        if self.a.bits != self.b.bits or self.k * self.a.bits != 256:
            raise ValueError(f"{self.name}: a step along K is 256 bits of both operands")


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """Sizes and features of one GPU. Sizes in bytes, registers as a thread has them, of 32 bits each."""

    warp_size: int = 32
    max_shared_bytes: int = 48 * 1024
    registers: int = 255
    register_file: int = 64 * 1024  # of an SM
    max_warps: int = 32
    max_ctas: int = 32  # that an SM holds at a time
    max_vector_bytes: int = 16
    has_cp_async: bool = False
    has_ldmatrix: bool = False
    has_stmatrix: bool = False
    has_tma: bool = False  # tensor copies, barriers that count bytes
    has_clusters: bool = False  # CTAs that run side by side reach each other's shared memory
    has_register_handover: bool = False  # warps may give registers to others
    mma: tuple[MmaRow, ...] = ()
    wgmma: tuple[WgmmaRow, ...] = ()

    def ctas_that_fit(self, shared: int) -> int:
        """How many CTAs with so many bytes of shared memory an SM has room for."""
        return (self.max_shared_bytes + CTA_BYTES) // (shared + CTA_BYTES)

    def mma_row(self, name: str) -> MmaRow:
        """The row of that name. KeyError when the target has none."""
        for row in self.mma:
            if row.name == name:
                return row
        raise KeyError(name)

    def wgmma_row(self, name: str) -> WgmmaRow:
        """The warpgroup row of that name. KeyError when the target has none."""
        for row in self.wgmma:
            if row.name == name:
                return row
        raise KeyError(name)

    def find_wgmma(
        self, a: object, b: object, acc: object, k: int, rounds_to: str = ""
    ) -> WgmmaRow | None:
        """As `find_mma`, for instructions of warpgroups."""
        for row in self.wgmma:
            if (row.a, row.b, row.acc, row.rounds_to) == (a, b, acc, rounds_to) and k % row.k == 0:
                return row
        return None

    def find_mma(
        self, a: object, b: object, acc: object, k: int, rounds_to: str = ""
    ) -> MmaRow | None:
        """The first row for these element types whose depth divides `k`; None if there is none."""
        for row in self.mma:
            if (row.a, row.b, row.acc, row.rounds_to) == (a, b, acc, rounds_to) and k % row.k == 0:
                return row
        return None
