"""docs/explain.md shows what its program prints."""

from __future__ import annotations

import contextlib
import io
import re
import runpy
from pathlib import Path

import pytest

from tessera.backends.nvidia import ptxas
from tessera.errors import ToolNotFound
from tessera.runtime.cuda import driver_api as cuda

PAGE = Path(__file__).resolve().parents[2] / "docs" / "explain.md"


def test_the_report_of_the_page(tmp_path: Path) -> None:
    if cuda.available():
        pytest.skip("the machine is the one of the page only where there is no GPU")
    try:
        ptxas.find_tool("nvdisasm")
    except ToolNotFound:
        pytest.skip("registers by line are those that nvdisasm knows")
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    shown = PAGE.read_text().partition("prints\n\n```\n")[2].partition("\n```\n")[0]
    file = tmp_path / "explained.py"
    file.write_text(code)
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        runpy.run_path(str(file))
    said = out.getvalue().replace(str(file), "explained.py").rstrip("\n")
    walked = re.compile(r"\d+ of the 64 programs")  # as many as time allows
    assert walked.sub("", said) == walked.sub("", shown)
