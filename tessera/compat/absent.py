"""Explains names of Triton that tessera lacks: why, and what to use instead.

Each module of the `triton` package ends with `__getattr__ = absent(__name__)`. Looking up a missing name there
raises an AttributeError that says more than "not found"; importing it raises such an ImportError (install.py).
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

# Name, with its module in Triton → (why it is absent, what to use).
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
        "operations are lowered by registered functions", "tessera.frontend.semantics.registry.impl"
    ),
    "triton.language.extra.cuda.experimental_device_tensormap_create1d": (
        "superseded in Triton 3.3", "triton.language.make_tensor_descriptor"
    ),
    "triton.language.extra.cuda.experimental_device_tensormap_create2d": (
        "superseded in Triton 3.3", "triton.language.make_tensor_descriptor"
    ),
    "triton.backends.amd": ("there is no AMD back end", "triton.backends.nvidia"),
    "triton.language.extra.cuda.gdc": ("its functions are in the module above", "triton.language.extra.cuda"),
    "triton.language.extra.cuda.utils": ("its functions are in the module above", "triton.language.extra.cuda"),
    "triton.language.extra.tlx": ("an extension of one vendor's Triton", "triton.language"),
    "triton.runtime.errors.IntelGPUError": ("there is no Intel back end", "triton.runtime.errors.OutOfResources"),
    "triton.runtime.interpreter.GridExecutor": ("the interpreter runs tile IR, not Python", "tessera.interp.run"),
    "triton.runtime.interpreter.InterpreterBuilder": ("the interpreter runs tile IR, not Python", "tessera.interp.run"),
    "triton.runtime.jit.create_specialize_impl": (
        "removed in Triton 3.5", "triton.runtime.jit.native_specialize_impl"
    ),
    "triton.runtime.jit.specialize_impl": ("removed in Triton 3.5", "triton.runtime.jit.native_specialize_impl"),
    "triton.profiler.viewer": ("other programs show what sessions write", "hatchet.GraphFrame.from_literal"),
    "triton.runtime.build": ("tessera needs no C compiler", "tessera.runtime.native.launcher.make_launcher"),
    "triton.tools.ragged_tma.to_ragged_indices": (
        "descriptors have no dimensions beside those of their array", "triton.tools.ragged_tma.load_ragged"
    ),
    "triton.tools.build_extern": (
        "functions of libdevice are written in the language", "tessera.language.extra.libdevice"
    ),
    "triton.tools.experimental_descriptor": (
        "superseded in Triton 3.3", "triton.tools.tensor_descriptor.TensorDescriptor"
    ),
    "triton.tools.compile": (
        "no C sources are written ahead of time", "triton.compile, whose asm['cubin'] any launcher loads"
    ),
    "triton.tools.link": ("no C sources are written ahead of time", "triton.compile"),
    "triton.experimental.gluon": ("layouts are the compiler's business here", "triton.jit with triton.language"),
    "triton.ops": ("left Triton with release 3.0", "the kernels under examples/"),
    "triton.testing.cuda_memcheck": ("the tool is started around a program", "compute-sanitizer python script.py"),
    "triton.testing.do_bench_proton": ("one timer is enough", "triton.testing.do_bench"),
    "triton.testing.do_bench_cudagraph_proton": ("one timer is enough", "triton.testing.do_bench_cudagraph"),
    "triton.fb": ("of one company's build of Triton", "triton"),
    "triton._C.libtriton.passes": ("there is no C extension", "tessera.passes"),
    "triton._C.libtriton.llvm": ("there is no C extension", "tessera.backends.llvm.binding"),
}  # fmt: skip
# Programs import these unconditionally but use them on some machines only: their names fail when used.
HOLLOW = frozenset({"triton.experimental.gluon", "triton.experimental.gluon.language"})


class Absent(AttributeError):
    """The error for a name that is missing. Its text is made when it is shown: the compiler, `hasattr` and Dynamo ask
    modules for names hundreds of times, and the search for one that is spelt nearly so takes milliseconds."""

    def __init__(self, module: str, name: str):
        super().__init__(module, name, name=name, obj=sys.modules[module])

    def __str__(self) -> str:
        return explain(*self.args)


def explain(module: str, name: str) -> str:
    """Return the text of the error for `module.name`."""
    known = [x for x in vars(sys.modules.get(module, object)) if not x.startswith("_")]
    whole = f"{module}.{name}"
    around = next((x for x in (whole, *HOLLOW) if x in REASONS and whole.startswith(x)), "")
    why, instead = REASONS.get(around, ("", ""))
    text = f"tessera has no `{whole}`"
    if why:
        text += f": {why}"
    if instead:
        return f"{text}; the nearest is `{instead}`"
    close = difflib.get_close_matches(name, known, n=1)
    return f"{text}; did you mean `{close[0]}`?" if close else text


def absent(module: str, source: ModuleType | None = None) -> Callable[[str], Any]:
    """Make a `__getattr__` for `module`: it returns names of `source` that `__all__` omits, and for others raises an
    AttributeError that says why they are absent."""
    here = vars(sys.modules[module])
    # Without a `__path__` Python itself rejects `from module import name`, without a reason.
    here.setdefault("__path__", [])

    def __getattr__(name: str) -> Any:
        if source is not None and not name.startswith("__") and hasattr(source, name):
            return getattr(source, name)
        raise Absent(module, name)

    return __getattr__
