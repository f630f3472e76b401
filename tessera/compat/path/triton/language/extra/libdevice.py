"""`triton.language.extra.libdevice`."""

from tessera.compat.absent import absent
from tessera.compat.adopt import adopt
from tessera.language.extra import libdevice as _libdevice
from tessera.language.extra.libdevice import *

__getattr__ = absent(__name__, _libdevice)
adopt(__name__)
