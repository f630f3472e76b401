"""`--device cuda` runs the tests of graphs on a GPU: tensors that name no device are made there."""

from __future__ import annotations

from collections.abc import Generator

import pytest


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--device") == "cuda":
        import torch  # pyright: ignore[reportMissingImports]

        torch.set_default_device("cuda")


@pytest.fixture(autouse=True)
def compiled() -> Generator[None]:
    """Tests see graphs compiled, not read from the user's disk."""
    pytest.importorskip("torch")
    from torch._functorch import config  # pyright: ignore[reportMissingImports]

    with config.patch(enable_autograd_cache=False):
        yield
