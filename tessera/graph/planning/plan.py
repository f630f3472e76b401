"""Plans how a graph runs: its steps in order, where tensors lie, how long temporary ones live. All of it is data.

launch graph_exp_3f2a (p0 = x, p1 = t0)          t0: 4096 bytes, alive from step 0 to step 1
extern aten.mm.default (t0, w) → e0
launch graph_add_77c1 (p0 = e0, p1 = y)          y: a result of the graph, allocated apart
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tessera.graph.emit.accesses import offset_of
from tessera.graph.emit.kernel import KernelCode
from tessera.graph.index import Dim, Expr, Sym, dim, estimate
from tessera.graph.ir.ops import ExternOp
from tessera.graph.ir.types import TensorType, product
from tessera.graph.passes.facts import captured
from tessera.graph.planning.memory import Buffer, Placement, place
from tessera.ir import Op, Value

Size = int | Expr
INPUT, TEMPORARY, OUTPUT, FOREIGN, OWN, PAGED = (
    "input",
    "temporary",
    "output",
    "foreign",
    "own",
    "paged",
)
IN_ARENAS = (TEMPORARY, PAGED)
MOST_LAUNCHES = 256  # that native code starts in one go: their arguments lie on the stack


@dataclass(frozen=True, slots=True)
class View:
    """A tensor as a part of another one's memory: the offset of its element 0 in elements, and its layout."""

    root: Value
    offset: Size
    shape: tuple[Size, ...]
    strides: tuple[Size, ...]


@dataclass(frozen=True, slots=True)
class Launch:
    """Run a kernel. `op`: what it computes, where that can be computed otherwise, too. `copies`: (target, source) where
    the kernel does nothing but give one tensor the elements of another one."""

    code: KernelCode
    op: Op | None = None
    copies: tuple[Value, Value] | None = None

    @property
    def reads(self) -> tuple[Value, ...]:
        return tuple(
            x
            for k, x in enumerate(self.code.parameters)
            if isinstance(x, Value) and k not in self.code.written
        )

    @property
    def writes(self) -> tuple[Value, ...]:
        return tuple(
            x for k in self.code.written if isinstance(x := self.code.parameters[k], Value)
        )


@dataclass(frozen=True, slots=True)
class Extern:
    """Call a function of the array library, which allocates its results."""

    op: ExternOp

    @property
    def reads(self) -> tuple[Value, ...]:
        return tuple(self.op.args)

    @property
    def writes(self) -> tuple[Value, ...]:
        return tuple(self.op.results)


@dataclass(frozen=True, slots=True)
class Interpret:
    """Compute an op by its meaning in NumPy: no kernel could be made for it, for a `reason`."""

    op: Op
    reason: str

    @property
    def reads(self) -> tuple[Value, ...]:
        return tuple(captured(self.op))

    @property
    def writes(self) -> tuple[Value, ...]:
        return tuple(self.op.results)


Step = Launch | Extern | Interpret


@dataclass(frozen=True, slots=True)
class Allocation:
    """Bytes that are held from a step to another one, both included: those of a tensor, or of an arena. They are
    negative for an argument that the caller does not need any more: behind the step before it goes."""

    first: int
    last: int
    bytes: int
    arena: int | None = None

    def at(self, group: range) -> int:
        """What of it is held while a group of steps runs, at the beginning of which all that it writes is taken, and
        behind which all is let go that nobody needs any more."""
        begins = self.first < group.stop if self.bytes > 0 else self.first <= group.start
        return self.bytes if begins and group.start <= self.last else 0


@dataclass
class Plan:
    """`views`: tensors that are parts of others; `place`: how the memory of each other tensor comes about; `same`:
    tensors that take the memory of one that dies where they are made; `donated`: arguments that the caller does not
    need any more; `arenas`: the tensors in each; `breaks`: launches that are not started together with those before;
    `saved`: results that the backward graph of the same program gets and nobody else; `pages`: those of them that share
    arenas, by arena; `wide`: whether kernels count in 64 bits."""

    arguments: list[Value]
    results: list[Value]
    steps: list[Step]
    views: dict[Value, View]
    place: dict[Value, str] = field(default_factory=dict[Value, str])
    same: dict[Value, Value] = field(default_factory=dict[Value, Value])
    lives: dict[Value, tuple[int, int]] = field(default_factory=dict[Value, tuple[int, int]])
    donated: frozenset[Value] = frozenset()
    arenas: list[list[Value]] = field(default_factory=list[list[Value]])
    breaks: frozenset[int] = frozenset()
    saved: frozenset[Value] = frozenset()
    pages: list[list[Value]] = field(default_factory=list[list[Value]])
    wide: bool = False

    def groups(self, native: bool = True) -> list[range]:
        """The steps that one line of the call runs."""
        return groups_of(self.steps, native, self.breaks)

    def view(self, v: Value) -> View:
        """Where a tensor lies."""
        found = self.views.get(v)
        if found is not None:
            return found
        t: TensorType = v.type
        return View(v, 0, t.shape, t.all_strides)

    def root(self, v: Value) -> Value:
        """The tensor whose memory a tensor lies in, before temporary ones are merged. A scalar has none but its own."""
        found = self.views.get(v)
        return v if found is None else found.root

    def memory(self, v: Value) -> Value:
        """The tensor whose buffer a tensor lies in."""
        found = self.root(v)
        while found in self.same:
            found = self.same[found]
        return found

    def buffers(self) -> list[Value]:
        """The tensors that have a place of their own in the arena, in the order of their first steps."""
        return [v for v, p in self.place.items() if p == TEMPORARY and v not in self.same]

    def dying(self) -> Iterator[tuple[int, Value]]:
        """(step, tensor): tensors with an allocation of their own, and arguments, that nobody needs after a step."""
        for v, sort in self.place.items():
            if sort in (FOREIGN, INPUT, OWN) and v in self.lives and v not in self.same:
                last = self.lives[v][1]
                if last < len(self.steps):
                    yield last, v

    # --- arenas -------------------------------------------------------------------------------------------------
    def span(self, arena: Sequence[Value]) -> tuple[int, int]:
        """The first and the last step that need an arena."""
        return min(self.lives[v][0] for v in arena), max(self.lives[v][1] for v in arena)

    def placed(self, sizes: Mapping[Sym, int]) -> list[Placement]:
        """Each arena's tensors in their order, and its bytes."""
        return [
            place([Buffer(*self.lives[v], number(storage_size(v.type), sizes)) for v in arena])
            for arena in self.arenas
        ]

    def allocations(self, sizes: Mapping[Sym, int], page: int) -> Iterator[Allocation]:
        """All memory that a call takes, rounded up to `page` bytes, and gives back."""
        for v, sort in self.place.items():
            if v in self.same or v not in self.lives:
                continue
            first, last = self.lives[v]
            size = -(-number(storage_size(v.type), sizes) // page) * page
            if v in self.donated:
                yield Allocation(last + 1, len(self.steps), -size)
            elif sort != INPUT and sort not in IN_ARENAS:
                yield Allocation(first, last, size)
        for k, (arena, placement) in enumerate(zip(self.arenas, self.placed(sizes), strict=True)):
            yield Allocation(*self.span(arena), -(-placement.size // page) * page, k)

    def peak_bytes(self, sizes: Mapping[Sym, int], page: int, native: bool = True) -> int:
        """The most that a call holds beside what there was before it."""
        made = list(self.allocations(sizes, page))
        groups = [*self.groups(native), range(len(self.steps), len(self.steps) + 1)]
        return max(0, *(sum(a.at(group) for a in made) for group in groups))


def groups_of(
    steps: Sequence[Step], native: bool = True, breaks: Collection[int] = ()
) -> list[range]:
    """The steps that one line of the call runs: launches that follow each other, up to the next of `breaks`, if native
    code starts them, else each step by itself."""
    found: list[range] = []
    for n, step in enumerate(steps):
        last = found[-1] if found else range(0)
        launch = isinstance(step, Launch) and n not in breaks
        joined = native and launch and len(last) < MOST_LAUNCHES
        if joined and found and isinstance(steps[last.start], Launch):
            found[-1] = range(last.start, n + 1)
        else:
            found.append(range(n, n + 1))
    return found


def number(n: Size, sizes: Mapping[Sym, int]) -> int:
    """A size as a number."""
    return n if isinstance(n, int) else estimate(n, sizes.__getitem__)


class _Likely(dict[Sym, int]):
    """Has a number for any symbol, be it of a tensor that has no memory of the plan."""

    def __missing__(self, of: Sym) -> int:
        return 512


LIKELY = _Likely()  # what each symbol counts as, where allocations and their order are chosen


def storage_size(t: TensorType) -> Size:
    """Bytes from the first element of a tensor to the end of its last one."""
    if 0 in t.shape:
        return 0
    if t.strides is None:
        return product([*t.shape, t.elem.storage_bytes])
    total: Size = 1
    for n, s in zip(t.shape, t.strides, strict=True):
        total = total + (n - 1) * s
    return total * t.elem.storage_bytes


def strided(
    view_of: Value, map_results: Sequence[Expr], rank: int
) -> tuple[Size, tuple[Size, ...]] | None:
    """(offset, strides) of a view of a tensor in elements; None if it is none that strides describe."""
    offset = offset_of(view_of.type, map_results)
    strides: list[Size] = []
    for k in range(rank):
        step = offset.coefficient(Dim(k))
        if step is None or step.dims:
            return None
        strides.append(_plain(step))
        offset = offset - step * dim(k)
    return (_plain(offset), tuple(strides)) if not offset.dims else None


def _plain(e: Expr) -> Size:
    value = e.value
    return e if value is None else value
