"""Linear layouts over GF(2): who holds which element, named encodings, shared-memory addresses, conversion plans."""

from .access import (
    Access,
    MatrixAccess,
    MatrixGroup,
    VectorAccess,
    ldmatrix_plan,
    matrix_access,
    stmatrix_plan,
    vector_access,
)
from .boxes import Boxes, box_layout, boxes_of
from .convert import (
    Identity,
    Plan,
    RegisterPermute,
    SharedExchange,
    SharedRound,
    plan_conversion,
    plan_cost,
    plan_shared,
)
from .coords import pack, unpack
from .encodings import blocked, default_blocked, identity1d, zeros1d
from .linear import LinearLayout
from .matrix_ops import Columns, LayoutError, apply, images, parity
from .mma import (
    instruction_depth,
    mma_acc,
    mma_operand,
    operand_rows,
    wgmma_acc,
    wgmma_operand_a,
)
from .relate import SourceMap, broadcast_map, invert_and_compose, register_map, source_map
from .shared import (
    OffsetMap,
    VectorGroup,
    bank_conflicts,
    max_vector,
    offset_map,
    shared_linear,
    shared_swizzled,
    vector_groups,
    wavefronts,
    widest_swizzle,
)
from .shuffle import LaneSwap, ShuffleRound, WarpShuffle, plan_shuffle
from .swizzle import Exchange, find_exchange, swizzle_for
from .text import parse_layout

__all__ = [
    "Access",
    "Columns",
    "Exchange",
    "Identity",
    "LaneSwap",
    "LayoutError",
    "LinearLayout",
    "MatrixAccess",
    "MatrixGroup",
    "OffsetMap",
    "Plan",
    "RegisterPermute",
    "SharedExchange",
    "SharedRound",
    "ShuffleRound",
    "SourceMap",
    "VectorAccess",
    "VectorGroup",
    "WarpShuffle",
    "apply",
    "bank_conflicts",
    "blocked",
    "broadcast_map",
    "default_blocked",
    "find_exchange",
    "identity1d",
    "images",
    "instruction_depth",
    "invert_and_compose",
    "ldmatrix_plan",
    "matrix_access",
    "max_vector",
    "mma_acc",
    "mma_operand",
    "offset_map",
    "pack",
    "parity",
    "parse_layout",
    "plan_conversion",
    "plan_cost",
    "plan_shared",
    "plan_shuffle",
    "register_map",
    "shared_linear",
    "Boxes",
    "box_layout",
    "boxes_of",
    "shared_swizzled",
    "source_map",
    "stmatrix_plan",
    "swizzle_for",
    "unpack",
    "vector_access",
    "vector_groups",
    "wavefronts",
    "operand_rows",
    "wgmma_acc",
    "wgmma_operand_a",
    "widest_swizzle",
    "zeros1d",
]
