"""Runs one kernel natively and with the interpreter and compares every array that it was given."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tessera.runtime.driver import driver


def native(kernel: Any, grid: Sequence[int], *args: Any, **constants: Any) -> Any:
    """Launch on the CPU back end; gives the compiled kernel."""
    driver.set_active("cpu")
    try:
        return kernel[tuple(grid)](*args, **constants)
    finally:
        driver.reset_active()


def interpreted(kernel: Any, grid: Sequence[int], *args: Any, **constants: Any) -> None:
    driver.set_active("interpreter")
    try:
        kernel[tuple(grid)](*args, **constants)
    finally:
        driver.reset_active()


def agree(
    kernel: Any,
    grid: Sequence[int],
    *args: Any,
    rtol: float = 0.0,
    atol: float = 0.0,
    **constants: Any,
) -> Any:
    """Both runs leave the same bytes in all array arguments (or close ones); gives the compiled kernel."""
    ours = [x.copy() if isinstance(x, np.ndarray) else x for x in args]
    theirs = [x.copy() if isinstance(x, np.ndarray) else x for x in args]
    compiled = native(kernel, grid, *ours, **constants)
    interpreted(kernel, grid, *theirs, **constants)
    for a, b in zip(ours, theirs, strict=True):
        if isinstance(a, np.ndarray):
            np.testing.assert_allclose(a, b, rtol=rtol, atol=atol)
    return compiled


def floats(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
