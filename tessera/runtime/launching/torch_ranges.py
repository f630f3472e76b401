"""Shows launches on the CPU to torch's profiler, which sees kernels of GPUs by itself. torch is not imported for it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TypeAlias, cast

from tessera.compiler import CompiledKernel
from tessera.language.watching import Place

MODULE = "torch.autograd.profiler"
FLAG = "_is_profiler_enabled"  # torch sets it while it records
Range: TypeAlias = AbstractContextManager[object]


def _flags() -> dict[str, object]:
    return vars(sys.modules[MODULE]) if MODULE in sys.modules else {}


def places(kernel: CompiledKernel) -> list[Place]:
    """Return what native launches of a kernel have to watch: torch's profiler begins or ends."""
    flags = _flags()
    if kernel.target.backend == "cuda" or FLAG not in flags:
        return []
    return [Place(flags, FLAG, flags[FLAG])]


def recording(kernel: CompiledKernel) -> bool:
    """Whether torch's profiler runs and does not see the kernel by itself."""
    return kernel.target.backend != "cuda" and bool(_flags().get(FLAG))


def begin(kernel: CompiledKernel) -> Range:
    """Begin a range with the kernel's name; its `__exit__` ends it."""
    shown = cast(Callable[[str], Range], _flags()["record_function"])(kernel.name)
    shown.__enter__()
    return shown
