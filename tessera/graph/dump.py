"""Writes a compiled graph to a folder that runs by itself, with random arguments, and says how long a call takes.

exe.dump("folder")        graph.gph, call.py (what runs), kernels/NAME.tir and run.py
python folder/run.py      compiles graph.gph again, runs and times it on the CPU
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from copy import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tessera.graph import ops as _ops  # what the text of a graph names
from tessera.graph.host import NumpyHost
from tessera.graph.index import Sym
from tessera.graph.plan import Launch, number
from tessera.graph.types import TensorType
from tessera.interp.numerics import storage
from tessera.ir import Module, parse_module, print_module
from tessera.ops import FuncOp

if TYPE_CHECKING:
    from tessera.graph.executable import Executable

RUN = '''"""Runs the graph beside this file with random arguments: `python run.py [size of symbols]`."""

import sys

from tessera.graph.dump import run_folder

run_folder(__file__, *map(int, sys.argv[1:2]))
'''
CALLS = 20
OPS = _ops


def write_folder(exe: Executable, folder: str | Path) -> Path:
    """Write the graph, its call, its kernels and a script that runs it."""
    place = Path(folder)
    (place / "kernels").mkdir(parents=True, exist_ok=True)
    module = Module()
    module.body.append(exe.function.clone())
    (place / "graph.gph").write_text(print_module(module), encoding="utf-8")
    (place / "call.py").write_text(exe.source, encoding="utf-8")
    (place / "run.py").write_text(RUN, encoding="utf-8")
    for step in exe.plan.steps:
        if isinstance(step, Launch):
            path = place / "kernels" / f"{step.code.name}.tir"
            path.write_text(step.code.text, encoding="utf-8")
    return place


def random_arguments(function: FuncOp, size: int, seed: int = 0) -> list[Any]:
    """Arguments for a graph whose symbols are all `size`: numbers around 0, indices that are 0, sizes."""
    draw = np.random.default_rng(seed)
    names = {name for n in _sizes(function) for name in n}
    sizes = {Sym(name): size for name in names}
    made: list[Any] = []
    for a in function.body.args:
        t = a.type
        if not isinstance(t, TensorType):
            made.append(size)
            continue
        shape = tuple(number(n, sizes) for n in t.shape)
        if t.elem.is_floating() and t.elem.bits >= 32:
            made.append(draw.standard_normal(shape).astype(storage(t.elem)))
        else:
            made.append(np.zeros(shape, storage(t.elem)))
    return made


def _sizes(function: FuncOp) -> list[frozenset[str]]:
    tensors = [a.type for a in function.body.args if isinstance(a.type, TensorType)]
    return [n.syms for t in tensors for n in t.shape if not isinstance(n, int)]


def run_folder(script: str | Path, size: int = 16, show: Callable[[str], None] = print) -> float:
    """Compile and run the graph of a folder on the CPU; the median time of a call in seconds, which it also shows."""
    from tessera.graph.executable import compile_graph

    text = (Path(script).parent / "graph.gph").read_text(encoding="utf-8")
    exe = compile_graph(parse_module(text), NumpyHost())
    arguments = random_arguments(exe.function, size)
    times: list[float] = []
    for _ in range(CALLS):
        given = [copy(x) for x in arguments]
        start = time.perf_counter()
        exe(given)
        times.append(time.perf_counter() - start)
    median = statistics.median(times)
    show(
        f"{len(exe.plan.steps)} steps, {len(exe.compiled())} kernels, {median * 1e6:.1f} us a call"
    )
    return median
