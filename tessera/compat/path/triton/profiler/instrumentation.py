"""Sessions of proton with the backend "instrumentation": traced builds of kernels, which record what their warps do."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tessera.config import knobs
from tessera.ops.trace import TRACE_MODE
from tessera.profiler import timelines
from tessera.profiler.output import hatchet
from tessera.profiler.records import Node
from tessera.profiler.tracing import Trace, traces

PROCESSES = 1 << 24  # numbers of CTAs that each kernel has for itself


class Traces:
    """The latest launch of each kernel of a session."""

    def __init__(self) -> None:
        self._found, self._stack = traces(), ExitStack()

    def __enter__(self) -> None:
        self._stack.enter_context(knobs.compilation.scope())
        knobs.compilation.instrumentation_mode = TRACE_MODE
        self._stack.enter_context(self._found)

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def save(self, path: str | Path) -> None:
        """Write the times of activities by kernel and role for `.hatchet`, else a trace for Perfetto."""
        found, place = [Trace(x) for x in self._found.last.values()], Path(path)
        written = _tree(found) if place.suffix == ".hatchet" else _timeline(found)
        place.write_text(written, encoding="utf-8")


def _tree(found: list[Trace]) -> str:
    root = Node("all")
    for trace in found:
        for row in trace.rows():
            where = timelines.phase_of(row.phase, row.loop)
            about = ", ".join(filter(None, (where, f"line {row.line}" if row.line else "")))
            name = f"{row.activity} ({about})" if about else row.activity
            for node in root.at((trace.name, row.role, *trace.scopes(row.line), name)):
                node.launches += row.records
                node.seconds += row.total
    return hatchet(root, sorted({x.target for x in found}))


def _timeline(found: list[Trace]) -> str:
    events: list[dict[str, Any]] = []
    for number, trace in enumerate(found):
        for event in json.loads(timelines.chrome_trace(trace, None))["traceEvents"]:
            event["pid"] += number * PROCESSES
            if event.get("name") == "process_name":
                event["args"]["name"] = f"{trace.name}: {event['args']['name']}"
            events.append(event)
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ns"})
