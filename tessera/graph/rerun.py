"""Runs a dumped graph (dump.py) with random arguments, and says how long a call takes."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from copy import copy
from pathlib import Path
from typing import Any

import numpy as np

from tessera.graph.executable import compile_graph
from tessera.graph.host import NumpyHost
from tessera.graph.index import Sym
from tessera.graph.plan import number
from tessera.graph.types import TensorType
from tessera.interp.numerics import storage
from tessera.ir import parse_module
from tessera.ops import FuncOp

CALLS = 20


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
