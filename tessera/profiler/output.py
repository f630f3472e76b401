"""Writes a profile: as a tree and a table of text, as a trace for Perfetto or Chrome, as Hatchet's JSON."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence

from tessera.profiler.records import Launch, Node, Scope


def text(root: Node) -> str:
    """Return the tree with, for each scope and kernel, launches, times, and rates by the declared metrics."""
    titles = ("total ms", "share", "launches", "mean us", "min us", "GB/s", "GFLOP/s")
    head = (
        " ".join(f"{t:>{w}}" for t, w in zip(titles, (10, 6, 9, 9, 9, 9, 9), strict=True))
        + "  what"
    )
    return "\n".join([head, *_rows(root, root.seconds or 1.0, 0)])


def _rows(node: Node, whole: float, depth: int) -> Iterator[str]:
    mean = node.seconds / node.launches if node.launches else 0.0
    least = node.shortest if node.launches else 0.0
    moved, flops = node.metrics.get("bytes", 0.0), _flops(node)
    rates = [
        f"{x / node.seconds * 1e-9:9.1f}" if x and node.seconds else " " * 9 for x in (moved, flops)
    ]
    others = [
        f" {k}={v:.6g}"
        for k, v in node.metrics.items()
        if k != "bytes" and not k.startswith("flops")
    ]
    yield (
        f"{node.seconds * 1e3:10.3f} {100 * node.seconds / whole:5.1f}% {node.launches:9} {mean * 1e6:9.1f} "
        f"{least * 1e6:9.1f} {' '.join(rates)}  {'  ' * depth}{node.name}{''.join(others)}"
    )
    for inner in sorted(node.inside.values(), key=lambda n: -n.seconds):
        yield from _rows(inner, whole, depth + 1)


def _flops(node: Node) -> float:
    """Return the sum of `flops`, `flops16`, … as kernels declare them for each width of their operands."""
    return sum(v for k, v in node.metrics.items() if k.startswith("flops"))


def chrome_trace(launches: Sequence[Launch], scopes: Sequence[Scope]) -> str:
    """Return the events as JSON that ui.perfetto.dev and chrome://tracing open; times are in microseconds."""
    process = os.getpid()
    devices = sorted({x.device for x in launches})
    events: list[dict[str, object]] = [
        {"ph": "M", "name": "thread_name", "pid": process, "tid": i, "args": {"name": name}}
        for i, name in enumerate(["scopes", *devices])
    ]
    for s in scopes:
        events.append({
            "ph": "X", "cat": "scope", "name": s.name, "pid": process, "tid": 0, "ts": s.start * 1e6,
            "dur": s.seconds * 1e6, "args": s.metrics,
        })  # fmt: skip
    for x in launches:
        about = {"grid": x.grid, "scopes": "/".join(x.scopes), **x.metrics}
        events.append({
            "ph": "X", "cat": "kernel", "name": x.kernel, "pid": process, "tid": 1 + devices.index(x.device),
            "ts": x.start * 1e6, "dur": x.seconds * 1e6, "args": about,
        })  # fmt: skip
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms"})


def hatchet(root: Node, devices: Sequence[str]) -> str:
    """Return the tree as the JSON that proton's viewer and Hatchet read."""
    about = {name: {"name": name} for name in devices}
    return json.dumps([_frame(root, "ROOT"), about])


def _frame(node: Node, name: str = "") -> dict[str, object]:
    metrics: dict[str, float] = dict(node.metrics)
    if not node.inside:
        metrics |= {"count": node.launches, "time (ns)": node.seconds * 1e9}
    return {
        "frame": {"name": name or node.name, "type": "function"},
        "metrics": metrics,
        "children": [_frame(x) for x in node.inside.values()],
    }
