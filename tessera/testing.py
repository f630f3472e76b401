"""Times, compares and reports for kernel authors: `do_bench`, `assert_close`, `Benchmark` and `perf_report`.

Nothing here needs torch, pandas or matplotlib unless a plot or a data frame is asked for.
"""

from __future__ import annotations

import csv
import ctypes
import importlib
import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from tessera import dtypes
from tessera.interp.shadows import uninitialised
from tessera.runtime.arguments.tensors import element_type, to_numpy
from tessera.runtime.benchmark import do_bench, do_bench_cudagraph, quantile

__all__ = [
    "Benchmark",
    "Mark",
    "assert_close",
    "do_bench",
    "do_bench_cudagraph",
    "get_dram_gbps",
    "get_max_simd_tflops",
    "get_max_tensorcore_tflops",
    "nvsmi",
    "perf_report",
    "quantile",
    "set_gpu_clock",
    "uninitialised",
]

Tolerance = float | Callable[[Any], float] | None


def assert_close(
    x: object, y: object, atol: Tolerance = None, rtol: Tolerance = None, err_msg: str = ""
) -> None:
    """AssertionError unless |x - y| <= atol + rtol * |y| everywhere; NaN equals NaN in arrays.

    `x` and `y` are arrays of any library, or numbers. `atol` (default 1e-2) and `rtol` (default 0) are numbers, or
    functions of x's dtype. bf16 is compared as fp32. The message names the first elements that differ.

    Example:
        >>> tessera.testing.assert_close(np.ones(3), np.ones(3) + 1e-3)
        >>> tessera.testing.assert_close(np.ones(3), np.zeros(3))
        Traceback (most recent call last):
        AssertionError: ...
    """
    dtype = getattr(x, "dtype", None)
    absolute = atol(dtype) if callable(atol) else 1e-2 if atol is None else atol
    relative = rtol(dtype) if callable(rtol) else 0.0 if rtol is None else rtol
    left, right = to_numpy(x), to_numpy(y)
    if left.size > 1 or right.size > 1:
        np.testing.assert_allclose(
            left, right, atol=absolute, rtol=relative, equal_nan=True, err_msg=err_msg
        )
    elif not np.allclose(left, right, atol=absolute, rtol=relative):
        raise AssertionError(
            f"{err_msg} {x} is not close to {y} (atol={absolute}, rtol={relative})"
        )


# --- reports --------------------------------------------------------------------------------------------
@dataclass
class Benchmark:
    """What `perf_report` sweeps: one row for each of `x_vals`, one column for each of `line_vals`.

    x_names: parameters of the benchmark that take the x value (a scalar goes to all of them, a tuple one to each).
    line_arg: the parameter that takes the line value; line_names: their titles. args: fixed parameters. The rest
    describes the plot.
    """

    x_names: list[str]
    x_vals: Sequence[Any]
    line_arg: str
    line_vals: Sequence[Any]
    line_names: Sequence[str]
    plot_name: str
    args: Mapping[str, Any]
    xlabel: str = ""
    ylabel: str = ""
    x_log: bool = False
    y_log: bool = False
    styles: Sequence[tuple[str, str]] | None = None


@dataclass
class _Table:
    """Measurements of one Benchmark: `spans[i][j]` is (mean, low, high) of row i, line j."""

    bench: Benchmark
    points: list[tuple[Any, ...]]
    spans: list[list[tuple[float, float | None, float | None]]]

    def columns(self) -> list[str]:
        lines = [f"{name} ({self.bench.ylabel})" for name in self.bench.line_names]
        return [*self.bench.x_names, *lines]

    def rows(self) -> list[list[Any]]:
        return [[*p, *(mean for mean, _, _ in s)] for p, s in zip(self.points, self.spans)]


class Mark:
    """A benchmark function with its sweeps, as made by `perf_report`."""

    def __init__(
        self, fn: Callable[..., object], benchmarks: Benchmark | Sequence[Benchmark]
    ) -> None:
        self.fn = fn
        self.benchmarks = benchmarks

    def run(
        self,
        show_plots: bool = False,
        print_data: bool = False,
        save_path: str = "",
        return_df: bool = False,
        **kwargs: object,
    ) -> Any:
        """Measure every sweep; `kwargs` go to the function.

        print_data: print tables. save_path: write a .csv for each named sweep, with matplotlib a .png too, and
        results.html over all. show_plots: open windows (needs matplotlib). return_df: return the pandas DataFrame (a
        list of them for a list of sweeps). ImportError, before anything is measured, when a needed package is absent.
        """
        if return_df:
            _need("pandas", "return_df=True")
        if show_plots:
            _need("matplotlib", "show_plots=True")
        many = not isinstance(self.benchmarks, Benchmark)
        sweeps = [self.benchmarks] if isinstance(self.benchmarks, Benchmark) else self.benchmarks
        if save_path:
            os.makedirs(save_path, exist_ok=True)
        tables: list[_Table] = []
        for bench in sweeps:
            table = self._measure(bench, kwargs)
            tables.append(table)
            if print_data:
                print_table(bench.plot_name, table.columns(), table.rows())
            if bench.plot_name and (show_plots or save_path):
                _plot(table, show_plots, save_path)
            if save_path:
                _write_csv(table, save_path)
        if save_path:
            _write_html(tables, save_path)
        if not return_df:
            return None
        frames = [_data_frame(table) for table in tables]
        return frames if many else frames[0]

    def _measure(self, bench: Benchmark, kwargs: Mapping[str, object]) -> _Table:
        points: list[tuple[Any, ...]] = []
        spans: list[list[tuple[float, float | None, float | None]]] = []
        for value in bench.x_vals:
            point = _point(bench, value)
            named = dict(zip(bench.x_names, point))
            found = (
                self.fn(**named, **{bench.line_arg: line}, **bench.args, **kwargs)
                for line in bench.line_vals
            )
            points.append(point)
            spans.append([_span(value) for value in found])
        return _Table(bench, points, spans)


def perf_report(
    benchmarks: Benchmark | Sequence[Benchmark],
) -> Callable[[Callable[..., Any]], Mark]:
    """Decorator for a function that measures one point and returns a value, or (mean, min, max).

    `benchmarks` is a Benchmark, or several. `run(print_data=True)` of the result measures all points; it returns data
    frames with `return_df=True` (pandas), and plots and writes tables with `save_path` (matplotlib).

    Example:
        >>> sweep = tessera.testing.Benchmark(
        ...     x_names=["n"], x_vals=[1, 2], line_arg="power", line_vals=[1, 2], line_names=["n", "n^2"],
        ...     plot_name="powers", args={})
        >>> report = tessera.testing.perf_report(sweep)(lambda n, power: float(n**power))
        >>> report.run(print_data=True)
        powers:
        n  n ()  n^2 ()
        1     1       1
        2     2       4
    """
    return lambda fn: Mark(fn, benchmarks)


def _point(bench: Benchmark, value: object) -> tuple[Any, ...]:
    if not isinstance(value, (list, tuple)):
        return (value,) * len(bench.x_names)
    values = tuple(cast("Sequence[Any]", value))
    if len(values) != len(bench.x_names):
        raise ValueError(f"Expected {len(bench.x_names)} values ({bench.x_names}), got {values}")
    return values


def _span(found: Any) -> tuple[float, float | None, float | None]:
    if isinstance(found, (tuple, list)):
        mean, low, high = cast("Sequence[float]", found)
        return mean, low, high
    return found, None, None


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print rows under a title; on a terminal with `rich`, where it is installed, in a frame."""
    cells = [[f"{v:.6g}" if isinstance(v, float) else str(v) for v in row] for row in rows]
    if sys.stdout.isatty() and importlib.util.find_spec("rich") is not None:
        _print_rich(title, columns, cells)
        return
    widths = [max(map(len, column)) for column in zip(columns, *cells)]
    if title:
        print(f"{title}:")
    for line in [list(columns), *cells]:
        print("  ".join(cell.rjust(width) for cell, width in zip(line, widths)))


def _print_rich(title: str, columns: Sequence[str], cells: Sequence[Sequence[str]]) -> None:
    table = importlib.import_module("rich.table").Table(title=title or None)
    for column in columns:
        table.add_column(column, justify="right")
    for row in cells:
        table.add_row(*row)
    importlib.import_module("rich").print(table)


def _need(package: str, wish: str) -> Any:
    if importlib.util.find_spec(package) is None:
        raise ImportError(f"{wish} needs {package}: pip install {package}")
    return importlib.import_module(package)


def _data_frame(table: _Table) -> Any:
    return _need("pandas", "return_df=True").DataFrame(table.rows(), columns=table.columns())


def _write_csv(table: _Table, directory: str) -> None:
    path = os.path.join(directory, f"{table.bench.plot_name}.csv")
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(table.columns())
        writer.writerows(table.rows())


def _write_html(tables: Sequence[_Table], directory: str) -> None:
    lines = ["<html><body>"]
    for table in tables:
        name = table.bench.plot_name
        if os.path.exists(os.path.join(directory, f"{name}.png")):
            lines.append(f'<img src="{name}.png"/>')
        lines.append(f'<p><a href="{name}.csv">{name}</a></p>')
    with open(os.path.join(directory, "results.html"), "w", encoding="utf-8") as file:
        file.write("\n".join([*lines, "</body></html>", ""]))


def _plot(table: _Table, show: bool, directory: str) -> None:
    if not show and importlib.util.find_spec("matplotlib") is None:
        return  # the .csv is written anyway
    bench = table.bench
    pyplot = importlib.import_module("matplotlib.pyplot")
    figure, axes = pyplot.subplots()
    x = [point[0] for point in table.points]
    for index, name in enumerate(bench.line_names):
        mean, low, high = zip(*(spans[index] for spans in table.spans))
        color, style = (bench.styles[index] if bench.styles else (None, None))[:2]
        (line,) = axes.plot(x, mean, label=name, color=color, ls=style)
        if all(v is not None for v in (*low, *high)):
            axes.fill_between(x, low, high, alpha=0.15, color=line.get_color())
    axes.legend()
    axes.set_xlabel(bench.xlabel or bench.x_names[0])
    axes.set_ylabel(bench.ylabel)
    axes.set_xscale("log" if bench.x_log else "linear")
    axes.set_yscale("log" if bench.y_log else "linear")
    if show:
        pyplot.show()
    if directory:
        figure.savefig(os.path.join(directory, f"{bench.plot_name}.png"))
    pyplot.close(figure)


# --- limits of the hardware ---------------------------------------------------------------------------
# Attributes of the CUDA driver API (cuDeviceGetAttribute).
_CLOCK_KHZ, _SM_COUNT, _MEMORY_CLOCK_KHZ, _BUS_BITS, _MAJOR, _MINOR = 13, 16, 36, 37, 75, 76

# Dense tensor-core operations per clock and SM for 16-bit operands (a multiply-add is two), by compute capability.
_TENSOR_OPS = {
    (7, 0): 1024,
    (7, 5): 1024,
    (8, 0): 2048,
    (8, 6): 1024,
    (8, 9): 1024,
    (9, 0): 4096,
    (10, 0): 8192,
}
# Operations per clock and SM of the fp32 units.
_SIMD_OPS = {
    (7, 0): 128,
    (7, 5): 128,
    (8, 0): 128,
    (8, 6): 256,
    (8, 9): 256,
    (9, 0): 256,
    (10, 0): 256,
}


def _device_attribute(attribute: int, device: int | None) -> int:
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise RuntimeError("no CUDA driver on this machine (libcuda.so.1)") from error
    value = ctypes.c_int()
    if cuda.cuInit(0) or cuda.cuDeviceGetAttribute(ctypes.byref(value), attribute, device or 0):
        raise RuntimeError(f"the CUDA driver does not know device {device or 0}")
    return value.value


def _per_clock(table: Mapping[tuple[int, int], int], device: int | None) -> int:
    """Return the row of this device, or of the newest older one."""
    capability = (_device_attribute(_MAJOR, device), _device_attribute(_MINOR, device))
    known = [row for row in table if row <= capability]
    if not known:
        raise RuntimeError(f"no figures for compute capability {capability}")
    return table[max(known)]


def _tflops(per_clock: float, clock_khz: float | None, device: int | None) -> float:
    clock = _device_attribute(_CLOCK_KHZ, device) if clock_khz is None else clock_khz
    return per_clock * _device_attribute(_SM_COUNT, device) * clock * 1e-9


def get_dram_gbps(device: int | None = None) -> float:
    """Return the peak memory bandwidth of a CUDA device in GB/s. Raises RuntimeError without one."""
    clock, bits = _device_attribute(_MEMORY_CLOCK_KHZ, device), _device_attribute(_BUS_BITS, device)
    return clock * bits * 2 / 1e6 / 8


def get_max_tensorcore_tflops(
    dtype: object, clock_rate: float | None = None, device: int | None = None
) -> float:
    """Return peak dense tensor-core TFLOP/s for operands of `dtype`; `clock_rate` in kHz, default the maximum."""
    kind = element_type(dtype)
    known = (dtypes.float32, dtypes.float16, dtypes.bfloat16, dtypes.int8, *dtypes.FP8)
    if kind is None or kind not in known:
        raise RuntimeError(f"dtype not supported: {dtype}")
    return _tflops(_per_clock(_TENSOR_OPS, device) * 16 / kind.bits, clock_rate, device)


def get_max_simd_tflops(
    dtype: object, clock_rate: float | None = None, device: int | None = None
) -> float:
    """Return peak TFLOP/s without tensor cores for fp32, fp16 or bf16; `clock_rate` in kHz, default the maximum."""
    kind = element_type(dtype)
    if kind not in (dtypes.float32, dtypes.float16, dtypes.bfloat16):
        raise RuntimeError(f"dtype not supported: {dtype}")
    packed = 2 if kind is dtypes.float16 else 1
    return _tflops(_per_clock(_SIMD_OPS, device) * packed, clock_rate, device)


def nvsmi(attrs: Sequence[str]) -> list[int]:
    """Return integer attributes of GPU 0 as `nvidia-smi` reports them, e.g. ["clocks.max.sm"]."""
    query = [
        "nvidia-smi",
        "-i",
        "0",
        f"--query-gpu={','.join(attrs)}",
        "--format=csv,noheader,nounits",
    ]
    answer = subprocess.check_output(query, text=True)
    return [int(value) for value in answer.split(",")]


@contextmanager
def set_gpu_clock(
    ref_sm_clock: int = 1350, ref_mem_clock: int = 1215
) -> Generator[tuple[float, float], None, None]:
    """Lock GPU 0's clocks (MHz) while inside; yields (fp16 tensor-core TFLOP/s, GB/s) at them. Needs privileges."""

    def smi(*options: str) -> None:
        subprocess.check_output(["nvidia-smi", "-i", "0", *options])

    try:
        smi("-pm", "1")
        smi(f"--lock-gpu-clocks={ref_sm_clock},{ref_sm_clock}")
        smi(f"--lock-memory-clocks={ref_mem_clock},{ref_mem_clock}")
        gbps = ref_mem_clock * 1e3 * _device_attribute(_BUS_BITS, 0) * 2 / 1e6 / 8
        yield get_max_tensorcore_tflops(dtypes.float16, ref_sm_clock * 1e3), gbps
    finally:
        smi("--reset-gpu-clocks")
        smi("--reset-memory-clocks")
