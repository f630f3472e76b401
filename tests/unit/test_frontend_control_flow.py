"""Control flow of kernels against Python's: one function, run by the interpreter over its IR and by Python itself."""

from typing import Any

import pytest

from tests.unit.structured_functions import FUNCTIONS, NUMBERS, host_callees, run

__all__ = ["host_callees"]


@pytest.mark.parametrize("f", FUNCTIONS, ids=lambda f: f.__name__)
def test_same_as_python(f: Any, request: pytest.FixtureRequest):
    compiled = [run(f, n) for n in NUMBERS]
    request.getfixturevalue("host_callees")
    assert compiled == [f.fn(n) for n in NUMBERS]
