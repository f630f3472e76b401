"""A dumped graph runs by itself: each kernel as printed source, which may be changed, is what the graph says."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tessera.dtypes import bfloat16, float32, int64
from tessera.graph.calls.executable import compile_graph, machine_of
from tessera.graph.calls.host import NumpyHost
from tessera.graph.calls.rerun import KernelMismatch, run_folder
from tessera.graph.index import sym
from tessera.graph.ir.build import GraphBuilder
from tessera.graph.ir.types import TensorType
from tessera.graph.passes import optimize
from tests.fuzz.graphs_kit import RandomGraph
from tests.unit.graph_kit import HOPPER, compiled, fp32, module_of


def kernels_of(folder: Path) -> Any:
    spec = importlib.util.spec_from_file_location("run", folder / "run.py")
    assert spec is not None and spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    return script.KERNELS


def run(folder: Path, size: int) -> list[str]:
    said: list[str] = []
    run_folder(folder / "run.py", size, said.append, kernels_of(folder))
    return said


def centred(g: GraphBuilder) -> Any:
    """Rows without their means: a reduction and two loops over its rows."""
    n = sym("s0")
    x = g.input("x", fp32(n, 100))

    def row(i: Any) -> Any:
        mean, _, _ = g.welford([100], lambda r: g.load(x, i, r))
        return g.loop([100], lambda r: g.sub(g.load(x, i, r), mean))

    return g.loop([n], row)


def test_a_dumped_graph_runs_by_itself(tmp_path: Path):
    folder = compiled(module_of(centred)).dump(tmp_path / "graph")
    assert (folder / "call.py").read_text().startswith("def call(inputs):")
    done = subprocess.run(
        [sys.executable, folder / "run.py", "5"], capture_output=True, text=True, check=True
    )
    kernel, total = done.stdout.splitlines()
    assert "right" in kernel and "(x, s0, t0)" in kernel.replace("'", "")
    assert total.startswith("1 launches")


def test_a_changed_kernel_is_what_runs(tmp_path: Path):
    folder = compiled(module_of(centred)).dump(tmp_path / "graph")
    (source,) = (folder / "kernels").glob("*.py")
    text = source.read_text()
    store = next(line for line in text.splitlines() if "tl.store(" in line)
    source.write_text(text.replace(store, store.replace(", mask", " * 2.0, mask")))
    with pytest.raises(KernelMismatch, match=source.stem):
        run(folder, 5)


@pytest.mark.parametrize("seed", [4, 9, 17, 250, 503])
def test_printed_kernels_of_random_graphs(seed: int, tmp_path: Path):
    """All of them compile from their source, and compute what they are meant to."""
    graph = RandomGraph(seed, 2 + seed % 12)
    optimize(graph.module)
    machine = machine_of(HOPPER) if seed % 2 else None
    folder = compile_graph(graph.module, NumpyHost({"copy": np.array}), machine=machine).dump(
        tmp_path
    )
    assert all("@tessera.jit" in p.read_text() for p in (folder / "kernels").glob("*.py"))
    assert len(run(folder, 3)) > 1


def test_types_of_arguments_are_those_of_the_graph(tmp_path: Path):
    """bf16 lies in arrays of uint16, and sizes in Python's integers."""

    def build(g: GraphBuilder) -> Any:
        n = sym("s0")
        x = g.input("x", TensorType((n, 8), bfloat16))
        at = g.input("at", TensorType((4,), int64))

        def element(i: Any, j: Any) -> Any:
            v = g.cast(g.load(x, g.load(at, i), j), float32)
            return g.cast(g.exp(v), bfloat16)

        return g.loop([4, 8], element)

    folder = compiled(module_of(build)).dump(tmp_path)
    assert "right" in run(folder, 6)[0]
