"""The programs that compute-sanitizer watches (benchmarks/sanitize.py) run to their end."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
for folder in (ROOT / "examples", ROOT / "benchmarks"):
    sys.path.insert(0, str(folder))

import sanitize  # noqa: E402

import common  # noqa: E402

every_program = pytest.mark.parametrize("name", sanitize.PROGRAMS)


@every_program
def test_on_the_cpu(name: str):
    sanitize.PROGRAMS[name](common.Device("cpu"))


@pytest.mark.gpu
@every_program
def test_on_the_gpu(name: str):
    import torch

    sanitize.PROGRAMS[name](common.Device("cuda"))
    torch.cuda.synchronize()


def test_counts_in_a_report():
    assert sanitize.counted("========= ERROR SUMMARY: 3 errors") == 3
    assert sanitize.counted("========= RACECHECK SUMMARY: 2 hazards displayed (2 errors)") == 2
    assert sanitize.counted("no report") == 0
