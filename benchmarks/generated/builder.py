"""A process that compiles kernels by one of the two compilers, for a GPU that need not be here. See pool.py.

    builder.py tessera|triton FILE FOLDER

A task is a compiler and the number of a kernel in FILE; its answer has a binary for each configuration, and the
processor seconds.
"""

# pyright: basic, reportMissingImports=false
from __future__ import annotations

import importlib.util
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
from generated.kernel import Config, Kernel, read  # noqa: E402
# isort: on

SIDE, FILE, FOLDER = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
TARGET = GPUTarget("cuda", 90, 32)


def module(name: str, text: str, package: str = "") -> Any:
    """The module of a text. It is a file, since both compilers read the source of what they compile."""
    path = FOLDER / SIDE / f"{name}.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(f"{package}{name}", path)
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = made
    spec.loader.exec_module(made)
    return made


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
    """Compile one configuration; what a launch must know. `maps`: whether the launch needs tensor maps, or checks what
    the kernel assumes."""
    found = compiled(kernel, function, config)
    path = FOLDER / SIDE / f"{stem}.cubin"
    path.write_bytes(found.asm["cubin"])
    meta = found.metadata
    return {
        "path": str(path), "entry": meta.name, "shared": meta.shared, "warps": meta.num_warps,
        "maps": bool(getattr(meta, "tensor_maps", ()) or getattr(meta, "precondition", ())),
        "scratch": getattr(meta, "global_scratch_size", 0) or 0, "grid": config.grid,
    }  # fmt: skip


def functions() -> Callable[[int, Kernel], Any]:
    """A function that gives the jitted function of a kernel, by its number."""
    (FOLDER / SIDE).mkdir(parents=True, exist_ok=True)
    _, facts = read(FILE)
    importlib.import_module("torch._inductor.runtime.triton_compat")
    head = ""
    if facts.get("helpers"):
        # The helpers of the torch that wrote the kernels, which need not be this one.
        helpers = module("helpers_of_kernels", facts["helpers"], "torch._inductor.runtime.")
        sys.modules["helpers_of_kernels"] = helpers
        head = (
            "import triton\nimport triton.language as tl\nimport helpers_of_kernels as triton_helpers\n"
            "from helpers_of_kernels import libdevice, math as tl_math\n\n\n"
        )

    def function(number: int, kernel: Kernel) -> Any:
        return getattr(
            module(f"k{number}", ("" if kernel.whole else head) + kernel.text), kernel.name
        )

    return function


def main() -> None:
    kernels, _ = read(FILE)
    function = functions()

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
