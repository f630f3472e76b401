"""Defines the types of whole tensors, whose sizes and strides may be symbolic; their text is read by tessera's parser.

Text: `tensor<s0x128xfp32>`, `tensor<(s0 // 2)x4xbf16, strides=(1, s0), device=cuda:0>`, `tensor<i64>` (no dimensions).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tessera.dtypes import dtype, parse_scalar_type
from tessera.graph.index import Expr, parse_expr, parse_map, size
from tessera.ir import Value
from tessera.ir.types import TEXT_PARSERS

CPU = "cpu"
_BARE = re.compile(
    r"\d+|[a-wyzA-Z_][a-wyzA-Z_0-9]*"
)  # sizes that need no parentheses: "x" is between sizes
_FIELD = re.compile(r",\s*(strides|device)=")


@dataclass(frozen=True, slots=True)
class ForeignType:
    """An element type that no kernel of ours computes with (complex64, qint8…): its tensors only go through externs."""

    name: str
    bits: int

    @property
    def short(self) -> str:
        return f"foreign:{self.name}:{self.bits}"

    @property
    def storage_bytes(self) -> int:
        return max(self.bits, 8) // 8


@dataclass(frozen=True, slots=True, init=False)
class TensorType:
    """A tensor as a value. `shape` and `strides` (in elements) hold ints and expressions of symbols; `strides` None:
    row-major, ours to choose. `device`: "cpu", "cuda:0"..."""

    shape: tuple[int | Expr, ...]
    elem: Any
    strides: tuple[int | Expr, ...] | None
    device: str

    def __init__(
        self,
        shape: Sequence[int | Expr],
        elem: dtype | ForeignType,
        strides: Sequence[int | Expr] | None = None,
        device: str = CPU,
    ):
        object.__setattr__(self, "shape", tuple(map(size, shape)))
        object.__setattr__(self, "elem", elem)
        object.__setattr__(self, "strides", None if strides is None else tuple(map(size, strides)))
        object.__setattr__(self, "device", device)

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def numel(self) -> int | Expr:
        return product(self.shape)

    @property
    def all_strides(self) -> tuple[int | Expr, ...]:
        """The strides, those of row-major order where none are given."""
        return row_major(self.shape) if self.strides is None else self.strides

    def with_strides(self, strides: Sequence[int | Expr] | None) -> TensorType:
        """This type in other strides. Those of row-major order are none: two tensors that lie alike are of one type."""
        plain = TensorType(self.shape, self.elem, None, self.device)
        given = None if strides is None else tuple(map(size, strides))
        if given is None or given == plain.all_strides:
            return plain
        return TensorType(self.shape, self.elem, given, self.device)

    def with_place(self, other: TensorType) -> TensorType:
        """This shape and element type with the strides and the device of another one."""
        return TensorType(self.shape, self.elem, other.strides, other.device)

    @property
    def short(self) -> str:
        dims = "x".join([*map(_size_text, self.shape), self.elem.short])
        strides = "" if self.strides is None else f", strides=({', '.join(map(str, self.strides))})"
        return f"tensor<{dims}{strides}{'' if self.device == CPU else f', device={self.device}'}>"


def product(sizes: Sequence[int | Expr]) -> int | Expr:
    """The number of elements of a shape."""
    total: int | Expr = 1
    for n in sizes:
        total = total * n
    return size(total)


def row_major(shape: Sequence[int | Expr]) -> tuple[int | Expr, ...]:
    """Strides in elements of a dense tensor whose last dimension is contiguous. As torch has it, a size of 0 counts
    as 1 here."""
    strides: list[int | Expr] = []
    step: int | Expr = 1
    for n in reversed(shape):
        strides.append(step)
        step = step if n == 0 else size(step * n)
    return tuple(reversed(strides))


def _size_text(n: int | Expr) -> str:
    text = str(n)
    return text if _BARE.fullmatch(text) else f"({text})"


def _top_level(text: str, separator: str) -> list[str]:
    """The parts of a text between separators that stand outside of parentheses."""
    parts, depth = [""], 0
    for c in text:
        depth += (c == "(") - (c == ")")
        if c == separator and depth == 0:
            parts.append("")
        else:
            parts[-1] += c
    return parts


def is_tensor(v: object) -> bool:
    return isinstance(v, Value) and isinstance(v.type, TensorType)


def parse_tensor_type(text: str) -> TensorType:
    """The inverse of `TensorType.short`. ValueError when `text` is no such type."""
    inner = text[text.index("<") + 1 : text.rindex(">")]
    dims, *fields = _FIELD.split(inner)
    given = dict(zip(fields[::2], fields[1::2], strict=True))
    *sizes, elem = _split_dims(dims.strip())
    strides = given.get("strides")
    parsed = None
    if strides is not None:
        parsed = [parse_expr(s) for s in _top_level(strides.strip()[1:-1], ",") if s.strip()]
    return TensorType([parse_expr(s) for s in sizes], elem, parsed, given.get("device", CPU))


def _split_dims(dims: str) -> list[Any]:
    if (at := dims.find("foreign:")) >= 0:
        _, name, bits = dims[at:].split(":")
        return [*_top_level(dims[:at], "x")[:-1], ForeignType(name, int(bits))]
    *sizes, elem = _top_level(dims, "x")
    return [*sizes, parse_scalar_type(elem)]


# --- what attributes of ops hold --------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Place:
    """Stands for the operand of that number in the arguments of an extern op."""

    index: int

    def text(self) -> str:
        return f"place<{self.index}>"


@dataclass(frozen=True, slots=True)
class Name:
    """A constant that only the extern's own library knows, by its name: torch.float32, torch.strided."""

    name: str

    def text(self) -> str:
        return f"name<{self.name}>"


def _inner(text: str) -> str:
    return text[text.index("<") + 1 : text.rindex(">")]


TEXT_PARSERS["tensor"] = parse_tensor_type
TEXT_PARSERS["map"] = lambda text: parse_map(_inner(text))
TEXT_PARSERS["size"] = lambda text: parse_expr(_inner(text))
TEXT_PARSERS["place"] = lambda text: Place(int(_inner(text)))
TEXT_PARSERS["name"] = lambda text: Name(_inner(text))
