"""Keeps what the compilation of graphs found out, for whoever listens: `explain`, tests."""

# pyright: basic
# torch gives most of its values no type.
from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from tessera.graph.torch.host import moved


@dataclass
class GraphRecord:
    """One compiled graph. `imported`: its IR, None where eager runs the whole of it; `externs`: operations that run by
    eager, with the reason; `run`: what runs it; `first`: what its first call was given, while somebody listens, with
    the devices of tensors, whose copies are on the CPU: a CUDA graph accounts for all memory that is taken in it."""

    purpose: str
    imported: Any
    externs: list[tuple[str, str]] = field(default_factory=list)
    run: Any = None
    first: list[tuple[Any, Any]] | None = None

    @property
    def inputs(self) -> list[Any] | None:
        """What the first call was given, once more."""
        if self.first is None:
            return None
        return [x if device is None else moved(x, device) for x, device in self.first]


_LISTENERS: list[list[GraphRecord]] = []


def listened() -> bool:
    """Whether somebody wants to know what is compiled."""
    return bool(_LISTENERS)


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
        if self.record.first is None:
            self.record.first = [kept(x) for x in inputs]
        return self.record.run(inputs)


def kept(x: Any) -> tuple[Any, Any]:
    """A tensor's copy and its device; other values as they are."""
    if not isinstance(x, torch.Tensor):
        return x, None
    return moved(x.detach(), "cpu"), x.device


@contextmanager
def recording() -> Generator[list[GraphRecord]]:
    """The graphs that are compiled meanwhile, in their order."""
    found: list[GraphRecord] = []
    _LISTENERS.append(found)
    try:
        yield found
    finally:
        _LISTENERS.remove(found)
