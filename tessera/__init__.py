"""tessera is a tile language and compiler for GPU and CPU kernels, API-compatible with Triton."""

from importlib import import_module
from typing import TYPE_CHECKING

from tessera import language, runtime
from tessera.compiler import CompilationError
from tessera.errors import InterpreterError, OutOfResources, TesseraError, TritonError, suggestion
from tessera.language.aggregate import aggregate, constexpr_function
from tessera.language.builtin import must_use_result
from tessera.runtime import (  # fmt: skip
    AsyncCompileMode,
    Config,
    FutureKernel,
    JITFunction,
    KernelInterface,
    MockTensor,
    TensorWrapper,
    autotune,
    compile,
    jit,
    reinterpret,
)
from tessera.runtime.autotuner import heuristics  # fmt: skip
from tessera.runtime.drivers.allocation import set_allocator
from tessera.utilities import cdiv, next_power_of_2

if TYPE_CHECKING:
    from tessera import knobs as knobs
    from tessera import testing as testing
    from tessera import tools as tools
    from tessera.profiler import profile as profile

__version__ = "0.1.0"

__all__ = [
    "AsyncCompileMode", "CompilationError", "Config", "FutureKernel", "InterpreterError",
    "JITFunction", "KernelInterface", "MockTensor", "OutOfResources",
    "TensorWrapper", "TesseraError", "TritonError", "aggregate", "autotune", "cdiv", "compile", "constexpr_function",
    "heuristics", "jit", "language", "must_use_result", "next_power_of_2", "reinterpret", "runtime",
    "set_allocator",
]  # fmt: skip

_LATER = ("knobs", "testing", "tools")  # imported when they are first named

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:  # to type checkers every name would be an attribute
        if name in _LATER:
            return import_module(f"tessera.{name}")
        if name == "profile":
            return import_module("tessera.profiler").profile
        error = AttributeError(f"module 'tessera' has no attribute {name!r}")
        if near := suggestion(name, [*__all__, *_LATER, "profile"]):
            error.add_note(f"  = help: {near}")
        raise error
