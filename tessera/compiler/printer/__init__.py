"""Prints tile IR as kernels of the language: source that compiles to the same operations (rank 6)."""

from tessera.compiler.printer.expressions import NoSource as NoSource
from tessera.compiler.printer.kernels import print_kernel as print_kernel
