"""`python -m tessera`: help, and command lines that make no sense."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tessera.__main__ import COMMANDS, main


@pytest.mark.parametrize("word", ["--help", "-h", "help"])
def test_help_is_no_failure(word: str, capsys: pytest.CaptureFixture[str]):
    assert main([word]) == 0
    shown = capsys.readouterr()
    assert not shown.err
    assert all(f"python -m tessera {command}" in shown.out for command in COMMANDS)


@pytest.mark.parametrize("args", [[], ["unknown"], ["run"], ["run", "-m"]])
def test_other_command_lines_say_what_there_is(args: list[str], capsys: pytest.CaptureFixture[str]):
    assert main(args) == 2
    shown = capsys.readouterr()
    assert not shown.out and shown.err.startswith("usage: python -m tessera")


def test_as_a_program():
    ran = subprocess.run(
        [sys.executable, "-m", "tessera", "--help"], capture_output=True, check=False
    )
    assert ran.returncode == 0 and b"usage:" in ran.stdout


TIR = """
module {} {
  func {name='f'} (%x: i32) {
    %y: i32 = neg %x
    print [%x]
    return []
  }
}
"""


def test_opt_prints_each_module_after_the_passes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    file = tmp_path / "two.tir"
    file.write_text(f"{TIR}// -----\n{TIR}")
    assert main(["opt", "--passes=canonicalize", str(file)]) == 0
    first, second = capsys.readouterr().out.split("// -----\n")
    assert first.strip() == second.strip() == TIR.replace("    %y: i32 = neg %x\n", "").strip()
    assert main(["opt", "--passes=canonicalize", "--disable=canonicalize", str(file)]) == 0
    assert "neg" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--passes=nonsense"], "no pass 'nonsense'"),
        (["--passes=cse}"], "not a pipeline"),
        (["--passes=coalesce"], "pass 'coalesce' needs a GPU: --target=sm_90, not ''"),
        (["--disable=csee"], "csee"),
    ],
)
def test_opt_reports_mistakes(
    options: list[str], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    file = tmp_path / "one.tir"
    file.write_text(TIR)
    assert main(["opt", *options, str(file)]) == 1
    shown = capsys.readouterr()
    assert not shown.out and told in shown.err
    assert main(["opt", str(tmp_path / "absent.tir")]) == 1
