"""`triton.compiler`."""

from tessera.compat.absent import absent
from triton.compiler import code_generator, compiler, errors
from triton.compiler.compiler import (
    ASTSource,
    CompiledKernel,
    IRSource,
    LazyDict,
    compile,
    get_cache_key,
    make_backend,
    max_shared_mem,
)
from triton.compiler.errors import CompilationError

__all__ = [
    "ASTSource", "CompilationError", "CompiledKernel", "IRSource", "LazyDict", "code_generator", "compile", "compiler",
    "errors", "get_cache_key", "make_backend", "max_shared_mem",
]  # fmt: skip
__getattr__ = absent(__name__)
