"""What `import tessera` loads: every program pays for it, also one whose kernels are all in the cache."""

from __future__ import annotations

import subprocess
import sys

import pytest

LATER = (
    *("bz2", "ctypes.util", "llvmlite", "numpy", "random", "shutil", "statistics", "tempfile"),
    *("tessera.backends.cpu.backend", "tessera.backends.gpu", "tessera.backends.nvidia"),
    *("tessera.frontend", "tessera.graph", "tessera.interp", "tessera.passes"),
)


@pytest.fixture(scope="module")
def loaded() -> set[str]:
    code = "import sys, tessera; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


@pytest.mark.parametrize("name", LATER)
def test_only_compilation_or_a_launch_loads(name: str, loaded: set[str]) -> None:
    assert name not in loaded
