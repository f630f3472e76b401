"""All operations of the IR, one class each (rank 2)."""

from tessera.ops.arith import *  # noqa: F403
from tessera.ops.control import *  # noqa: F403
from tessera.ops.gpu import *  # noqa: F403
from tessera.ops.memory import *  # noqa: F403
from tessera.ops.tile import *  # noqa: F403
