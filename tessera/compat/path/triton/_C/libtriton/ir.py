"""`triton._C.libtriton.ir`: modules and operations that can be walked."""

from __future__ import annotations

from tessera.compat.absent import absent
from tessera.compat.walk import WalkedBlock as block
from tessera.compat.walk import WalkedBlock as region
from tessera.compat.walk import WalkedModule as module
from tessera.compat.walk import WalkedOp as operation
from tessera.compat.walk import WalkedValue as value


class context:
    """Where MLIR keeps types and attributes; tile IR needs no such place."""


def load_dialects(where: context) -> None:
    """All ops of tile IR are always known."""


__all__ = ["block", "context", "load_dialects", "module", "operation", "region", "value"]
__getattr__ = absent(__name__)
