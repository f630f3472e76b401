"""`triton.language.random`."""

from tessera.compat.absent import absent
from tessera.compat.adopt import adopt
from tessera.language import random as _random
from tessera.language.random import *

__getattr__ = absent(__name__, _random)
adopt(__name__)
