"""A front end without source: semantics called directly on arguments of given types."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from tessera import dtypes
from tessera.errors import CompilationError
from tessera.frontend import FrontEnd
from tessera.frontend.semantics.values import wrap
from tessera.ir import Block, Module, TileType
from tessera.language.builtin import Builtin
from tessera.language.values import constexpr, tensor

DTYPES = {d.short: d for d in dtypes.ALL_DTYPES} | {
    "e5": dtypes.float8e5, "e4nv": dtypes.float8e4nv,
    "f16": dtypes.float16, "f32": dtypes.float32, "f64": dtypes.float64,
}  # fmt: skip


def front_end(**options: Any) -> FrontEnd:
    known = {
        "num_warps": 4,
        "instrumentation_mode": "",
        "num_ctas": 1,
        "num_stages": 3,
        "default_dot_input_precision": "tf32",
        "allowed_dot_input_precisions": ("tf32", "tf32x3", "ieee", "bf16x3", "bf16x6"),
        "supported_fp8_dtypes": ("fp8e5", "fp8e4nv", "fp8e4b15"),
        "enable_fp_fusion": True,
        "any_extent": False,
        "debug": False,
        "sanitize_overflow": True,
        "backend_name": "cuda",
        "target": SimpleNamespace(backend="cuda", arch=90, warp_size=32),
    }
    fe = FrontEnd(Module(), SimpleNamespace(**(known | options)))
    fe.builder.block = Block()
    return fe


def arg(fe: FrontEnd, kind: str, *shape: int) -> tensor:
    """A run-time tensor: `kind` is a short dtype name, or a pointer "*f32"."""
    pointer = kind.startswith("*")
    e: Any = DTYPES[kind.lstrip("*")]
    if pointer:
        e = dtypes.pointer_type(e)
    assert fe.builder.block is not None
    return wrap(fe.builder.block.add_arg(TileType(shape, e) if shape else e))


def call(fe: FrontEnd, stub: Any, *args: Any, **kwargs: Any) -> Any:
    """Call a builtin with Python numbers for constexpr."""
    assert isinstance(stub, Builtin)
    assert stub.impl is not None
    bound, extra, only = stub.binder.bind(
        [static(a) for a in args], {k: static(v) for k, v in kwargs.items()}
    )
    return stub.impl(fe, *bound, *extra, **only)


def static(x: Any) -> Any:
    return constexpr(x) if isinstance(x, (bool, int, float, str)) else x


def ops(fe: FrontEnd) -> list[str]:
    """The opcodes emitted so far."""
    assert fe.builder.block is not None
    return [op.opcode for op in fe.builder.block]


def message(error: CompilationError) -> str:
    return error.message
