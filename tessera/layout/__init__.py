"""Linear layouts over GF(2) say who holds which element. This package has named encodings, addresses in shared memory
and conversion plans."""

from .access import *
from .boxes import *
from .convert import *
from .coords import *
from .encodings import *
from .linear import *
from .matrix_ops import *
from .mma import *
from .relate import *
from .shared import *
from .shuffle import *
from .swizzle import *
from .text import *
