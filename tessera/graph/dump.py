"""Writes a compiled graph to a folder that runs by itself, with random arguments, and says how long a call takes.

exe.dump("folder")        graph.gph, call.py (what runs), kernels/NAME.tir and run.py
python folder/run.py      compiles graph.gph again, runs and times it on the CPU
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tessera.graph.plan import Launch
from tessera.ir import Module, print_module

if TYPE_CHECKING:
    from tessera.graph.executable import Executable

RUN = '''"""Runs the graph beside this file with random arguments: `python run.py [size of symbols]`."""

import sys

from tessera.graph.rerun import run_folder

run_folder(__file__, *map(int, sys.argv[1:2]))
'''


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
