"""docs/graph.md shows what the graph compiler does today."""

from __future__ import annotations

import numpy as np

from tessera.graph.ir.interp import interpret
from tessera.tools.graph_page import block


def test_the_model_of_the_page_is_what_it_says():
    x, y = (np.random.default_rng(k).standard_normal((3, 128)).astype(np.float32) for k in (0, 1))
    h = x + y
    norm = (h - h.mean(1, keepdims=True)) / np.sqrt(h.var(1, keepdims=True) + 2.0**-16)
    out, total = interpret(block(), [x, y])
    np.testing.assert_allclose(out, norm, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(total, h)
