"""Replay: what a recording holds, what a comparison says of it, and two commits of a small repository."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

import tessera
from tessera.backends.compiler import GPUTarget
from tessera.compiler import ASTSource
from tessera.config import knobs
from tessera.tools.replay.__main__ import main
from tessera.tools.replay.compare import Comparison, Recording, summary, write_diffs
from tessera.tools.replay.inputs import recording

ROOT = Path(__file__).resolve().parents[2]
KERNEL = """
from types import SimpleNamespace

import tessera
import tessera.language as tl


@tessera.jit
def scale(x, out, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i) * 2.0)


def specimens():
    kinds = {"x": "*fp32", "out": "*fp32"}
    return [SimpleNamespace(kernel=scale, signature=kinds, constants={"BLOCK": 128}, options={})]
"""


# --- comparisons of made-up recordings ----------------------------------------------------------------------------
def made(path: Path, kernels: dict[str, dict[str, Any]]) -> Recording:
    """A recording of kernels: key → facts and, by level, products."""
    index = {}
    with zipfile.ZipFile(path, "w") as archive:
        for key, given in kernels.items():
            products = given.get("products", {})
            facts = {k: v for k, v in given.items() if k != "products"}
            index[key] = {"seconds": 0.5, "metadata": {}, "levels": list(products), **facts}
            for level, product in products.items():
                archive.writestr(f"{key}/{level}", product)
        archive.writestr("index.json", json.dumps(index))
    return Recording(path)


def compared(tmp_path: Path, before: dict[str, Any], after: dict[str, Any]) -> Comparison:
    return Comparison(made(tmp_path / "a.zip", before), made(tmp_path / "b.zip", after))


def test_what_differs_is_told_by_kernel_and_level(tmp_path: Path):
    before = {
        "same": {"products": {"ptx": "a", "llir": "b"}},
        "other code": {"products": {"gir": "x", "ptx": "a\nb"}, "registers": 64, "spills": 0},
        "other ir": {"products": {"gir": "x", "ptx": "a"}},
        "examples/one/gone@sm_90": {"products": {"ptx": "a"}},
    }
    after = {
        "same": {"products": {"ptx": "a", "llir": "b"}},
        "other code": {"products": {"gir": "x", "ptx": "a\nccc"}, "registers": 66, "spills": 0},
        "other ir": {"products": {"gir": "y", "ptx": "a"}},
        "new": {"products": {"ptx": "a"}},
    }
    found = compared(tmp_path, before, after)
    assert found.identical == ["other ir", "same"]
    assert found.renamed_ir == ["other ir"]
    assert (found.only_before, found.only_after) == (["examples/one/gone@sm_90"], ["new"])
    (change,) = found.changed
    assert (change.key, change.levels) == ("other code", ["ptx"])
    assert change.notes == ["64 → 66 registers", "3 → 5 bytes of ptx", "500 → 500 ms"]
    text = summary(found)
    assert "only before: examples/one: gone\n" in text
    assert "2 identical, 1 changed, 1 only before, 1 only after" in text
    assert "changed: other code: ptx; 64 → 66 registers" in text
    assert write_diffs(found, tmp_path / "diffs") == 2
    diff = (tmp_path / "diffs" / "other_code.ptx.diff").read_text()
    assert "-b\n+ccc\n" in diff


def test_comments_do_not_count(tmp_path: Path):
    """LLVM numbers the calls of a whole process in comments; ours name primitives."""
    before = {"k": {"products": {"ptx": "{ // callseq 6, 0\nret;", "llir": "; primitive a\nret\n"}}}
    after = {"k": {"products": {"ptx": "{ // callseq 4, 0\nret;", "llir": "; primitive b\nret\n"}}}
    assert compared(tmp_path, before, after).identical == ["k"]
    after["k"]["products"]["llir"] = "; primitive b\nret 1\n"
    assert [c.levels for c in compared(tmp_path, before, after).changed] == [["llir"]]


def test_folders_of_source_files_do_not_count(tmp_path: Path):
    remark = "module {remarks=['pointers for the tiles of the loop at %s: no strided view']} {}"
    before = {"k": {"products": {"gir": remark % "/tmp/tessera-fuzz-a1/fuzz_3.py:4:9", "ptx": "x"}}}
    after = {"k": {"products": {"gir": remark % "/tmp/tessera-fuzz-b2/fuzz_3.py:4:9", "ptx": "x"}}}
    found = compared(tmp_path, before, after)
    assert (found.identical, found.renamed_ir) == (["k"], [])
    after["k"]["products"]["gir"] = remark % "/tmp/tessera-fuzz-b2/fuzz_3.py:5:9"
    assert compared(tmp_path, before, after).renamed_ir == ["k"]


def test_registers_alone_are_a_change(tmp_path: Path):
    found = compared(tmp_path, {"k": {"registers": 32}}, {"k": {"registers": 40}})
    assert [str(c) for c in found.changed] == ["k: ; 32 → 40 registers, 500 → 500 ms"]


def test_failures_are_compared_by_their_text(tmp_path: Path):
    before = {"a": {"error": "E: no"}, "b": {"error": "E: no"}, "c": {}}
    after = {"a": {"error": "E: no"}, "b": {}, "c": {"error": "E: no"}}
    found = compared(tmp_path, before, after)
    assert found.fails == ["a: E: no"]
    assert [c.notes for c in found.changed] == [["E: no → compiled"], ["compiled → E: no"]]
    assert write_diffs(found, tmp_path / "diffs") == 0


def test_other_metadata_is_mentioned(tmp_path: Path):
    found = compared(tmp_path, {"k": {"metadata": {"old": "1"}}}, {"k": {"metadata": {"new": "1"}}})
    assert not found.changed
    assert "the same code with other metadata: new (1), old (1)" in summary(found)


# --- commits ------------------------------------------------------------------------------------------------------
def git(*arguments: str) -> None:
    names = ("-c", "user.name=t", "-c", "user.email=t@t")
    subprocess.run(["git", *names, *arguments], check=True, capture_output=True)


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A repository with one kernel, and tessera as a folder in it; the current folder."""
    folder = tmp_path / "repository"
    (folder / "examples").mkdir(parents=True)
    (folder / "examples" / "one.py").write_text(KERNEL)
    monkeypatch.chdir(folder)
    for path in (ROOT / "tessera").rglob("*"):
        if path.suffix in (".py", ".json", ".typed"):
            target = folder / path.relative_to(ROOT)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(path.read_bytes())
    git("init", "-q")
    git("add", "-A")
    git("commit", "-qm", "one")
    with knobs.scope():
        knobs.cache.dir = str(tmp_path / "cache")
        yield folder


def test_two_commits(repository: Path, capsys: pytest.CaptureFixture[str]):
    example = repository / "examples" / "one.py"
    example.write_text(example.read_text().replace("* 2.0", "* 3.0"))
    arguments = ["compare", "HEAD", "--targets", "sm_90,avx2", "--jobs", "1"]
    assert main(arguments) == 1
    shown = capsys.readouterr().out
    assert "2 changed" in shown
    assert "changed: examples/one/scale@avx2: tir, llir" in shown
    assert "changed: examples/one/scale@sm_90: tir, gir, llir, ptx" in shown
    git("commit", "-qam", "two")
    assert main(["compare", "HEAD~1", "HEAD", *arguments[2:], "--allow"]) == 0
    assert "2 changed" in capsys.readouterr().out
    assert main(["compare", "HEAD", "HEAD", *arguments[2:]]) == 0
    assert capsys.readouterr().out.startswith("2 identical\n")


def test_a_commit_that_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    git("init", "-q")
    assert main(["compare", "HEAD~1"]) == 2
    assert main(["compare", "HEAD~1", "--allow"]) == 0
    assert "nothing is compared: no commit HEAD~1 here" in capsys.readouterr().err


# --- inputs of programs -------------------------------------------------------------------------------------------
def test_recorded_inputs_compile_to_the_same_code(tmp_path: Path):
    path = tmp_path / "one.py"
    path.write_text(KERNEL)
    made = {}
    exec(compile(path.read_text(), str(path), "exec"), made)
    specimen = made["specimens"]()[0]
    kinds = {**specimen.signature, "BLOCK": "constexpr"}
    source = ASTSource(specimen.kernel, kinds, specimen.constants)
    target = GPUTarget("cpu", "avx2", 1)
    with recording(tmp_path / "inputs"):
        kernel = tessera.compile(source, target=target, options={"num_warps": 8})
    (text,) = (tmp_path / "inputs").glob("scale-*.tir")
    facts = json.loads(text.with_suffix(".json").read_text())
    assert facts == {"backend": "cpu", "options": {"num_warps": 8}}
    again = tessera.compile(str(text), target=target, options=facts["options"])
    assert again.asm["object"] == kernel.asm["object"]  # text has no source lines


def test_a_program_is_recorded(tmp_path: Path):
    program = ROOT / "tests" / "unit" / "rough_kernels.py"
    command = [sys.executable, "-m", "tessera.tools.replay", "record", "inputs", str(program)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TESSERA_DEVICE": "cpu"}
    subprocess.run(command, check=True, cwd=tmp_path, env=environment, capture_output=True)
    assert list((tmp_path / "inputs").glob("add-*.tir"))
