"""Merges values where control flow joins: the value that a loop carries for a variable, and those of two branches.

A variable keeps its type. The type of a descriptor or block pointer includes its block shape. Address,
extents, strides and padding are values, even if they are compile-time constants in one of the blocks that join.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tessera.dtypes import int64, pointer_type
from tessera.frontend.flatten import (
    flatten,
    is_number,
    parts_of,
    rebuild,
    same_group,
    same_type,
    with_parts,
)
from tessera.frontend.frontend import FrontEnd
from tessera.frontend.semantics.values import cast_raw, const_raw, to_tensor
from tessera.ir import Block, Value, elem_of, with_elem
from tessera.ir.types import Type
from tessera.language.block_pointer import block_pointer
from tessera.language.descriptor import tensor_descriptor
from tessera.language.values import tensor


def as_variable(fe: FrontEnd, x: object) -> Any:
    """Return what a loop carries for `x`: numbers inside it that describe arrays become run-time values."""
    if isinstance(x, block_pointer):
        return with_parts(x, [_numbers_as_tensors(fe, part) for part in parts_of(x) or ()])
    if isinstance(x, tensor_descriptor):
        nans = to_tensor(fe, x.nans) if x.dtype.is_floating() else x.nans
        return x.rebuild([*x.parts[:-1], nans])
    parts = parts_of(x)
    return x if parts is None else with_parts(x, [as_variable(fe, part) for part in parts])


def _numbers_as_tensors(fe: FrontEnd, x: object, wide: bool = True) -> Any:
    if is_number(x):
        return _decayed(fe, x, wide)
    parts = parts_of(x)
    return x if parts is None else with_parts(x, [_numbers_as_tensors(fe, p) for p in parts])


def _decayed(fe: FrontEnd, x: object, wide: bool) -> tensor:
    """Return a number as a scalar; `wide`: it belongs to a block pointer, whose integers are int64."""
    t = to_tensor(fe, x)
    return fe.tensor(cast_raw(fe, t.handle, int64)) if wide else t


def as_carried(fe: FrontEnd, initial: object, later: object, wide: bool = False) -> Any:
    """Return `later` with numbers made scalars where the variable's initial value has scalars."""
    if isinstance(initial, tensor):
        return _decayed(fe, later, wide) if is_number(later) else later
    parts = parts_of(initial)
    if parts is None or later is initial or not same_group(initial, later):
        return later
    wide = wide or isinstance(initial, block_pointer)
    pairs = zip(parts, parts_of(later) or (), strict=True)
    return with_parts(later, [as_carried(fe, a, b, wide) for a, b in pairs])


def decay_in(fe: FrontEnd, x: object, block: Block) -> Any:
    """Return `x` with its numbers made tensors by ops at the end of `block`."""
    with fe.builder.at(block):
        return fe.decay(x)


def anything_like(fe: FrontEnd, x: object, block: Block) -> Any:
    """Return zeros of the types in `x`: the value of a path that returns none."""
    with fe.builder.at(block):
        return rebuild(x, iter([zero(fe, v.type) for v in flatten(x)]))


def zero(fe: FrontEnd, t: Type) -> Value:
    """Return 0 of an IR type, or a null pointer."""
    if isinstance(elem_of(t), pointer_type):
        return cast_raw(fe, const_raw(fe, 0, with_elem(t, int64)), elem_of(t))
    return const_raw(fe, 0, t)


def unify(
    fe: FrontEnd, a: object, b: object, blocks: Sequence[Block], wide: bool = False
) -> tuple[Any, Any] | None:
    """Merge two values to one type; the first was computed in the first block, the second in the second.

    A number that is merged with another value becomes a tensor of its default dtype, in its own block; nothing else is
    promoted. Returns None if the types differ. `wide`: the numbers belong to a block pointer and are int64.
    """
    if same_type(a, b):
        return a, b
    ours, theirs = parts_of(a), parts_of(b)
    if ours is not None and theirs is not None and same_group(a, b):
        wide = wide or isinstance(a, block_pointer)
        pairs = [unify(fe, x, y, blocks, wide) for x, y in zip(ours, theirs, strict=True)]
        merged = [pair for pair in pairs if pair is not None]
        if len(merged) < len(pairs):
            return None
        return with_parts(a, [x for x, _ in merged]), with_parts(b, [y for _, y in merged])
    sides: list[object] = []
    for x, block in zip((a, b), blocks, strict=True):
        with fe.builder.at(block):
            sides.append(_decayed(fe, x, wide) if is_number(x) else x)
    return (sides[0], sides[1]) if same_type(*sides) else None
