"""Pages become notebooks, whose cells run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tools.site.code import ROOT, blocks

nbformat = pytest.importorskip("nbformat")
pytest.importorskip("IPython")


def test_a_notebook_has_the_code_and_the_outputs(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tools.site.notebooks", str(tmp_path), "09-debugging"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    path = tmp_path / "09-debugging.ipynb"
    made = nbformat.read(path, as_version=4)
    nbformat.validate(made)
    code = [cell for cell in made.cells if cell.cell_type == "code"]
    page = (ROOT / "docs/tutorials/09-debugging.md").read_text("utf-8")
    assert len(code) == len([b for b in blocks(page) if b.language in ("python", "sh")])
    text = json.dumps(made)
    for found in (
        "out-of-bounds",
        "not-finite",
        "error[race]",
        "loop-carried-type",
        "%%writefile race.py",
    ):
        assert found in text
    assert all("attachments" in cell for cell in made.cells if "attachment:" in cell.source)
    assert "(images/" not in text and str(tmp_path) not in text


def test_a_cell_that_fails_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tools.site import notebooks

    (tmp_path / "wrong.md").write_text("# Wrong\n\n```python\n1 / 0\n```\n")
    monkeypatch.setattr(notebooks, "TUTORIALS", tmp_path)
    with pytest.raises(notebooks.CellError):
        notebooks.notebook(tmp_path / "wrong.md")
