"""Addresses of the simulated GPU wrap at 64 bits, as those of a device do."""

from __future__ import annotations

from typing import Any

import numpy as np

import tessera
import tessera.language as tl
from tessera.runtime.driver import driver


@tessera.jit
def there_and_back(x, out, FAR: tl.constexpr):
    i = tl.arange(0, 16)
    p = x + i + 3 * FAR
    for _ in range(3):
        p -= FAR
    tl.store((out - FAR) + (i.to(tl.int64) + FAR), tl.load(p))


def run(device: str, far: int) -> Any:
    x, out = np.arange(16, dtype=np.int32), np.zeros(16, np.int32)
    driver.set_active(device)
    try:
        there_and_back[(1,)](x, out, far)
    finally:
        driver.reset_active()
    return out.tolist()


def test_far_offsets_that_cancel() -> None:
    for far in (2**33 + 16, -(2**33) - 16, 3):
        assert run("simt", far) == run("interpreter", far) == list(range(16))
