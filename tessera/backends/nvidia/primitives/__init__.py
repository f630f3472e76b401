"""Lists every NVIDIA instruction that the lowering emits: operand types, PTX or intrinsic, and what it means for
lanes.

Families (vector widths, atomics, matrix shapes) are functions that return a row. Rows with `constraints` are inline
PTX, others are LLVM intrinsics. The simulator runs the meanings.
"""

from tessera.backends.nvidia.primitives import basics
from tessera.backends.nvidia.primitives.memory import *
from tessera.backends.nvidia.primitives.mmas import *
from tessera.backends.nvidia.primitives.order import *
from tessera.backends.nvidia.primitives.row import *
from tessera.backends.nvidia.primitives.tma import *
from tessera.backends.nvidia.primitives.trace import *

_REGISTERED = basics  # imported for its rows; the other modules register theirs, too
