"""`python -m tessera`: help, and command lines that make no sense."""

from __future__ import annotations

import subprocess
import sys

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
