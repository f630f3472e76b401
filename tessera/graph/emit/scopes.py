"""Defines what the emission of a nest keeps in mind: indices, blocks of tile IR, and values that were made already.

A scope stands for one block of graph IR at one place: its index arguments are expressions of the kernel's indices, and
what its values became is remembered. A local tensor that is read elsewhere than where it is stored is computed there
anew, in a scope of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tessera.graph.index import Dim, Expr, Ranges, Sym, dim, simplify
from tessera.ir import Block, Value

Size = int | Expr
WHOLE, WITHIN, NUMBER = range(
    3
)  # an index; its place in a block of consecutive ones; the number of that block


@dataclass(frozen=True, slots=True)
class Index:
    """One index of the kernel. `block` consecutive ones lie along dimension `place` of the tiles. `blocks`: how many
    blocks to take where the extent is known to a program alone; 0 for as many as it has."""

    number: int
    extent: Size
    block: int
    place: int | None
    blocks: int = 0

    @property
    def whole(self) -> Expr:
        return dim(3 * self.number + WHOLE)

    @property
    def within(self) -> Dim:
        return Dim(3 * self.number + WITHIN)

    @property
    def count(self) -> Dim:
        """The number of the block."""
        return Dim(3 * self.number + NUMBER)

    @property
    def steps(self) -> Size:
        """How many blocks there are."""
        if self.blocks:
            return self.blocks
        if isinstance(self.extent, int):
            return -(-self.extent // self.block)
        return self.extent if self.block == 1 else (self.extent + (self.block - 1)) // self.block

    @property
    def exact(self) -> bool:
        """Whether the blocks end where the extent ends."""
        if self.block == 1:
            return True
        return (
            self.extent % self.block == 0
            if isinstance(self.extent, int)
            else (self.extent % self.block).value == 0
        )

    @property
    def parts(self) -> Expr:
        """The index by its block and the place in it."""
        found = dim(self.count.position) * self.block if self.steps != 1 else Expr({})
        return found + dim(self.within.position) if self.block > 1 else found


class Indices:
    """All indices of a kernel, with what is known of them."""

    def __init__(self) -> None:
        self.all: list[Index] = []
        self.ranges = Ranges()
        self._parts: dict[Any, Expr | int] = {}

    def new(self, extent: Size, block: int, place: int | None, blocks: int = 0) -> Index:
        index = Index(len(self.all), extent, block, place, blocks)
        self.all.append(index)
        last: Size = extent - 1
        self.ranges.of[Dim(3 * index.number)] = (0, last)
        self.ranges.of[index.within] = (0, block - 1)
        self.ranges.of[index.count] = (0, index.steps - 1)
        self._parts[Dim(3 * index.number)] = index.parts
        return index

    def unknown(self, number: int, least: int = -(1 << 62), most: int = 1 << 62) -> Sym:
        """A symbol for an index that comes from memory, or is not to be taken apart."""
        found = Sym(f"%{number}")
        self.ranges.of[found] = (least, most)
        return found

    def simple(self, e: Expr) -> Expr:
        return simplify(e, self.ranges)

    def by_parts(self, e: Expr) -> Expr:
        """An expression of whole indices as one of blocks and places in them."""
        return simplify(simplify(e, self.ranges).subs(self._parts), self.ranges)

    def of_atom(self, atom: Dim) -> Index:
        return self.all[atom.position // 3]


def delinearised(index: Expr, extents: Sequence[Size]) -> list[Expr]:
    """The index tuple, last one fastest, that stands at a place in their row-major order."""
    found: list[Expr] = []
    for k, n in enumerate(reversed(extents)):
        last = k == len(extents) - 1
        n = 1 if n == 0 else n  # there is no place then
        found.append(index if last else index % n)
        index = index if last else index // n
    return found[::-1]


@dataclass(eq=False)
class Scope:
    """A block of graph IR at one place. `target`: where its values are computed; `inner`: the index along the dimension
    of inner loops, if it is in one; `mask`: where its loads may read, None for everywhere."""

    block: Block
    bound: dict[Value, Expr]
    target: Block
    parent: Scope | None = None
    inner: Index | None = None
    mask: Value | None = None
    values: dict[Value, Value] = field(default_factory=dict[Value, Value])
    inlined: dict[object, Scope] = field(default_factory=dict[object, "Scope"])

    def owner(self, v: Value) -> Scope | None:
        """The scope whose block defines a value; None for what comes from outside of the nest."""
        block, scope = v.block, self
        while scope is not None and scope.block is not block:
            scope = scope.parent
        return scope

    def child(
        self, block: Block, indices: Sequence[Expr], target: Block, inner: Index | None
    ) -> Scope:
        bound = dict(zip(block.args, indices, strict=True))
        return Scope(block, bound, target, self, inner, self.mask)
