# pyright: reportUnusedImport=false
"""What the operations of the language mean: implementations that emit tile IR, each tied to its builtin when imported.

Nothing here knows syntax: statements and expressions (the modules around this package) call what is registered.
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
