"""`triton.language`."""

# pyright: reportUnsupportedDunderAll=false
from importlib import import_module as _module

from tessera import language as _language
from tessera.compat.absent import absent
from tessera.compat.adopt import adopt
from tessera.language import *
from tessera.language import __all__ as _names

# `from triton.language import math` would stop at tessera's module, which the names above hold.
core = _module("triton.language.core")
extra = _module("triton.language.extra")
math = _module("triton.language.math")
random = _module("triton.language.random")
semantic = _module("triton.language.semantic")
standard = _module("triton.language.standard")
target_info = _module("triton.language.target_info")
str_to_ty = core.str_to_ty

__all__ = [*_names, "semantic", "str_to_ty"]
__getattr__ = absent(__name__, _language)
adopt(__name__)
