"""Where processes live badly: odd locales, full disks, folders that go away, absurd names, endless grids, threads."""

from __future__ import annotations

import linecache
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tessera
import tessera.language as tl
from tessera.backends.compiler import GPUTarget
from tessera.backends.llvm.binding import host_features
from tessera.compiler import ASTSource, compile
from tessera.config import knobs
from tessera.errors import InvalidOption, LaunchError
from tessera.runtime.cache.disk import CacheWarning
from tests.unit.rough_kernels import add, launch

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def clean(tmp_path: Path):
    with knobs.scope():
        knobs.cache.dir = str(tmp_path / "cache")
        knobs.cache.dump_dir = str(tmp_path / "dump")
        knobs.runtime.default_backend = "cpu"
        knobs.autotuning.cache = True
        knobs.autotuning.processes = 0
        yield


def python(code: str, **environment: str) -> str:
    """What the code prints in a process with this environment; errors and warnings besides."""
    kept = {k: v for k, v in os.environ.items() if k not in environment}
    ran = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, timeout=100, check=False,
        env={**kept, **{k: v for k, v in environment.items() if v != "-"}},
    )  # fmt: skip
    return (ran.stdout + ran.stderr).decode(errors="replace")


LAUNCH = "import tests.unit.rough_kernels as k; print(k.launch())"


def test_a_locale_without_umlauts(tmp_path: Path):
    out = python(
        LAUNCH, LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0", TESSERA_KERNEL_DUMP="1", TESSERA_TIME="1"
    )  # fmt: skip
    assert "True" in out, out
    (shown,) = (tmp_path / "dump").glob("*/add.tir")
    assert "größe" in shown.read_text(encoding="utf-8")


@pytest.mark.parametrize("home", ["-", "/nonexistent", "/proc"])
def test_no_home(home: str):
    assert "True" in python(LAUNCH, HOME=home, TESSERA_CACHE_DIR="-")


@pytest.mark.parametrize("room", [0, 100, 3000])
def test_a_full_disk(tmp_path: Path, room: int):
    limit = f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({room},) * 2)"
    out = python(f"{limit}; {LAUNCH}")
    assert "True" in out
    assert "are kept in memory only" in out
    assert not [p for p in (tmp_path / "cache").rglob("*") if p.is_file()]


def test_a_cache_that_goes_away():
    folder = str(knobs.cache.dir)
    assert launch()
    shutil.rmtree(folder)
    add.device_caches.clear()
    assert launch()
    assert os.path.isdir(folder)
    shutil.rmtree(folder)
    Path(folder).touch()
    add.device_caches.clear()
    with pytest.warns(CacheWarning, match="Not a directory"):
        assert launch()


def test_a_cpu_that_there_is_not():
    assert "'i1000' is no CPU that LLVM knows" in python(LAUNCH, TESSERA_CPU="i1000")
    if "avx2" in host_features():
        assert "True" in python(LAUNCH, TESSERA_CPU="haswell")


# --- names and sources ------------------------------------------------------------------------------------------
def kernel_named(name: str, value: str = "1") -> Any:
    """As a cell of a notebook makes it: its text is in memory only."""
    text = (
        "import tessera\nimport tessera.language as tl\n@tessera.jit\n"
        f"def {name}(x, out, n, BLOCK: tl.constexpr):\n"
        "    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)\n"
        f"    tl.store(out + i, tl.load(x + i, i < n) + {value}, i < n)\n"
    )
    file = f"<cell {value} {len(name)}>"
    linecache.cache[file] = (len(text), None, text.splitlines(True), file)
    scope: dict[str, Any] = {}
    exec(__builtins__["compile"](text, file, "exec"), scope)  # type: ignore[index]
    return scope[name]


def test_kernels_made_again_under_the_same_name():
    first, second = kernel_named("same"), kernel_named("same", "n - 99")
    for _ in range(3):
        assert launch(first)
        assert launch(second)
        x, out = np.zeros(40, np.float32), np.zeros(40, np.float32)
        second[(2,)](x, out, 40, BLOCK=32)
        assert (out == -59).all()


def test_long_names():
    knobs.compilation.dump_ir = True
    one, other = kernel_named("k" * 5000), kernel_named("k" * 4999 + "j")
    assert launch(one)
    assert launch(other)
    names = {p.name for p in Path(str(knobs.cache.dump_dir)).glob("*/*.tir")}
    assert len(names) == 2
    tuned = tessera.autotune([tessera.Config({"BLOCK": b}) for b in (16, 32)], key=["n"])(one)
    x, out = np.zeros(64, np.float32), np.zeros(64, np.float32)
    tuned[lambda meta: (tessera.cdiv(64, meta["BLOCK"]),)](x, out, 64)
    assert (out == 1).all()
    assert len(list(Path(str(knobs.cache.dir)).glob("autotune/*.json"))) == 1


def test_a_file_in_place_of_a_stage(tmp_path: Path):
    source = ASTSource(add, {"x": "*fp32", "out": "*fp32", "n": "i32"}, {"BLOCK": 32})
    target = GPUTarget("cpu", "generic", 1)
    plain = compile(source, target)
    path = tmp_path / "mine.ttir"
    path.write_text(
        plain.asm["tir"].replace("value=0x1.0", "value=0x1.8").replace("'0x1.0", "'0x1.8"),
        encoding="utf-8",
    )
    changed = compile(source, target, {"ir_override": str(path)})
    assert changed.asm["tir"] == path.read_text(encoding="utf-8") != plain.asm["tir"]
    assert changed.asm["llir"] != plain.asm["llir"]
    before = changed.hash
    path.write_text(plain.asm["tir"], encoding="utf-8")
    again = compile(source, target, {"ir_override": str(path)})
    assert again.hash != before
    assert again.asm["object"] == plain.asm["object"]  # the text has no source lines
    with pytest.raises(InvalidOption, match="which cannot be read"):
        compile(source, target, {"ir_override": "/nowhere.tir"})


# --- grids and threads ------------------------------------------------------------------------------------------
@tessera.jit
def seven(out):
    tl.store(out, 7)


@pytest.mark.parametrize("grid", [(1 << 21, 1 << 21, 1 << 22), (1 << 30, 1 << 30, 1 << 3)])
def test_grids_without_end(grid: tuple[int, int, int]):
    out = np.zeros(1, np.int32)
    for turn in range(3):  # through Python, then natively
        seven[(turn,)](out)
        with pytest.raises(LaunchError, match=r"was not run: its grid has 2\^63 programs or more"):
            seven[grid](out)


def test_tuned_launches_of_many_threads():
    """Each launch has its own arguments, in hooks, too; one thread tunes at a time."""
    at_a_time: list[int] = []
    most: list[int] = [0]

    def watch(call: Any, quantiles: Any) -> list[float]:
        at_a_time.append(1)
        most[0] = max(most[0], len(at_a_time))
        for _ in range(3):
            call()
        at_a_time.pop()
        return [1.0] * 3

    def mark(args: dict[str, Any]) -> None:
        args["out"][:] = -args["n"]

    configs = [tessera.Config({"BLOCK": b}, pre_hook=mark) for b in (16, 32)]
    tuned = tessera.autotune(configs, key=["n"], do_bench=watch)(add)
    failures: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            for n in (seed % 3 + 40, seed + 50) * 40:
                x, out = np.arange(64, dtype=np.float32), np.zeros(64, np.float32)
                tuned[lambda meta: (tessera.cdiv(meta["n"], meta["BLOCK"]),)](x, out, n)
                assert (out[:n] == x[:n] + 1).all()
                assert (out[n:] == -n).all()
        except BaseException as error:
            failures.append(error)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    finally:
        sys.setswitchinterval(interval)
    assert not failures, failures[0]
    assert most == [1]
    assert tuned.nargs is None
