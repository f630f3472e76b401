"""Kernels as text and as binaries: what the processes share that compile them, and those that time them.

They are those of breadth.py and special_math.py.
"""

# pyright: basic, reportMissingImports=false
from __future__ import annotations

import ctypes
import importlib.util
import os
import sys
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

from tessera.runtime.cuda.driver_api import driver, launch_config


def module_of(path: Path, text: str, package: str = "") -> Any:
    """The module of a text, named after its file: both compilers read the source of what they compile. Another process
    that reads the file meanwhile finds all of it."""
    if not path.exists() or path.read_text() != text:
        own = path.with_suffix(f".{os.getpid()}")
        own.write_text(text)
        own.replace(path)
    spec = importlib.util.spec_from_file_location(f"{package}{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = made
    spec.loader.exec_module(made)
    return made


def kept(compiled: Any, path: Path) -> dict[str, Any]:
    """Write the binary of a compiled kernel; what `launch_of` must know of it."""
    path.write_bytes(compiled.asm["cubin"])
    meta = compiled.metadata
    return {"path": str(path), "entry": meta.name, "shared": meta.shared, "warps": meta.num_warps}


def launch_of(
    binary: dict[str, Any], grid: tuple[int, int, int], values: Iterable[Any]
) -> tuple[Callable[[], None], Any]:
    """A launch of a binary with arguments of ctypes, and the loaded kernel."""
    loaded = driver().load(Path(binary["path"]).read_bytes(), binary["entry"], binary["shared"])
    config = launch_config(32 * binary["warps"], binary["shared"])
    given = [*values, *[ctypes.c_void_p(0)] * 2]  # scratch memory, which none of these kernels has
    return partial(driver().launch, loaded.function, grid, config, given), loaded
