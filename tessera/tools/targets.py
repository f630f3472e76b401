"""Reads the names of targets on a command line: `sm_90`, `cpu`, `avx2`, `simt`."""

from __future__ import annotations

import re

from tessera.backends.compiler import GPUTarget
from tessera.backends.cpu.target import LEVELS
from tessera.errors import LaunchError


def target_named(name: str) -> GPUTarget:
    """Return the target `sm_90` (or `cuda:90`), `cpu`, an instruction set of CPUs, or `simt`, a simulated GPU."""
    found = re.fullmatch(r"(?:sm_?|cuda:)(\d+)a?", name)
    if found:
        return GPUTarget("cuda", int(found[1]), 32)
    if name in ("cpu", "native"):
        return GPUTarget("cpu", "native", 1)
    if name.removeprefix("cpu:") in LEVELS:
        return GPUTarget("cpu", name.removeprefix("cpu:"), 1)
    if name == "simt":
        return GPUTarget("simt", 90, 32)
    raise LaunchError(
        f"there is no target {name!r}",
        help=f"targets: sm_80, sm_90, cpu, {', '.join(LEVELS)}, simt",
    )
