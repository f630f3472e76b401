"""tessera.testing on a machine without torch, a GPU, pandas or matplotlib."""

from __future__ import annotations

import csv
import importlib.util
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tessera
import tessera.language as tl
import tessera.runtime.benchmark as benchmark
from tessera import dtypes, testing
from tessera.runtime.arguments.tensors import reinterpret
from tessera.runtime.autotuner import places
from tessera.runtime.driver import Driver, driver, driver_named


def test_quantiles_interpolate_linearly():
    assert benchmark.quantile([4, 1, 3, 2], [0.0, 0.5, 0.25, 1.0]) == [1, 2.5, 1.75, 4]
    with pytest.raises(ValueError, match="quantile"):
        benchmark.quantile([1.0], [1.5])


@pytest.mark.parametrize(
    ("mode", "expected"), [("min", 1), ("max", 9), ("mean", 4), ("median", 2), ("all", [1, 9, 2])]
)
def test_return_modes(mode: str, expected: Any):
    assert benchmark.summarize([1, 9, 2], None, mode) == expected


def test_one_quantile_is_a_number():
    assert benchmark.summarize([1, 9, 2], [0.5], "mean") == 2
    assert benchmark.summarize([1, 9, 2], [0.5, 1.0], "mean") == [2, 9]


def test_do_bench_measures_milliseconds():
    ms = testing.do_bench(lambda: time.sleep(0.004), warmup=5, rep=30, return_mode="median")
    assert 4 <= ms < 12


def test_do_bench_repeats_a_long_call_only_as_often_as_it_must(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(driver, "chosen", driver_named("cpu"))  # a GPU would be timed
    calls: list[int] = []

    def slow() -> None:
        calls.append(1)
        time.sleep(0.02)

    testing.do_bench(slow, warmup=1, rep=1)
    assert len(calls) == 3


class NoGPU:
    """Stands for a torch that uses CUDA, of which nothing may be asked but that and the GPU's name."""

    class cuda:
        is_available = is_initialized = staticmethod(lambda: True)
        get_device_name = staticmethod(lambda: "H200")


@tessera.jit
def doubling(x, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(x + i, tl.load(x + i) * 2)


@pytest.mark.parametrize("warmup", [None, 0])
def test_launches_on_the_host_are_timed_there(warmup: int | None, monkeypatch: pytest.MonkeyPatch):
    """Also where torch uses a GPU: its events do not see what the host does meanwhile."""
    monkeypatch.setitem(sys.modules, "torch", NoGPU)
    configs = [tessera.Config({}, num_warps=n) for n in (1, 2)]
    timer = None if warmup is None else partial(testing.do_bench, warmup=warmup, rep=0.01)
    x = np.ones(8, np.float32)
    tessera.autotune(configs, key=[], do_bench=timer)(doubling)[(1,)](x, N=8)
    assert (x >= 2).all()

    assert benchmark.cuda_torch() is NoGPU
    monkeypatch.setattr(driver, "chosen", driver_named("cpu"))
    assert benchmark.cuda_torch() is None
    assert testing.do_bench(lambda: None, warmup=0, rep=0.01) >= 0


def test_what_is_tuned_on_the_host_is_not_for_gpus(monkeypatch: pytest.MonkeyPatch):
    given = [1, np.zeros(1, np.float32)]
    monkeypatch.setattr(places.cuda, "available", lambda: True)
    assert places.place_of_launch(given) == ["cpu"]
    monkeypatch.setattr(places.cuda, "available", lambda: False)
    assert places.place_of_launch(given) == []
    monkeypatch.setattr(driver, "for_arguments", lambda values: Driver())
    assert places.place_of_launch(given) == []


def test_do_bench_refuses_an_unknown_mode():
    with pytest.raises(AssertionError, match="return_mode"):
        testing.do_bench(lambda: None, return_mode="mode")


def test_do_bench_drops_gradients():
    class Leaf:
        grad: Any = 1

    leaf = Leaf()
    testing.do_bench(lambda: None, warmup=0, rep=0.01, grad_to_none=[leaf])
    assert leaf.grad is None


@pytest.mark.skipif(benchmark.cuda_torch() is not None, reason="a GPU is in use")
def test_cudagraph_timing_says_what_it_needs():
    with pytest.raises(RuntimeError, match="CUDA device; use do_bench on the CPU"):
        testing.do_bench_cudagraph(lambda: None)


def test_assert_close_defaults_to_a_hundredth():
    testing.assert_close(np.ones(4), np.ones(4) + 0.009)
    with pytest.raises(AssertionError, match="here"):
        testing.assert_close(np.ones(4), np.ones(4) + 0.02, err_msg="here")
    testing.assert_close(1.0, 1.009)
    with pytest.raises(AssertionError, match=r"atol=0\.01"):
        testing.assert_close(1.0, 1.02)


def test_assert_close_tolerances_may_depend_on_the_dtype():
    def atol(dtype: Any) -> float:
        return 1.0 if dtype == np.float16 else 0.0

    testing.assert_close(np.zeros(2, np.float16), np.full(2, 0.5), atol=atol)
    with pytest.raises(AssertionError):
        testing.assert_close(np.zeros(2), np.full(2, 0.5), atol=atol)
    testing.assert_close(np.full(2, 100.0), np.full(2, 101.0), atol=0, rtol=0.01)


def test_assert_close_on_nan_and_bf16():
    testing.assert_close(np.array([np.nan, 1]), np.array([np.nan, 1]))
    with pytest.raises(AssertionError):
        testing.assert_close(np.nan, np.nan)
    bits = (np.array([1.5, -2.0], np.float32).view(np.uint32) >> 16).astype(np.uint16)
    testing.assert_close(reinterpret(bits, dtypes.bfloat16), np.array([1.5, -2.0]), atol=0)


def sweep(**options: Any) -> testing.Benchmark:
    return testing.Benchmark(
        x_names=["m", "n"],
        x_vals=[2, (3, 4)],
        line_arg="how",
        line_vals=["a", "b"],
        line_names=["A", "B"],
        plot_name="products",
        args={"scale": 10},
        ylabel="GB/s",
        **options,
    )


def product(m: int, n: int, how: str, scale: int, shift: int = 0) -> Any:
    value = float(m * n * scale + shift)
    return value if how == "a" else (value + 1, value, value + 2)


def test_report_prints_rows_and_columns(capsys: pytest.CaptureFixture[str]):
    testing.perf_report(sweep())(product).run(print_data=True, shift=5)
    text = capsys.readouterr().out
    for part in ("products", "A (GB/s)", "B (GB/s)", "45", "46", "125", "126"):
        assert part in text


def test_report_writes_csv_and_html(tmp_path: Path):
    testing.perf_report([sweep()])(product).run(save_path=str(tmp_path))
    with open(tmp_path / "products.csv", newline="") as file:
        rows = list(csv.reader(file))
    assert rows[0] == ["m", "n", "A (GB/s)", "B (GB/s)"]
    assert rows[1:] == [["2", "2", "40.0", "41.0"], ["3", "4", "120.0", "121.0"]]
    assert "products.csv" in (tmp_path / "results.html").read_text()


def test_report_checks_the_number_of_x_values():
    bench = sweep()
    bench.x_vals = [(1, 2, 3)]
    with pytest.raises(ValueError, match="Expected 2 values"):
        testing.perf_report(bench)(product).run()


def test_missing_packages_are_named_before_anything_runs(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)

    def never(**kwargs: Any) -> float:
        raise AssertionError("measured")

    with pytest.raises(ImportError, match="return_df=True needs pandas: pip install pandas"):
        testing.perf_report(sweep())(never).run(return_df=True)
    with pytest.raises(ImportError, match="show_plots=True needs matplotlib"):
        testing.perf_report(sweep())(never).run(show_plots=True)


def test_plain_table_without_rich(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    testing.print_table("t", ["n", "GB/s"], [[1024, 3.14159265]])
    assert capsys.readouterr().out == "t:\n   n     GB/s\n1024  3.14159\n"


def test_hardware_peaks_from_the_drivers_numbers(monkeypatch: pytest.MonkeyPatch):
    h200 = {13: 1_980_000, 16: 132, 36: 3_201_000, 37: 6144, 75: 9, 76: 0}
    monkeypatch.setattr(testing, "_device_attribute", lambda attribute, device: h200[attribute])
    assert testing.get_dram_gbps() == pytest.approx(4917, rel=1e-3)
    assert testing.get_max_tensorcore_tflops(dtypes.bfloat16, 1_830_000) == pytest.approx(
        989.4, rel=1e-3
    )
    assert testing.get_max_tensorcore_tflops(dtypes.float8e4nv) == pytest.approx(2141, rel=1e-3)
    assert testing.get_max_simd_tflops(np.dtype("float32")) == pytest.approx(66.9, rel=1e-3)
    with pytest.raises(RuntimeError, match="dtype not supported"):
        testing.get_max_simd_tflops(dtypes.int8)
