# pyright: reportUnusedImport=false
"""The front end lowers the Python source of a kernel to tile IR (rank 4). Importing it registers every operation's
implementation.
"""

from tessera.frontend import (  # noqa: F401  handlers and implementations register themselves
    branches,
    calls,
    expressions,
    jumps,
    loops,
    names,
    noinline,
    semantics,
    statements,
)
from tessera.frontend.frontend import FrontEnd
from tessera.frontend.lower import lower_kernel
from tessera.frontend.semantics.registry import impl

__all__ = ["FrontEnd", "impl", "lower_kernel"]
