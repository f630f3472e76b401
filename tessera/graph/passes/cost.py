"""Estimates what a graph costs: bytes that its loops move, launches, and the time that both take.

Symbolic sizes count as their smallest value, or as `TYPICAL`, whichever is more. An estimate decides only whether a
fusion pays; that it is right is proved on index maps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import TypeGuard

from tessera.analysis.machines import GPUS
from tessera.graph.emit.accesses import offset_of
from tessera.graph.index import Dim, Expr, dim, estimate
from tessera.graph.ir.ops import (
    CombiningOp,
    IndexOp,
    LoadOp,
    LoopOp,
    MatmulOp,
    ScanOp,
    SortOp,
    yielded,
)
from tessera.graph.ir.types import TensorType
from tessera.graph.passes.facts import SymbolRanges, captured_tensors
from tessera.ir import Block, Effect, Op, Value
from tessera.ops import MATH_OPS, Atan2Op, CastOp, ConstOp, DivOp, PowOp, RemOp

TYPICAL = 512  # of a symbolic size
MOST_TENSORS = 64  # that one loop reads and makes
SizeOf = Callable[["int | Expr"], int]
TensorsOf = Callable[[Op], Sequence[Value]]


@dataclass(frozen=True, slots=True)
class Machine:
    """`bandwidth`: bytes a second of memory; `launch`: seconds for a kernel more; `rate`: scalar ops a second;
    `lanes`: programs that it takes to keep the machine busy; `cache`: bytes that a program reads again without
    memory; `gather`: seconds for an element that is not loaded or stored with its neighbours; `contention`: seconds
    for an atomic operation that waits for others on the same place; `few`: programs that leave most of a machine
    idle, so that what they reduce is split among more where it can be (split.py). `channels_last`: types that the
    library's convolutions are written for in that order of dimensions, so that they reorder others (`weights_last`:
    and weights), and what the numbers of channels are multiples of there, as others are padded (`channels`);
    `convolutions` and `inference`: how many times as long its kernels take then, by kind, in training and else
    (layouts.py); `biases_apart`: whether it adds their biases by kernels of their own (biases.py); `few_rows`: up to
    so many rows large fp32 products of the library take less time without their bias even where a loop is launched to
    add it; `load`: scalar ops in whose time an element is loaded that a cache holds; `nests`: whether a kernel is a
    nest of loops, in which what depends on some indices alone runs no more often than these change."""

    bandwidth: float
    launch: float
    rate: float
    lanes: int
    cache: int
    gather: float
    few: int = 0
    contention: float = 0.0
    channels_last: tuple[str, ...] = ()
    weights_last: bool = False
    channels: int = 1
    convolutions: Mapping[str, float] = field(default_factory=dict[str, float])
    inference: Mapping[str, float] = field(default_factory=dict[str, float])
    biases_apart: bool = False
    few_rows: int = 0
    load: int = 1
    nests: bool = False


# One for all GPUs, so that a graph is the same on each. A launch is that of a kernel among others, with what its start
# and its end leave idle; scalar ops are a third of what units do of the simplest ones.
HOPPER = GPUS["H100"]
GPU = Machine(
    bandwidth=HOPPER.bandwidth(), launch=4e-6, rate=HOPPER.flops / 3, lanes=HOPPER.units, cache=1 << 18, gather=5e-12,
    few=16, contention=2e-8,
    channels_last=("fp16", "bf16"), weights_last=True, channels=8,
    convolutions={"plain": 0.82, "narrowing": 1.5, "grouped": 30.0},
    inference={"plain": 0.82, "narrowing": 0.73, "grouped": 1.36}, biases_apart=True, few_rows=128,
    load=4,
)  # fmt: skip
EVENLY = {"plain": 0.9, "narrowing": 0.9, "grouped": 0.9}
CPU = Machine(
    bandwidth=3e10, launch=2e-6, rate=2e10, lanes=16, cache=1 << 20, gather=5e-10,
    channels_last=("fp32", "bf16"), convolutions=EVENLY, inference=EVENLY, nests=True,
)  # fmt: skip


def machine_of(device: str) -> Machine:
    return CPU if device == "cpu" else GPU


def sizes(symbols: SymbolRanges) -> SizeOf:
    """A number for each size."""

    def number(n: int | Expr) -> int:
        if isinstance(n, int):
            return n
        low = {name: max(symbols.get(name, (0, None))[0], TYPICAL) for name in n.syms}
        return max(1, estimate(n, lambda a: low[str(a)]))

    return number


def bytes_of(t: TensorType, size: SizeOf) -> int:
    return prod(map(size, t.shape)) * t.elem.storage_bytes


def weight(op: Op) -> int:
    """The cost of a scalar op in multiples of an addition."""
    if isinstance(op, ConstOp) or op.terminator or op.regions or _is_free(op):
        return 0
    if isinstance(op, (*MATH_OPS.values(), PowOp, Atan2Op)):
        return 10
    return 4 if isinstance(op, DivOp | RemOp) else 1


def _is_free(op: Op) -> bool:
    """Whether an op is part of a load: it says only where that reads, or widens what it gives. So graphs of half types
    are fused as those of fp32."""
    if isinstance(op, CastOp):
        return (
            isinstance(op.x.op, LoadOp) and op.x.type.is_floating() and op.result.type.is_floating()
        )
    return isinstance(op, IndexOp) and all(
        isinstance(u, IndexOp | LoadOp) for u in op.result.users()
    )


def weight_of(block: Block, size: SizeOf, load: int = 1) -> int:
    """The scalar ops of one run of a body, inner loops and all. `load`: as how many a load counts that reads another
    element in each iteration."""
    total = 0
    for op in block:
        varies = isinstance(op, LoadOp) and any(v in block.args[-1:] for v in op.indices)
        total += load if varies else weight(op)
        if op.regions:
            total += extent(op, size) * sum(weight_of(b, size, load) for b in op.regions)
    return total


def weight_of_element(loop: LoopOp, size: SizeOf) -> float:
    """The scalar ops for an element of a pointwise loop. What depends on some of its indices only, as the place that a
    row is gathered from, is computed once for all of the others. A loop without elements counts as one of one."""
    total = 0.0
    extents = {a: max(size(n), 1) for a, n in zip(loop.body.args, loop.extents, strict=True)}
    indices = {a: frozenset([a]) for a in extents}
    for op in loop.body:
        found = frozenset[Value]().union(*(indices.get(v, ()) for v in op.operands))
        indices |= dict.fromkeys(op.results, found)
        total += weight(op) / prod(n for a, n in extents.items() if a not in found)
    return total


def work(loop: LoopOp, size: SizeOf, load: int = 1) -> int:
    """The scalar ops of all of a loop."""
    return extent(loop, size) * weight_of(loop.body, size, load)


def extent(op: Op, size: SizeOf) -> int:
    """How often an op's body runs."""
    return prod(map(size, op.attrs.get("extents", ())))


def top_level(op: Op, body: Block) -> Op:
    """The op of `body` that an op is, or lies in."""
    while op.parent is not body:
        parent = op.parent_op()
        assert parent is not None
        op = parent
    return op


def traffic(ops: Iterable[Op], size: SizeOf, tensors: TensorsOf = captured_tensors) -> int:
    """The bytes that top-level ops read and write if each reads each of its tensors once. `tensors`: who knows what an
    op captures."""
    total = 0
    for op in ops:
        moved = [*tensors(op), *op.results]
        total += sum(bytes_of(v.type, size) for v in moved if isinstance(v.type, TensorType))
    return total


def traffic_between(
    producer: Op, consumer: Op, size: SizeOf, tensors: TensorsOf = captured_tensors
) -> int:
    """The bytes that two ops move less if they run as one: what both read, and what one makes for the other."""
    mine, theirs = tensors(producer), set(tensors(consumer))
    saved = sum(bytes_of(v.type, size) for v in mine if v in theirs)
    for r in producer.results:
        if r in theirs:
            alone = all(user.is_inside(consumer) for user in r.users())
            saved += bytes_of(r.type, size) * (1 + alone)
    return saved


def gathered(loop: LoopOp, inner: Sequence[int]) -> int:
    """The tensors that a pointwise loop reads or writes at places that do not follow each other, or stay the same,
    while the indices numbered `inner` are counted through as one."""
    dims = {a: dim(k) for k, a in enumerate(loop.body.args)}
    offsets = [offset_of(r.type, list(dims.values())) for r in loop.results]
    for op in loop.body:
        if isinstance(op, LoadOp) and all(v in dims for v in op.indices):
            at = op.map.at([dims[v] for v in op.indices], len(dims)).results
            offsets.append(offset_of(op.tensor.type, at))
    return sum(not _counts_through(e, inner, loop.extents) for e in offsets)


def _counts_through(e: Expr, inner: Sequence[int], extents: Sequence[int | Expr]) -> bool:
    steps = [e.coefficient(Dim(k)) for k in inner]
    if any(s is None for s in steps):
        return False
    pairs = zip(steps, steps[1:], inner[1:], strict=False)
    return all(a == b * extents[k] for a, b, k in pairs if a is not None and b is not None)


def goes_along(loop: LoopOp, order: Sequence[int]) -> bool:
    """Whether one of the indices numbered `order` is that along which a loop goes through memory: the last one of what
    reads and writes alone, or that of neighbours in its result where these are others, as with channels last."""
    strides = loop.results[0].type.all_strides[: len(loop.extents)]
    found = [k for k, s in enumerate(strides) if s == 1 and loop.extents[k] != 1]
    last = len(loop.extents) - 1
    inner = found[-1] if found else last
    return inner in order and (inner != last or is_pointwise(loop.body))


def longest_row(block: Block, size: SizeOf) -> int:
    """The most iterations that an inner nest of a body has."""
    rows = [extent(op, size) * longest_row(op.regions[0], size) for op in block if op.regions]
    return max(rows, default=1)


def evaluations(op: Op, outer: Op, size: SizeOf) -> int:
    """How often an op inside of `outer` runs in all."""
    total, at = 1, op.parent_op()
    while at is not None:
        total *= extent(at, size)
        if at is outer:
            return total
        at = at.parent_op()
    return total


def is_pointwise(block: Block) -> bool:
    """Whether a body has scalar ops and loads alone, and yields scalars, not a tensor from around it."""
    if any(isinstance(v.type, TensorType) for v in yielded(block)):
        return False
    return all(not op.regions and not op.effects & Effect.WRITE for op in block)


def has_reduction(block: Block) -> bool:
    """Whether a body reduces or scans, itself or inside."""
    return any(isinstance(op, CombiningOp) for op in block.walk())


def longest_reduction(block: Block, size: SizeOf) -> int:
    """The most elements that a reduction or a scan of a body goes through; 0 if there is none."""
    return max((extent(op, size) for op in block.walk() if isinstance(op, CombiningOp)), default=0)


def reduces_columns(loop: LoopOp) -> bool:
    """Whether neighbours along the last index of a loop reduce what lies side by side in memory, as sums of columns
    do: one program computes several of them."""
    if not loop.extents:
        return False
    arg = loop.body.args[-1]
    for op in loop.walk():
        if isinstance(op, LoadOp) and arg in op.indices and op.parent_op() is not loop:
            at = op.map.at([dim(k) for k in range(len(op.indices))], len(op.indices)).results
            step = offset_of(op.tensor.type, at).coefficient(Dim(op.indices.index(arg)))
            if step == 1:
                return True
    return False


def has_scan(block: Block) -> bool:
    """Whether a body scans: what reads a scan of one row in steps cannot be a reduction in the same kernel."""
    return any(isinstance(op, ScanOp) for op in block.walk())


def ends_product(loop: LoopOp, size: SizeOf, tensors: TensorsOf = captured_tensors) -> bool:
    """Whether a product's kernel can store what a loop makes of it in place of the product: nobody else reads that, and
    it has more bytes than the results. In one kernel with what reads the loop it would be stored, and read."""
    products = [v for v in tensors(loop) if isinstance(v.op, MatmulOp)]
    if not products or not is_pointwise(loop.body):
        return False
    made = sum(bytes_of(r.type, size) for r in loop.results)
    return any(
        made < bytes_of(v.type, size) and all(user.is_inside(loop) for user in v.users())
        for v in products
    )


def is_fusable(op: Op | None) -> TypeGuard[LoopOp]:
    """Whether an op is a loop that others may become one with. Rows are sorted by a kernel that does nothing else."""
    return isinstance(op, LoopOp) and not any(isinstance(x, SortOp) for x in op.body)


def loads_of(op: Op, tensors: Sequence[Value]) -> list[LoadOp] | None:
    """The loads inside of an op that read some of the tensors; None if something else uses one there."""
    found: list[LoadOp] = []
    for v in tensors:
        for user in v.users():
            if user is op or user.is_inside(op):
                if not isinstance(user, LoadOp) or user.tensor is not v:
                    return None
                found.append(user)
    return found
