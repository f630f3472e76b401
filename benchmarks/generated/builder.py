"""A process that compiles kernels by one of the two compilers, for a GPU that need not be here. See pool.py.

    builder.py tessera|triton FILE FOLDER

A task is a compiler and the number of a kernel in FILE; its answer has a binary for each configuration, and the
processor seconds.
"""

# pyright: basic, reportMissingImports=false
from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Callable
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
from generated.kernel import Config, Kernel, read  # noqa: E402
# isort: on

SIDE, FILE, FOLDER = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
TARGET = GPUTarget("cuda", 90, 32)


def resolved(value: Any, function: Any) -> Any:
    """A constant; what JSON does not have is {"expression": text} in the kernel's module."""
    if not isinstance(value, dict):
        return value
    return eval(value["expression"], sys.modules[function.__module__].__dict__)


def compiled(kernel: Kernel, function: Any, config: Config) -> Any:
    """The compiled kernel of one configuration."""
    given = {**kernel.constants, **config.constants}
    constants = {name: resolved(value, function) for name, value in given.items()}
    attributes = {tuple(place): given for place, given in kernel.attributes}
    source = ASTSource(function, kernel.signature, constants, attributes)
    options = {
        **kernel.options, "num_warps": config.warps, "num_stages": config.stages, "sanitize_overflow": False,
    }  # fmt: skip
    return triton.compile(source, target=TARGET, options=options)


def built(kernel: Kernel, function: Any, config: Config, stem: str) -> dict[str, Any]:
    """Compile one configuration; what a launch must know. `own_launch`: whether only our launcher can start it, which
    encodes tensor maps, forms clusters, and checks what the kernel assumes."""
    found = compiled(kernel, function, config)
    meta = found.metadata
    needs = [getattr(meta, name, ()) for name in ("tensor_maps", "precondition")]
    clusters = getattr(meta, "cluster_dims", (1,))[0] > 1
    return {
        **kept(found, FOLDER / SIDE / f"{stem}.cubin"), "grid": config.grid,
        "own_launch": SIDE == "tessera" and (any(needs) or clusters),
    }  # fmt: skip


def functions(facts: dict[str, Any]) -> Callable[[int, Kernel], Any]:
    """A function that gives the jitted function of a kernel, by its number. `facts`: those of the kernels' file."""
    folder = FOLDER / SIDE
    folder.mkdir(parents=True, exist_ok=True)
    head = ""
    if facts.get("helpers"):
        importlib.import_module("torch._inductor.runtime.triton_compat")
        # The helpers of the torch that wrote the kernels, which need not be this one.
        helpers = module_of(folder / "helpers_of_kernels.py", facts["helpers"], "torch._inductor.runtime.")  # fmt: skip
        sys.modules["helpers_of_kernels"] = helpers
        head = (
            "import triton\nimport triton.language as tl\nimport helpers_of_kernels as triton_helpers\n"
            "from helpers_of_kernels import libdevice, math as tl_math\n\n\n"
        )

    def function(number: int, kernel: Kernel) -> Any:
        text = kernel.text if kernel.whole else head + kernel.text
        return getattr(module_of(folder / f"k{number}.py", text), kernel.name)

    return function


def main() -> None:
    kernels, facts = read(FILE)
    function = functions(facts)

    def build(task: list[Any]) -> dict[str, Any]:
        number = task[1]
        kernel = kernels[number]
        began = time.process_time()
        jitted = function(number, kernel)
        binaries = [built(kernel, jitted, c, f"{number}-{i}") for i, c in enumerate(kernel.configs)]
        return {"binaries": binaries, "seconds": time.process_time() - began}

    pool.serve(build)


if __name__ == "__main__":
    main()
