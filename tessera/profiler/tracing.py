"""Traces kernels: what the warps of each role did, and when, from records that the kernel itself writes
(docs/profiling.md). `kernel.trace[grid](…)` compiles a traced build of the kernel, launches it, and returns a
`Trace`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import numpy as np

from tessera.compiler.kernel import CompiledKernel
from tessera.errors import LaunchError
from tessera.ops.trace import TRACE_HEADER, TRACE_MODE, TRACE_TOGETHER, TRACE_UNIT
from tessera.passes.neutral.insert_trace import Event
from tessera.profiler import timelines
from tessera.profiler.marks import marks_of
from tessera.profiler.timelines import Row, Span
from tessera.runtime.drivers.traced import LIMITS, SINKS, Limits, Recorded, variants_of
from tessera.runtime.drivers.variants import fallback_of
from tessera.runtime.launching.interface import KernelInterface
from tessera.runtime.launching.mistakes import with_note
from tessera.runtime.launching.typed import Grid

HALF, EVENT = 0xFFFFFFFF, 0xFFFF  # bits of a clock and of the first event in a unit's head
SETUP = "setup"  # from the start of a warp's role to its first record
Words = np.ndarray


@dataclass(slots=True)
class Warp:
    """The records of one warp: `events` (-1: its setup) and where each begins, `times`, with the end at last; in
    seconds, or in the unit of the clock. `lost`: earlier records that the ring no longer holds."""

    cta: int
    number: int
    processor: int
    events: np.ndarray
    times: np.ndarray
    lost: int


class Trace:
    """What the warps of one launch did. `print(trace)` shows, for each role, the time by activity and source line;
    `save` writes the timeline.

    `kernel`, `grid`: the CompiledKernel and its grid; `unit`: of times, "s", or "steps" (the simulator) and "records"
    (the interpreter), whose clocks count; `ctas` of `launched` CTAs were recorded (programs on a CPU); `lost`: records
    that did not fit, of all `records`; `warps`: the records of each warp, as arrays.

    Example:
        >>> trace = double.trace[(2,)](np.ones(16, np.float32), 16, BLOCK=8)
        >>> [(s.role, s.cta, s.name) for s in trace.spans()]
        [('program', 0, 'setup'), ('program', 0, 'store'), ('program', 1, 'setup'), ('program', 1, 'store')]
        >>> trace.lost, trace.roles, trace.unit
        (0, ('program',), 's')
    """

    def __init__(self, recorded: Recorded) -> None:
        kernel = _variant(recorded)
        self.kernel, self.grid = kernel, recorded.grid
        self.target, self.name = str(kernel.target), kernel.name
        self.events: list[Event] = [Event(*e) for e in kernel.metadata.trace]
        self.ctas, self.launched = recorded.ctas, recorded.launched
        counted = recorded.unit in ("steps", "records")
        self.unit = recorded.unit if counted else "s"
        self.warps = _decoded(recorded, kernel.metadata.trace_warps)
        self.marks = marks_of(getattr(getattr(kernel.src, "fn", None), "fn", None))
        self.lost = sum(w.lost for w in self.warps)
        self.records = self.lost + sum(int((w.events >= 0).sum()) for w in self.warps)

    def scopes(self, line: int) -> tuple[str, ...]:
        """Return the names of the marks around a source line (`triton.profiler.language`), the outermost first."""
        return tuple(m.name for m in self.marks if m.first <= line <= m.last)

    @property
    def roles(self) -> tuple[str, ...]:
        """The roles of the kernel's warps, in the order of their numbers."""
        seen = {w.number: self._role(w) for w in reversed(self.warps)}
        return tuple(dict.fromkeys(seen[n] for n in sorted(seen)))

    def _role(self, warp: Warp) -> str:
        return self.events[int(warp.events[-1])].role if len(warp.events) > 1 else "program"

    def spans(self, ctas: Sequence[int] | None = None) -> Iterator[Span]:
        """Yield what each warp did, in the order of time, for all CTAs or those given by number."""
        chosen = None if ctas is None else set(ctas)
        for w in self.warps:
            if chosen is not None and w.cta not in chosen:
                continue
            role = self._role(w)
            start = Event(role, "", 0, SETUP, 0)
            numbers: list[int] = w.events.tolist()
            for i, number in enumerate(numbers):
                event = start if number < 0 else self.events[number]
                begin, end = float(w.times[i]), float(w.times[i + 1])
                yield Span(role, w.cta, w.number, w.processor, event.activity, event.phase, event.loop, event.line,
                           begin, end - begin)  # fmt: skip

    def rows(self) -> list[Row]:
        """Return the time of each role by activity, phase and source line, the longest first in each role."""
        count, total = np.zeros((2, len(self.events) + 1))
        setups: dict[str, list[float]] = {}
        for w in self.warps:
            lasted = np.diff(w.times)
            own = w.events >= 0
            np.add.at(count, w.events[own], 1)
            np.add.at(total, w.events[own], lasted[own])
            setups.setdefault(self._role(w), []).extend(lasted[~own].tolist())
        found = [
            Row(*e, int(n), float(t))
            for e, n, t in zip(self.events, count, total, strict=False)
            if n
        ]
        found += [Row(r, "", 0, SETUP, 0, len(x), sum(x)) for r, x in setups.items() if x]
        order = {r: i for i, r in enumerate(self.roles)}
        return sorted(timelines.merged(found), key=lambda x: (order.get(x.role, 0), -x.total))

    def __str__(self) -> str:
        return timelines.text(self)

    def save(self, path: str | Path, ctas: Sequence[int] | None = None) -> Path:
        """Write the timeline: a self-contained page if the name ends in `.html`, the table for `.txt`, else a trace for
        ui.perfetto.dev and chrome://tracing. `ctas`: which to show; by default as many as readers can take. It raises
        LaunchError for a CTA that was not recorded."""
        place = Path(path)
        missing = sorted(set(ctas or ()) - {w.cta for w in self.warps})
        if missing:
            text = f"CTA {missing[0]} of {self.name} was not recorded"
            raise LaunchError(
                text, help=f"{self.ctas} of {self.launched} were: `kernel.trace(ctas=n)`"
            )
        if place.suffix == ".txt":
            shown = str(self)
        else:
            shown = (timelines.page if place.suffix == ".html" else timelines.chrome_trace)(
                self, ctas
            )
        place.write_text(shown, encoding="utf-8")
        return place


def _variant(recorded: Recorded) -> CompiledKernel:
    """Return the kernel that wrote the records: that of the launch, or a fallback variant of it."""
    tags = recorded.words[:, 0] >> np.uint64(32)
    tag = int(tags.max()) if len(tags) else 0
    for kernel in variants_of(recorded.kernel, fallback_of):
        if tag in (0, kernel.metadata.trace_tag):
            return kernel
    raise LaunchError(f"the records of kernel {recorded.kernel.name} are those of another kernel")


# --- from words to times ----------------------------------------------------------------------------------------------
def _decoded(recorded: Recorded, warps: int) -> list[Warp]:
    rows = [i for i in range(len(recorded.words)) if recorded.words[i, 0]]
    heads = recorded.words[rows, :TRACE_HEADER].astype(np.int64)
    read = _clock(recorded.unit, heads)
    found: list[Warp] = []
    for head, i in zip(heads, rows, strict=True):
        processor = int(head[0]) & 0xFFFFFFFF
        events, clocks, lost = _records(recorded.words[i], recorded.mask)
        end = head[5] if head[5] else clocks[-1]  # no end: the program was left early
        times = read(processor, np.append(clocks, end))
        found.append(Warp(i // warps, i % warps, processor, events, times, lost))
    first = min((float(w.times[0]) for w in found), default=0.0)
    for w in found:
        w.times = w.times - first
    return found


def _records(words: Words, mask: int) -> tuple[np.ndarray, np.ndarray, int]:
    """Return the events of a warp and the clock at each, and how many are lost; event -1 is the setup. Records have the
    low half of the clock: no two that follow each other may be farther apart than it can tell."""
    units, start = _ring(words, mask), int(words[1])
    ended, counts = bool(words[5]), int(words[4])
    written = counts >> 32 if ended else int(np.count_nonzero(units[:, 0]))
    kept = units[np.arange(written - min(written, mask + 1), written) & mask].astype(np.int64)
    heads, clocks = kept[:, :1], kept[:, 1:]
    number = np.arange(TRACE_TOGETHER)
    sizes = heads >> 16 if ended else np.count_nonzero(clocks, axis=1, keepdims=True)
    own = np.nonzero(np.greater(sizes, number))
    events, clocks = np.add(heads & EVENT, number)[own], clocks[own]
    lost = (counts & HALF) - len(events) if ended else 0
    if not lost:  # the setup is known, and clocks begin with it
        passed = np.cumsum(np.diff(clocks, prepend=start) & HALF)
        return np.insert(events, 0, -1), start + np.insert(passed, 0, 0), 0
    left = np.cumsum((np.diff(clocks, append=int(words[5])) & HALF)[::-1])[::-1]
    return events, int(words[5]) - left, lost


def _ring(words: Words, mask: int) -> np.ndarray:
    """Return the latest unit of each number modulo mask + 1, as halves: in the ring, or behind it."""
    halves = words[TRACE_HEADER:].view(np.uint32).reshape(-1, 2 * TRACE_UNIT).astype(np.int64)
    ring, behind = halves[: mask + 1].copy(), halves[mask + 1 :]
    own = ring[: len(behind)]
    later = (int(words[5]) - behind[:, 1]) & HALF < (int(words[5]) - own[:, 1]) & HALF
    newer = (behind[:, 0] != 0) & (later | (own[:, 0] == 0))
    own[newer] = behind[newer]
    return ring


def _clock(unit: str, heads: np.ndarray) -> Callable[[int, np.ndarray], np.ndarray]:
    """Return (processor, clocks) → seconds, or the clock's own unit if it only counts.

    The clocks of SMs differ, and their rate is not known. Each header has the clock beside the time in nanoseconds, at
    the start and the end of the warp. The time's steps are coarse: of all pairs of an SM the one whose time is ahead
    most is nearest to the truth."""
    if unit != "cycles":
        scale = 1e-9 if unit == "ns" else 1.0
        return lambda processor, clocks: clocks * scale
    done = heads[heads[:, 5] != 0]
    cycles, time = (done[:, 5] - done[:, 1]).sum(), (done[:, 6] - done[:, 2]).sum()
    rate = float(time) / float(cycles) if cycles > 0 and time > 0 else 1.0  # ns a cycle
    base = heads[:, 2].min() if len(heads) else 0
    ahead: dict[int, tuple[int, float]] = {}
    for processor in np.unique(heads[:, 0] & 0xFFFFFFFF).tolist():
        own = heads[heads[:, 0] & 0xFFFFFFFF == processor]
        ends = own[own[:, 5] != 0]
        clocks, times = (np.append(own[:, i], ends[:, i + 4]) for i in (1, 2))
        origin = int(clocks.min())
        ahead[processor] = origin, float((times - base - (clocks - origin) * rate).max())

    def read(processor: int, clocks: np.ndarray) -> np.ndarray:
        origin, offset = ahead[processor]
        return ((clocks - origin) * rate + offset) * 1e-9

    return read


# --- launching --------------------------------------------------------------------------------------------------------
class Tracer:
    """`kernel.trace`: `kernel.trace[grid](*args, **options)` launches a traced build once, waits for it, and returns
    the `Trace`. `kernel.trace(records=n, ctas=n)` says how many records of a warp and how many CTAs are kept."""

    def __init__(self, fn: KernelInterface, limits: Limits | None = None) -> None:
        self.fn, self.limits = fn, limits or Limits()

    @with_note(
        "launch with a grid, as `kernel.trace[(8,)](...)`; `kernel.trace(records=n)` only sets limits"
    )
    def __call__(self, records: int | None = None, ctas: int | None = None) -> Self:
        given: dict[str, object] = {"records": records, "ctas": ctas}
        for name, x in given.items():
            if x is not None and (not isinstance(x, int) or x < 1):
                raise LaunchError(
                    f"a trace needs {name} of 1 or more, got {type(x).__name__ if not isinstance(x, int) else x}",
                    help="`kernel.trace[grid](*args)` launches; `kernel.trace(records=n, ctas=n)` only sets limits",
                )
        return type(self)(self.fn, Limits(records, ctas))

    def __getitem__(self, grid: Grid) -> Callable[..., Trace]:
        def launch(*args: object, **kwargs: object) -> Trace:
            if _tunes(self.fn):
                self.fn[grid](*args, **kwargs)  # chooses the config by the untraced build
            seen: list[Recorded] = []
            token = LIMITS.set(replace(self.limits, sink=seen.append))
            try:
                self.fn[grid](*args, **{**kwargs, "instrumentation_mode": TRACE_MODE})
            finally:
                LIMITS.reset(token)
            if not seen:
                raise LaunchError(
                    "nothing was traced: the grid has no programs, or the launch is a checked one"
                )
            return Trace(seen[-1])

        return launch


def _tunes(fn: KernelInterface) -> bool:
    """Whether a launch may first time several configs."""
    several = len(getattr(fn, "configs", ())) > 1
    return several or (isinstance(fn.fn, KernelInterface) and _tunes(fn.fn))


class traces:
    """Traces every launch within a `with` block; `last` holds the latest record of each kernel by name."""

    def __init__(self) -> None:
        self.last: dict[str, Recorded] = {}

    def note(self, found: Recorded) -> None:
        self.last.pop(found.kernel.name, None)
        self.last[found.kernel.name] = found  # the latest one last

    def __enter__(self) -> Self:
        SINKS.append(self.note)
        return self

    def __exit__(self, *error: object) -> None:
        SINKS.remove(self.note)
