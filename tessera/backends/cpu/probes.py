"""Finds the features that LLVM uses for a processor known only by name, in the code of small functions.

LLVM cannot be asked for a processor's features, and an intrinsic that the processor lacks would end the process. So
each probe is ordinary IR, and the instruction that it becomes reveals the feature.
"""

from __future__ import annotations

import re
from functools import lru_cache

from tessera.backends.cpu.llvm_text import ATTRIBUTES
from tessera.backends.llvm.binding import Target, optimise

# Feature → (result, declarations, parameters, body, pattern that its assembly contains if the feature is used).
PROBES = {
    "avx2": ("<8 x i32>", "", "<8 x i32> %x", "%y = add <8 x i32> %x, %x", "vpaddd.*ymm"),
    "fma": (
        "float", "declare float @llvm.fma.f32(float, float, float)", "float %x",
        "%y = call float @llvm.fma.f32(float %x, float %x, float %x)", "vfmadd",
    ),
    "f16c": ("float", "", "i16 %x", "%h = bitcast i16 %x to half\n %y = fpext half %h to float", "vcvt(ph2ps|sh2ss)"),
    "avx512f": ("<16 x float>", "", "<16 x float> %x", "%y = fadd <16 x float> %x, %x", "vaddps.*zmm"),
    "avx512bw": ("<32 x i16>", "", "<32 x i16> %x", "%y = add <32 x i16> %x, %x", "vpaddw.*zmm"),
    "avx512dq": ("<8 x i64>", "", "<8 x i64> %x", "%y = mul <8 x i64> %x, %x", "vpmullq.*zmm"),
    "avx512vl": (
        "<4 x i64>", "declare <4 x i64> @llvm.abs.v4i64(<4 x i64>, i1)", "<4 x i64> %x",
        "%y = call <4 x i64> @llvm.abs.v4i64(<4 x i64> %x, i1 false)", "vpabsq.*ymm",
    ),
    "avx512bf16": (
        "<16 x bfloat>", "", "<16 x float> %x", "%y = fptrunc <16 x float> %x to <16 x bfloat>", "vcvtneps2bf16.*zmm",
    ),
    "avx512vnni": (
        "<4 x i32>", "declare <4 x i32> @llvm.x86.sse2.pmadd.wd(<8 x i16>, <8 x i16>)",
        "<8 x i16> %a, <8 x i16> %b, <4 x i32> %c",
        "%p = call <4 x i32> @llvm.x86.sse2.pmadd.wd(<8 x i16> %a, <8 x i16> %b)\n %y = add <4 x i32> %p, %c",
        "vpdpwssd",
    ),
}  # fmt: skip


@lru_cache(maxsize=16)
def features_used(machine: Target) -> frozenset[str]:
    """Return those of PROBES that LLVM uses in code for an x86 machine."""
    return frozenset(name for name in PROBES if _uses(machine, name))


def _uses(machine: Target, feature: str) -> bool:
    result, declarations, parameters, body, instruction = PROBES[feature]
    text = f"{declarations}\ndefine {result} @f({parameters}) {ATTRIBUTES} {{\n {body}\n ret {result} %y\n}}\n"
    return re.search(instruction, optimise(text, machine, "").to_assembly()) is not None
