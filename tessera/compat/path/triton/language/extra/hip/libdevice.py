"""`triton.language.extra.hip.libdevice`."""

from tessera.compat.absent import absent
from tessera.language.extra import libdevice as _libdevice
from tessera.language.extra.libdevice import *

__getattr__ = absent(__name__, _libdevice)
