"""Functions of the tile language's library inside of graphs: their ops compute in bodies as in kernels."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest

from tessera.dtypes import dtype, float32, float64
from tessera.graph.calls.executable import compile_graph
from tessera.graph.calls.host import NumpyHost
from tessera.graph.ir.build import GraphBuilder
from tessera.graph.ir.interp import interpret
from tessera.graph.ir.library import library
from tessera.graph.ir.scalars import Scalar
from tessera.graph.ir.types import TensorType


@pytest.mark.parametrize(("name", "bound"), [("erfc", 1e-15), ("lgamma", 4e-15)])
@pytest.mark.parametrize("elem", [float32, float64])
def test_functions_of_the_library_in_a_body(name: str, bound: float, elem: dtype):
    g = GraphBuilder("special")
    x = g.input("x", TensorType((64,), elem))
    g.output(g.loop([64], lambda i: library(name, Scalar(g.load(x, i), g.b)).value))
    module = g.finish()
    kind = np.float32 if elem is float32 else np.float64
    values = np.linspace(-1.9, 3.1, 64).astype(kind)
    wanted = np.array([getattr(math, name)(float(v)) for v in values])
    error = bound if elem is float64 else 5e-7  # four units in the last place, as in kernels
    for found in (interpret(module, [values])[0], compile_graph(module, NumpyHost())([values])[0]):
        np.testing.assert_allclose(found, wanted, rtol=error, atol=error)


def test_functions_that_return_are_no_kernels():
    """A kernel's value is lost, with a warning; a function's is what the body goes on with."""
    g = GraphBuilder("warned")
    x = g.input("x", TensorType((4,), float32))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        g.loop([4], lambda i: library("cyl_bessel_i1", Scalar(g.load(x, i), g.b)).value)
