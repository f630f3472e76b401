"""`--device cuda` runs the tests of graphs on a GPU: tensors that name no device are made there."""

from __future__ import annotations

import pytest


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--device") == "cuda":
        import torch  # pyright: ignore[reportMissingImports]

        torch.set_default_device("cuda")
