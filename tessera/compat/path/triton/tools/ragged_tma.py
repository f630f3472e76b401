"""`triton.tools.ragged_tma`."""

from tessera.compat.absent import absent
from tessera.tools.ragged_tma import (
    atomic_add_ragged,
    create_ragged_descriptor,
    load_ragged,
    store_ragged,
)

__all__ = ["atomic_add_ragged", "create_ragged_descriptor", "load_ragged", "store_ragged"]
__getattr__ = absent(__name__)
