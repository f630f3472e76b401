"""`triton.testing`."""

from tessera import testing as _testing
from tessera.compat.absent import absent
from tessera.testing import *

__getattr__ = absent(__name__, _testing)
