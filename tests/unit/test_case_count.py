"""The language suite is as large as is claimed of it: operations × dtypes × shapes × targets."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_language_suite_has_thousands_of_cases() -> None:
    """Each case is one operation on one dtype and shape, on the interpreter or on the CPU, against NumPy."""
    options = ["--collect-only", "-q", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", "tests/lang", *options]
    out = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    count = re.search(r"(\d+) tests collected", out)
    assert count is not None
    assert int(count.group(1)) >= 4000
    for target in ("interpreter", "cpu"):
        assert len(re.findall(rf"::test_operation\[{target}-", out)) >= 500
