"""`triton.language`."""

# pyright: basic
from tessera import language as _language
from tessera.compat.absent import absent
from tessera.language import *
from tessera.language import __all__ as _names
from triton.language import core, extra, math, random, semantic, standard, target_info
from triton.language.core import str_to_ty

__all__ = [*_names, "semantic", "str_to_ty"]
__getattr__ = absent(__name__, _language)
