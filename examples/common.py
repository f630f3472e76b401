"""What the examples share: where to run, timing, checks and the table of results.

An example holds kernels and their launches, and runs them once if it is run itself. The file of the same name in
checks/ has a `main(device) -> list[Row]` that runs them on real input and checks them against NumPy in float64, and
`specimens()`, which says how each kernel is compiled ahead of time.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

EXAMPLES = Path(__file__).resolve().parent
# Examples by name, as `example` gives them; who has a module of an example that is to be taken puts it there.
loaded: dict[str, Any] = {}


def load(path: Path, name: str) -> ModuleType:
    """The module of a file, whose name is no Python name."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def example(checks: str) -> Any:
    """The example that a file of checks/ is about."""
    path = EXAMPLES / Path(checks).name
    if path.stem not in loaded:
        loaded[path.stem] = load(path, "example_" + path.stem.replace("-", "_"))
    return loaded[path.stem]


@dataclass
class Row:
    """One line of the table. `work` is bytes moved (unit GB/s) or operations done (unit GFLOP/s) by one call."""

    name: str
    shape: str
    error: float  # largest deviation from NumPy, relative to NumPy's largest value
    tolerance: float
    work: float
    unit: str
    ours_ms: float
    reference_ms: float

    @property
    def ok(self) -> bool:
        return bool(self.error <= self.tolerance)

    def cells(self) -> list[str]:
        ours, reference = (self.work / ms * 1e-6 for ms in (self.ours_ms, self.reference_ms))
        return [
            self.name,
            self.shape.replace("float", "fp"),
            f"{self.error:.1e}" + ("" if self.ok else f" > {self.tolerance:.0e}"),
            f"{self.ours_ms:.3f}",
            f"{ours:,.0f} {self.unit}",
            f"{reference:,.0f} {self.unit}",
            f"{self.reference_ms / self.ours_ms:.2f}x",
        ]


@dataclass
class Specimen:
    """How to compile a kernel without data: its signature (name → type), constants and options."""

    kernel: Any
    signature: dict[str, str]
    constants: dict[str, Any]
    options: dict[str, Any] = field(default_factory=lambda: {"num_warps": 4, "num_stages": 3})
    capabilities: tuple[int, ...] = (80, 90)  # of the GPUs that these tile sizes are meant for


class Device:
    """The CPU with NumPy arrays, or a GPU with torch tensors."""

    def __init__(self, name: str, rep: float = 60.0) -> None:
        self.name = name
        self.rep = rep  # ms spent on timing each function
        self.is_gpu = name == "cuda"
        self.random = np.random.default_rng(0)

    @property
    def reference_name(self) -> str:
        return "torch" if self.is_gpu else "NumPy"

    def pick(self, cpu: Any, gpu: Any) -> Any:
        """A size, dtype or function for this device."""
        return gpu if self.is_gpu else cpu

    def array(self, host: np.ndarray) -> Any:
        if not self.is_gpu:
            return host
        import torch

        return torch.from_numpy(np.ascontiguousarray(host)).cuda()

    def normal(self, *shape: int, dtype: str = "float32", scale: float = 1.0) -> Any:
        return self.array((self.random.standard_normal(shape, np.float32) * scale).astype(dtype))

    def empty(self, *shape: int, dtype: str = "float32") -> Any:
        return self.array(np.empty(shape, dtype))

    def zeros(self, *shape: int, dtype: str = "float32") -> Any:
        return self.array(np.zeros(shape, dtype))

    def numpy(self, x: Any) -> np.ndarray:
        return x if isinstance(x, np.ndarray) else x.detach().cpu().numpy()

    def time(self, fn: Callable[[], Any]) -> float:
        """Median time of a call, in ms."""
        from tessera.testing import do_bench

        return do_bench(fn, warmup=self.rep / 3, rep=self.rep, return_mode="median")


def strides(x: Any) -> tuple[int, ...]:
    """Strides in elements, of a NumPy array or a torch tensor."""
    if isinstance(x, np.ndarray):
        return tuple(s // x.itemsize for s in x.strides)
    return tuple(x.stride())


def address(x: Any) -> int:
    return x.ctypes.data if isinstance(x, np.ndarray) else x.data_ptr()


def relative_error(found: np.ndarray, expected: np.ndarray) -> float:
    """Largest deviation over the largest expected magnitude; infinite if anything is not finite."""
    found64 = np.asarray(found, np.float64)
    if not np.isfinite(found64).all():
        return float("inf")
    scale = float(np.abs(expected).max()) or 1.0
    return float(np.abs(found64 - expected).max()) / scale


def choose_device(name: str, rep: float = 60.0) -> Device:
    if name == "auto":
        name = "cuda" if cuda_is_usable() else "cpu"
    return Device(name, rep)


def cuda_is_usable() -> bool:
    if importlib.util.find_spec("torch") is None:
        return False
    import torch

    return torch.cuda.is_available()


def print_rows(device: Device, rows: Sequence[Row]) -> None:
    where = device.reference_name
    titles = ["kernel", "shape", "error", "ms", "tessera", where, "speed-up"]
    lines = [row.cells() for row in rows]
    if importlib.util.find_spec("rich") is not None:
        from rich.box import SIMPLE_HEAD
        from rich.console import Console
        from rich.table import Table

        table = Table(
            title=f"tessera on {device_title(device)}: error against NumPy in fp64, speed beside {where}",
            box=SIMPLE_HEAD,
        )
        for index, title in enumerate(titles):
            table.add_column(title, justify="left" if index < 2 else "right", no_wrap=True)
        for row, line in zip(rows, lines):
            table.add_row(*line, style=None if row.ok else "bold red")
        width = None if sys.stdout.isatty() else 150
        Console(width=width).print(table)
        return
    widths = [max(map(len, column)) for column in zip(titles, *lines)]
    print(f"tessera on {device_title(device)}")
    for line in [titles, *lines]:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip())


def device_title(device: Device) -> str:
    from tessera.runtime.benchmark import device_name

    if device.is_gpu:
        return device_name()
    threads = int(os.environ.get("TESSERA_NUM_THREADS") or len(os.sched_getaffinity(0)))
    return f"{device_name()}, {threads} thread{'s' if threads > 1 else ''}"


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto")
    parser.add_argument("--rep", type=float, default=60.0, help="ms spent on timing each function")
    parser.add_argument("--only", default="", help="numbers of examples, e.g. 01,03")
    return parser.parse_args()
