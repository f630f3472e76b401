"""A back end of another distribution: found by its entry point, compiled and run by its own code."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

TOY = Path(__file__).resolve().parent / "toy"
ROOT = TOY.parents[2]

KERNELS = """
import numpy as np
import tessera
import tessera.language as tl
from tessera.backends.compiler import GPUTarget
from tessera.compiler import make_backend
from tessera.runtime import driver


@tessera.jit
def add(a, b, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(a + i, i < n) + tl.load(b + i, i < n), i < n)


@tessera.jit
def softmax(x, out, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    row = tl.program_id(0) * n
    v = tl.load(x + row + i, i < n, other=-float("inf"))
    e = tl.exp(v - tl.max(v, 0))
    tl.store(out + row + i, e / tl.sum(e, 0), i < n)


@tessera.jit
def totals(x, out, n, BLOCK: tl.constexpr):
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, n, BLOCK):
        i = start + tl.arange(0, BLOCK)
        total += tl.load(x + i, i < n)
    tl.store(out, tl.sum(total, 0))


@tessera.jit
def unknown(x):
    tl.store(x, tl.sin(tl.load(x)))

"""


def install(folder: Path, points: str | None = None) -> Path:
    """What installing the distribution leaves: its modules and its metadata."""
    project = tomllib.loads((TOY / "pyproject.toml").read_text())["project"]
    declared = project["entry-points"]["tessera.backends"]
    lines = [f"{name} = {value}" for name, value in declared.items()]
    site = folder / "site"
    info = site / f"tessera_toy-{project['version']}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    )
    (info / "entry_points.txt").write_text(
        "[tessera.backends]\n" + (points or "\n".join(lines)) + "\n"
    )
    return site


def run(tmp_path: Path, code: str, points: str | None = None) -> str:
    path = tmp_path / "program.py"
    path.write_text(KERNELS + code)
    site = install(tmp_path, points)
    environment = {
        **os.environ, "TESSERA_CACHE_DIR": str(tmp_path / "cache"),
        "PYTHONPATH": os.pathsep.join(map(str, (site, TOY / "src", ROOT))),
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, str(path)], env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_vector_add(tmp_path: Path):
    out = run(tmp_path, """
driver.set_active("toy")
a, b = np.random.default_rng(0).random((2, 1000), np.float32)
out = np.zeros_like(a)
kernel = add[(8,)](a, b, out, 1000, BLOCK=128)
assert (out == a + b).all()
print(kernel.target, *kernel.asm)
assert add[(8,)](a, b, out, 1000, BLOCK=128) is kernel
""")  # fmt: skip
    assert out == "toy:numpy source tir py\n"


def test_softmax_from_the_cache_too(tmp_path: Path):
    code = """
driver.set_active("toy")
x = np.random.default_rng(0).standard_normal((7, 100), np.float32)
out = np.zeros_like(x)
softmax[(7,)](x, out, 100, BLOCK=128)
e = np.exp(x - x.max(1, keepdims=True))
np.testing.assert_allclose(out, e / e.sum(1, keepdims=True), rtol=1e-5)
"""
    run(tmp_path, code)
    (tmp_path / "again").mkdir()
    os.rename(tmp_path / "cache", tmp_path / "again" / "cache")
    run(tmp_path / "again", code)


def test_loops(tmp_path: Path):
    run(tmp_path, """
driver.set_active("toy")
x, out = np.arange(1000, dtype=np.float32), np.zeros(1, np.float32)
totals[(1,)](x, out, 1000, BLOCK=64)
assert out[0] == 499500
""")  # fmt: skip


def test_an_op_that_it_lacks_is_an_error_of_the_kernel(tmp_path: Path):
    out = run(tmp_path, """
driver.set_active("toy")
try:
    unknown[(1,)](np.zeros(1, np.float32))
except tessera.CompilationError as error:
    print(error)
""")  # fmt: skip
    assert "the toy back end has no 'sin'" in out
    assert "tl.sin(tl.load(x))" in out


def test_the_default_by_the_environment(tmp_path: Path):
    out = run(tmp_path, """
import os
os.environ["TESSERA_DEFAULT_BACKEND"] = "toy"
print(driver.active.name, make_backend(GPUTarget("toy", "numpy", 1)).name)
""")  # fmt: skip
    assert out == "toy toy\n"


def test_a_target_that_nobody_offers(tmp_path: Path):
    out = run(tmp_path, """
try:
    make_backend(GPUTarget("abacus", 1, 1))
except tessera.TesseraError as error:
    print(error)
""")  # fmt: skip
    assert "no back end for target abacus:1" in out
    assert "toy" in out


@pytest.mark.parametrize(
    ("points", "why"),
    [
        ("toy = not_there", "No module named 'not_there'"),
        ("toy = json", "no class `compiler` derived from Backend"),
        ("other = tessera_toy", "its compiler calls itself 'toy'"),
    ],
)
def test_plug_ins_that_are_not(tmp_path: Path, points: str, why: str):
    out = run(tmp_path, f"""
try:
    driver.set_active({points.split(' ')[0]!r})
except tessera.TesseraError as error:
    print(error)
""", points)  # fmt: skip
    assert "error[plug-in]" in out
    assert why in out
