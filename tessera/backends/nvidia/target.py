"""Lists NVIDIA GPUs as rows of facts, by compute capability (major * 10 + minor)."""

from __future__ import annotations

from functools import lru_cache

from tessera.dtypes import (
    bfloat16,
    dtype,
    float8e4nv,
    float8e5,
    float16,
    float32,
    float64,
    int8,
    int32,
    uint8,
)  # fmt: skip
from tessera.passes.gpu_facts import GpuFacts, MmaRow, WgmmaRow


def _row(a: dtype, b: dtype, acc: dtype, rounds_to: str = "") -> MmaRow:
    m, n, k = (8, 8, 4) if a is float64 else (16, 8, 256 // a.bits)
    ta, tb, tc = rounds_to or a.ptx, rounds_to or b.ptx, acc.ptx
    asm = f"mma.sync.aligned.m{m}n{n}k{k}.row.col.{tc}.{ta}.{tb}.{tc}"
    return MmaRow(f"mma.m{m}n{n}k{k}.{tc}.{ta}.{tb}", asm, m, n, k, a, b, acc, rounds_to)


AMPERE_ROWS = (
    _row(float16, float16, float32),
    _row(float16, float16, float16),
    _row(bfloat16, bfloat16, float32),
    _row(float32, float32, float32, "tf32"),
    _row(int8, int8, int32),
    _row(uint8, uint8, int32),
    _row(int8, uint8, int32),
    _row(uint8, int8, int32),
    _row(float64, float64, float64),
)
FP8_ROWS = tuple(
    _row(a, b, float32) for a in (float8e4nv, float8e5) for b in (float8e4nv, float8e5)
)


def _wgmma(a: dtype, b: dtype, acc: dtype, rounds_to: str = "") -> WgmmaRow:
    k = 256 // a.bits
    ta, tb, tc = rounds_to or a.ptx, rounds_to or b.ptx, acc.ptx
    asm = f"wgmma.mma_async.sync.aligned.m64n{{n}}k{k}.{tc}.{ta}.{tb}"
    name = f"wgmma.m64k{k}.{tc}.{ta}.{tb}"
    return WgmmaRow(name, asm, k, a, b, acc, a.bits == 16, rounds_to)


HOPPER_ROWS = (
    _wgmma(float16, float16, float32),
    _wgmma(float16, float16, float16),
    _wgmma(bfloat16, bfloat16, float32),
    _wgmma(float32, float32, float32, "tf32"),
    _wgmma(int8, int8, int32),
    _wgmma(uint8, uint8, int32),
    _wgmma(int8, uint8, int32),
    _wgmma(uint8, int8, int32),
    *(_wgmma(a, b, float32) for a in (float8e4nv, float8e5) for b in (float8e4nv, float8e5)),
)

# Largest dynamic shared memory of one CTA after opt-in; the driver keeps 1 KiB of the physical size.
_SHARED_KIB = {
    80: 163, 86: 99, 87: 163, 89: 99, 90: 227, 100: 227, 103: 227, 110: 227, 120: 99, 121: 99,
}  # fmt: skip
# The first PTX ISA (major * 10 + minor) that has the target.
_OLDEST_PTX = {80: 70, 86: 71, 87: 74, 89: 78, 90: 80, 100: 86, 103: 88, 110: 90, 120: 87, 121: 88}
_CTAS = {80: 32, 86: 16, 89: 24, 90: 32, 120: 24}  # resident on an SM at a time


def _nearest(table: dict[int, int], capability: int) -> int:
    return table[max(c for c in table if c <= capability)]


def oldest_ptx(capability: int) -> int:
    """Return the first PTX ISA (major * 10 + minor) that has the target."""
    return _nearest(_OLDEST_PTX, capability)


@lru_cache
def facts_for(capability: int) -> GpuFacts:
    """Return the facts of a GPU by compute capability, e.g. 90; unknown newer ones get those of the nearest below."""
    return GpuFacts(
        max_shared_bytes=_nearest(_SHARED_KIB, capability) * 1024,
        max_ctas=_nearest(_CTAS, capability),
        has_cp_async=capability >= 80,
        has_ldmatrix=capability >= 75,
        has_stmatrix=capability >= 90,
        has_redux=capability >= 80,
        has_tma=capability == 90,
        has_clusters=capability >= 90,
        has_register_handover=capability == 90,
        mma=(AMPERE_ROWS if capability >= 80 else ()) + (FP8_ROWS if capability >= 89 else ()),
        wgmma=HOPPER_ROWS if capability == 90 else (),
    )
