"""`triton.compiler.errors`."""

from tessera.compat.absent import absent
from tessera.errors import (
    CompilationError,
    CompileTimeAssertionFailure,
    UnsupportedLanguageConstruct,
)

__all__ = ["CompilationError", "CompileTimeAssertionFailure", "UnsupportedLanguageConstruct"]
__getattr__ = absent(__name__)
