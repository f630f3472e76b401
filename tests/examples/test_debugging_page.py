"""docs/debugging.md asks for the facts of a narrow load: the code prints what the page says."""

from __future__ import annotations

import contextlib
import io
import re
import runpy
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs" / "debugging.md"


def test_why_a_load_is_narrow(tmp_path: Path) -> None:
    section = PAGE.read_text().partition("## Why is a load narrow?")[2].partition("\n## ")[0]
    (code,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    shown = [
        line[4:] for line in section.splitlines() if re.match("    (load|store|mask) Axis", line)
    ]
    file = tmp_path / "narrow.py"
    file.write_text(f"import tessera\nimport tessera.language as tl\n{code}")
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        kernel = runpy.run_path(str(file))["kernel"]
    assert out.getvalue().splitlines() == shown and len(shown) == 3
    assert "ld.global.b32" in kernel.asm["ptx"] and ".v4.b32" not in kernel.asm["ptx"]
