"""docs/graph.md shows what the graph compiler does today."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tessera.graph.interp import interpret
from tessera.graph.page import block, render

PAGE = Path(__file__).resolve().parents[2] / "docs" / "graph.md"


def test_the_page_is_up_to_date():
    command = "python -m tessera.graph.page > docs/graph.md"
    assert PAGE.read_text("utf-8") == render(), f"run: {command}"


def test_the_model_of_the_page_is_what_it_says():
    x, y = (np.random.default_rng(k).standard_normal((3, 128)).astype(np.float32) for k in (0, 1))
    h = x + y
    norm = (h - h.mean(1, keepdims=True)) / np.sqrt(h.var(1, keepdims=True) + 2.0**-16)
    out, total = interpret(block(), [x, y])
    np.testing.assert_allclose(out, norm, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(total, h)
