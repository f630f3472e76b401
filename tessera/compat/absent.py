"""Names of Triton that tessera does not have: why, and what comes nearest.

Each module of the `triton` package ends with `__getattr__ = absent(__name__)`. A name that is looked up there in vain
gives an AttributeError that says more than "not found".
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

# Name, with the module that Triton has it in → (why it is not there, what to use).
REASONS: dict[str, tuple[str, str]] = {
    "triton.backends.compiler.AttrsDescriptor": (
        "attributes of arguments are dicts since Triton 3.3", "ASTSource(..., attrs={(0,): [['tt.divisibility', 16]]})"
    ),
    "triton.compiler.compiler.AttrsDescriptor": (
        "attributes of arguments are dicts since Triton 3.3", "ASTSource(..., attrs={(0,): [['tt.divisibility', 16]]})"
    ),
    "triton.compiler.code_generator.ast_to_ttir": (
        "kernels become tessera's tile IR, not MLIR", "tessera.frontend.lower_kernel"
    ),
    "triton.compiler.code_generator.CodeGenerator": (
        "the front end of tessera has another structure", "tessera.frontend.FrontEnd"
    ),
    "triton.language.semantic.TritonSemantic": (
        "operations are lowered by registered functions", "tessera.frontend.registry.impl"
    ),


    "triton.language.extra.cuda.experimental_device_tensormap_create1d": (
        "superseded in Triton 3.3", "triton.language.make_tensor_descriptor"
    ),
    "triton.language.extra.cuda.experimental_device_tensormap_create2d": (
        "superseded in Triton 3.3", "triton.language.make_tensor_descriptor"
    ),
    "triton.language.extra.tlx": ("an extension of one vendor's Triton", "triton.language"),
    "triton.runtime.cache.RemoteCacheBackend": (
        "caches are shared as read-only folders", "knobs.cache.shared_dir (TESSERA_CACHE_SHARED)"
    ),
    "triton.runtime.errors.IntelGPUError": ("there is no Intel back end", "triton.runtime.errors.OutOfResources"),
    "triton.runtime.interpreter.GridExecutor": (
        "the interpreter runs tile IR, not Python", "tessera.interp.run"
    ),
    "triton.runtime.interpreter.InterpreterBuilder": (
        "the interpreter runs tile IR, not Python", "tessera.interp.run"
    ),
    "triton.runtime.jit.create_specialize_impl": (
        "removed in Triton 3.5", "triton.runtime.jit.native_specialize_impl"
    ),
    "triton.runtime.jit.specialize_impl": ("removed in Triton 3.5", "triton.runtime.jit.native_specialize_impl"),
    "triton.runtime.build": ("tessera needs no C compiler", "tessera.runtime.launcher.make_launcher"),
    "triton.tools.disasm": ("disassembly is a view of a compiled kernel", "kernel.asm['sass']"),
    "triton.tools.experimental_descriptor": (
        "superseded in Triton 3.3", "triton.tools.tensor_descriptor.TensorDescriptor"
    ),
    "triton.tools.compile": ("", "triton.compile"),
    "triton.tools.link": ("kernels are launched from Python", "triton.compile"),
    "triton.experimental.gluon": ("layouts are the compiler's business here", "triton.jit with triton.language"),
    "triton.ops": ("left Triton with release 3.0", "the kernels under examples/"),
    "triton.profiler": ("proton is a program of its own", "triton.testing.do_bench"),
    "triton.fb": ("of one company's build of Triton", "triton"),
    "triton._C.libtriton.passes": ("there is no C extension", "tessera.passes"),
    "triton._C.libtriton.llvm": ("there is no C extension", "tessera.backends.llvm.binding"),
}  # fmt: skip


def explain(module: str, name: str, known: list[str]) -> str:
    """The text of the error for `module.name`."""
    why, instead = REASONS.get(f"{module}.{name}", ("", ""))
    text = f"tessera has no `{module}.{name}`"
    if why:
        text += f": {why}"
    if instead:
        return f"{text}; the nearest is `{instead}`"
    close = difflib.get_close_matches(name, known, n=1)
    return f"{text}; did you mean `{close[0]}`?" if close else text


def absent(module: str, source: ModuleType | None = None) -> Callable[[str], Any]:
    """A `__getattr__` for `module`: names of `source` that its `__all__` leaves out, then a reasoned AttributeError."""

    def __getattr__(name: str) -> Any:
        if source is not None and not name.startswith("__") and hasattr(source, name):
            return getattr(source, name)
        known = [x for x in vars(sys.modules[module]) if not x.startswith("_")]
        raise AttributeError(explain(module, name, known), name=name, obj=sys.modules[module])

    return __getattr__
