"""Defines linear layouts: who holds which element of a tile, as a linear map over GF(2).

A *distributed* layout says which element of a tile is in register r of lane l of warp w.  All arrangements that
GPU instructions require have one property: write r, l and w in binary, and each bit that is set moves the element by a
fixed XOR of coordinates.  So the arrangement is a linear map over GF(2), given by the image of each single bit, its
*basis*.  A worked example, the 8x8 accumulator of a tensor-core instruction (2 elements in each of 32 lanes):

    ll<[8,8] register=[[0,1]] lane=[[0,2],[0,4],[1,0],[2,0],[4,0]]>

Register 1 is one column right of register 0; lane bit 0 moves by two columns, lane bit 1 by four, and lane bits 2..4 by
1, 2 and 4 rows.  Lane 13 = 0b01101 and register 1 hold the element
(0,2) ^ (1,0) ^ (2,0) ^ (0,1) = (3,3): row 13 >> 2 = 3, column 2 * (13 & 3) + 1 = 3.

A *shared* layout has the single in-dim "offset" (counted in elements) instead: it says which element is stored there.
The 32-byte swizzle and padding-free transposes are linear, too: offset bits that select a row also flip column bits.

This has exact and general consequences:

* A coordinate tuple is packed in one int, the last dim in the lowest bits.  As sizes are powers of two this is the
  row-major flat index, so `reshape` keeps the packed bases and only replaces the shape; `trans` permutes bits.
* A basis that is zero, or that the others span, means that the element is held more than once (`free_masks`).
* Address of an element in shared memory = inverse(shared) after distributed: one matrix product (shared.py).
* A conversion needs a map M with src after M = dst: solve a linear system (`invert_and_compose`), then check which
bits M mixes: registers only, lanes too, or warps as well (convert.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from math import prod

from .coords import bit_shifts, pack, unpack
from .matrix_ops import Columns, Echelon, LayoutError, apply, compose, images, invert, log2

__all__ = ["LinearLayout"]

IN_DIMS = ("register", "lane", "warp", "block", "offset", "index")
_RANK = {name: i for i, name in enumerate(IN_DIMS)}


class LinearLayout:
    """An immutable linear map from named index bits to the coordinates of a tile.

    `shape`: sizes of the out dims, powers of two.  `bases`: for each in-dim the coordinates reached by its bits 0, 1,
    ... In-dims are kept in the order of `IN_DIMS` and those without bits are dropped, so `==` is equality of the maps.
    Raises LayoutError for sizes that are no powers of two, coordinates out of range, unknown in-dims.
    """

    __slots__ = ("_bases", "_hash", "shape")
    shape: tuple[int, ...]
    _bases: dict[str, Columns]
    _hash: int

    def __init__(
        self, shape: Sequence[int], bases: Mapping[str, Sequence[Sequence[int]]] | None = None
    ) -> None:
        sizes = tuple(shape)
        packed = {
            name: tuple([pack(sizes, coords) for coords in vectors])
            for name, vectors in (bases or {}).items()
        }
        self._set(sizes, packed)

    def _set(self, shape: tuple[int, ...], packed: Mapping[str, Iterable[int]]) -> None:
        bits = sum(log2(size) for size in shape)
        kept: dict[str, Columns] = {}
        for name in sorted(packed, key=_in_dim_rank):
            columns = tuple(packed[name])
            if any(column >> bits for column in columns):
                raise LayoutError(f"a basis of {name!r} lies outside of the shape {list(shape)}")
            if columns:
                kept[name] = columns
        object.__setattr__(self, "shape", shape)
        object.__setattr__(self, "_bases", kept)
        object.__setattr__(self, "_hash", hash((shape, tuple(kept.items()))))

    @classmethod
    def packed(cls, shape: Sequence[int], bases: Mapping[str, Iterable[int]]) -> LinearLayout:
        """A layout from bases given as row-major flat indices."""
        layout = cls.__new__(cls)
        layout._set(tuple(shape), bases)
        return layout

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"LinearLayout is immutable: cannot set {name!r}")

    def __reduce__(self) -> tuple[object, ...]:
        return LinearLayout.packed, (self.shape, self._bases)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, LinearLayout):
            return NotImplemented
        return (
            self._hash == other._hash and self.shape == other.shape and self._bases == other._bases
        )

    # Facts

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def in_dims(self) -> tuple[str, ...]:
        """Names of the in-dims that have bits, in canonical order."""
        return tuple(self._bases)

    def columns(self, in_dim: str) -> Columns:
        """The bases of an in-dim as packed coordinates; empty if the layout does not have it."""
        return self._bases.get(in_dim, ())

    def all_columns(self) -> Columns:
        """The bases of all in-dims in canonical order: register bits are the lowest of a flat input."""
        return tuple([c for columns in self._bases.values() for c in columns])

    def bases(self, in_dim: str) -> tuple[tuple[int, ...], ...]:
        """The bases of an in-dim as coordinate tuples."""
        return tuple([unpack(self.shape, c) for c in self.columns(in_dim)])

    def bits(self, in_dim: str) -> int:
        return len(self.columns(in_dim))

    def size(self, in_dim: str) -> int:
        """Number of registers, lanes, warps, ... : 2**bits, 1 if absent."""
        return 1 << len(self.columns(in_dim))

    @property
    def num_elements(self) -> int:
        """Number of elements of the tile."""
        return prod(self.shape)

    @property
    def out_bits(self) -> int:
        return self.num_elements.bit_length() - 1

    def is_surjective(self) -> bool:
        """Whether every element has a place."""
        return Echelon(self.all_columns()).rank == self.out_bits

    def is_bijective(self) -> bool:
        columns = self.all_columns()
        return len(columns) == self.out_bits and Echelon(columns).rank == len(columns)

    def free_masks(self) -> dict[str, int]:
        """Return for each in-dim the mask of bits whose basis is zero or spanned by earlier bits (registers first, then
        lanes, ...).

        The holders whose free bits are all zero hold every element exactly once.
        """
        echelon = Echelon()
        masks: dict[str, int] = {}
        for name, columns in self._bases.items():
            masks[name] = sum(1 << i for i, c in enumerate(columns) if not echelon.add(c))
        return masks

    def axis_bits(self, in_dim: str, axis: int) -> int:
        """Mask of the bits of an in-dim that move along `axis`."""
        mask = self._axis_mask(axis)
        return sum(1 << i for i, c in enumerate(self.columns(in_dim)) if c & mask)

    def is_axis_separable(self, axis: int) -> bool:
        """Whether each bit moves either along `axis` only, or not at all along it, as reductions require."""
        mask = self._axis_mask(axis)
        return all(not (c & mask) or not (c & ~mask) for c in self.all_columns())

    def _axis_mask(self, axis: int) -> int:
        return (self.shape[axis] - 1) << bit_shifts(self.shape)[axis]

    # Evaluation

    def apply(self, index: Mapping[str, int]) -> tuple[int, ...]:
        """Return the coordinates of the element at e.g. {"register": 1, "lane": 13}; absent in-dims are 0."""
        return unpack(self.shape, self.apply_flat(index))

    def apply_flat(self, index: Mapping[str, int]) -> int:
        """Like `apply`, as a row-major flat element index."""
        flat = 0
        for name, value in index.items():
            if value >> self.bits(name):
                raise LayoutError(
                    f"{name} {value} is out of range: the layout has {self.size(name)}"
                )
            flat ^= apply(self.columns(name), value)
        return flat

    def image(self, flat: int) -> int:
        """Return the flat element index of a flat input (canonical order of in-dims, registers in the lowest bits)."""
        return apply(self.all_columns(), flat)

    def register_images(self) -> list[int]:
        """Return the flat element index of each register of lane 0 in warp 0."""
        return images(self.columns("register"))

    # Algebra

    def compose(self, outer: LinearLayout) -> LinearLayout:
        """Return `outer` after `self`: this layout's flat result is the flat input of `outer`."""
        table = outer.all_columns()
        if len(table) < self.out_bits:
            raise LayoutError(f"cannot feed {self.out_bits} bits into a map of {len(table)} bits")
        return LinearLayout.packed(
            outer.shape, {name: compose(table, columns) for name, columns in self._bases.items()}
        )

    def invert(self) -> LinearLayout:
        """Return the inverse of a bijective layout: in-dim "index" (flat element) to the in-dims, slowest first.

        For a distributed layout the out shape is (warps, lanes, registers), for a shared one (offsets,).
        """
        sizes = tuple([1 << len(c) for c in reversed(self._bases.values())])
        return LinearLayout.packed(sizes, {"index": inverse_columns(self)})

    def __mul__(self, outer: LinearLayout) -> LinearLayout:
        """Tile: `outer` arranges copies of this layout.  Shapes multiply; bits of `outer` come above this layout's."""
        if outer.rank != self.rank:
            raise LayoutError(f"product of layouts of rank {self.rank} and {outer.rank}")
        shape = tuple([a * b for a, b in zip(self.shape, outer.shape, strict=True)])
        merged: dict[str, list[int]] = {}
        for layout, scale in ((self, (1,) * self.rank), (outer, self.shape)):
            for name in layout.in_dims:
                scaled = [
                    [x * s for x, s in zip(b, scale, strict=True)] for b in layout.bases(name)
                ]
                merged.setdefault(name, []).extend(pack(shape, coords) for coords in scaled)
        return LinearLayout.packed(shape, merged)

    def map_columns(self, in_dim: str, columns: Iterable[int]) -> LinearLayout:
        """Return this layout with the packed bases of one in-dim replaced."""
        return LinearLayout.packed(self.shape, {**self._bases, in_dim: tuple(columns)})

    def _with_coords(
        self, shape: tuple[int, ...], source: Sequence[int | None], keep: Sequence[bool]
    ) -> LinearLayout:
        """Out dim i of the result is dim source[i] of this layout, zeroed unless keep[i]."""
        old, new = bit_shifts(self.shape), bit_shifts(shape)
        moves = [
            (old[s], new[i], self.shape[s] - 1)
            for i, s in enumerate(source)
            if s is not None and keep[i]
        ]
        return LinearLayout.packed(
            shape,
            {
                name: [sum(((c >> a) & m) << b for a, b, m in moves) for c in columns]
                for name, columns in self._bases.items()
            },
        )

    def trans(self, order: Sequence[int]) -> LinearLayout:
        """Return the layout of the transposed tile: result dim i is dim order[i]."""
        if sorted(order) != list(range(self.rank)):
            raise LayoutError(f"{list(order)} is no permutation of {self.rank} dims")
        shape = tuple([self.shape[i] for i in order])
        return self._with_coords(shape, tuple(order), (True,) * self.rank)

    def reshape(self, shape: Sequence[int]) -> LinearLayout:
        """Return the layout of the tile in another shape, row-major: the packed bases are unchanged."""
        if prod(shape) != self.num_elements:
            raise LayoutError(f"cannot reshape {list(self.shape)} to {list(shape)}")
        return LinearLayout.packed(tuple(shape), self._bases)

    def expand_dim(self, axis: int) -> LinearLayout:
        """Insert a dim of size 1 at `axis` (0..rank)."""
        return self.reshape((*self.shape[:axis], 1, *self.shape[axis:]))

    def drop_dim(self, axis: int) -> LinearLayout:
        """Return the slice that a reduction along `axis` leaves, without the coordinates along it.

        Holders that differed only along the axis now hold the same element, registers included (`unique_registers`).
        """
        kept = [i for i in range(self.rank) if i != axis]
        shape = tuple([self.shape[i] for i in kept])
        return self._with_coords(shape, kept, (True,) * len(kept))

    def restrict(self, shape: Sequence[int]) -> LinearLayout:
        """Return the operand layout for a broadcast to this layout: dims that have size 1 in `shape` are zeroed.

        Register i of the operand in the returned layout is register i of the result: broadcasting is then free.
        """
        if len(shape) != self.rank or any(
            a not in (1, b) for a, b in zip(shape, self.shape, strict=True)
        ):
            raise LayoutError(f"{list(shape)} does not broadcast to {list(self.shape)}")
        keep = [size != 1 for size in shape]
        return self._with_coords(tuple(shape), tuple(range(self.rank)), keep)

    def join(self) -> LinearLayout:
        """Return the layout of tl.join: a new trailing dim of size 2 in a new lowest register bit.

        Register 2i of the result is register i of the first operand, 2i+1 that of the second.
        """
        grown = {name: [c << 1 for c in columns] for name, columns in self._bases.items()}
        grown["register"] = [1, *grown.get("register", [])]
        return LinearLayout.packed((*self.shape, 2), grown)

    def split_bit(self) -> int | None:
        """Return the only bit that moves along a trailing dim of size 2, if it is a register bit, else None."""
        if not self.shape or self.shape[-1] != 2:
            return None
        movers = [c for c in self.all_columns() if c & 1]
        return (
            self.columns("register").index(1)
            if movers == [1] and 1 in self.columns("register")
            else None
        )

    def split(self) -> LinearLayout:
        """Return the layout of both halves of tl.split: the registers with `split_bit()` clear and set."""
        bit = self.split_bit()
        if bit is None:
            raise LayoutError(
                "the last dim is not held by one register bit: convert before splitting"
            )
        shrunk = {name: [c >> 1 for c in columns] for name, columns in self._bases.items()}
        del shrunk["register"][bit]
        return LinearLayout.packed(self.shape[:-1], shrunk)

    def unique_registers(self) -> LinearLayout:
        """Return this layout without register bits that only repeat what other registers of the thread hold."""
        echelon = Echelon()
        return self.map_columns("register", [c for c in self.columns("register") if echelon.add(c)])

    def register_representatives(self) -> tuple[int, ...]:
        """Return for each register the first register of the same thread that holds the same element."""
        first: dict[int, int] = {}
        return tuple([first.setdefault(e, i) for i, e in enumerate(self.register_images())])

    def contiguity(self, order: Sequence[int]) -> int:
        """Return the widest vector in elements: registers i..i+v-1 (v divides i) are v consecutive elements along
        order[0].

        Proof that each such group starts at a multiple of v: register bits 0..log2(v)-1 move by 1, 2, 4, ... along the
        dim, and every other basis has zeros in the low log2(v) bits of that coordinate, so the first element of a
        group, an XOR of those other bases, does, too.
        """
        fastest = order[0]
        shift, limit = bit_shifts(self.shape)[fastest], log2(self.shape[fastest])
        registers = self.columns("register")
        bits = 0
        while bits < min(limit, len(registers)) and registers[bits] == 1 << (shift + bits):
            bits += 1
        others = 0
        for column in self.all_columns()[bits:]:
            others |= (column >> shift) & ((1 << limit) - 1)
        while bits and others & ((1 << bits) - 1):
            bits -= 1
            others |= 1 << bits
        return 1 << bits

    # Text

    def text(self) -> str:
        """Return one line that `parse_layout` reads."""
        parts = [f"[{','.join(map(str, self.shape))}]"]
        for name in self._bases:
            vectors = ",".join(f"[{','.join(map(str, b))}]" for b in self.bases(name))
            parts.append(f"{name}=[{vectors}]")
        return f"ll<{' '.join(parts)}>"

    __str__ = text
    __repr__ = text


def _in_dim_rank(name: str) -> int:
    rank = _RANK.get(name)
    if rank is None:
        raise LayoutError(f"unknown in-dim {name!r}; known: {', '.join(IN_DIMS)}")
    return rank


@lru_cache(maxsize=1024)
def inverse_columns(layout: LinearLayout) -> Columns:
    """Return the columns of the inverse of a bijective layout: flat element index to flat input."""
    if not layout.is_bijective():
        raise LayoutError(f"{layout} is not bijective")
    return invert(layout.all_columns())
