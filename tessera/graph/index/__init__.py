"""Provides the index algebra: expressions over index dimensions and symbolic sizes, maps of them, ranges and proofs."""

from tessera.graph.index.atoms import Dim, FloorDiv, Max, Min, Mod, Sym
from tessera.graph.index.expr import Expr, atom_expr, dim, expr, maximum, minimum, size, sym
from tessera.graph.index.maps import IndexMap, estimate, parse_expr, parse_map
from tessera.graph.index.ranges import Ranges, is_less, is_nonnegative, simplify

__all__ = [
    "Dim", "Expr", "FloorDiv", "IndexMap", "Max", "Min", "Mod", "Ranges", "Sym", "atom_expr", "dim", "estimate", "expr",
    "is_less", "is_nonnegative", "maximum", "minimum", "parse_expr", "parse_map", "simplify", "size", "sym",
]  # fmt: skip
