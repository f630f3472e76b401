"""Holds the state of one function's lowering and evaluates lazily: `value(v, point)` is an expression at an index
vector.

Tile ops without effects are lazy: they are not executed in program order. A *sink* (store, reduction, dot, loop-carried
value …) emits a loop nest over its shape and evaluates its operands at each point of the nest, which fuses their ops
into that one loop. What is worth keeping (used by several sinks, under a broadcast, read before a write) is first
computed into a buffer by the policy in `fusion.py`. `EVALUATORS` has one function for each class of lazy ops, `SINKS`
one for each class that is executed in program order.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tessera.analysis.provenance import argument_of
from tessera.analysis.sign import Signs
from tessera.backends.cpu.coordinates import Coordinates
from tessera.backends.cpu.emitter import Emitter
from tessera.backends.cpu.lanes import Lanes
from tessera.backends.cpu.llvm_text import (
    is_literal,
    lane_type,
    memory_type,
    scalar_type,
    vector_literal,
)
from tessera.backends.cpu.target import CpuFacts
from tessera.backends.cpu.values import Coord, Point, Val
from tessera.backends.elements.literals import vector_type
from tessera.dtypes import dtype, int1, int64, pointer_type
from tessera.errors import CompilationError
from tessera.ir import Block, ElementType, Op, TileType, Value, elem_of, shape_of
from tessera.ir.types import Type

Evaluator = Callable[["Lowering", Any, Point, int], Val]
Sink = Callable[["Lowering", Any], None]
EVALUATORS: dict[type[Op], Evaluator] = {}
SINKS: dict[type[Op], Sink] = {}

# Bytes of buffers on the stack; further buffers are in the thread's scratch memory.
STACK_LIMIT = 640 << 10
SMALL = 1 << 10  # bytes: smaller buffers are never reused, so that they can become registers


def evaluates(*classes: type[Op]) -> Callable[[Evaluator], Evaluator]:
    """Register the function that evaluates a lazy op at a point."""

    def register(fn: Evaluator) -> Evaluator:
        for c in classes:
            EVALUATORS[c] = fn
        return fn

    return register


def executes(*classes: type[Op]) -> Callable[[Sink], Sink]:
    """Register the lowering of a sink, an op that is executed at its place in the program."""

    def register(fn: Sink) -> Sink:
        for c in classes:
            SINKS[c] = fn
        return fn

    return register


@dataclass(slots=True, eq=False)
class Buffer:
    """A row-major tile in memory. `version` changes with each write. `width`: lanes of the narrowest vector written at
    a constant address, 0 after a write to a computed one. `pitch`, `offset`: of a part of a wider matrix, in
    elements."""

    ptr: str
    elem: Any
    shape: tuple[int, ...]
    version: int = 0
    bytes: int = 0
    width: int = 1 << 10
    pitch: int = 0
    offset: int = 0

    @property
    def strides(self) -> tuple[int, ...]:
        if self.pitch:
            return self.pitch, 1
        found: list[int] = []
        n = 1
        for s in reversed(self.shape):
            found.append(n)
            n *= s
        return tuple(reversed(found))


@dataclass(slots=True)
class ModuleState:
    """The state that the functions of one module share."""

    facts: CpuFacts
    declarations: dict[str, None] = field(default_factory=lambda: {})
    globals: dict[str, None] = field(default_factory=lambda: {})
    strings: dict[str, str] = field(default_factory=lambda: {})
    arguments: dict[Value, int] = field(default_factory=lambda: {})  # of the kernel → position
    # Pairs of the kernel's pointers: a load through one of them runs in the loop that stores through the other. 0: the
    # memory must not overlap at all; 1: or may start at the same address.
    assumed_disjoint: dict[tuple[int, int], int] = field(default_factory=lambda: {})
    overlap: bool = False  # no assumptions about overlap
    assertions: list[str] = field(default_factory=lambda: [])
    checked: bool = False  # a checked build: `checks` has a row for each report that it can make
    checks: list[dict[str, Any]] = field(default_factory=lambda: [])
    # The kernel's arguments through which it stores; None if they are not known.
    written: set[int] | None = None
    scratch: int = 0
    plans: list[Any] = field(default_factory=lambda: [])  # of the dots (dot_plan.py)
    remarks: dict[str, None] = field(default_factory=dict[str, None])  # remarks.py
    fuse: bool = True
    line_info: bool = False
    has_atomics: bool = False  # and so enters and leaves, see exclusive.py
    may_exclude: bool = False  # other kernels with atomics
    # Of each atomic with a plain form: how many elements, whether their addresses are consecutive.
    atomics: list[tuple[int, bool]] = field(default_factory=lambda: [])

    def position(self, ptr: Value) -> int | None:
        """Return the position of the kernel's argument that a pointer points into; None if it is not known."""
        argument = argument_of(ptr)
        return self.arguments.get(argument) if argument is not None else None


@dataclass(frozen=True, slots=True)
class BufferAccess:
    """The functions (memory.py) that read and write tiles in memory."""

    load: Callable[[Lowering, Buffer, Point], Val]
    store: Callable[[Lowering, Buffer, Point, Val], None]
    gather: Callable[..., Val]


class Lowering(Coordinates):
    """The lowering of one function. `scalars`, `buffers` hold the values computed so far."""

    def __init__(self, state: ModuleState, access: BufferAccess):
        super().__init__(Emitter(state.declarations, state.globals, state.line_info))
        self.state, self.facts, self.access = state, state.facts, access
        self.evaluators, self.sinks = EVALUATORS, SINKS
        self.em.flags = "contract" if state.fuse else ""
        self.scalars: dict[Value, Val] = {}
        self.buffers: dict[Value, Buffer] = {}
        self.memo_buffers: dict[Value, Buffer] = {}  # filled while the current loop evaluates them
        self.memo_filled: set[Value] = set()  # of those in `memo_buffers`
        self.narrowed: dict[Value, Value] = {}  # → its cast, which is in `memo_buffers`
        # Tables of index tiles, read for single elements: vectors keep the affine form.
        self.uniform: dict[Value, Buffer] = {}
        self.assumed: set[Value] = set()  # masks known to be true at `here`
        self.dividends: frozenset[Value] = frozenset()  # remainders that are what is divided
        self.inside: Val | None = None  # lanes of the tile, in vectors that go beyond its part
        self.here: Point | None = None  # the point of the loop body being emitted
        self.pending: dict[Value, None] = {}  # loads not yet executed, in program order
        self.memo: dict[Any, Val] = {}
        self.env: dict[Value, Val] = {}  # values inside a combine region
        self.position: dict[Op, int] = {}
        self.end: dict[Op, int] = {}
        self.block: Block | None = None
        # The block that has filled a buffer, by value.
        self.buffer_blocks: dict[Value, Block | None] = {}
        self.carried: set[Value] = set()  # loop arguments: their buffers belong to the loop
        # Of carried accumulators: i1, whether they count as zero.
        self.zero_start: dict[Value, str] = {}
        # Dots that run together with a later one, scans with a later store.
        self.chained: dict[Op, None] = {}
        self.joined: dict[Op, Callable[[], None]] = {}  # stores that a scan's loop does
        # For each lazy tile, how many ops lie between it and the buffers that it is computed from.
        self.depth: dict[Value, int] = {}
        # Dots whose operands are packed now, to be multiplied later.
        self.packs: dict[Op, Callable[[], None]] = {}
        self.strips: dict[Op, Any] = {}  # stores that finish an accumulator block by block
        self.temporaries: list[Buffer] = []  # free after the current op
        self.free: dict[int, list[str]] = {}
        self.stack_bytes = 0
        self.em.pinned = state.checked
        self.signs = Signs()
        self.context = "%ctx"
        self.record = ""  # where a checked build makes its report; checks share it
        self.report = ""  # a checked build: the address of the report, see checks.py
        self.programs: dict[int, Val] = {}
        self.sizes: list[Val] = []
        self.exit_label = ""
        self.stop_label = ""  # where an interrupted launch leaves the function, see interrupt.py
        self.dummy = ""
        self.streaming = False  # stores of whole vectors bypass the caches
        self.loaded: list[Value] = []  # the pointers of all loads, in an element-wise kernel
        self.elementwise = False  # a kernel that only loads, computes and stores
        self.straight = False  # a kernel that only loads, computes, reduces and stores
        # Which rows of the next program to prefetch, and where (row_prefetch.py).
        self.row_prefetch: Any = None
        self.gathers = 0  # emitted so far
        self.kernel = False  # not a function that it calls
        self.clears = (
            ""  # whether this thread has run programs of the launch before (pack_cache.py)
        )
        self.tiles = False  # the function uses the matrix unit's registers

    # --- small helpers -------------------------------------------------------------------------------
    def lanes(self, n: int) -> Lanes:
        return Lanes(self.em, self.facts, n)

    def new_version(self) -> int:
        return self.em.new_version()

    def memory_changed(self) -> None:
        self.em.memory = self.new_version()

    def number(self, block: Block) -> None:
        """Number the ops in program order; `end` is the last position inside an op."""
        for op in block:
            self.position[op] = len(self.position)
            for inner in op.regions:
                self.number(inner)
            self.end[op] = len(self.position) - 1

    # --- buffers ---------------------------------------------------------------------------------------
    def allocate(self, elem: ElementType, shape: tuple[int, ...]) -> Buffer:
        """Return a buffer for a tile: on the stack, or in scratch memory if the stack is used up."""
        count = 1
        for s in shape:
            count *= s
        ty = memory_type(elem)
        size = -(-count * (elem.storage_bytes) // 64) * 64
        reuse = self.free.get(size)
        if reuse and size > SMALL:
            ptr = reuse.pop()
        elif self.stack_bytes + size > STACK_LIMIT:
            base = self.scratch_base()
            ptr = self.em.entry_op(f"getelementptr i8, ptr {base}, i64 {self.state.scratch}")
            self.state.scratch += size
        else:
            ptr = self.em.alloca(ty, max(count, 1))
            self.stack_bytes += size
        return Buffer(ptr, elem, shape, self.new_version(), size)

    def scratch_base(self) -> str:
        # At the entry: a buffer that one branch makes is reused in others.
        where = self.em.entry_op(f"getelementptr i8, ptr {self.context}, i64 16")
        return self.em.entry_op(f"load ptr, ptr {where}, align 8, !invariant.load !0")

    def keep(self, v: Value, buffer: Buffer) -> None:
        """Record that `buffer` holds `v` from here on."""
        self.buffers[v] = buffer
        self.buffer_blocks[v] = self.block

    def release(self, v: Value) -> None:
        """Record that `v` is not needed any more: its buffer may be reused."""
        buffer = self.buffers.pop(v)
        del self.buffer_blocks[v]
        self.recycle(buffer)

    def recycle(self, buffer: Buffer) -> None:
        """Make the memory reusable, unless it is small or still holds another value."""
        if buffer.bytes <= SMALL or any(b.ptr == buffer.ptr for b in self.buffers.values()):
            return
        unused = self.free.setdefault(buffer.bytes, [])
        if buffer.ptr not in unused:
            unused.append(buffer.ptr)

    def lazy(self, v: Value) -> bool:
        """Whether `v` is a tile that is evaluated lazily, by the loops of its users."""
        return (
            v.op is not None
            and v not in self.buffers
            and isinstance(v.type, TileType)
            and type(v.op) in EVALUATORS
        )

    # --- values at points ---------------------------------------------------------------------------------
    def value(self, v: Value, at: Point) -> Val:
        """Return the element(s) of `v` at `at`; scalars ignore the point."""
        found = self.env.get(v)
        if found is not None:
            return found
        if v in self.assumed and at == self.here:
            return TRUE
        if not isinstance(v.type, TileType):
            return self.scalar(v)
        key = (v, at)
        found = self.memo.get(key)
        if found is None:
            buffer = self.buffers.get(v)
            if buffer is None and at.lanes == 1:
                buffer = self.uniform.get(v)
            if buffer is not None:
                found = self.from_buffer(buffer, at)
            elif v in self.uniform and (run := self._run(v, at)) is not None:
                found = run
            else:
                op = v.op
                assert op is not None, f"{v!r} has no value here"
                user = self.em.at(op.loc)
                found = EVALUATORS[type(op)](self, op, at, v.index)
                self.em.loc = user
                memo = self.memo_buffers.get(v)
                if memo is not None:
                    self.to_buffer(memo, at, found)
                    self.memo_filled.add(v)
            self.memo[key] = found
            narrow = self.narrowed.get(v)
            if narrow is not None and narrow in self.memo_buffers:
                self.value(narrow, at)
        return found

    def both(self, a: str, b: str) -> str:
        """Return an i1: whether two i1s are true."""
        return b if a == "true" else a if b == "true" else self.em.op(f"and i1 {a}, {b}")

    def sources(self, v: Value) -> Sequence[Value]:
        """Return what a tile is computed from where it is evaluated; nothing if it is in memory."""
        return v.op.operands if v.op is not None and self.lazy(v) else ()

    def _run(self, v: Value, at: Point) -> Val | None:
        """Return a vector of a tabulated index tile: its first lane from the table, the others at known distances."""
        assert v.op is not None
        with self._probing():
            x = EVALUATORS[type(v.op)](self, v.op, at, v.index)
        if not x.affine or x.step or x.pattern is None or x.pattern[0]:
            return None
        coords = tuple(
            Coord(c.base + (c.pattern or (0,))[0], c.terms, None, c.extent) for c in at.coords
        )
        first = self.from_buffer(self.uniform[v], Point(coords, 1))
        return Val(x.type, at.lanes, "", True, self.text(first, 1), (), x.pattern, "", x.align)

    @contextmanager
    def _probing(self) -> Generator[None]:
        """Evaluate for the form alone: neither code nor memoised values remain."""
        saved = self.memo_buffers, self.memo
        self.memo_buffers, self.memo = {}, {}
        with self.em.discarded():
            yield
        self.memo_buffers, self.memo = saved

    def probe(self, v: Value, dim: int, first: int, lanes: int) -> Val:
        """Find which form (uniform, stepped, …) a vector of `v` along `dim` has, from index `first` on and at 0 of all
        other dimensions; no code is emitted."""
        coords = [Coord(0, (), None, 1) for _ in shape_of(v.type)]
        coords[dim] = Coord(first, (), tuple(range(lanes)), first + lanes)
        with self._probing():
            return self.value(v, Point(tuple(coords), lanes))

    def from_buffer(self, buffer: Buffer, at: Point) -> Val:
        return self.access.load(self, buffer, at)

    def to_buffer(self, buffer: Buffer, at: Point, x: Val) -> None:
        self.access.store(self, buffer, at, x)

    def scalar(self, v: Value) -> Val:
        """Return a rank-0 value."""
        found = self.env.get(v) or self.scalars.get(v)
        assert found is not None, f"{v!r} has no value here"
        return found

    def scalar_text(self, v: Value) -> str:
        return self.text(self.scalar(v), 1)

    def text(self, x: Val, lanes: int) -> str:
        """Return the LLVM operand of a value in `lanes` lanes."""
        # Not stored in `x`: the text may be defined in a branch that `x` outlives. Equal text is found again.
        text = x.text or self._form(x)
        if x.lanes == lanes:
            return text
        assert x.lanes == 1, f"{x.lanes} lanes where {lanes} are wanted"
        return self.em.splat(scalar_type(x.type), text, lanes)

    def _form(self, x: Val) -> str:
        """Return the text of an affine value."""
        first = self.lane0(x)
        if x.pattern is None:
            return first
        em, n = self.em, x.lanes
        if isinstance(x.type, pointer_type):
            steps = vector_literal("i64", x.pattern)
            if x.step:
                steps = em.op(f"mul <{n} x i64> {em.splat('i64', x.step, n)}, {steps}")
            element = memory_type(x.type.element_ty)
            return em.op(f"getelementptr {element}, ptr {first}, <{n} x i64> {steps}")
        e = scalar_type(x.type)
        steps = vector_literal(e, [wrap(p, x.type) for p in x.pattern])
        if x.step:
            step = x.step if e == "i64" else em.op(f"trunc i64 {x.step} to {e}")
            steps = em.op(f"mul <{n} x {e}> {em.splat(e, step, n)}, {steps}")
        return steps if first == "0" else em.op(f"add <{n} x {e}> {em.splat(e, first, n)}, {steps}")

    def lane0(self, x: Val) -> str:
        """Return base + terms of an affine value, as a scalar."""
        em, text = self.em, x.base
        if isinstance(x.type, pointer_type):
            element = memory_type(x.type.element_ty)
            for t in sorted(x.terms, key=lambda t: (is_literal(t), em.depth_of(t))):
                text = em.op(f"getelementptr {element}, ptr {text}, i64 {t}")
            return text
        e = scalar_type(x.type)
        for t in sorted(x.terms, key=lambda t: (is_literal(t), em.depth_of(t))):
            part = (
                t
                if e == "i64" or is_literal(t)
                else em.op(f"{'trunc' if x.type.bits < 64 else 'bitcast'} i64 {t} to {e}")
            )
            text = part if text == "0" else em.op(f"add {e} {text}, {part}")
        return text

    # --- combine regions -----------------------------------------------------------------------------------------
    @contextmanager
    def bound(self, values: dict[Value, Val]) -> Generator[None]:
        """Temporarily bind block arguments to lanes."""
        saved = self.env
        self.env = {**saved, **values}
        try:
            yield
        finally:
            self.env = saved


def wrap(value: int, t: Any) -> int:
    """Wrap `value` to the width of `t`; return the signed number that LLVM prints."""
    bits = t.bits
    value &= (1 << bits) - 1
    return value - (1 << bits) if bits > 1 and value >> (bits - 1) else value


TRUE = Val(int1, 1, "true", const=True)
FALSE = Val(int1, 1, "false", const=False)


def make(t: Type, lanes: int, text: str) -> Val:
    """Return a plain value; integer and pointer scalars can be part of affine forms."""
    if lanes == 1 and (not isinstance(t, dtype) or (t.is_int() and t is not int1)):
        return Val(t, 1, text, True, text)
    return Val(t, lanes, text)


def unsupported(op: Op, what: str) -> CompilationError:
    return CompilationError(f"{what} is not supported by the CPU back end", loc=op.loc)


__all__ = ["EVALUATORS", "SINKS", "Buffer", "Lowering", "ModuleState", "elem_of", "int64", "lane_type", "shape_of",
           "vector_type"]  # fmt: skip
