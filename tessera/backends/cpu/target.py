"""Describes the vector units of CPUs in frozen rows, chosen by the ISA name of a target or by the host's features."""

from __future__ import annotations

import ctypes
import platform
from dataclasses import dataclass, replace
from functools import cache

from tessera.backends.cpu.probes import features_used
from tessera.backends.llvm.binding import X86_LEVELS, Target, aarch64, host, host_features, x86
from tessera.config import knobs


@dataclass(frozen=True, slots=True)
class CpuFacts:
    """One instruction set level. `vector_bits` is the width that 32-bit lanes are grouped into.

    `dot_rows` x `dot_vectors` is the block of accumulators of the matrix microkernel. `half_convert`: fp16 conversions
    in hardware; `bf16_convert`: the same for fp32 to bf16; `edges`: special cases of floats in single instructions (x *
    2^n, minNum and maxNum, replacing special values); `bf16_dot`: dots of bf16 pairs run at twice the rate of fp32
    ones; `bytes_dot`: there are dots of four bytes; `words_dot`: there are dots of two 16-bit integers; `tiles`: a
    matrix unit for bf16 and bytes. `stream_bits`: the width for loops that hardly compute, if not `vector_bits`.
    `function_bits`: the same for loops with exponentials and the like, whose long chains of instructions leave units
    idle unless two registers take turns. `loses_masks`: LLVM 22 drops the mask of one half of a masked load wider
    than a register if it proves that half false: `and <8 x i1> %all, <1, 1, 1, 1, 0, 0, 0, 0>` loads eight doubles,
    or all halves if we split it ourselves. `masked_stores`: a store under a mask takes no longer than one without; on
    AMD's processors AVX2's takes 19 cycles, and SSE2 and NEON have none. `masked_lanes`: some lanes of a vector of
    addresses are read or written by an instruction; LLVM makes a branch for each lane elsewhere. `near_bytes`: of
    packed operands that are multiplied together, as an L2 cache holds."""

    name: str
    vector_bits: int
    dot_rows: int
    dot_vectors: int
    half_convert: bool
    bf16_convert: bool = False
    edges: bool = False
    bf16_dot: bool = False
    bytes_dot: bool = False
    words_dot: bool = False
    tiles: bool = False
    stream_bits: int = 0
    function_bits: int = 0
    loses_masks: bool = False
    masked_stores: bool = False
    masked_lanes: bool = False
    near_bytes: int = 2 << 20

    def __post_init__(self) -> None:
        assert self.vector_bits in (128, 256, 512) and self.dot_rows * self.dot_vectors <= 28

    @property
    def stream_lanes(self) -> int:
        """The lanes of a vector of 32-bit elements that are only loaded, added and stored."""
        return (self.stream_bits or self.vector_bits) // 32

    @property
    def function_lanes(self) -> int:
        """The lanes of 32-bit elements of which functions like exp are computed at once."""
        return (self.function_bits or self.vector_bits) // 32

    @property
    def lanes(self) -> int:
        """The lanes of a vector of 32-bit elements."""
        return self.vector_bits // 32


BASELINE = CpuFacts("baseline", 128, 3, 3, False)
AVX2 = CpuFacts(
    "avx2", 256, 4, 3, True, loses_masks=True, words_dot=True, function_bits=512, near_bytes=512 << 10
)  # fmt: skip
AVX512 = CpuFacts(
    "avx512", 512, 6, 4, True, edges=True, masked_stores=True, masked_lanes=True, words_dot=True
)  # fmt: skip
AMX = replace(AVX512, name="amx", bf16_convert=True, bytes_dot=True, tiles=True)
NEON = CpuFacts("neon", 128, 6, 4, True)

SYS_ARCH_PRCTL, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA = 158, 0x1023, 18

FAST_PAIRS = ("znver4", "znver5", "znver6")  # elsewhere dots of pairs run at half the rate


@cache
def permitted() -> bool:
    """Request the tile registers from Linux: once a process, also for its threads and children."""
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        return False
    syscall = ctypes.CDLL(None).syscall
    return syscall(SYS_ARCH_PRCTL, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0


NEEDED = {
    "avx2": {"avx2", "fma", "f16c"},
    "avx512": {"avx512f", "avx512bw", "avx512vl", "avx512dq"},
    "amx": {"amx-tile", "amx-bf16", "amx-int8", "avx512bf16", "avx512vnni", "avx512vl", "avx512bw"},
}


def lacking(isa: str | int) -> str:
    """Return the features that this machine lacks to run code for an instruction set level, as text; "" if none."""
    missing = NEEDED.get(str(isa), set[str]()) - host_features()
    if missing:
        return ", ".join(sorted(missing))
    if isa == "amx" and not permitted():
        return "the system's permission to use the tile registers"
    return ""


def facts_of(features: frozenset[str], cpu: str = "") -> CpuFacts:
    """Return the best row that these LLVM features (and the CPU's LLVM name) allow."""
    if NEEDED["avx512"] <= features:
        pairs, bytes_ = "avx512bf16" in features, "avx512vnni" in features
        if NEEDED["amx"] <= features and permitted():
            return AMX
        name = "avx512" + ("_bf16" if pairs else "") + ("_vnni" if bytes_ else "")
        fast = pairs and cpu in FAST_PAIRS
        return replace(
            AVX512, name=f"{name}_{cpu}" if fast else name, bf16_convert=pairs, bf16_dot=fast,
            bytes_dot=bytes_, stream_bits=256 if fast else 0,  # halves of a vector move faster there
        )  # fmt: skip
    if NEEDED["avx2"] <= features:
        return AVX2
    return NEON if "neon" in features else BASELINE


LEVELS = {
    "baseline": BASELINE, "generic": BASELINE, "avx2": AVX2, "avx512": AVX512, "amx": AMX, "neon": NEON,
}  # fmt: skip


def resolve(arch: str | int = "native") -> tuple[Target, CpuFacts]:
    """Return LLVM target and facts for the `arch` of a cpu target; the knob cpu.isa overrides "native"."""
    isa = str(arch)
    if isa in ("native", ""):
        isa = knobs.cpu.isa or "native"
    if isa == "generic":
        isa = "baseline"
    if isa == "native" or (isa not in LEVELS and isa != "neon"):
        machine, features = host(isa), host_features()
        if isa != "native" and platform.machine() in ("x86_64", "AMD64"):
            features &= features_used(machine)
        return machine, facts_of(features, machine.cpu)
    return _level(isa), LEVELS[isa]


def _level(isa: str) -> Target:
    if isa == "neon":
        return aarch64()
    return host(isa) if platform.machine() in ("x86_64", "AMD64") else x86(X86_LEVELS[isa])
