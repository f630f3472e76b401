"""The code of the README runs as it stands."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

from tessera.errors import ToolNotFound

ROOT = Path(__file__).resolve().parents[2]


def blocks() -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)


def test_code_blocks_run_in_order(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Kernels need their source in a file, so the blocks run as one script."""
    found = blocks()
    assert len(found) >= 2
    script = tmp_path / "readme.py"
    script.write_text("\n".join(found))
    try:
        runpy.run_path(str(script), run_name="__main__")
    except ToolNotFound:
        pytest.skip("needs ptxas for the cubin")
    printed = capsys.readouterr().out
    assert "module {" in printed
    assert ".visible .entry add" in printed
