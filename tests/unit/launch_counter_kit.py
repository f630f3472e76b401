"""Counts the launches that go by way of Python."""

# annotations of kernels name dtypes
# pyright: reportInvalidTypeForm=false
from __future__ import annotations

from typing import Any

import pytest


class Counter:
    """Counts the launches that reach the complete Python path.

    What the kernel was launched with before is forgotten: tests count the first launch too,
    whichever tests ran before them in this process.
    """

    def __init__(self, kernel: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls = 0
        kernel.forget_fast_path()
        complete = kernel._launch

        def counted(*args: Any, **kwargs: Any) -> Any:
            self.calls += 1
            return complete(*args, **kwargs)

        monkeypatch.setattr(kernel, "_launch", counted)
