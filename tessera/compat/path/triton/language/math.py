"""`triton.language.math`."""

from tessera.compat.absent import absent
from tessera.compat.adopt import adopt
from tessera.language import math as _math
from tessera.language.math import *

__getattr__ = absent(__name__, _math)
adopt(__name__)
