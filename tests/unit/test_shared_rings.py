"""Loops one after the other whose tiles go through the same ring of buffers."""

# annotations of kernels name dtypes
# pyright: reportInvalidTypeForm=false, reportUndefinedVariable=false, reportOperatorIssue=false
from __future__ import annotations

import numpy as np
import pytest

import tessera
import tessera.language as tl
from tessera.analysis.synchronization import check_synchronization
from tessera.config import knobs
from tessera.ir import parse_module
from tests.unit.pointer_tma_kit import HOWS, compiled, simulate


@tessera.jit
def twice(a, b, c, first, second):
    x = tl.make_tensor_descriptor(a, [64, 512], [512, 1], [64, 64])
    y = tl.make_tensor_descriptor(b, [512, 64], [64, 1], [64, 64])
    total = tl.zeros((64, 64), tl.float32)
    for k in range(0, first, 64):
        total = tl.dot(x.load([0, k]), y.load([k, 0]), total)
    total = total * 2
    for k in range(0, second, 64):
        total = tl.dot(x.load([0, k]), y.load([k, 0]), total)
    tl.store(c + tl.arange(0, 64)[:, None] * 64 + tl.arange(0, 64)[None, :], total)


@pytest.mark.parametrize("stages", [2, 3])
@pytest.mark.parametrize("how", HOWS)
def test_a_later_loop_has_the_buffers_of_the_first(how: str, stages: int) -> None:
    with knobs.scope():
        knobs.compilation.verify = knobs.compilation.strict = True
        kernel = compiled(twice, {}, elements={"c": "fp32"}, num_stages=stages)
    assert "warp_specialize" in kernel.asm["gir"]
    check_synchronization(parse_module(kernel.asm["gir"]))
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-2, 3, s).astype(np.float16) for s in ((64, 512), (512, 64)))
    for first, second in ((512, 448), (64, 512), (0, 192), (320, 0)):
        c = np.full((64, 64), np.nan, np.float32)
        simulate(kernel, [a, b, c, first, second], (1,), how, "late")
        x, y = a.astype(np.float32), b.astype(np.float32)
        want = 2 * x[:, :first] @ y[:first] + x[:, :second] @ y[:second]
        np.testing.assert_array_equal(c, want)
