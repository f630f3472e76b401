"""Holds what a profile recorded: launches and scopes as plain data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(slots=True)
class Launch:
    """One launch. `start`: seconds since the profile began, on the host's clock; `seconds`: of the device's work on a
    GPU, of the whole launch on a CPU; `scopes`: names from the outermost in; `metrics`: what the kernel declares;
    `hash`: the compiled kernel's."""

    kernel: str
    grid: tuple[int, ...]
    device: str
    start: float
    seconds: float
    scopes: tuple[str, ...]
    metrics: dict[str, float] = field(default_factory=dict[str, float])
    hash: str = ""


@dataclass(slots=True)
class Scope:
    """A named part of the program's time, within the scopes around it (`scopes`)."""

    name: str
    start: float
    seconds: float
    scopes: tuple[str, ...]
    metrics: dict[str, float] = field(default_factory=dict[str, float])


@dataclass(slots=True)
class Node:
    """A scope or a kernel in the tree: launches in it, their time, sums of their metrics."""

    name: str
    launches: int = 0
    seconds: float = 0.0
    shortest: float = float("inf")
    metrics: dict[str, float] = field(default_factory=dict[str, float])
    inside: dict[str, Node] = field(default_factory=dict[str, "Node"])

    def at(self, path: Sequence[str]) -> Iterator[Node]:
        """Return this node and those along a path of names, made where they are missing."""
        node = self
        yield node
        for name in path:
            node = node.inside.setdefault(name, Node(name))
            yield node

    def add(self, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            self.metrics[name] = self.metrics.get(name, 0.0) + value


def tree(launches: Sequence[Launch], scopes: Sequence[Scope]) -> Node:
    """Return launches by scope and kernel: each node has the sums of what is in it."""
    root = Node("all")
    for launch in launches:
        for node in root.at((*launch.scopes, launch.kernel)):
            node.launches += 1
            node.seconds += launch.seconds
            node.shortest = min(node.shortest, launch.seconds)
            node.add(launch.metrics)
    for scope in scopes:
        *_, last = root.at((*scope.scopes, scope.name))
        last.add(scope.metrics)
    return root
