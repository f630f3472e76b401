"""`triton`, as tessera has it."""

# pyright: reportUnsupportedDunderAll=false, reportUnusedImport=false
import tessera.compat  # what this process starts finds this package too
from tessera import *
from tessera import __all__ as _names
from tessera.compat.absent import absent
from tessera.compat.adopt import adopt
from tessera.compat.install import TRITON_VERSION
from tessera.errors import Spelling
from tessera.runtime.drivers.allocation import set_allocator
from triton import (
    _C,
    _utils,
    backends,
    compiler,
    errors,
    experimental,
    knobs,
    language,
    runtime,
    testing,
    tools,
)  # fmt: skip
from triton.compiler import CompilationError, compile
from triton.errors import TritonError
from triton.runtime.errors import InterpreterError, OutOfResources

Spelling.package = __name__  # in messages
__version__ = TRITON_VERSION
__all__ = [
    *(x for x in _names if x != "TesseraError"),
    "CompilationError", "InterpreterError", "OutOfResources", "TritonError", "compile", "language", "runtime",
    "set_allocator", "testing", "tools",
]  # fmt: skip
__getattr__ = absent(__name__)
adopt(__name__, "cdiv", "next_power_of_2")
