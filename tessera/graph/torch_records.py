"""Keeps what the compilation of graphs found out, for whoever listens: `explain`, tests."""

# pyright: basic
# torch gives most of its values no type.
from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any


@dataclass
class GraphRecord:
    """One compiled graph. `imported`: its IR, None where eager runs the whole of it; `externs`: operations that run by
    eager, with the reason; `run`: what runs it; `inputs`: what its first call was given, while somebody listens."""

    purpose: str
    imported: Any
    externs: list[tuple[str, str]] = field(default_factory=list)
    run: Any = None
    inputs: list[Any] | None = None


_LISTENERS: list[list[GraphRecord]] = []


def note(record: GraphRecord) -> None:
    for listener in _LISTENERS:
        listener.append(record)


def watched(record: GraphRecord) -> Any:
    """What runs a graph; while somebody listens, one that keeps the inputs of its first call."""
    return Watched(record) if _LISTENERS else record.run


class Watched:
    """Runs a graph, and keeps copies of what its first call was given."""

    def __init__(self, record: GraphRecord):
        self.record = record

    def __call__(self, inputs: list[Any]) -> list[Any]:
        if self.record.inputs is None:
            self.record.inputs = [copied(x) for x in inputs]
        return self.record.run(inputs)


def copied(x: Any) -> Any:
    """A tensor with its elements in memory of its own, of the same strides; other values as they are."""
    return x.detach().clone() if hasattr(x, "detach") else x


@contextmanager
def recording() -> Generator[list[GraphRecord]]:
    """The graphs that are compiled meanwhile, in their order."""
    found: list[GraphRecord] = []
    _LISTENERS.append(found)
    try:
        yield found
    finally:
        _LISTENERS.remove(found)
