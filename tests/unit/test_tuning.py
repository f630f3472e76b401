"""Tuning of real kernels on the CPU: compilation in processes, wrong and unfit configs, what is kept on disk."""

from __future__ import annotations

import json
import os
import signal
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tessera
import tessera.language as tl
from tessera.backends.compiler import GPUTarget
from tessera.compiler import ASTSource, compile_stages, make_backend
from tessera.config import knobs
from tessera.errors import OutOfResources, TesseraError
from tessera.runtime.arguments.tensors import agree
from tessera.runtime.autotuner import autotuner
from tessera.runtime.autotuner import store as tuning_store
from tessera.runtime.autotuner import trials as tuning_trials
from tessera.runtime.autotuner.agreement import Checker
from tessera.runtime.autotuner.autotuner import TuningWarning
from tessera.runtime.autotuner.compile_workers import CompileWorkers, Worker, WorkerDied
from tessera.runtime.autotuner.config import Config
from tessera.runtime.autotuner.heuristics import heuristics
from tessera.runtime.decorators import autotune
from tessera.tools import cli


@pytest.fixture(autouse=True)
def clean(tmp_path: Path):
    with knobs.scope():
        knobs.cache.dir = str(tmp_path)
        knobs.runtime.default_backend = "cpu"
        knobs.autotuning.processes = 0
        yield


@tessera.jit
def scale(x, out, n, BLOCK: tl.constexpr, ERROR: tl.constexpr = 0):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i, i < n) * 2 + ERROR, i < n)


@tessera.jit
def with_scratch(x, out, partial, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + i, i < n, other=0.0)
    tl.store(out + i, v, i < n)
    tl.store(partial + tl.program_id(0), tl.sum(v, 0))


class Stopwatch:
    """A `do_bench` that runs once and takes its times from a table by order."""

    def __init__(self, *times: float) -> None:
        self.times = list(times)
        self.count = 0

    def __call__(self, call: Any, quantiles: Any) -> list[float]:
        call()
        self.count += 1
        return [self.times[self.count - 1]] * 3


def grid(meta: dict[str, Any]) -> tuple[int]:
    return (tessera.cdiv(meta["n"], meta["BLOCK"]),)


def tuner(watch: Any, configs: list[Config], fn: Any = scale, **options: Any) -> Any:
    return autotune(configs, key=["n"], do_bench=watch, **options)(fn)


def blocks(*sizes: int, **more: Any) -> list[Config]:
    return [Config({"BLOCK": b, **more}) for b in sizes]


X = np.arange(100, dtype=np.float32)


def test_wrong_configs_are_dropped_and_named():
    watch = Stopwatch(3.0, 2.0)
    kernel = tuner(watch, [*blocks(16, 32), Config({"BLOCK": 64, "ERROR": 1})])
    out = np.zeros_like(X)
    with pytest.warns(
        TuningWarning, match="the results of BLOCK: 64, ERROR: 1, .* differ from those of BLOCK: 16"
    ):
        kernel[grid](X, out, 100)
    assert kernel.best_config.kwargs == {"BLOCK": 32}
    assert [c.kwargs["BLOCK"] for c in kernel.wrong_configs] == [64]
    assert watch.count == 2
    np.testing.assert_array_equal(out, 2 * X)
    knobs.autotuning.verify = False
    trusting = tuner(Stopwatch(3.0, 2.0, 1.0), [*blocks(16, 32), Config({"BLOCK": 64, "ERROR": 1})])
    knobs.cache.dir = f"{knobs.cache.dir}/other"
    trusting[grid](X, out, 100)
    assert trusting.best_config.kwargs == {"BLOCK": 64, "ERROR": 1}


def test_scratch_memory_may_differ():
    out, partial = np.zeros_like(X), np.zeros(100, np.float32)
    kernel = tuner(Stopwatch(4.0, 3.0, 2.0, 1.0), blocks(4, 8, 16, 32), with_scratch)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        kernel[grid](X, out, partial, 100)
    assert kernel.best_config.kwargs == {"BLOCK": 32}


def test_verification_starts_from_the_same_state():
    @tessera.jit
    def accumulate(x, n, BLOCK: tl.constexpr):
        i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(x + i, tl.load(x + i, i < n) + 1, i < n)

    x = X.copy()
    kernel = tuner(Stopwatch(3.0, 1.0, 2.0), blocks(16, 32, 64), accumulate, restore_value=["x"])
    kernel[grid](x, 100)
    np.testing.assert_array_equal(x, X + 1)
    assert kernel.wrong_configs == []


def test_agreement_by_type():
    one = np.ones(4)
    for kind, near, far in (
        (np.float64, 1e-10, 1e-6),
        (np.float32, 5e-4, 1e-2),
        (np.float16, 5e-3, 5e-2),
    ):
        x = one.astype(kind)
        assert agree(x, x + kind(near))
        assert not agree(x, x + kind(far))
    assert not agree(np.array([1, 2]), np.array([1, 3]))
    odd = np.array([np.nan, np.inf, 1.0])
    assert agree(odd, odd.copy())
    assert not agree(odd, np.array([np.nan, -np.inf, 1.0]))
    assert not agree(odd, np.array([0.0, np.inf, 1.0]))
    assert agree(np.zeros(0), np.zeros(0))


def test_large_arrays_are_not_copied():
    assert not Checker({"x": np.broadcast_to(np.float64(0), (1 << 30,))}).affordable
    assert not Checker({}).affordable


def test_a_new_config_alone_is_measured():
    out = np.zeros_like(X)
    first = Stopwatch(3.0, 2.0)
    tuner(first, blocks(16, 32), cache_results=True)[grid](X, out, 100)
    more = Stopwatch(1.0)
    again = tuner(more, blocks(16, 32, 64), cache_results=True)
    again[grid](X, out, 100)
    assert more.count == 1
    assert again.best_config.kwargs == {"BLOCK": 64}
    assert len(again.configs_timings) == 3
    fewer = Stopwatch()
    known = tuner(fewer, blocks(32, 16), cache_results=True)
    known[grid](X, out, 100)
    assert known.best_config.kwargs == {"BLOCK": 32}


def test_configs_that_compile_alike_are_timed_once(monkeypatch: pytest.MonkeyPatch):
    watch = Stopwatch(2.0, 1.0)
    for module in (autotuner, tuning_trials):
        monkeypatch.setattr(module, "default_do_bench", watch)  # as if it were tessera's own
    configs = [
        Config({"BLOCK": b}, num_warps=w, num_stages=s)
        for b in (16, 32) for w in (1, 8) for s in (1, 2)
    ]  # fmt: skip
    out = np.zeros_like(X)
    kernel = autotune(configs, key=["n"])(scale)
    kernel[grid](X, out, 100)
    assert watch.count == 2  # no stage of the CPU back end reads warps or stages
    assert kernel.best_config is configs[4]
    assert kernel.configs_timings == {
        c: [2.0 if c.kwargs["BLOCK"] == 16 else 1.0] * 3 for c in configs
    }

    read = Stopwatch(*range(8, 0, -1))
    for module in (autotuner, tuning_trials):
        monkeypatch.setattr(module, "default_do_bench", read)
    ruled = heuristics({"ERROR": lambda args: args["num_warps"] - args["num_warps"]})(scale)
    autotune(configs, key=["n"])(ruled)[grid](X, out, 99)  # nothing on disk for it
    assert read.count == 8  # a rule may read what the stages do not


def test_budget():
    knobs.autotuning.budget = 0
    out = np.zeros_like(X)
    watch = Stopwatch(3.0, 2.0, 1.0)
    kernel = tuner(watch, blocks(16, 32, 64), cache_results=True)
    kernel[grid](X, out, 100)
    assert watch.count == 1
    assert kernel.best_config.kwargs == {"BLOCK": 16}
    knobs.autotuning.budget = None
    rest = Stopwatch(2.0, 1.0)
    kernel = tuner(rest, blocks(16, 32, 64), cache_results=True)
    kernel[grid](X, out, 100)
    assert rest.count == 2


def test_lockfile(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    out, lock = np.zeros_like(X), tmp_path / "tuning.json"
    tuner(Stopwatch(3.0, 2.0), blocks(16, 32), cache_results=True)[grid](X, out, 100)
    assert cli.tune(["--export", str(lock)]) == 0
    text = lock.read_text()
    assert cli.tune(["--export", str(lock)]) == 0
    assert lock.read_text() == text
    knobs.cache.dir = str(tmp_path / "elsewhere")
    assert cli.tune(["--import", str(lock)]) == 0
    assert cli.tune(["--show"]) == 0
    assert "BLOCK: 32" in capsys.readouterr().out
    unused = Stopwatch()
    kernel = tuner(unused, blocks(16, 32), cache_results=True)
    kernel[grid](X, out, 100)
    assert kernel.best_config.kwargs == {"BLOCK": 32}


@pytest.mark.parametrize(
    "content",
    ["", "{}", "[]", '{"format": 1, "results": {}}', '{"format": 2, "results": {"../x": {"timings": {"a": [1]}}}}',
     '{"format": 2, "results": {"x": {"timings": {"a": []}}}}', '{"format": 2, "results": {"x": 3}}'],
)  # fmt: skip
def test_files_that_are_no_lockfiles(tmp_path: Path, content: str):
    path = tmp_path / "bad.json"
    path.write_text(content)
    with pytest.raises(TesseraError, match="no file of autotuning results"):
        tuning_store.load(str(path))
    assert cli.tune(["--import", str(path)]) == 1
    assert cli.tune(["--import", str(tmp_path / "absent")]) == 1


# --- processes ------------------------------------------------------------------------------------------------------
def source(fn: Any, **constants: Any) -> ASTSource:
    return ASTSource(fn, {"x": "*fp32", "out": "*fp32", "n": "i32"}, constants)


def test_workers_make_the_same_kernels():
    backend = make_backend(GPUTarget("cpu", "avx2", 1))
    options = backend.parse_options({"num_warps": 2})
    workers = CompileWorkers(1)
    try:
        here, about = compile_stages(source(scale, BLOCK=16), backend, options, "k")
        there, told = workers.run_stages(source(scale, BLOCK=16), backend, options, "k")
        assert here["object"] == there["object"]
        assert here["llir"] == there["llir"]  # its comments name lines
        assert "test_tuning.py:" in there["llir"]
        assert {**about, "timings": 0} == {**told, "timings": 0}
        with pytest.raises(tessera.CompilationError):
            workers.run_stages(source(scale, BLOCK=17), backend, options, "k")
    finally:
        workers.shutdown()


def test_a_dead_worker_is_replaced():
    backend = make_backend(GPUTarget("cpu", "avx2", 1))
    options = backend.parse_options({})
    workers = CompileWorkers(1)
    try:
        workers.run_stages(source(scale, BLOCK=16), backend, options, "k")
        worker: Worker = workers._idle.get_nowait()
        os.kill(worker.process.pid, signal.SIGKILL)
        worker.process.wait()
        with pytest.raises(WorkerDied):
            worker.ask({})
        workers._idle.put(worker)
        for _ in range(2):
            assert workers.run_stages(source(scale, BLOCK=16), backend, options, "k")[0]["object"]
    finally:
        workers.shutdown()


def test_tuning_compiles_in_processes(monkeypatch: pytest.MonkeyPatch):
    knobs.autotuning.processes = 2
    seen: list[str] = []
    complete = CompileWorkers.run_stages

    def counted(self: Any, src: Any, *rest: Any) -> Any:
        seen.append(src.name)
        return complete(self, src, *rest)

    monkeypatch.setattr(CompileWorkers, "run_stages", counted)
    out = np.zeros_like(X)
    kernel = tuner(Stopwatch(3.0, 1.0, 2.0), blocks(16, 32, 64), tessera.jit(scale.fn))
    kernel[grid](X, out, 100)
    assert len(seen) == 3
    assert kernel.best_config.kwargs == {"BLOCK": 32}
    np.testing.assert_array_equal(out, 2 * X)


def test_kernels_that_need_too_much_are_given_up_early():
    @tessera.jit
    def product(a, b, c, BLOCK: tl.constexpr):
        i = tl.arange(0, BLOCK)
        at = i[:, None] * BLOCK + i[None, :]
        tl.store(c + at, tl.dot(tl.load(a + at), tl.load(b + at)))

    backend = make_backend(GPUTarget("cuda", 80, 32))
    signature = {"a": "*fp16", "b": "*fp16", "c": "*fp32"}
    with pytest.raises(OutOfResources, match="shared memory"):
        compile_stages(
            ASTSource(product, signature, {"BLOCK": 64}),
            backend,
            backend.parse_options({}),
            "k",
            1000,
        )


def test_json_of_results(tmp_path: Path):
    path = str(tmp_path / "a" / "b.json")
    tuning_store.write(path, [1], {"x": [1.0, 2.0]})
    tuning_store.write(path, [1], {"y": [3.0]})
    assert tuning_store.read(path) == {"x": [1.0, 2.0], "y": [3.0]}
    assert json.loads(Path(path).read_text())["key"] == ["1"]
