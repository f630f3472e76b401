"""Each named optimisation left out on a device: the results of the samples stay those of the interpreter."""

# pyright: basic, reportMissingImports=false
from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tessera
from tessera.config.optimizations import OPTIMIZATIONS
from tessera.runtime.driver import driver
from tests.gpu.hopper import needs_hopper
from tests.unit.optimization_samples import SAMPLES, Sample

pytestmark = needs_hopper
LAUNCHES = 20
ON_GPU = [s for s in SAMPLES if "simt" in s.devices]
NAMES = ["", "all", *[o.name for o in OPTIMIZATIONS.values() if "gpu" in o.targets]]
WANTED: dict[str, list[np.ndarray]] = {}


def wanted(sample: Sample) -> list[np.ndarray]:
    if sample.name not in WANTED:
        driver.set_active("interpreter")
        try:
            WANTED[sample.name] = sample.launch()[1]
        finally:
            driver.reset_active()
    return WANTED[sample.name]


@pytest.mark.parametrize("sample", ON_GPU, ids=lambda s: s.name)
@pytest.mark.parametrize("name", NAMES)
def test_results_without_one(name: str, sample: Sample):
    import torch

    want = wanted(sample)
    kernel: Any = tessera.jit(sample.kernel.fn)
    options = {**sample.constants, **sample.options, "disable_optimizations": name}
    for _ in range(LAUNCHES):
        arrays = [torch.from_numpy(x).cuda() for x in sample.arrays()]
        kernel[sample.grid](*sample.wrap(arrays), **options)  # pyright: ignore[reportArgumentType]
        for have, right in zip(arrays, want, strict=True):
            # Integers, but for powers that the device rounds: a fault would be off by 1e-4 at least.
            np.testing.assert_allclose(have.cpu().numpy(), right, rtol=1e-5)
