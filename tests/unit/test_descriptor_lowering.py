"""Descriptors as pointers and masks: the interpreter gives the same before and after."""

from __future__ import annotations

import numpy as np
import pytest

import tessera.language as tl
from tessera.frontend import lower_kernel
from tessera.interp import run
from tessera.ir import Module, verify
from tessera.language.callable import JITCallable
from tessera.passes.neutral.canonicalize import canonicalize
from tessera.passes.neutral.descriptors import lower_descriptors
from tests.unit.semantics_kit import front_end


def copy(x, out, m, n, i, j, M: tl.constexpr, N: tl.constexpr, PADDING: tl.constexpr):
    source = tl.make_tensor_descriptor(x, (m, n), (n, 1), (M, N), PADDING)
    target = tl.make_tensor_descriptor(out, (M, 2 * N), (2 * N, 1), (M, N))
    target.store((0, 0), source.load((i, j)))
    target.atomic_add((0, N), source.load((i, j)))


def carried(x, out, m, n, i, j, M: tl.constexpr, N: tl.constexpr, PADDING: tl.constexpr):
    source = tl.make_tensor_descriptor(x, (m, n), (n, 1), (M, N), PADDING)
    target = tl.make_tensor_descriptor(out, (M, 2 * N), (2 * N, 1), (M, N))
    for k in range(2):
        target.store((0, k * N), source.load((i, j)))
        source = source


def changing(x, out, m, n, i, j, M: tl.constexpr, N: tl.constexpr, PADDING: tl.constexpr):
    source = tl.make_tensor_descriptor(x, (m, n), (n, 1), (M, N), PADDING)
    target = tl.make_tensor_descriptor(out, (M, 2 * N), (2 * N, 1), (M, N))
    for _k in range(2):
        target.store((0, 0), source.load((i, j)))
        source = tl.make_tensor_descriptor(x + 4, (m, n), (n, 1), (M, N), PADDING)


def module_of(kernel, padding: str) -> Module:
    scalars = dict.fromkeys("mnij", "i32")
    constants = {"M": 8, "N": 16, "PADDING": padding}
    signature = {"x": "*fp32", "out": "*fp32", **scalars, **dict.fromkeys(constants, "constexpr")}
    return lower_kernel(JITCallable(kernel), signature, constants, {}, front_end().options)


@pytest.mark.parametrize("padding", ["zero", "nan"])
@pytest.mark.parametrize("place", [(0, 0), (4, 8), (-3, -5), (12, 30)])
@pytest.mark.parametrize("kernel", [copy, carried])
def test_same_result(kernel, place: tuple[int, int], padding: str):
    x = np.random.default_rng(0).standard_normal((13, 36)).astype(np.float32)
    want, got = np.zeros((8, 32), np.float32), np.zeros((8, 32), np.float32)
    module = module_of(kernel, padding)
    run(module, (1, 1, 1), [x, want, *x.shape, *place])
    lower_descriptors(module)
    verify(module)
    canonicalize(module)
    assert not any("descriptor" in op.opcode for op in module.walk())
    run(module, (1, 1, 1), [x, got, *x.shape, *place])
    assert np.isnan(want).any() == (padding == "nan" and place != (4, 8) and place != (0, 0))
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("place", [(0, 0), (4, 8), (-3, -5)])
def test_a_descriptor_that_changes(place: tuple[int, int]) -> None:
    """Control flow carries its parts; the block of the second iteration lies four elements further."""
    x = np.random.default_rng(0).standard_normal((14, 36)).astype(np.float32)
    want, got = np.zeros((8, 32), np.float32), np.zeros((8, 32), np.float32)
    module = module_of(changing, "zero")
    run(module, (1, 1, 1), [x, want, 13, 36, *place])
    lower_descriptors(module)
    verify(module)
    run(module, (1, 1, 1), [x, got, 13, 36, *place])
    np.testing.assert_array_equal(got, want)
    i, j = max(place[0], 0), max(place[1], 0)
    block = want[i - place[0] : 8, j - place[1] : 16]
    shown = x.ravel()[4 : 4 + 13 * 36].reshape(13, 36)[i : place[0] + 8, j : place[1] + 16]
    np.testing.assert_array_equal(block, shown)
