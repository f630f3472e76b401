"""Compilations that take too long end with an error that says where they were."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tessera
import tessera.language as tl
from tessera.backends.nvidia import ptxas
from tessera.config import knobs
from tessera.config.budget import budget, check_budget, remaining_seconds
from tessera.errors import CompilationTimeout
from tessera.ir import Module, PassManager
from tessera.ir.passes import Pass
from tessera.runtime.autotuner.compile_workers import CompileWorkers
from tessera.runtime.launching.async_compile import AsyncCompileMode


def test_limits_nest():
    assert remaining_seconds() is None
    check_budget("anything")
    with budget(100):
        with budget(1):
            assert 0 < (remaining_seconds() or 0) <= 1
        with budget(1000):
            assert 50 < (remaining_seconds() or 0) <= 100
        with budget(None):
            assert remaining_seconds() is not None
        with budget(0.001):
            time.sleep(0.01)
            with pytest.raises(CompilationTimeout, match=r"more than 0\.001 s, at pass 'x'"):
                check_budget("pass 'x'")
        check_budget("anything")
    assert remaining_seconds() is None


def test_passes_look_at_the_time():
    ran: list[str] = []

    def slow(module: Module) -> None:
        ran.append("slow")
        time.sleep(0.02)

    passes = [Pass("slow", slow), Pass("next", lambda module: ran.append("next"))]
    with budget(0.01), pytest.raises(CompilationTimeout, match="pass 'next'"):
        PassManager(passes).run(Module())
    assert ran == ["slow"]


def test_a_tool_is_stopped(tmp_path: Path):
    tool = tmp_path / "ptxas"
    tool.write_text("#!/bin/sh\nexec sleep 30\n")
    tool.chmod(0o755)
    start = time.monotonic()
    with knobs.nvidia.scope():
        knobs.nvidia.ptxas = str(tool)
        with budget(0.2), pytest.raises(CompilationTimeout, match=r"0\.2 s, at ptxas"):
            ptxas.assemble("", "sm_90")
    assert time.monotonic() - start < 10


@tessera.jit
def doubled(x, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(x + i, tl.load(x + i) * 2)


def test_a_worker_process_is_stopped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(
        "tessera.runtime.autotuner.compile_workers.START", "import time; time.sleep(60)"
    )  # a worker that never answers
    x = np.ones(16, np.float32)
    with knobs.scope(), CompileWorkers(1) as workers:
        knobs.cache.dir = str(tmp_path)
        knobs.compilation.budget = 1
        with AsyncCompileMode(workers, ignore_errors=True):
            kernel: Any = doubled.warmup(x, N=16, grid=(1,))
        with pytest.raises(CompilationTimeout, match="in a worker process"):
            kernel.result()
        knobs.compilation.budget = 0
    doubled.device_caches.clear()
    doubled[(1,)](x, N=16)
    assert (x == 2).all()
