"""The compiler is the one package that knows all stages (rank 6)."""

from tessera.compiler.compile import (
    BACKENDS,
    check_fit,
    compile,
    compile_stages,
    get_cache_key,
    make_backend,
)
from tessera.compiler.errors import CompilationError
from tessera.compiler.kernel import CompiledKernel, LazyDict
from tessera.compiler.source import ASTSource, IRSource, TextSource

__all__ = [
    "BACKENDS", "ASTSource", "CompilationError", "CompiledKernel", "IRSource", "LazyDict", "TextSource", "check_fit",
    "compile", "compile_stages", "get_cache_key", "make_backend",
]  # fmt: skip
