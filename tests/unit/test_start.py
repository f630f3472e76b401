"""What a process that launches cached kernels does without is not imported by `import tessera`."""

from __future__ import annotations

import subprocess
import sys

import pytest

LATER = (
    *(
        "bz2",
        "ctypes.util",
        "llvmlite",
        "numpy",
        "random",
        "shutil",
        "statistics",
        "tempfile",
        "torch",
    ),
    *("tessera.backends.cpu.backend", "tessera.backends.cpu.lowering"),
    *("tessera.backends.gpu", "tessera.backends.gpu.lowering", "tessera.backends.nvidia"),
    *(
        "tessera.frontend",
        "tessera.graph",
        "tessera.interp",
        "tessera.interp.machine",
        "tessera.passes",
    ),
)


@pytest.fixture(scope="module")
def loaded() -> set[str]:
    """The modules that `import tessera` adds to those with which this Python begins, `.pth` files included."""
    code = "import sys; old = {*sys.modules}; import tessera; print(*{*sys.modules} - old)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


@pytest.mark.parametrize("module", LATER)
def test_importing_tessera_loads_no_compiler(module: str, loaded: set[str]) -> None:
    assert "tessera.runtime.jit" in loaded
    assert module not in loaded
