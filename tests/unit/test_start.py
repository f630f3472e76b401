"""What a process that launches cached kernels does without is not imported by `import tessera`."""

from __future__ import annotations

import subprocess
import sys

import pytest

LATER = (
    "llvmlite",
    "tessera.backends.cpu.lowering",
    "tessera.backends.gpu.lowering",
    "tessera.graph",
    "tessera.interp.machine",
    "torch",
)


@pytest.fixture(scope="module")
def loaded() -> set[str]:
    """The modules of a process that has imported tessera."""
    code = "import sys, tessera; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


@pytest.mark.parametrize("module", LATER)
def test_importing_tessera_loads_no_back_end(module: str, loaded: set[str]) -> None:
    assert "tessera.runtime.jit" in loaded
    assert module not in loaded
