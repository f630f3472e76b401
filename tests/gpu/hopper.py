"""Marks of tests that need a Hopper GPU."""

# pyright: basic
from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
needs_hopper = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0), reason="needs a Hopper GPU"
    ),
]  # fmt: skip
