"""Writes docs/host.md: every name of the host API with its signature, docstring and examples (`pages.py`).

The examples are those of Python's doctest, each after SETUP; tests run them.
"""

from __future__ import annotations

import inspect
import re
from importlib import import_module
from typing import Any

SETUP = """\
>>> import numpy as np
>>> import tessera
>>> import tessera.language as tl
>>> @tessera.jit
... def double(x, n, BLOCK: tl.constexpr):
...     i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
...     tl.store(x + i, tl.load(x + i, mask=i < n) * 2, mask=i < n)
"""
SECTIONS: dict[str, tuple[str, ...]] = {
    "Kernels": (
        "jit", "JITFunction", "compile", "compiler.CompiledKernel", "aggregate", "constexpr_function",
        "must_use_result",
    ),
    "Meta-parameters": ("autotune", "Config", "heuristics", "cdiv", "next_power_of_2"),
    "Arguments": (
        "tools.tensor_descriptor.TensorDescriptor", "tools.ragged_tma.create_ragged_descriptor", "reinterpret",
        "TensorWrapper", "MockTensor", "set_allocator",
    ),
    "Why a kernel takes its time": ("JITFunction.explain", "profile"),
    "Compiling in the background": ("AsyncCompileMode", "FutureKernel"),
    "Testing and timing": ("testing.assert_close", "testing.do_bench", "testing.perf_report", "testing.uninitialised"),
}  # fmt: skip


RETURNED = {"compiler.CompiledKernel"}  # by other functions: users do not call the class


def documented(name: str) -> Any:
    """Return the object behind a name of `tessera`."""
    parts = name.split(".")
    found: Any = import_module("tessera")
    for i, part in enumerate(parts):
        found = getattr(found, part, None) or import_module(".".join(["tessera", *parts[: i + 1]]))
    return found


def entry(name: str) -> list[str]:
    """Return the lines of one name; examples become code blocks."""
    found = documented(name)
    signature = re.sub(r"'([^']*)'", r"\1", str(inspect.signature(found)))
    text, _, example = (inspect.getdoc(found) or "").partition("\n\nExample:\n")
    lines = [
        f"### {name}",
        "",
        *([] if name in RETURNED else [f"`{name}{signature}`", ""]),
        text,
        "",
    ]
    return [*lines, "```python", *inspect.cleandoc("\n" + example).splitlines(), "```", ""]


def render() -> str:
    """Return the text of docs/host.md."""
    lines = [
        "# The host API", "",
        "Written by `python -m tessera.tools.pages host` from the docstrings. Tests run every example on the CPU,",
        "each after", "", "```python", *SETUP.splitlines(), "```", "",
        "Errors by name are those of the [catalogue](errors.md), launch options and other switches those of",
        "[knobs.md](knobs.md). The language inside of kernels is in [language/](language/README.md).", "",
    ]  # fmt: skip
    for title, names in SECTIONS.items():
        lines += [f"## {title}", ""]
        for name in names:
            lines += entry(name)
    return "\n".join(lines)
