"""Barriers and the pipeline's rings, checked against every access of an actual run; barriers that are not needed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tessera.backends.nvidia.target import facts_for
from tessera.errors import SynchronizationError
from tessera.ir import Module, PassManager, parse_module
from tessera.passes.checks.synchronization import synchronized
from tessera.passes.gpu_movement.barriers import barriers
from tessera.passes.gpu_pipeline import gpu_passes
from tessera.passes.neutral.pipeline import neutral_pipeline
from tests.unit.gpu_modules import attention, matmul
from tests.unit.watched_kit import watched


def compiled(text: str, with_barriers: bool = True, capability: int = 89) -> Module:
    module = parse_module(text)
    passes = [*neutral_pipeline(), *gpu_passes(facts_for(capability), pointer_maps=False)]
    left = [p for p in passes if with_barriers or p not in (barriers, synchronized)]
    PassManager(left, verify=True).run(module)
    return module


def matmul_args(k: int) -> list[Any]:
    a, b = np.zeros((64, k), np.float16), np.zeros((k, 64), np.float16)
    return [a, b, np.zeros((64, 64), np.float32), k, k, 64, 64]


@pytest.mark.parametrize("capability", [80, 90])
@pytest.mark.parametrize("stages", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("k", [0, 16, 32, 64, 224])
def test_matmul(stages: int, k: int, capability: int, monkeypatch: pytest.MonkeyPatch) -> None:
    module = compiled(matmul(stages=stages), capability=capability)
    watch = watched(module, matmul_args(k), monkeypatch)
    assert watch.hazards == []
    assert watch.accesses > 0


def test_the_watch_sees_missing_barriers(monkeypatch: pytest.MonkeyPatch) -> None:
    module = compiled(matmul(stages=1), with_barriers=False)
    assert watched(module, matmul_args(64), monkeypatch).hazards
    with pytest.raises(SynchronizationError, match="may not have written it yet"):
        synchronized(module)


def test_mixed_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    """One stream through asynchronous copies, one through registers."""
    watch = watched(compiled(matmul(other="float('0x1.0p+0')")), matmul_args(96), monkeypatch)
    assert watch.hazards == []


@pytest.mark.parametrize("capability", [80, 90])
@pytest.mark.parametrize("stages", [1, 2, 3])
@pytest.mark.parametrize(("m", "warps"), [(64, 4), (32, 4), (128, 8)])
def test_attention(
    stages: int, m: int, warps: int, capability: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = compiled(attention(m=m, warps=warps, stages=stages), capability=capability)
    q, k, v = (np.zeros((n, 64), np.float16) for n in (m, 128, 128))
    watch = watched(module, [q, k, v, np.zeros_like(q), 128], monkeypatch)
    assert watch.hazards == []


def test_fma(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = np.zeros((64, 64), np.float32), np.zeros((64, 64), np.float32)
    module = compiled(matmul("fp32", "fp32", bk=16))
    watch = watched(module, [a, b, np.zeros_like(a), 64, 64, 64, 64], monkeypatch)
    assert watch.hazards == []
    assert watch.accesses > 0
