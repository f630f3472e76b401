"""Kernels of the error tests, given as text, so that files, lines and columns in messages are always the same."""

from __future__ import annotations

import importlib.util
import textwrap
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import tessera.frontend as front_end
from tessera.errors import TesseraError

HEAD = "import tessera.language as tl\nfrom tessera.language.callable import JITCallable as jit\n\n"
OPTIONS = SimpleNamespace(
    any_extent=False,
    num_warps=4, num_ctas=1, num_stages=3, target="cuda:90", default_dot_input_precision="tf32",
    allowed_dot_input_precisions=("tf32", "tf32x3", "ieee"), supported_fp8_dtypes=("fp8e5", "fp8e4nv"),
    enable_fp_fusion=True, debug=False, sanitize_overflow=True, backend_name="cuda", instrumentation_mode="",
)  # fmt: skip


def load_kernel(folder: Path, source: str, head: str = HEAD) -> Any:
    """The function `k` of kernel.py, made of `head`, which has three lines unless said, and `source`."""
    path = folder / "kernel.py"
    path.write_text(head + textwrap.dedent(source).strip("\n") + "\n")
    spec = importlib.util.spec_from_file_location("kernel", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.k


def lower(kernel: Any, **constants: Any) -> Any:
    """Lower with parameters p… as fp32 pointers, f… as fp32, the rest as int32; constants by name."""
    signature = {
        name: "constexpr" if name in constants else {"p": "*fp32", "f": "fp32"}.get(name[0], "i32")
        for name in kernel.arg_names
    }
    return front_end.lower_kernel(kernel, signature, constants, {}, OPTIONS)


def error_of(folder: Path, source: str, **constants: Any) -> TesseraError:
    """The error that lowering `k` gives; its text names the file as `kernel.py`."""
    kernel = load_kernel(folder, source)
    try:
        lower(kernel, **constants)
    except TesseraError as error:
        return error
    raise AssertionError("the kernel compiles")


def text_of(folder: Path, error: TesseraError) -> str:
    return str(error).replace(f"{folder}/", "")
