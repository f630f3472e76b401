"""Parameters may have any name, also one that the code that binds arguments could have chosen."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tessera
import tessera.language as tl
from tessera.errors import LaunchError


@tessera.jit
def named_kernel(
    x: Any, s_x: Any, values: Any, error: Any, bind: Any, blamed: Any, d_bind: Any = 5
):
    i = tl.arange(0, 8)
    total = tl.load(x + i) * s_x + error + bind + blamed + d_bind
    tl.store(values + i, total)


def test_names_of_the_binders_own():
    x = np.arange(8, dtype=np.int32)
    for repeat in range(3):  # by way of Python, then native
        out = np.zeros(8, np.int32)
        named_kernel[(1,)](x, 3, out, 10, 200, 3000 + repeat)
        assert np.array_equal(out, 3 * x + 3215 + repeat)


def test_an_argument_that_no_kernel_takes_is_named():
    with pytest.raises(LaunchError) as caught:
        named_kernel[(1,)](np.zeros(8, np.int32), object(), 0, 0, 0, 0)
    assert "`s_x`" in str(caught.value)
