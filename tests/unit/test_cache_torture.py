"""Many processes on one cache folder, killed and damaging files: never a wrong entry, never a crash. Transfer."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import tessera
import tessera.language as tl
from tessera.config import knobs
from tessera.errors import TesseraError
from tessera.runtime.cache.disk import SUFFIX, disk_cache
from tessera.tools import cli

SCRIPT = Path(__file__).with_name("cache_torture.py")
ROOT = str(Path(__file__).resolve().parents[2])


@pytest.fixture(autouse=True)
def launcher_elsewhere():
    """What launches need of native code is in a cache too: not in the folders that are counted here."""
    with knobs.scope():
        knobs.runtime.default_backend = "cpu"
        run(tessera.jit(double.fn))


def start(folder: Path, seed: int, seconds: float) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, str(SCRIPT), str(folder), str(seed), str(seconds)],
        env={**os.environ, "PYTHONPATH": ROOT}, stderr=subprocess.PIPE,
    )  # fmt: skip


def torture(folder: Path, processes: int, seconds: float, kills: float) -> int:
    """Keep `processes` running for `seconds`, kill one `kills` times a second; returns how many ended by themselves."""
    rng = random.Random(1)
    end = time.monotonic() + seconds
    running = [start(folder, n, seconds) for n in range(processes)]
    seed, ended = processes, 0
    while time.monotonic() < end:
        time.sleep(1 / kills)
        victim = running.pop(rng.randrange(len(running)))
        victim.send_signal(signal.SIGKILL)
        victim.communicate()
        assert victim.returncode in (0, -signal.SIGKILL)
        seed += 1
        running.append(start(folder, seed, max(0.0, end - time.monotonic())))
    for process in running:
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors.decode()
        ended += 1
    return ended


def test_a_few_processes(tmp_path: Path):
    assert torture(tmp_path, processes=4, seconds=4.0, kills=2.0) == 4


@pytest.mark.slow
def test_many_processes_for_a_while(tmp_path: Path):
    assert torture(tmp_path, processes=32, seconds=20.0, kills=8.0) == 32


def test_killed_writers_leave_nothing_that_is_read(tmp_path: Path):
    """Files of writers that were killed in the middle have other names than entries."""
    with knobs.scope():
        knobs.cache.dir = str(tmp_path)
        folder = tmp_path / "ab"
        folder.mkdir()
        (folder / ".leftover.tmp").write_bytes(b"half")
        assert disk_cache().keys() == []
        assert cli.cache(["clear"]) == 0


@tessera.jit
def double(x, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + i, tl.load(x + i, i < n) * 2, i < n)


def run(fn: tessera.JITFunction) -> None:
    x = np.arange(10, dtype=np.float32)
    fn[(2,)](x, 10, BLOCK=8)
    np.testing.assert_array_equal(x, 2 * np.arange(10))


def test_damaged_entries_of_kernels_are_compiled_again(tmp_path: Path):
    with knobs.scope():
        knobs.cache.dir, knobs.runtime.default_backend = str(tmp_path), "cpu"
        run(tessera.jit(double.fn))
        (file,) = tmp_path.glob(f"??/*{SUFFIX}")
        whole = file.read_bytes()
        for data in (
            whole[:100],
            whole[:-1],
            b"",
            whole[:200] + b"x" + whole[201:],
            whole + b"x",
            os.urandom(500),
        ):
            file.write_bytes(data)
            run(tessera.jit(double.fn))
            assert file.read_bytes()[:8] == whole[:8]
            assert len(file.read_bytes()) > 500


def test_export_and_import(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    with knobs.scope():
        knobs.runtime.default_backend = "cpu"
        knobs.cache.dir = str(tmp_path / "a")
        run(tessera.jit(double.fn))
        assert cli.cache(["export", str(tmp_path / "kernels.tgz")]) == 0
        assert cli.cache(["info"]) == 0
        assert "1 kernels" in capsys.readouterr().out
        keys = disk_cache().keys()
        knobs.cache.dir = str(tmp_path / "b")
        assert cli.cache(["import", str(tmp_path / "kernels.tgz")]) == 0
        assert disk_cache().keys() == keys
        assert disk_cache().get(keys[0]) is not None
        assert cli.cache(["clear", "--older", "1"]) == 0
        assert disk_cache().keys() == keys
        assert cli.cache(["clear"]) == 0
        assert disk_cache().keys() == []


def test_files_that_are_no_exports(tmp_path: Path):
    with knobs.scope():
        knobs.cache.dir = str(tmp_path / "c")
        bad = tmp_path / "bad.tgz"
        bad.write_bytes(b"no archive")
        with pytest.raises((TesseraError, OSError)):
            cli.import_cache(str(bad))
        assert cli.cache(["import", str(bad)]) == 1
        assert cli.cache(["import", str(tmp_path / "absent")]) == 1
        assert disk_cache().keys() == []


def test_shared_read_only_tier(tmp_path: Path):
    with knobs.scope():
        knobs.runtime.default_backend = "cpu"
        knobs.cache.dir = str(tmp_path / "team")
        run(tessera.jit(double.fn))
        knobs.cache.shared_dir, knobs.cache.dir = str(tmp_path / "team"), str(tmp_path / "mine")
        run(tessera.jit(double.fn))
        assert not list((tmp_path / "mine").glob(f"??/*{SUFFIX}"))  # found in the shared tier
