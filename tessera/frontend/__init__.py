"""The front end: Python source of a kernel → tile IR (rank 4). Importing it ties every operation to its meaning."""

from tessera.frontend import (
    branches,
    calls,
    expressions,
    loops,
    names,
    statements,
)
from tessera.frontend.frontend import FrontEnd
from tessera.frontend.lower import lower_kernel
from tessera.frontend.registry import impl

__all__ = [
    "FrontEnd",
    "branches",
    "calls",
    "expressions",
    "impl",
    "loops",
    "lower_kernel",
    "names",
    "statements",
]
