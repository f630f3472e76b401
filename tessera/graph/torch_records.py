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
    eager, with the reason; `run`: what runs it."""

    purpose: str
    imported: Any
    externs: list[tuple[str, str]] = field(default_factory=list)
    run: Any = None


_LISTENERS: list[list[GraphRecord]] = []


def note(record: GraphRecord) -> None:
    for listener in _LISTENERS:
        listener.append(record)


@contextmanager
def recording() -> Generator[list[GraphRecord]]:
    """The graphs that are compiled meanwhile, in their order."""
    found: list[GraphRecord] = []
    _LISTENERS.append(found)
    try:
        yield found
    finally:
        _LISTENERS.remove(found)
