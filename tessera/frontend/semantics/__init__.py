# pyright: reportUnusedImport=false
"""The semantics implement the operations of the language: each emits tile IR and is registered when it is imported.

This package knows no syntax: statements and expressions (the modules around it) call what is registered here.
"""

from tessera.frontend.semantics import (  # noqa: F401  implementations register themselves
    block_ptr,
    combine,
    descriptor,
    dot,
    elementwise,
    hints,
    libdevice,
    mapping,
    memory,
    scaled,
    shape,
    sync,
)
