"""A kernel whose text is not ASCII, for processes in odd surroundings: `python rough_kernels.py` launches it."""

# pyright: basic
from __future__ import annotations

import numpy as np

import tessera
import tessera.language as tl


@tessera.jit
def add(x, out, n, BLOCK: tl.constexpr):
    # Größe ≥ 0
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    größe = tl.load(x + i, i < n)
    tl.store(out + i, größe + 1, i < n)


def launch(kernel=add, n: int = 100, BLOCK: int = 32) -> bool:
    x, out = np.arange(n, dtype=np.float32), np.zeros(n, np.float32)
    kernel[(-(-n // BLOCK),)](x, out, n, BLOCK=BLOCK)
    return bool((out == x + 1).all())


if __name__ == "__main__":
    print(launch())
