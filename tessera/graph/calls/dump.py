"""Writes a compiled graph to a folder that runs by itself, with random arguments: each kernel as source to be edited.

exe.dump("folder")          graph.gph, call.py (what runs), kernels/NAME.py and .tir, and run.py
python folder/run.py        runs each kernel, compares it with its meaning in NumPy, and times it on the CPU
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from tessera.compiler.printer import NoSource, print_kernel
from tessera.graph.index import Sym
from tessera.graph.planning.plan import Launch
from tessera.ir import Module, Value, parse_module, print_module

if TYPE_CHECKING:
    from tessera.graph.calls.executable import Executable
    from tessera.graph.emit.kernel import KernelCode

RUN = '''"""Runs the kernels of the graph beside this file with random arguments: `python run.py [size of symbols]`.

Each one is compiled from kernels/NAME.py, which may be changed, and compared with what graph.gph says that it computes.
"""

import sys

from tessera.graph.calls.rerun import Kernel, run_folder

# kernel, its arguments (values of graph.gph, and sizes), numbers of those that it writes, how many programs, warps
KERNELS = [
{kernels}]

if __name__ == "__main__":
    run_folder(__file__, *map(int, sys.argv[1:2]), kernels=KERNELS)
'''


def write_folder(exe: Executable, folder: str | Path) -> Path:
    """Write the graph, its call, its kernels and a script that runs and checks them."""
    place = Path(folder)
    (place / "kernels").mkdir(parents=True, exist_ok=True)
    mapping: dict[Value, Value] = {}
    module = Module()
    module.body.append(exe.function.clone(mapping))
    names = _names(mapping, exe)
    (place / "graph.gph").write_text(print_module(module), encoding="utf-8")
    (place / "call.py").write_text(exe.source, encoding="utf-8")
    launches = [step.code for step in exe.plan.steps if isinstance(step, Launch)]
    rows = "".join(f"    {_row(code, names)},\n" for code in launches)
    (place / "run.py").write_text(RUN.replace("{kernels}", rows), encoding="utf-8")
    for code in launches:
        path = place / "kernels" / f"{code.name}.tir"
        path.write_text(code.text, encoding="utf-8")
        path.with_suffix(".py").write_text(kernel_source(code), encoding="utf-8")
    return place


def kernel_source(code: KernelCode) -> str:
    """A kernel in Python; a comment that says why where it has no form in the language."""
    try:
        return print_kernel(parse_module(code.text))
    except NoSource as error:
        return f"# {code.name}.tir is not printed: {error.message}\n"


def _names(mapping: dict[Value, Value], exe: Executable) -> dict[Value, str]:
    """Give the tensors of the copied function names of their own; by value of the function."""
    found: dict[Value, str] = {}
    body = exe.function.body
    for v in (*body.args, *(r for op in body for r in op.results)):
        stem = re.sub(r"\W", "_", v.name) if v.name else "t"
        name, n = stem, 0
        while name in found.values() or name == "t":
            name, n = f"{stem}{n}", n + 1
        found[v] = mapping[v].name = name
    return found


def _row(code: KernelCode, names: dict[Value, str]) -> str:
    given = [p.name if isinstance(p, Sym) else names[p] for p in code.parameters]
    return f'Kernel("{code.name}", {given}, {list(code.written)}, "{code.programs}", {code.warps})'
