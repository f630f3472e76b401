"""Plans how a graph runs: its steps in order, where tensors lie, how long temporary ones live. All of it is data.

launch graph_exp_3f2a (p0 = x, p1 = t0)          t0: 4096 bytes, alive from step 0 to step 1
extern aten.mm.default (t0, w) → e0
launch graph_add_77c1 (p0 = e0, p1 = y)          y: a result of the graph, allocated apart
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tessera.graph.emit.accesses import offset_of
from tessera.graph.emit.kernel import KernelCode
from tessera.graph.index import Dim, Expr, Sym, dim
from tessera.graph.memory import Buffer
from tessera.graph.ops import ExternOp
from tessera.graph.types import TensorType, product
from tessera.ir import Op, Value

Size = int | Expr
INPUT, TEMPORARY, OUTPUT, FOREIGN = "input", "temporary", "output", "foreign"


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


@dataclass
class Plan:
    """`views`: tensors that are parts of others; `place`: how the memory of each other tensor comes about; `same`:
    temporary tensors that take the memory of one that dies where they are made."""

    arguments: list[Value]
    results: list[Value]
    steps: list[Step]
    views: dict[Value, View]
    place: dict[Value, str] = field(default_factory=dict[Value, str])
    same: dict[Value, Value] = field(default_factory=dict[Value, Value])
    lives: dict[Value, tuple[int, int]] = field(default_factory=dict[Value, tuple[int, int]])

    def view(self, v: Value) -> View:
        """Where a tensor lies."""
        found = self.views.get(v)
        if found is not None:
            return found
        t: TensorType = v.type
        return View(v, 0, t.shape, t.all_strides)

    def root(self, v: Value) -> Value:
        """The tensor whose memory a tensor lies in, before temporary ones are merged. A scalar has none but its own."""
        return self.view(v).root if _is_tensor(v) else v

    def memory(self, v: Value) -> Value:
        """The tensor whose buffer a tensor lies in."""
        found = self.root(v)
        while found in self.same:
            found = self.same[found]
        return found

    def buffers(self) -> list[Value]:
        """The tensors that have a place of their own in the arena, in the order of their first steps."""
        return [v for v, p in self.place.items() if p == TEMPORARY and v not in self.same]

    def settle(self, forbidden: Mapping[str, set[tuple[int, int]]]) -> None:
        """Decide where every tensor lies and how long it lives. `forbidden`: by kernel, pairs of parameters that must
        not be the same memory."""
        self.place = dict.fromkeys((a for a in self.arguments if _is_tensor(a)), INPUT)
        outputs = {self.root(v) for v in self.results if _is_tensor(v)}
        written = [s for s in self.steps if isinstance(s, Launch) and s.copies is not None]
        for step in written:
            self._write_in_place(step, outputs, forbidden)
        for step in self.steps:
            for v in step.writes:
                if v not in self.place and v not in self.views:
                    inner = OUTPUT if v in outputs else TEMPORARY
                    self.place[v] = inner if isinstance(step, Launch) else FOREIGN
        self._measure()
        for v in self.same:
            self._merge(v)
        for number, step in enumerate(self.steps):
            if isinstance(step, Launch):
                self._reuse(number, step, forbidden.get(step.code.name, set()))

    def _write_in_place(
        self, copy: Launch, outputs: set[Value], forbidden: Mapping[str, set[tuple[int, int]]]
    ) -> None:
        """Let a tensor be computed in the memory of the argument that it is copied to at the end, if nobody reads that
        argument any more by then: the steps that copy go."""
        assert copy.copies is not None
        target, value = copy.copies
        if self.place.get(target) != INPUT or value in outputs or value in self.views:
            return
        if value in self.same or value in self.same.values() or value in self.arguments:
            return
        if target.type.all_strides != value.type.all_strides:
            return
        steps = [s for s in self.steps if s is not copy]
        first = next((s for s in steps if value in s.writes), None)
        if isinstance(first, Launch) and first.copies == (value, target):
            steps.remove(first)  # what is written is an update of the argument itself
            first = next((s for s in steps if value in s.writes), None)
        if not isinstance(first, Launch) or any(
            self._reads(s, target, s is first, value, forbidden)
            for s in steps[steps.index(first) :]
        ):
            return
        if any(target in map(self.root, s.reads) for s in steps if not isinstance(s, Launch)):
            return  # what an extern made of it may be its memory
        self.steps[:] = steps
        self.same[value] = target

    def _reads(
        self,
        step: Step,
        target: Value,
        same: bool,
        value: Value,
        forbidden: Mapping[str, set[tuple[int, int]]],
    ) -> bool:
        """Whether a step needs what an argument held before. `same`: the step computes the `value` that takes its
        place, and may read each element before it writes it."""
        if target in map(self.root, step.reads) and same:
            assert isinstance(step, Launch)
            if target not in step.code.parameters:
                return True
            pair = step.code.parameters.index(value), step.code.parameters.index(target)
            clash = not {pair, pair[::-1]}.isdisjoint(forbidden.get(step.code.name, set()))
            views = sum(self.root(x) is target for x in step.reads) > 1
            return views or clash or pair not in step.code.reusable
        return target in map(self.root, (*step.reads, *step.writes))

    def _measure(self) -> None:
        for number, step in enumerate(self.steps):
            for v in (*step.reads, *step.writes):
                if _is_tensor(v):
                    root = self.root(v)
                    first = self.lives.get(root, (number, number))[0]
                    self.lives[root] = (first, number)

    def _reuse(self, number: int, step: Launch, forbidden: set[tuple[int, int]]) -> None:
        """Let results take the memory of operands that die here."""
        parameters = step.code.parameters
        for r, x in step.code.reusable:
            result, operand = parameters[r], parameters[x]
            assert isinstance(result, Value) and isinstance(operand, Value)
            taken = {self.memory(v) for v in step.writes if v in self.same}
            if (
                self.place.get(result) == TEMPORARY
                and result not in self.same
                and self.place.get(operand) == TEMPORARY
                and self.place.get(self.memory(operand)) == TEMPORARY
                and operand not in self.views
                and self.memory(operand) not in taken
                and self.lives[operand][1] == number
                and self.lives[result][0] == number
                and {(r, x), (x, r)}.isdisjoint(forbidden)
                and storage_size(result.type) == storage_size(operand.type)
            ):
                self.same[result] = operand
                self._merge(result)

    def _merge(self, v: Value) -> None:
        """Let the memory that a tensor takes live as long as the tensor."""
        home = self.memory(v)
        lives = self.lives.get(home, self.lives[v]), self.lives[v]
        self.lives[home] = (min(first for first, _ in lives), max(last for _, last in lives))

    def arena(self, evaluate: Mapping[Sym, int]) -> list[Buffer]:
        """The buffers of the arena for sizes, in the order of `buffers`."""
        made: list[Buffer] = []
        for v in self.buffers():
            first, last = self.lives[v]
            made.append(Buffer(first, last, number(storage_size(v.type), evaluate)))
        return made

    def dying(self) -> Iterator[tuple[int, Value]]:
        """(step, tensor): foreign tensors and arguments that nobody needs after a step."""
        kept = {self.root(v) for v in self.results if _is_tensor(v)}
        for v, place in self.place.items():
            if place in (FOREIGN, INPUT) and v in self.lives and v not in kept:
                yield self.lives[v][1], v

    def is_temporary(self, v: Value) -> bool:
        """Whether a tensor lies in the arena."""
        return _is_tensor(v) and self.place.get(self.memory(v)) == TEMPORARY


def _is_tensor(v: Value) -> bool:
    return isinstance(v.type, TensorType)


def number(n: Size, sizes: Mapping[Sym, int]) -> int:
    """A size as a number."""
    return n if isinstance(n, int) else int(n.evaluate(sizes))


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


def captured(op: Op) -> list[Value]:
    """The values from outside that an op and its regions use, each once."""
    inside = set(op.all_blocks())
    found: dict[Value, None] = {}
    for x in op.walk():
        for v in x.operands:
            if v.block not in inside:
                found[v] = None
    return list(found)
