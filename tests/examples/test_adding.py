"""docs/adding.md adds an operation, a pass and a dtype: the code runs as it stands."""

from __future__ import annotations

import os
import re
import shutil
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


def blocks_of(section: str, kind: str) -> list[str]:
    """The blocks of code under a heading of the first level."""
    text = (ROOT / "docs" / "adding.md").read_text()
    (found,) = [
        part
        for part in re.split(r"^# ", text, flags=re.MULTILINE)
        if part.startswith(f"{section}\n")
    ]
    return re.findall(rf"```{kind}\n(.*?)```", found, flags=re.DOTALL)


def execute(parts: list[str], folder: Path, root: Path = ROOT) -> None:
    """Run a script in a process of its own: what it registers stays for good."""
    script = folder / "adding.py"
    script.write_text("\n".join(parts))
    path = os.pathsep.join([str(root), *filter(None, sys.path)])
    run = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, cwd=root, timeout=120,
        env={"PYTHONPATH": path, "TESSERA_CACHE_DIR": str(folder), "PATH": "/usr/bin:/bin"},
    )  # fmt: skip
    assert run.returncode == 0, run.stderr


@pytest.mark.parametrize("use", USE)
def test_the_operation_works(use: str, tmp_path: Path) -> None:
    blocks = blocks_of("Adding an operation", "python")
    assert len(blocks) == 6
    execute([*blocks, "from tessera.runtime.driver import driver", USE[use]], tmp_path)


CHECKED = """
from pathlib import Path
from tests.filecheck_kit import CheckFile, cases_of
cases = cases_of(CheckFile(Path({path!r})))
assert {{case.name: case.fires for case in cases if case.run.prefix == "CHECK"}} == {{
    "power_of_two": True, "other_numbers": False
}}
for case in cases:
    assert case.section.holds(case.run.prefix, case.result)
    assert case.fires != case.section.holds(case.run.prefix, case.without)
"""


def test_the_pass_works(tmp_path: Path) -> None:
    blocks = blocks_of("Adding a pass", "python")
    (text,) = blocks_of("Adding a pass", "text")
    assert len(blocks) == 3
    execute([*blocks, "test_unsigned_remainder()"], tmp_path)
    pytest.importorskip("filecheck")
    file = tmp_path / "unsigned-remainder.tir"
    file.write_text(text)
    execute([*blocks, CHECKED.format(path=str(file))], tmp_path)


@pytest.fixture(scope="module")
def with_the_row(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of tessera with the row of the new dtype, and its name where the text says."""
    root = tmp_path_factory.mktemp("copy")
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "tessera", root / "tessera", ignore=ignored)
    row = blocks_of("Adding a dtype", "python")[0]
    for file, old, new in (
        ("dtypes.py", "\nSIGNED_INTS", f"{row}\nSIGNED_INTS"),
        ("dtypes.py", "float8e4b15)", "float8e4b15, float8e3m4)"),
        ("dtypes.py", '"fp8e4b15", "fp8e4nv"', '"fp8e3m4", "fp8e4b15", "fp8e4nv"'),
        ("dtypes.py", '"float8e4b15", "float8e4b8"', '"float8e3m4", "float8e4b15", "float8e4b8"'),
    ):
        path = root / "tessera" / file
        assert path.read_text().count(old) == 1, old
        path.write_text(path.read_text().replace(old, new))
    return root


@pytest.mark.parametrize("where", ["interpreter", "cpu", "simt"])
def test_the_dtype_works(where: str, with_the_row: Path, tmp_path: Path) -> None:
    _, test = blocks_of("Adding a dtype", "python")
    use = f"from tessera.runtime.driver import driver\ndriver.set_active('{where}')\ntest_float8e3m4()"
    execute([test, use], tmp_path, with_the_row)
