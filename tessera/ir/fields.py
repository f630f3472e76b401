"""Defines the fields that an op class declares, and the properties that read them from an op's flat storage."""

from __future__ import annotations

from typing import Any


class Clock:
    """Ticks before each pass. Every change of an op records the time, so that only changed ops need to be verified."""

    __slots__ = ("now",)

    def __init__(self) -> None:
        self.now = 0

    def tick(self) -> int:
        """Advance to a time later than all changes so far, and return it."""
        self.now += 1
        return self.now


clock = Clock()


class Field:
    """One declared operand, attribute or region. `position` counts within its kind, in order of declaration."""

    __slots__ = ("default", "kind", "name", "optional", "position", "variadic")

    def __init__(
        self, kind: str, optional: bool = False, variadic: bool = False, default: Any = ...
    ):
        self.kind, self.optional, self.variadic, self.default = kind, optional, variadic, default
        self.position, self.name = 0, ""


def operand(*, optional: bool = False, variadic: bool = False) -> Any:
    """Declare an operand: one Value, perhaps None (`optional`), or a tuple of any length (`variadic`)."""
    return Field("operand", optional, variadic)


def attr(*, default: object = ...) -> Any:
    """Declare an attribute: a plain Python value that prints as a literal (or a type, dtype, layout)."""
    return Field("attr", default=default)


def region() -> Any:
    """Declare a region; reading the field gives its one Block."""
    return Field("region")


def accessor(f: Field, simple: bool) -> property:
    """Return the property for a field; `simple` if every operand field of the class holds exactly one value."""
    position, name = f.position, f.name

    def attribute(op: Any) -> Any:
        return op.attrs[name]

    def set_attribute(op: Any, value: object) -> None:
        op.attrs[name] = value
        op.changed = clock.now

    def block(op: Any) -> Any:
        return op.regions[position]

    def single(op: Any) -> Any:
        return op.operands[position]

    def several(op: Any) -> Any:
        return tuple(op.operands[op.segment(position)])

    def single_or_none(op: Any) -> Any:
        lengths = op.segments
        return op.operands[sum(lengths[:position])] if lengths[position] else None

    if f.kind == "attr":
        return property(attribute, set_attribute)
    if f.kind == "region":
        return property(block)
    if simple:
        return property(single)
    return property(several if f.variadic else single_or_none)
