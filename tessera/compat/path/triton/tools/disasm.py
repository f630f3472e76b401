"""`triton.tools.disasm`."""

from tessera.compat.absent import absent
from tessera.tools.disasm import extract, get_sass

__all__ = ["extract", "get_sass"]
__getattr__ = absent(__name__)
