"""The IR framework has values, ops, blocks, types, text and rewriting. It knows no opcode (rank 1)."""

from tessera.ir.builder import Builder
from tessera.ir.core import (
    Attributes,
    Block,
    Effect,
    Module,
    Op,
    Use,
    Value,
    attr,
    operand,
    region,
    require,
)
from tessera.ir.locations import pack_location, pack_locations, unpack_location, unpack_locations
from tessera.ir.parse import parse_module
from tessera.ir.passes import Pass, PassManager, pass_
from tessera.ir.rewrite import Rewriter, RuleSet, rule
from tessera.ir.text import Names, print_module, print_op, print_with_lines
from tessera.ir.types import (
    DescriptorType,
    ElementType,
    SharedType,
    TileType,
    TokenType,
    Type,
    elem_of,
    scalar_of,
    shape_of,
    with_elem,
)
from tessera.ir.verify import verify

__all__ = [
    "Attributes", "Block", "Builder", "DescriptorType", "Effect", "ElementType", "Module", "Names", "Op", "Pass",
    "PassManager", "Rewriter", "RuleSet", "SharedType", "TileType", "TokenType", "Type", "Use", "Value", "attr",
    "elem_of", "operand", "pack_location", "pack_locations", "parse_module", "pass_", "print_module",
    "print_op", "print_with_lines", "region", "require", "rule", "scalar_of", "shape_of", "unpack_location",
    "unpack_locations", "verify", "with_elem",
]  # fmt: skip
