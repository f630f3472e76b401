"""Defines all operations of the IR, one class each (rank 2)."""

from tessera.ops.arith import *
from tessera.ops.control import *
from tessera.ops.gpu import *
from tessera.ops.math import *
from tessera.ops.mbarrier import *
from tessera.ops.memory import *
from tessera.ops.special import *
from tessera.ops.tile import *
from tessera.ops.trace import *
