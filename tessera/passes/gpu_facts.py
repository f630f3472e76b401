"""Defines what GPU passes know about a GPU: frozen rows that a target fills in. No pass asks for an architecture."""

from __future__ import annotations

from dataclasses import dataclass

from tessera.dtypes import dtype, float32, float64

CTA_BYTES = 1024  # of shared memory that the system reserves for each CTA


@dataclass(frozen=True, slots=True)
class MmaRow:
    """One matrix instruction of a warp: acc[m,n] += a[m,k] @ b[k,n].

    `name` identifies the row in `MmaOp.instruction`; `asm` is how the target spells it. `operand_bits` is the
    width of an operand's element in the fragment layouts (`layout.mma_operand`). If `rounds_to` is set, operands
    are fp32 elements whose low mantissa bits the lowering must first round away ("tf32":
    `cvt.rn.tf32`, before sm_90 and for wgmma `cvt.rna.tf32`)."""

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
    """One matrix instruction of a warpgroup (four warps): acc[64,n] += a[64,k] @ b[k,n], n any multiple of 8 up to
    `max_n`.

    `asm` has a placeholder {n} for n. Shared operands are contiguous along K unless `transposable`. `rounds_to` is as
    in MmaRow, but the hardware itself drops the bits."""

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
    """Sizes and features of one GPU. Sizes are in bytes; registers are those of a thread, of 32 bits each."""

    warp_size: int = 32
    max_shared_bytes: int = 48 * 1024
    registers: int = 255
    register_file: int = 64 * 1024  # of an SM
    max_warps: int = 32
    max_ctas: int = 32  # resident on an SM at a time
    max_vector_bytes: int = 16
    has_cp_async: bool = False
    has_ldmatrix: bool = False
    has_stmatrix: bool = False
    has_redux: bool = False  # one instruction reduces words over a warp
    warp_exchanges: bool = True  # conversions may go through shared memory by warps
    has_tma: bool = False  # TMA copies, and mbarriers that count bytes
    has_clusters: bool = False  # CTAs of a cluster can access each other's shared memory
    has_register_handover: bool = False  # setmaxnreg: warps may give registers to others
    mma: tuple[MmaRow, ...] = ()
    wgmma: tuple[WgmmaRow, ...] = ()

    def ctas_that_fit(self, shared: int) -> int:
        """Return how many CTAs with that many bytes of shared memory an SM can hold."""
        return (self.max_shared_bytes + CTA_BYTES) // (shared + CTA_BYTES)

    def mma_row(self, name: str) -> MmaRow:
        """Return the row of that name. Raises KeyError if the target has none."""
        for row in self.mma:
            if row.name == name:
                return row
        raise KeyError(name)

    def wgmma_row(self, name: str) -> WgmmaRow:
        """Return the warpgroup row of that name. Raises KeyError if the target has none."""
        for row in self.wgmma:
            if row.name == name:
                return row
        raise KeyError(name)

    def find_wgmma(
        self, a: object, b: object, acc: object, k: int, rounds_to: str = ""
    ) -> WgmmaRow | None:
        """Like `find_mma`, for instructions of warpgroups."""
        for row in self.wgmma:
            if (row.a, row.b, row.acc, row.rounds_to) == (a, b, acc, rounds_to) and k % row.k == 0:
                return row
        return None

    def find_mma(
        self, a: object, b: object, acc: object, k: int, rounds_to: str = ""
    ) -> MmaRow | None:
        """Return the first row for these element types whose k divides the argument `k`; None if there is none."""
        for row in self.mma:
            if (row.a, row.b, row.acc, row.rounds_to) == (a, b, acc, rounds_to) and k % row.k == 0:
                return row
        return None
