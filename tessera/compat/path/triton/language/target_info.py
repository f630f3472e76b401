"""`triton.language.target_info`."""

from tessera.compat.absent import absent
from tessera.language import target_info as _target_info
from tessera.language.target_info import *

__getattr__ = absent(__name__, _target_info)
