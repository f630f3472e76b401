"""Defines the composite types of IR values; scalars are `dtype`s, pointers are `pointer_type`s.

Text: `fp32`, `*fp16`, `tile<128x64xfp16>`, `tile<128x*fp32>`, with a layout `tile<128xfp32, LAYOUT>`;
`shared<3x128x64xfp16, LAYOUT>`, `desc<128x64xfp16>`, `token`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any, Protocol

from tessera.dtypes import dtype, parse_scalar_type, pointer_type

SLOT_ALIGNMENT = 128  # bytes: alignment of the buffers of a ring


class Layout(Protocol):
    """How a tile is distributed over registers or shared memory; the IR only compares and prints it."""

    def text(self) -> str: ...
    def __hash__(self) -> int: ...
    def __eq__(self, other: object, /) -> bool: ...


def _dims(shape: tuple[int, ...], elem: ElementType) -> str:
    return "x".join([*map(str, shape), elem.short])


@dataclass(frozen=True, slots=True)
class TileType:
    """An n-dimensional tile of scalars or pointers; only the GPU level has a `layout`."""

    shape: tuple[int, ...]
    elem: Any
    layout: Any = None

    @property
    def numel(self) -> int:
        n = 1
        for s in self.shape:
            n *= s
        return n

    @property
    def short(self) -> str:
        layout = f", {self.layout.text()}" if self.layout is not None else ""
        return f"tile<{_dims(self.shape, self.elem)}{layout}>"

    def with_layout(self, layout: object) -> TileType:
        return TileType(self.shape, self.elem, layout)


@dataclass(frozen=True, slots=True)
class SharedType:
    """A view of shared memory that holds a tile; with one dimension more than `layout`, that many buffers."""

    shape: tuple[int, ...]
    elem: Any
    layout: Any

    @property
    def short(self) -> str:
        return f"shared<{_dims(self.shape, self.elem)}, {self.layout.text()}>"

    @property
    def bytes(self) -> int:
        """Size of the tile in bytes, or of all buffers of a ring."""
        if len(self.shape) > len(self.layout.shape):
            return self.shape[0] * SharedType(self.shape[1:], self.elem, self.layout).slot_bytes
        return prod(self.shape) * self.elem.storage_bytes

    @property
    def slot_bytes(self) -> int:
        """Distance in bytes between the buffers of a ring of such tiles: a multiple of 128, which TMA requires."""
        return -(-self.bytes // SLOT_ALIGNMENT) * SLOT_ALIGNMENT


@dataclass(frozen=True, slots=True)
class DescriptorType:
    """A tensor descriptor whose loads and stores move tiles of `shape`."""

    shape: tuple[int, ...]
    elem: Any

    @property
    def short(self) -> str:
        return f"desc<{_dims(self.shape, self.elem)}>"


@dataclass(frozen=True, slots=True)
class TokenType:
    """Orders asynchronous operations; holds no data."""

    @property
    def short(self) -> str:
        return "token"


ElementType = dtype | pointer_type
Type = dtype | pointer_type | TileType | SharedType | DescriptorType | TokenType


def shape_of(t: object) -> tuple[int, ...]:
    """Return the shape of a tile type; () for a scalar."""
    return t.shape if isinstance(t, TileType) else ()


def elem_of(t: object) -> Any:
    """Return the element type of a tile, or the scalar type itself."""
    return t.elem if isinstance(t, TileType) else t


scalar_of = elem_of


def with_elem(t: Type, elem: ElementType) -> Any:
    """Return `t` with another element type, and the same shape and layout."""
    return TileType(t.shape, elem, t.layout) if isinstance(t, TileType) else elem


# Texts of layouts and of other levels' types are parsed by who defines them: word before the first "<" → parser.
TEXT_PARSERS: dict[str, Callable[[str], Any]] = {}


def parse_type(text: str) -> Any:
    """Parse the text of `type.short`. Raises ValueError if `text` names no type."""
    text = text.strip()
    if text == "token":
        return TokenType()
    head, bracket, rest = text.partition("<")
    if not bracket or head in TEXT_PARSERS:
        return TEXT_PARSERS[head](text) if bracket else parse_scalar_type(text)
    inner = rest[: rest.rindex(">")]
    dims, comma, layout_text = inner.partition(",")
    *sizes, elem_text = dims.split("x", dims.count("x", 0, _end_of_sizes(dims)))
    shape, elem = tuple(map(int, sizes)), parse_scalar_type(elem_text)
    layout = parse_layout_text(layout_text.strip()) if comma else None
    if head == "tile":
        return TileType(shape, elem, layout)
    if head == "shared":
        return SharedType(shape, elem, layout)
    if head == "desc":
        return DescriptorType(shape, elem)
    raise ValueError(f"{text!r} is not a type")


def _end_of_sizes(dims: str) -> int:
    """Return the length of the leading `128x64x`: up to the first character that is neither a digit nor x."""
    return next((i for i, c in enumerate(dims) if not (c.isdigit() or c == "x")), len(dims))


def parse_layout_text(text: str) -> Any:
    word = text.partition("<")[0]
    if word not in TEXT_PARSERS:
        raise ValueError(f"{text!r} is not a layout")
    return TEXT_PARSERS[word](text)
