"""Kernels whose programs race or read what nothing has stored, and what a checked launch reports of them."""

from __future__ import annotations

import pytest

from tessera import errors

SUM = """
    def k(total, x):
        t = tl.load(total)
        tl.store(total, t + tl.load(x + tl.program_id(0)))
"""


SUM_TEXT = """
    error[race]: program (1, 0, 0) reads element 0 of `total`, which program (0, 0, 0) has stored
      --> kernel.py:7:9 in k (at 2:8:)
       |
     7 |     t = tl.load(total)
       |         ^^^^^^^^^^^^^^
      = note: the other access is at kernel.py:8:5
      = help: programs run in any order: store elements of a program's own, use `tl.atomic_add`, or launch twice
"""

UNSET = """
    def k(total, x):
        first = tl.load(x + tl.program_id(0))
        tl.store(total + tl.program_id(0) * 0, first)
"""

UNSET_TEXT = """
    error[uninitialised-read]: program (0, 0, 0) reads element 0 of `x`, which nothing has stored
      --> kernel.py:7:13 in k (at 2:12:)
       |
     7 |     first = tl.load(x + tl.program_id(0))
       |             ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
      = help: store the element before (all of them: compare masks and grids), or fill the array on the host
"""

CASES = [
    pytest.param(errors.ProgramRace, SUM, SUM_TEXT, id="a sum"),
    pytest.param(
        errors.UninitialisedRead, UNSET, UNSET_TEXT, id="an element that nothing has stored"
    ),
]
