"""Holds what `explain` found about one kernel: plain data, which become text, JSON and a page.

The JSON form is `asdict` of a `Report`, under `schema` and `version`; docs/explain.md describes its fields. `version`
changes when a field is renamed, dropped, or means something else; a new field does not change it.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from importlib import import_module
from pathlib import Path

SCHEMA, VERSION = "tessera.explain", 1


@dataclass
class AccessReport:
    """One access of global memory. `bytes`, `requests`, `sectors` and `ideal` count the whole launch: on a GPU requests
    of warps and 32-byte sectors, on a CPU accesses of tiles and 64-byte lines; `ideal`: the fewest that hold the same
    bytes. `width`: bytes of one instruction of a thread (GPU) or what LLVM IR has (CPU)."""

    what: str
    argument: str
    place: str
    width: str
    bytes: float
    requests: float
    sectors: float
    ideal: float
    why: str = ""

    @property
    def coalescing(self) -> float:
        """The fewest sectors over those touched: 1 is the best."""
        return self.ideal / self.sectors if self.sectors else 1.0


@dataclass
class LineReport:
    """One source line. Counts are of the whole launch; `instructions`, `spills` and `kinds` of the machine code, once;
    `registers`: the most of a thread that are live at one of its instructions of SASS, 0 without nvdisasm;
    `live_registers`: 32-bit registers that tiles take there; `seconds`: by the roofline; `share`: of the kernel's time,
    between 0 and 1."""

    file: str
    line: int
    source: str
    loaded: float = 0.0
    stored: float = 0.0
    flops: float = 0.0
    operations: float = 0.0
    bank_passes: float = 0.0
    bank_conflicts: float = 0.0
    instructions: int = 0
    spills: int = 0
    kinds: dict[str, int] = field(default_factory=dict[str, int])
    live_registers: int = 0
    registers: int = 0
    seconds: float = 0.0
    share: float = 0.0
    accesses: list[AccessReport] = field(default_factory=list[AccessReport])


@dataclass
class BufferReport:
    """A buffer in shared memory: bytes from `offset` on, from the first to the last source line of its life."""

    name: str
    place: str
    bytes: int
    offset: int
    first_line: int
    last_line: int
    first: int  # position among the kernel's ops
    last: int
    layout: str = ""


@dataclass
class Occupancy:
    """How many CTAs an SM holds, by each limit and in the end; `bound`: the limits that decide. `waves`: rounds in
    which the grid runs."""

    ctas: int
    warps: int
    share: float
    limits: dict[str, int]
    bound: list[str]
    waves: float


@dataclass
class PlanReport:
    """How a loop overlaps with itself. `cycles`: of an iteration, by part of an SM that it keeps busy; `predicted`: of
    an SM, which an iteration of a CTA takes; `bound`: the part that decides, or "waiting"; `ctas`: that share an SM.
    `other`: the best other plan with its `other_predicted`, and `why` it lost; "" without one."""

    what: str
    cycles: dict[str, float]
    predicted: float
    bound: str
    ctas: int
    other: str
    other_predicted: float
    why: str


@dataclass
class LoopReport:
    """A loop: how often it runs on average, stages of its ring of buffers, how tiles get there, and its plan if it is
    overlapped with itself."""

    place: str
    trips: float
    stages: int
    copies: str
    plan: PlanReport | None = None


@dataclass
class RoleReport:
    """A role of warps that run at the same time as the others; `registers`: of a thread, 0 if all have the same."""

    name: str
    warps: int
    registers: int


@dataclass
class Schedule:
    loops: list[LoopReport]
    roles: list[RoleReport]
    persistent: bool
    cluster: int
    overlapping: bool


@dataclass
class Roofline:
    """Predicted times in seconds by each limit of the machine; the largest one bounds the kernel."""

    machine: str
    bytes_requested: float
    bytes_of_memory: float
    flops: float
    times: dict[str, float]
    bound: str
    predicted: float
    measured: float | None = None


@dataclass
class Remark:
    """Something that was not done: where, what, why, and what the author can do about it."""

    place: str
    what: str
    reason: str
    remedy: str


@dataclass
class LayoutReport:
    """A layout of tiles in registers or shared memory: which thread holds the elements of its top left corner."""

    name: str
    text: str
    shape: tuple[int, ...]
    used_by: str
    kind: str  # "registers" or "shared"
    cells: list[list[str]]
    groups: list[list[int]]


@dataclass
class Report:
    """What `explain` found about a kernel: print it, or take `json()` or `save(path)`, which writes a page."""

    kernel: str
    target: str
    grid: tuple[int, ...]
    options: dict[str, int]
    programs: int
    walked: int
    lines: list[LineReport]
    buffers: list[BufferReport]
    shared_bytes: int
    registers: int
    spills: int
    instructions: int
    code: str
    occupancy: Occupancy | None
    schedule: Schedule
    roofline: Roofline
    remarks: list[Remark]
    notes: list[str]
    applied: list[str]
    layouts: list[LayoutReport] = field(default_factory=list[LayoutReport])
    # By level: the text, and for each of its lines the number of an element of `lines`, -1 for none.
    ir: dict[str, tuple[str, list[int]]] = field(default_factory=dict[str, tuple[str, list[int]]])

    def __str__(self) -> str:
        return import_module("tessera.explain.text").text(self)

    def save(self, path: str | Path) -> Path:
        """Write the report to a file: as JSON if its name ends in `.json`, else as a page for a browser."""
        place = Path(path)
        shown = (
            self.json()
            if place.suffix == ".json"
            else import_module("tessera.explain.page").page([self])
        )
        place.write_text(shown, encoding="utf-8")
        return place

    def json(self) -> str:
        """Return the report as JSON; docs/explain.md describes it."""
        data = {"schema": SCHEMA, "version": VERSION, **asdict(self)}
        return json.dumps(data, indent=1)
