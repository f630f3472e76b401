"""The simulated GPU as a user meets it: TESSERA_DEVICE=simt, arrays and tensors of the host."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tessera
import tessera.language as tl
from tessera.backends.nvidia.simulator import launch, run_kernel
from tessera.config import knobs
from tessera.errors import InvalidOption, OutOfBounds, SimulatedHazard
from tessera.runtime.driver import driver

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


@pytest.fixture(autouse=True)
def on_the_simulator() -> Any:
    driver.set_active("simt")
    yield
    driver.reset_active()


@tessera.jit
def turned(x: Any, out: Any, N: tl.constexpr) -> None:
    i = tl.arange(0, N)
    tile = tl.load(x + i[:, None] * N + i[None, :])
    tl.store(out + i[:, None] * N + i[None, :], tl.trans(tile) + tl.sum(tile, 0)[:, None])


def square(n: int = 32) -> np.ndarray[Any, Any]:
    return np.arange(n * n, dtype=np.float32).reshape(n, n) % 7


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("latency", ["eager", "late", "random"])
def test_results_do_not_depend_on_when_things_happen(
    latency: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(knobs.simulator, "latency", latency)
    monkeypatch.setattr(knobs.simulator, "seed", seed)
    x, out = square(), np.zeros((32, 32), np.float32)
    turned[(1,)](x, out, N=32)
    np.testing.assert_array_equal(out, x.T + x.sum(0)[:, None])


def test_a_latency_that_does_not_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(knobs.simulator, "latency", "soon")
    with pytest.raises(InvalidOption, match=r"'soon'(.|\n)*eager, late, random"):
        turned[(1,)](square(), square(), N=32)


class Storage:
    """As much of a tensor of the host as launches ask for."""

    is_cuda = False

    def __init__(self, data: np.ndarray[Any, Any], dtype: str):
        self.array, self.dtype = data, dtype

    def data_ptr(self) -> int:
        return self.array.ctypes.data

    def untyped_storage(self) -> Any:
        return self

    def nbytes(self) -> int:
        return self.array.nbytes


def test_tensors_of_the_host() -> None:
    x, out = square(), np.zeros((32, 32), np.float32)
    turned[(1,)](Storage(x, "float32"), Storage(out, "float32"), N=32)
    np.testing.assert_array_equal(out, x.T + x.sum(0)[:, None])


def test_what_a_launch_reports(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr(knobs.simulator, "banks", True)
    x, out = square(), np.zeros((32, 32), np.float32)
    kernel: Any = turned[(1,)](x, out, N=32)
    report = kernel.simulation
    assert report.written["global"] == out.nbytes
    assert any(name.startswith("ld.global") for name in report.counts)
    assert report.banks and not report.uninitialised
    for where, traffic in report.banks.items():
        assert where[0].startswith("test_simt_device.py:")
        assert traffic.passes >= traffic.ideal >= traffic.accesses > 0
    assert "passes over the banks" in capsys.readouterr().err


def test_memory_that_nobody_wrote_is_reported() -> None:
    """The exchange through shared memory without its stores."""
    x, out = square(), np.zeros((32, 32), np.float32)
    kernel: Any = turned[(1,)](x, out, N=32)
    lines = [y for y in kernel.asm["llir"].splitlines() if "st.shared" not in y]
    with pytest.warns(RuntimeWarning, match=r"uninitialised reads of shared memory at test_simt_d"):
        run_kernel("\n".join(lines) + "\n", kernel.name, [x, out], 128, kernel.metadata.shared)
    assert np.isnan(out).any()


def test_an_access_outside_of_the_arrays_names_the_line() -> None:
    with pytest.raises(OutOfBounds, match=r"in no array(.|\n)*test_simt_device.py:\d+"):
        turned[(1,)](square(), np.zeros((8, 32), np.float32), N=32)


@tessera.jit
def meet(out: Any, arrived: Any, wanted: int, BY_LOAD: tl.constexpr) -> None:
    """Each program stores its number, waits until `wanted` have come, and reads what the next one stored."""
    p, programs = tl.program_id(0), tl.num_programs(0)
    tl.store(out + p, p + 10)
    tl.atomic_add(arrived, 1, sem="release")
    if BY_LOAD:
        while tl.load(arrived, volatile=True) < wanted:
            pass
    else:
        while tl.atomic_add(arrived, 0, sem="acquire") < wanted:
            pass
    tl.store(out + programs + p, tl.load(out + (p + 1) % programs, volatile=True))


@pytest.mark.parametrize("by_load", [False, True])
def test_programs_that_wait_for_others_take_turns(by_load: bool) -> None:
    out, arrived = np.zeros(10, np.int32), np.zeros(1, np.int32)
    meet[(5,)](out, arrived, 5, BY_LOAD=by_load)
    assert out.tolist() == [10, 11, 12, 13, 14, 11, 12, 13, 14, 10]


def test_programs_that_wait_for_ever_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "MOST_TURNS", 4)
    out, arrived = np.zeros(6, np.int32), np.zeros(1, np.int32)
    with pytest.raises(SimulatedHazard, match=r"every program waits(.|\n)*test_simt_device.py:\d+"):
        meet[(3,)](out, arrived, 4, BY_LOAD=False)
