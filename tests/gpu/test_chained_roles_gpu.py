"""Loops with several streams and chained products, split into teams, on a Hopper GPU."""

# pyright: basic
from __future__ import annotations

import numpy as np
import pytest

from tessera.tools.tensor_descriptor import TensorDescriptor
from tests.gpu.hopper import needs_hopper
from tests.unit.mma_chains_kit import CASES, STAYING, chains_of_tiles, inputs, reference

torch = pytest.importorskip("torch")
pytestmark = needs_hopper


@pytest.mark.parametrize("blocks", [1, 2, 7, 16])
@pytest.mark.parametrize(
    ("m", "step", "d", "warps", "stages"),
    [(128, 64, 64, 8, 2), (128, 128, 128, 8, 2), (64, 64, 64, 4, 3), (128, 32, 64, 4, 2), (64, 128, 64, 4, 4)],
)  # fmt: skip
@pytest.mark.parametrize(("kernel", "causal"), CASES)
def test_chains(kernel, causal: bool, m: int, step: int, d: int, warps: int, stages: int, blocks):
    if (kernel in STAYING and step > m) or (kernel is chains_of_tiles and step != d):
        pytest.skip("tiles and blocks of keys do not fit")
    square = kernel in STAYING or causal
    n = max(m, step) * blocks if square else step * blocks
    rows = n if square else 3 * m
    arrays = inputs(rows, n, d)
    devices = [torch.from_numpy(x).cuda() for x in arrays]
    q, k, v, out = (
        TensorDescriptor.from_tensor(x, [size, d])
        for x, size in zip(devices, (m, step, step, m), strict=True)
    )
    programs = 3 if kernel in STAYING else rows // m
    for _ in range(3):
        kernel[(programs,)](
            q, k, v, out, n, causal, m, step, d, num_warps=warps, num_stages=stages
        )  # fmt: skip
    found = devices[3].cpu().numpy().astype(np.float64)
    want = reference(kernel, arrays, n, m, step, causal)
    assert np.abs(found - want).max() <= 4e-3 * np.abs(want).max()
