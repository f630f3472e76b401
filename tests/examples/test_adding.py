"""docs/adding.md adds an operation: its code, as it stands, runs on the interpreter, the CPU and the simulated GPU."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
USE = {
    "interpreter": "driver.set_active('interpreter')\ntest_reverse_bits()",
    "cpu": "driver.set_active('cpu')\ntest_reverse_bits()",
    "simt": "driver.set_active('simt')\ntest_reverse_bits()",
    "a float": """
from tessera.errors import TypeMismatch
try:
    kernel[(1,)](np.zeros(16, np.float32), 16)
except TypeMismatch as error:
    assert 'takes integers, not fp32' in str(error)
else:
    raise AssertionError('no error')
""",
    "text": """
from tessera.ir import parse_module, print_module, verify
text = "module {} {\\n  func {name='k'} (%i: i32) {\\n    %0: i32 = reverse_bits %i\\n    return []\\n  }\\n}\\n"
verify(parse_module(text))
assert print_module(parse_module(text)) == text
""",
}


@pytest.mark.parametrize("use", USE)
def test_the_operation_works(use: str, tmp_path: Path) -> None:
    text = (ROOT / "docs" / "adding.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    assert len(blocks) == 6
    script = tmp_path / "adding.py"  # a process of its own: ops are registered for good
    head = "from tessera.runtime.driver import driver\n"
    script.write_text("\n".join([*blocks, head, USE[use]]))
    run = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, cwd=ROOT, timeout=120,
        env={"PYTHONPATH": str(ROOT), "TESSERA_CACHE_DIR": str(tmp_path), "PATH": "/usr/bin:/bin"},
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
