"""Autotuner and heuristics over a kernel made of plain Python, with a stopwatch that reads the config."""

from __future__ import annotations

import copy
import json
import pickle
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tessera
import tessera.language as tl
from tessera.config import knobs
from tessera.errors import (
    AutotunerError,
    HostOnly,
    InvalidTuning,
    NotAFunction,
    OutOfResources,
)
from tessera.runtime.autotuner import places
from tessera.runtime.autotuner.autotuner import Autotuner, TuningWarning
from tessera.runtime.autotuner.config import Config
from tessera.runtime.autotuner.heuristics import heuristics
from tessera.runtime.benchmark import do_bench, timer_on_host
from tessera.runtime.decorators import autotune
from tessera.runtime.launching.interface import KernelInterface


@pytest.fixture(autouse=True)
def no_disk():
    """Results are kept on disk by default; only the tests about that want them."""
    knobs.autotuning.cache = False
    yield
    del knobs.autotuning.cache


def scale(x: Any, out: Any, n: Any, BLOCK: Any = 0, EVEN: Any = None) -> None:
    """The Python function under the fake kernel."""


class FakeKernel(KernelInterface):
    """Runs `out[:n] += 2 * x[:n]` on NumPy arrays and remembers its launches."""

    cache_key = "fake-source"

    def __init__(self, limit: int = 1 << 30) -> None:
        self.fn = scale
        self.arg_names = ["x", "out", "n", "BLOCK", "EVEN"]
        self.limit = limit
        self.launches: list[dict[str, Any]] = []
        self.compiled: list[dict[str, Any]] = []

    def run(self, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        named = {**dict(zip(self.arg_names, args)), **kwargs}
        if warmup:
            self.compiled.append(named)
            return named["BLOCK"]
        if named["BLOCK"] > self.limit:
            raise OutOfResources(named["BLOCK"], self.limit, "shared memory")
        self.launches.append(named)
        n = named["n"]
        named["out"][:n] += 2 * named["x"][:n]
        return named["BLOCK"]


COST = {64: 3.0, 128: 1.0, 256: 2.0, 512: 1.0}


def stopwatch(kernel: FakeKernel, costs: dict[int, float] = COST):
    """A `do_bench` that calls once and answers from a table."""
    calls: list[int] = []

    def do_bench(call: Any, quantiles: Any) -> list[float]:
        assert quantiles == (0.5, 0.2, 0.8)
        call()
        block = kernel.launches[-1]["BLOCK"]
        calls.append(block)
        return [costs[block]] * 3

    return do_bench, calls


def tuned(kernel: FakeKernel, blocks: tuple[int, ...] = (64, 128, 256), **options: Any):
    do_bench, calls = stopwatch(kernel)
    configs = [Config({"BLOCK": b}) for b in blocks]
    options.setdefault("key", ["n"])
    return autotune(configs, do_bench=do_bench, **options)(kernel), calls


def arrays(n: int = 8, dtype: Any = np.float32):
    return np.arange(n, dtype=dtype), np.zeros(n, dtype)


def test_the_fastest_config_is_launched_and_remembered():
    tuner, calls = tuned(FakeKernel())
    x, out = arrays()
    assert tuner[(1,)](x, out, 8) == 128
    assert calls == [64, 128, 256]
    assert tuner.best_config == Config({"BLOCK": 128})
    assert tuner.configs_timings[Config({"BLOCK": 64})] == [3.0] * 3
    assert tuner[(1,)](x, out, 8) == 128
    assert len(calls) == 3


def test_key_is_the_key_values_and_every_dtype(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(places.cuda, "available", lambda: False)  # else the place is part of it
    tuner, calls = tuned(FakeKernel())
    tuner[(1,)](*arrays(), 8)
    tuner[(1,)](*arrays(), 4)
    tuner[(1,)](*arrays(dtype=np.float64), n=4)
    assert list(tuner.cache) == [
        (8, "float32", "float32"),
        (4, "float32", "float32"),
        (4, "float64", "float64"),
    ]
    assert len(calls) == 9


def test_one_config_or_none_is_never_measured():
    tuner, calls = tuned(FakeKernel(), blocks=(64,))
    assert tuner[(1,)](*arrays(), 8) == 64
    assert calls == []
    assert tuner.cache == {}
    default = autotune([], key=["n"])(FakeKernel())
    assert default.configs == [Config({}, num_warps=4, num_stages=3, num_ctas=1)]


def test_a_tuner_of_another_library():
    """Libraries choose by a policy of their own, with a subclass that times single configs."""

    class First(Autotuner):
        def run(self, *args: Any, **kwargs: Any) -> Any:
            self.nargs = dict(zip(self.arg_names, args))
            self.times = [self._bench(*args, config=c, **kwargs) for c in self.configs[:2]]
            return self.fn.run(*args, **kwargs, **self.configs[0].all_kwargs())

    kernel = FakeKernel()
    do_bench, _ = stopwatch(kernel)
    tuner = First(
        kernel, kernel.arg_names, [Config({"BLOCK": b}) for b in (64, 128)], [], do_bench=do_bench
    )
    tuner[(1,)](*arrays(), 8)
    assert tuner.times == [[3.0] * 3, [1.0] * 3]
    assert kernel.launches[-1]["BLOCK"] == 64


def test_equal_times_give_the_earlier_config():
    tuner, _ = tuned(FakeKernel(), blocks=(512, 128))
    assert tuner[(1,)](*arrays(), 8) == 512


def test_a_config_that_does_not_fit_is_slow_not_fatal():
    tuner, calls = tuned(FakeKernel(limit=100))
    assert tuner[(1,)](*arrays(), 8) == 64
    assert calls == [64]
    assert tuner.configs_timings[Config({"BLOCK": 256})] == [float("inf")] * 3


def test_other_errors_propagate_after_the_post_hook():
    seen: list[Any] = []
    tuner, _ = tuned(FakeKernel(), post_hook=lambda args, exception: seen.append(exception))
    with pytest.raises(TypeError):
        tuner[(1,)](None, np.zeros(8), 8)
    assert [type(e) for e in seen] == [TypeError]
    assert tuner.nargs is None


def test_conflicting_meta_parameters_are_named():
    tuner, _ = tuned(FakeKernel())
    with pytest.raises(ValueError, match="Conflicting meta-parameters: BLOCK"):
        tuner[(1,)](*arrays(), 8, BLOCK=32)


@pytest.mark.parametrize("tunes", [True, False])
def test_a_launch_that_passes_what_configs_define(tunes: bool):
    tuner, _ = tuned(FakeKernel())
    if not tunes:
        tuner[(1,)](*arrays(), 8)
    for name in ("num_warps", "BLOCK"):
        with pytest.raises(InvalidTuning, match=f"Conflicting meta-parameters: {name}"):
            tuner[(1,)](*arrays(), 8, **{name: 64})
    if tunes:  # else the kernel says so
        with pytest.raises(InvalidTuning, match="Conflicting meta-parameters: BLOCK"):
            tuner[(1,)](*arrays(), 8, 64)


def test_what_autotune_is_given():
    kernel = FakeKernel()
    with pytest.raises(InvalidTuning, match="out2 in restore_value is no parameter"):
        tuned(kernel, restore_value=["out2"])
    with pytest.raises(InvalidTuning, match="y in reset_to_zero is no parameter"):
        tuned(kernel, reset_to_zero=["y", "out"])
    with pytest.warns(TuningWarning, match="m in key is no parameter"):
        autotune([Config({"BLOCK": 64})], key=["n", "m"])(kernel)
    with pytest.raises(InvalidTuning, match="configs must be Config objects, got "):
        autotune([{"BLOCK": 64}], key=["n"])(kernel)  # pyright: ignore[reportArgumentType]
    for decorator in (autotune([], key=["n"]), heuristics({})):
        with pytest.raises(NotAFunction, match="needs a kernel, got the function scale"):
            decorator(scale)
    with pytest.raises(HostOnly):
        tuned(kernel)[0](*arrays(), 8)


def test_keys_without_a_hash():
    tuner, calls = tuned(FakeKernel(), key=["n", "EVEN"])
    for even in ([1], [1], [2], {"a": 1}, ([1], 2)):
        tuner[(1,)](*arrays(), 8, EVEN=even)
    assert len(calls) == 3 * 4
    with pytest.raises(InvalidTuning, match="the key EVEN is ndarray, which has no hash"):
        tuner[(1,)](*arrays(), 8, EVEN=np.zeros(4))


def test_values_of_a_config_without_a_hash():
    one, two = Config({"BLOCK": [64]}), Config({"BLOCK": [128]})
    assert len({one, two, Config({"BLOCK": [64]})}) == 2


@autotune([Config({"BLOCK": b}) for b in (4, 8)], key=["n"])
@heuristics({"EVEN": lambda args: args["n"] % 2 == 0})
@tessera.jit
def doubled(x, out, n, BLOCK: tl.constexpr, EVEN: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i, i < n) * 2, i < n)


def test_pickles():
    """What a module holds is pickled by name, as functions are; what is made inside a function, by value."""
    assert pickle.loads(pickle.dumps(doubled)) is doubled
    assert copy.deepcopy(doubled) is doubled
    other = copy.copy(doubled)
    other.configs = other.configs[:1]
    assert len(doubled.configs) == 2
    assert repr(doubled) == f"Autotuner(Heuristics(JITFunction({__name__}:doubled)))"

    tuner = autotune([Config({"BLOCK": b}) for b in (64, 128)], key=["n"])(FakeKernel())
    tuner.cache[8,] = tuner.configs[1]
    made = pickle.loads(pickle.dumps(tuner))
    assert made is not tuner
    assert made.cache == {(8,): Config({"BLOCK": 128})}
    assert made.base_fn is scale
    assert made[(1,)](*arrays(), 8) in (64, 128)


def test_reset_to_zero_leaves_one_launch_worth_of_result():
    tuner, _ = tuned(FakeKernel(), reset_to_zero=["out"])
    x, out = arrays()
    tuner[(1,)](x, out, 8)
    np.testing.assert_array_equal(out, 2 * x)


def test_restore_value_puts_the_array_back_after_each_trial():
    tuner, _ = tuned(FakeKernel(), restore_value=["out"])
    x, out = arrays()
    out += 5
    tuner[(1,)](x, out, 8)
    np.testing.assert_array_equal(out, 5 + 2 * x)


def test_hooks_run_in_order():
    log: list[str] = []
    configs = [Config({"BLOCK": b}, pre_hook=lambda args: log.append("config")) for b in (64, 128)]
    kernel = FakeKernel()
    do_bench, _ = stopwatch(kernel)
    tuner = autotune(
        configs,
        key=["n"],
        pre_hook=lambda args, reset_only=False: log.append("reset" if reset_only else "pre"),
        post_hook=lambda args, exception=None: log.append("post"),
        do_bench=do_bench,
    )(kernel)
    tuner[(1,)](*arrays(), 8)
    assert log == ["config", "pre", "post"] * 2 + ["reset", "config"]


def test_early_prune_sees_arguments_and_launch_keywords():
    seen: dict[str, Any] = {}

    def prune(configs: list[Config], named: dict[str, Any], **kwargs: Any) -> list[Config]:
        seen.update(named=set(named), kwargs=set(kwargs))
        return configs[:1]

    tuner, calls = tuned(FakeKernel(), prune_configs_by={"early_config_prune": prune})
    tuner[(1,)](*arrays(), n=8)
    assert calls == []  # nothing to choose from
    assert seen == {"named": {"x", "out"}, "kwargs": {"n", "grid", "warmup"}}


def test_pruning_everything_is_an_error():
    tuner, _ = tuned(FakeKernel(), prune_configs_by={"early_config_prune": lambda c, n, **kw: []})
    with pytest.raises(AutotunerError, match="No valid autotuner configs after pruning"):
        tuner[(1,)](*arrays(), 8)


@pytest.mark.parametrize(
    ("top_k", "measured"), [(2, [128, 64]), (0.7, [128, 64]), (3, [64, 128, 256])]
)
def test_perf_model_keeps_the_top_k(top_k: Any, measured: list[int]):
    model = {"perf_model": lambda BLOCK, **kw: abs(BLOCK - 120), "top_k": top_k}
    tuner, calls = tuned(FakeKernel(), prune_configs_by=model)
    tuner[(1,)](*arrays(), 8)
    assert calls == measured


@pytest.mark.parametrize("top_k", [1, 0.0, 0.1])
def test_one_config_that_pruning_leaves_is_not_measured(top_k: Any):
    model = {"perf_model": lambda BLOCK, **kw: abs(BLOCK - 120), "top_k": top_k}
    tuner, calls = tuned(FakeKernel(), prune_configs_by=model)
    assert tuner[(1,)](*arrays(), 8) == 128
    assert calls == []


def test_top_k_must_be_a_count_or_a_share():
    for top_k in (2.5, 0, -1, "1"):
        model = {"perf_model": lambda **kw: 1.0, "top_k": top_k}
        tuner, _ = tuned(FakeKernel(), prune_configs_by=model)
        with pytest.raises(TypeError, match="top_k"):
            tuner[(1,)](*arrays(), 8)


def test_warmup_compiles_every_config_and_launches_none():
    kernel = FakeKernel()
    tuner, calls = tuned(kernel)
    assert tuner.warmup(*arrays(), 8, grid=(1,)) == [64, 128, 256]
    assert kernel.launches == calls == []
    assert kernel.compiled[0]["num_warps"] == 4


def test_results_on_disk_are_used_by_the_next_process(tmp_path: Path):
    knobs.cache.dir = str(tmp_path)
    try:
        first, calls = tuned(FakeKernel(), cache_results=True)
        first[(1,)](*arrays(), 8)
        assert len(calls) == 3
        again, calls = tuned(FakeKernel(), cache_results=True)
        assert again[(1,)](*arrays(), 8) == 128
        assert calls == []
        (file,) = (tmp_path / "autotune").glob("*.json")
        assert len(json.loads(file.read_text())["timings"]) == 3
        file.write_text("{ damaged")
        third, calls = tuned(FakeKernel(), cache_results=True)
        third[(1,)](*arrays(), 8)
        assert len(calls) == 3
    finally:
        del knobs.cache.dir


def test_infinite_times_survive_the_disk(tmp_path: Path):
    knobs.cache.dir = str(tmp_path)
    try:
        for expected in (1, 0):
            tuner, calls = tuned(FakeKernel(limit=100), cache_results=True)
            assert tuner[(1,)](*arrays(), 8) == 64
            assert len(calls) == expected
    finally:
        del knobs.cache.dir


def test_listener_hears_of_each_tuning():
    heard: list[dict[str, Any]] = []
    knobs.autotuning.listener = lambda **facts: heard.append(facts)
    try:
        tuner, _ = tuned(FakeKernel())
        tuner[(1,)](*arrays(), 8)
        tuner[(1,)](*arrays(), 8)
    finally:
        del knobs.autotuning.listener
    assert len(heard) == 1
    assert heard[0]["best_config"].kwargs == {"BLOCK": 128}
    assert heard[0]["fn"] is tuner.fn
    assert heard[0]["duration"] > 0
    assert heard[0]["cache_hit"] is False


def test_print_names_each_config_and_the_winner(capsys: pytest.CaptureFixture[str]):
    knobs.autotuning.print = True
    try:
        tuner, _ = tuned(FakeKernel())
        tuner[(1,)](*arrays(), 8)
    finally:
        del knobs.autotuning.print
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4
    assert "BLOCK: 64" in lines[0]
    assert "3.0000 ms" in lines[0]
    assert "best: BLOCK: 128" in lines[3]


def test_deprecated_stopwatch_arguments_warn_and_work():
    for graph in (False, True):  # a CUDA graph times only what runs on a GPU
        with pytest.warns(DeprecationWarning, match="do_bench") as warned:
            tuner = autotune(
                [Config({"BLOCK": 64}), Config({"BLOCK": 128})],
                key=["n"],
                warmup=1,
                rep=1,
                use_cuda_graph=graph,
            )(FakeKernel())
        assert [w.filename for w in warned] == [__file__]
        assert tuner[(1,)](*arrays(), 8) in (64, 128)


def test_what_times_on_the_host_keeps_its_arguments():
    calls: list[int] = []
    timer = timer_on_host(partial(do_bench, lambda: calls.append(1), 1))
    assert len(timer(rep=1, quantiles=(0.5, 0.9))) == 2
    assert calls
    assert timer_on_host(print) is print


def test_config_text_identity_and_pickle():
    config = Config({"A": 1}, num_warps=4, num_stages=3)
    assert str(config) == "A: 1, num_warps: 4, num_ctas: 1, num_stages: 3, maxnreg: None"
    assert config.all_kwargs() == {"A": 1, "num_warps": 4, "num_ctas": 1, "num_stages": 3}
    assert config == Config({"A": 1})
    assert hash(config) == hash(Config({"A": 1}))
    assert config != Config({"A": 1}, num_warps=8)
    assert config != Config({"A": 1}, pre_hook=print)
    assert pickle.loads(pickle.dumps(config)) == config
    old = Config.__new__(Config)
    old.__setstate__({"kwargs": {"A": 1}, "num_warps": 2})
    assert (old.num_warps, old.maxnreg) == (2, None)


RULES = {
    "BLOCK": lambda args: 4 if args["n"] < 100 else 64,
    "EVEN": lambda args: args["n"] % args["BLOCK"] == 0,
}


def test_heuristics_see_arguments_and_earlier_results():
    kernel = FakeKernel()
    heuristics(RULES)(kernel)[(1,)](*arrays(), 8)
    assert kernel.launches[-1]["BLOCK"] == 4
    assert kernel.launches[-1]["EVEN"] is True
    heuristics(RULES)(kernel)[(1,)](*arrays(), n=6)
    assert kernel.launches[-1]["EVEN"] is False


@tessera.jit
def fill(out, n, BLOCK: tl.constexpr):
    tl.store(out + tl.arange(0, BLOCK), n)


def test_heuristics_compute_options():
    chosen = heuristics({"num_warps": lambda args: 8 if args["n"] > 4 else 2})(fill)
    found = [chosen.warmup(tessera.MockTensor(tl.int32), n, BLOCK=8, grid=(1,)) for n in (3, 8)]
    assert [kernel.metadata.num_warps for kernel in found] == [2, 8]


def test_heuristics_and_autotune_stack_both_ways():
    even = {"EVEN": RULES["EVEN"]}
    kernel = FakeKernel()
    do_bench, _ = stopwatch(kernel)
    configs = [Config({"BLOCK": b}) for b in (64, 128)]
    outer = autotune(configs, key=["n"], do_bench=do_bench)(heuristics(even)(kernel))
    outer[(1,)](*arrays(128), 128)
    assert (kernel.launches[-1]["BLOCK"], kernel.launches[-1]["EVEN"]) == (128, True)
    assert outer.base_fn is scale

    fixed = heuristics({"EVEN": lambda args: args["n"] == 8})(tuned(kernel)[0])
    fixed[(1,)](*arrays(), 8)
    assert (kernel.launches[-1]["BLOCK"], kernel.launches[-1]["EVEN"]) == (128, True)
    assert isinstance(fixed.fn, Autotuner)
    assert fixed.base_fn is scale
    assert fixed.warmup(*arrays(), 8, grid=(1,)) == [64, 128, 256]
