"""Lowers `mma` to matrix instructions on registers, and `dot` to FMAs on operands read from shared memory.

An `mma` tile is a grid of instructions. A thread's registers of an operand are those of instruction (outer, k), k
fastest, then outer, then batch; its accumulators are in order (m, n), n fastest. The outer loop runs along k, so that
neighbouring instructions belong to different accumulators and do not wait for each other.

A `dot` on FMAs writes A and B to scratch in layouts made for the arrangement of threads (lanes that share a row or
column read one register), and walks along K: each thread reads the next column of its rows of A and the next row of
its columns of B, and multiplies all pairs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache

from tessera import layout as layouts
from tessera.analysis.scratch import dot_area
from tessera.backends.gpu.access import Reader, access_for, fixed_place, write
from tessera.backends.gpu.local import warp_owner
from tessera.backends.gpu.lowering import FunctionLowering, lowers
from tessera.backends.gpu.memory import copies
from tessera.backends.gpu.packing import pack, packed_shape, unpack
from tessera.backends.gpu.types import is_native_float, llvm_type, memory_bits
from tessera.errors import InternalError
from tessera.ir import ElementType, Value, elem_of
from tessera.ops import DotOp, MmaOp
from tessera.passes.gpu_facts import MmaRow
from tessera.passes.gpu_layout.rules import fma_operand

AHEAD = 2  # streamed fragments that are read ahead of their use


# --- matrix instructions ---------------------------------------------------------------------------------------
@lowers(MmaOp)
def _mma(fl: FunctionLowering, op: MmaOp) -> None:
    row: MmaRow = fl.target.facts().mma_row(op.instruction)
    depth: int = op.a.type.shape[-1] // row.k
    a = _Fragments(fl, row, op.a, row.registers(0), depth)
    b = _Fragments(fl, row, op.b, row.registers(1), depth)
    acc_type, acc = _accumulators(fl, row, fl.get(op.acc))
    batch, rows, cols = _extents(op, a.count, b.count, len(acc), depth)
    reg = "double" if row.a.bits == 64 else "float" if row.rounds_to else "i32"
    for first in range(batch):
        grid = _Grid(a, b, first * rows, first * cols, rows, cols)
        for i, j, k in grid.walk(depth):
            at = (first * rows + i) * cols + j
            left, right = a.regs(first * rows + i, k), b.regs(first * cols + j, k)
            acc[at] = fl.target.mma(fl.w, row.asm, acc_type, acc[at], left, right, reg)
    names = [x for piece in acc for x in piece]
    if acc_type == "i32" and row.acc.bits == 16:
        names = unpack(fl, row.acc, names, packed_shape(row.acc, 2))
    fl.set(op.result, copies(op.result.type.layout, names))


def _extents(op: MmaOp, a: int, b: int, acc: int, depth: int) -> tuple[int, int, int]:
    """Return (batch, rows, columns) of the grid of instructions, from the number of fragments of each operand."""
    a, b = a // depth, b // depth
    batch = a * b // acc
    rows, cols = a // batch, b // batch
    if batch * rows * cols != acc:
        raise InternalError(f"mma on {a}, {b} and {acc} fragments", loc=op.loc)
    return batch, rows, cols


class _Fragments:
    """An operand as the fragments of single instructions. One that is still in shared memory is read piece by piece."""

    def __init__(self, fl: FunctionLowering, row: MmaRow, v: Value, size: int, depth: int):
        self.fl, self.row, self.elem, self.size, self.depth = fl, row, v.type.elem, size, depth
        self.count: int = v.type.layout.size("register") // size
        self._same: tuple[int, ...] = v.type.layout.register_representatives()
        self._regs: dict[tuple[int, int], list[str]] = {}
        self._source: dict[int, int] = {}  # register -> the group that reads it, until it is read
        self._reader: Reader | None = fl.deferred.pop(v, None)
        if self._reader is None:
            self._names = fl.get(v)
            return
        self._names = [""] * len(self._same)
        for number in range(len(self._reader.access.groups)):
            self._source.update(dict.fromkeys(self._reader.registers(number), number))

    def _registers(self, outer: int, k: int) -> tuple[int, ...]:
        start = (outer * self.depth + k) * self.size
        return self._same[start : start + self.size]

    def fetch(self, outer: int, k: int) -> None:
        """Read fragment (outer, k), and what is read together with it, unless that has been done."""
        for r in self._registers(outer, k):
            number = self._source.get(r)
            if number is not None:
                assert self._reader is not None
                self._reader.group(number, self._names)
                for done in self._reader.registers(number):
                    del self._source[done]

    def regs(self, outer: int, k: int) -> list[str]:
        """Return the registers that the instruction takes for fragment (outer, k)."""
        found = self._regs.get((outer, k))
        if found is None:
            self.fetch(outer, k)
            found = self._pack([self._names[r] for r in self._registers(outer, k)])
            self._regs[outer, k] = found
        return found

    def _pack(self, names: list[str]) -> list[str]:
        if self.row.rounds_to:
            return [self.fl.target.round_tf32(self.fl.w, x) for x in names]
        if self.elem.bits == 64:
            return names
        return pack(self.fl, self.elem, names, packed_shape(self.elem, self.size))


class _Grid:
    """The instructions of one matrix of the batch, in order.

    In each step along K the operand with more registers is held; fragments of the other one are streamed, read a little
    ahead of their use. (ptxas moves the reads as it likes, but used the fewest registers with this order.)
    """

    def __init__(
        self, a: _Fragments, b: _Fragments, first_a: int, first_b: int, rows: int, cols: int
    ):
        self.by_rows = rows * a.size > cols * b.size
        sides = [(a, first_a, rows), (b, first_b, cols)]
        self.held, self.streamed = sides if self.by_rows else reversed(sides)

    def walk(self, depth: int) -> Iterator[tuple[int, int, int]]:
        """Yield (row, column, step) of each instruction, after its operands have been read."""
        held, first_held, count_held = self.held
        streamed, first, count = self.streamed
        order = [(first + s, k) for k in range(depth) for s in range(count)]
        for h in range(count_held):
            held.fetch(first_held + h, 0)
        for outer, k in order[:AHEAD]:
            streamed.fetch(outer, k)
        for position, (outer, k) in enumerate(order):
            if position + AHEAD < len(order):
                streamed.fetch(*order[position + AHEAD])
            s = outer - first
            if k + 1 < depth:  # spread over the step
                for h in range(s * count_held // count, (s + 1) * count_held // count):
                    held.fetch(first_held + h, k + 1)
            for h in range(count_held):
                yield (h, s, k) if self.by_rows else (s, h, k)


def _pieces(names: Sequence[str], size: int) -> list[list[str]]:
    return [list(names[i : i + size]) for i in range(0, len(names), size)]


def _accumulators(
    fl: FunctionLowering, row: MmaRow, names: Sequence[str]
) -> tuple[str, list[list[str]]]:
    """Return (type of an accumulator register, registers of each fragment); 16-bit accumulators are packed in pairs."""
    pieces = _pieces(names, row.registers(2))
    if row.acc.bits != 16:
        return llvm_type(row.acc), pieces
    return "i32", [pack(fl, row.acc, piece, packed_shape(row.acc, len(piece))) for piece in pieces]


# --- FMAs ------------------------------------------------------------------------------------------------------
@lowers(DotOp)
def _dot(fl: FunctionLowering, op: DotOp) -> None:
    layout: layouts.LinearLayout = op.result.type.layout
    if op.acc.type.layout != layout:
        raise InternalError(
            "the accumulator of a dot is not in the layout of its result", loc=op.loc
        )
    depth = op.a.type.shape[-1]
    operands = _Operands(fl, op, depth)
    elem = elem_of(op.acc.type)
    rows, cols = (_owners(layout, depth, index) for index in (0, 1))
    acc = list(fl.get(op.acc))
    live = sorted(set(layout.register_representatives()))
    a, b = operands.names
    for k in range(depth):
        operands.advance(k)
        for i in live:
            acc[i] = multiply_add(fl, elem, a[rows[i] + k], b[cols[i] + k], acc[i])
    reached = _covering([(rows[i], cols[i]) for i in live])
    operands.end([(llvm_type(elem), acc[live[n]]) for n in reached])
    fl.set(op.result, copies(layout, acc))


def _covering(pairs: Sequence[tuple[int, int]]) -> list[int]:
    """Return the numbers of a few pairs in which each first and each second member occurs."""
    firsts, seconds = dict[int, int](), dict[int, int]()
    for number, (first, second) in enumerate(pairs):
        firsts.setdefault(first, number)
        seconds.setdefault(second, number)
    return sorted({*firsts.values(), *seconds.values()})


def multiply_add(fl: FunctionLowering, elem: ElementType, a: str, b: str, c: str) -> str:
    w, t = fl.w, llvm_type(elem)
    if not is_native_float(elem):
        return w.pure(f"add {t} {w.pure(f'mul {t} {a}, {b}')}, {c}")
    suffix = {"half": "f16", "bfloat": "bf16", "float": "f32", "double": "f64"}[t]
    return w.call(t, f"llvm.fma.{suffix}", [f"{t} {a}", f"{t} {b}", f"{t} {c}"])


@lru_cache(maxsize=256)
def _owners(acc: layouts.LinearLayout, depth: int, index: int) -> tuple[int, ...]:
    """Return for each accumulator register the operand's first register (k = 0) of the same row of A or column of B."""
    axis = acc.rank - 1 if index == 0 else acc.rank - 2
    kept = acc.drop_dim(axis)
    found = layouts.register_map(kept.unique_registers(), kept)
    assert found is not None
    return tuple([depth * r for r in found])


@lru_cache(maxsize=256)
def _operand_access(
    held: layouts.LinearLayout, wanted: layouts.LinearLayout, bits: int, matrix: bool
) -> tuple[layouts.Access, layouts.VectorAccess]:
    """Return (store, load) of an operand through shared memory."""
    shared = layouts.swizzle_for(held, wanted, bits, store_matrix=matrix)
    return access_for(held, shared, bits, matrix), layouts.vector_access(
        layouts.offset_map(wanted, shared), bits
    )


class _Operands:
    """The registers of A and B, read from shared memory as the walk along K reaches them."""

    def __init__(self, fl: FunctionLowering, op: DotOp, depth: int):
        self.names: list[list[str]] = []
        self._pending: list[list[tuple[int, int]]] = []  # (first k, group), latest first
        self._readers: list[Reader | None] = []
        if op.in_place:
            self._in_place(fl, op, depth)
            return
        start: int = op.attrs["scratch"]
        matrix = fl.target.facts().has_stmatrix
        for index, v in enumerate((op.a, op.b)):
            wanted = fma_operand(op.result.type.layout, depth, index)
            held, elem = v.type.layout, v.type.elem
            store, load = _operand_access(held, wanted, memory_bits(elem), matrix)
            place = fixed_place(fl, start)
            write(fl, elem, store, place, fl.get(v), warp_owner(fl, held))
            start += dot_area(v.type)
            reader = Reader(fl, elem, load, place)
            self._readers.append(reader)
            self._expect(reader, depth, wanted.size("register"))
        fl.target.barrier(fl.w)

    def _in_place(self, fl: FunctionLowering, op: DotOp, depth: int) -> None:
        """Read from the buffers that loads filled, unless an operand has been read already."""
        for index, v in enumerate((op.a, op.b)):
            if v.type.layout != fma_operand(op.result.type.layout, depth, index):
                raise InternalError("an operand of a dot is not where its FMAs read it", loc=op.loc)
            reader: Reader | None = fl.deferred.pop(v, None)
            self._readers.append(reader)
            if reader is not None:
                self._expect(reader, depth, v.type.layout.size("register"))
            else:
                self._pending.append([])
                self.names.append(list(fl.get(v)))

    def _expect(self, reader: Reader, depth: int, count: int) -> None:
        self._pending.append(_by_depth(reader, depth))
        self.names.append([""] * count)

    def advance(self, k: int) -> None:
        """Read all groups that begin at `k`."""
        for names, pending, reader in zip(self.names, self._pending, self._readers, strict=True):
            while reader is not None and pending and pending[-1][0] <= k:
                reader.group(pending.pop()[1], names)

    def end(self, results: list[tuple[str, str]]) -> None:
        """Let who waits for the reads wait for results that all of them reached, if those are fewer: a register of each
        read would be held until then."""
        for reader in self._readers:
            if reader is not None and len(results) < len(reader.came):
                reader.came = results


def _by_depth(reader: Reader, depth: int) -> list[tuple[int, int]]:
    """Return (lowest k, number) of each group, the first to read last. The low bits of a register index are its k."""
    numbers = range(len(reader.access.groups))
    order = [(min(r & (depth - 1) for r in reader.registers(i)), i) for i in numbers]
    return sorted(order, reverse=True)
