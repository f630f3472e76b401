"""What ptxas says of a kernel that the simulator ran."""

from __future__ import annotations

from typing import Any

from tessera.backends.llvm import binding
from tessera.backends.nvidia import ptxas
from tessera.backends.nvidia.backend import architecture


def facts(kernels: Any) -> str:
    """Of each kernel of a call: registers, bytes of spills and of shared memory, and warnings of ptxas (MMAs that it
    had to put one after the other)."""
    return "; ".join(map(_facts, kernels if isinstance(kernels, list) else [kernels]))


def _facts(kernel: Any) -> str:
    machine = binding.nvptx(architecture(90))
    found = ptxas.assemble(
        binding.optimise(kernel.asm["llir"], machine, "").to_assembly(), architecture(90)
    )
    spills = f", {found.spill_stores} bytes spilled" if found.spill_stores else ""
    warned = ", " + "; ".join(found.warnings) if found.warnings else ""
    return f"{found.registers} registers{spills}, {kernel.metadata.shared} bytes shared{warned}"
