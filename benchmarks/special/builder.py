"""A process that compiles the kernels of functions.py by one of the two compilers. See generated/pool.py.

    builder.py tessera|triton FOLDER

A task is the index of a function, a dtype ("fp64": the reference) and the elements of a program; its answer has the
binary.
"""

# pyright: basic, reportMissingImports=false
from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parents[1]
sys.path.append(str(HERE.parent))
sys.path.append(str(HERE))
# isort: off
if sys.argv[1] == "tessera":
    import tessera.compat  # noqa: F401  before anything that imports triton
import triton  # noqa: E402
from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler import ASTSource  # noqa: E402

from generated import pool  # noqa: E402
from generated.binary import kept, module_of  # noqa: E402
from special.functions import FUNCTIONS, module_text, slug, types_of  # noqa: E402
# isort: on

SIDE, FOLDER = sys.argv[1], Path(sys.argv[2])
TARGET = GPUTarget("cuda", 90, 32)


def module(wide: bool) -> Any:
    """The kernels as a module; its file is this process's own, as others may be reading theirs."""
    name = f"special_{SIDE}_{'wide' if wide else 'single'}_{os.getpid()}"
    return sys.modules.get(name) or module_of(FOLDER / f"{name}.py", module_text(wide))


def build(task: list[Any]) -> dict[str, Any]:
    index, dtype, block = task
    f = FUNCTIONS[index]
    operands, result = types_of(f, dtype)
    names = [f"{n}p" for n in "xyzt"[: len(operands)]]
    signature = {n: f"*{t}" for n, t in zip(names, operands)}
    signature |= {"out": f"*{result}", "BLOCK": "constexpr"}
    attributes = {(i,): [["tt.divisibility", 16]] for i in range(len(operands) + 1)}
    kernel = getattr(module(dtype == "fp64"), slug(index))
    source = ASTSource(kernel, signature, {"BLOCK": block}, attributes)
    found = triton.compile(source, target=TARGET, options={"num_warps": 4})
    return {**kept(found, FOLDER / f"{SIDE}-{index}-{dtype}-{block}.cubin"), "block": block}


if __name__ == "__main__":
    pool.serve(build)
