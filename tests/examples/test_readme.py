"""The code of the README runs as it stands."""

from __future__ import annotations

import re
import runpy
import textwrap
from pathlib import Path

import numpy as np
import pytest

from tessera.errors import LoopCarriedType, ToolNotFound

ROOT = Path(__file__).resolve().parents[2]


def blocks() -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)


SUMS = """
    import tessera
    import tessera.language as tl

    @tessera.jit
    def total(x_ptr, n, BLOCK: tl.constexpr):
        acc = 0
        for i in range(0, n, BLOCK):
            x = tl.load(x_ptr + i + tl.arange(0, BLOCK))
            acc += x
        tl.store(x_ptr, tl.sum(acc))
"""


def test_the_error_is_what_the_compiler_says(tmp_path: Path) -> None:
    script = tmp_path / "sums.py"
    script.write_text(textwrap.dedent(SUMS).lstrip("\n"))
    (shown,) = re.findall(
        r"```\n(error.*?)\n```", (ROOT / "README.md").read_text(), flags=re.DOTALL
    )
    total = runpy.run_path(str(script))["total"]
    with pytest.raises(LoopCarriedType) as caught:
        total[(1,)](np.zeros(256, np.float32), 256, 128)
    found = str(caught.value).replace(f"{tmp_path}/", "")
    assert found == shown


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
