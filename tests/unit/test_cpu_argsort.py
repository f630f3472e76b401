"""Sorts that kernels write themselves, for the CPU back end."""

# annotations of kernels name dtypes
# pyright: basic, reportInvalidTypeForm=false, reportUndefinedVariable=false, reportOperatorIssue=false
from __future__ import annotations

import numpy as np
import pytest

import tessera
import tessera.language as tl
from tests.unit.cpu_kit import native


@tessera.jit
def _along(n: tl.constexpr, bit: tl.constexpr):
    return tl.reshape(tl.arange(0, 2), [1] * (n - bit - 1) + [2] + [1] * bit)


@tessera.jit
def _other(x, n: tl.constexpr, bit: tl.constexpr):
    bits = x.to(tl.int32, bitcast=True)
    return (bits ^ tl.xor_sum(bits, n - 1 - bit, keep_dims=True)).to(x.dtype, bitcast=True)


@tessera.jit
def argsort(x, out, places, N: tl.constexpr, n: tl.constexpr):
    """A bitonic sort in a tile whose dimensions are the bits of places, with the places of what it sorted."""
    at = tl.program_id(0) * N + tl.arange(0, N)
    v, i = tl.reshape(tl.load(x + at), [2] * n), tl.reshape(tl.arange(0, N), [2] * n)
    for stage in tl.static_range(1, n + 1):
        down = _along(n, stage) if stage < n else 0
        for step in tl.static_range(stage):
            bit: tl.constexpr = stage - 1 - step
            w, j = _other(v, n, bit), _other(i, n, bit)
            swapped = (v > w) != (down ^ _along(n, bit))
            v, i = tl.where(swapped, w, v), tl.where(swapped, j, i)
    tl.store(out + at, tl.reshape(v, [N]))
    tl.store(places + at, tl.reshape(i, [N]))


def argsorted(n: int, **options: str) -> str:
    x = np.stack([np.random.default_rng(r).permutation(2**n) for r in range(3)]).astype(np.float32)
    out, places = np.zeros_like(x), np.zeros(x.shape, np.int32)
    kernel = native(argsort, (3,), x, out, places, N=2**n, n=n, **options)
    np.testing.assert_array_equal(out, np.sort(x, axis=1))
    np.testing.assert_array_equal(places, np.argsort(x, axis=1))
    return kernel.asm["llir"]


@pytest.mark.parametrize("n", [3, 6, 9])
def test_sorts_of_places(n: int):
    argsorted(n)


def test_sorts_of_places_by_sums_of_pairs():
    argsorted(4, disable_optimizations="exchange-partners")


def test_steps_read_what_the_step_before_left():
    """They do not compute again what was before them: the code of a step is as long in longer sorts."""
    lines = {n: argsorted(n).count("\n") / (n * (n + 1)) for n in (7, 9)}
    assert lines[9] < 2 * lines[7]
