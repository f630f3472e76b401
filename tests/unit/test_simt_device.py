"""The simulated GPU as a user meets it: TESSERA_DEVICE=simt, arrays and tensors of the host."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = """
import numpy as np
import tessera
import tessera.language as tl

@tessera.jit
def scale(x, out, n, N: tl.constexpr):
    i = tl.program_id(0) * N + tl.arange(0, N)
    tl.store(out + i, tl.load(x + i, i < n) * 2, i < n)

x, out = np.arange(300, dtype=np.float32), np.zeros(300, np.float32)
kernel = scale[(3,)](x, out, 300, N=128)
assert (out == 2 * x).all()
print(kernel.metadata.target.backend, kernel.metadata.target.arch)
"""


def run(tmp_path: Path, **env: str) -> subprocess.CompletedProcess[str]:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    root = str(Path(__file__).resolve().parents[2])
    env = {"PYTHONPATH": root, "TESSERA_CACHE_DIR": str(tmp_path), "PATH": "/usr/bin:/bin", **env}
    return subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=120, env=env
    )


def test_the_environment_chooses_it(tmp_path: Path) -> None:
    done = run(tmp_path, TESSERA_DEVICE="simt", TESSERA_SIMT_CAPABILITY="80")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "simt 80\n"


def test_a_device_that_does_not_exist(tmp_path: Path) -> None:
    done = run(tmp_path, TESSERA_DEVICE="gpu")
    assert done.returncode == 1
    assert "no driver 'gpu'" in done.stderr
    assert "simt" in done.stderr
