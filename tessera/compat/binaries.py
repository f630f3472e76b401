"""Writes the binaries of compiled kernels to where TorchInductor looks for them.

Inductor's own launcher loads `<TRITON_CACHE_DIR>/<base 32 of the kernel's hash>/<name>.cubin`, and its caches copy
that folder to other machines. tessera keeps a kernel in one file of its own cache, so it also writes the binary there.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tessera.compiler import CompiledKernel
from tessera.runtime.cache.managers import folder_name


def options_for_inductor(options: Any) -> Any:
    """Return launch options under which the binary is the whole kernel if Inductor generates the launch in C++: such a
    launch evaluates no precondition and encodes no tensor maps."""
    config = sys.modules.get("torch._inductor.config")
    if not getattr(config, "cpp_wrapper", False):
        return options
    given: Mapping[str, Any] = options or {}
    return {**given, "pointer_maps": False}


def keep_binary(kernel: CompiledKernel) -> None:
    """Write the kernel's cubin below TRITON_CACHE_DIR; do nothing without that variable or on other targets.

    A folder that is not writable is no error: Inductor then launches through tessera.
    """
    root, binary = os.environ.get("TRITON_CACHE_DIR"), kernel.kernel
    if root is None or kernel.backend.binary_ext != "cubin" or not isinstance(binary, bytes):
        return
    path = Path(root) / folder_name(kernel.hash) / f"{kernel.name}.cubin"
    kernel.metadata_group = {path.name: str(path)}
    with contextlib.suppress(OSError):
        if path.exists() and path.stat().st_size == len(binary):
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, partial = tempfile.mkstemp(dir=path.parent.parent)
        with os.fdopen(handle, "wb") as file:
            file.write(binary)
        os.replace(partial, path)
