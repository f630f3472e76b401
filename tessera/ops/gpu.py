"""Defines ops of the GPU level: layouts, shared memory, asynchronous copies and tensor-core instructions."""

from __future__ import annotations

from collections.abc import Sequence

from tessera.dtypes import int1, int32, pointer_type
from tessera.ir import (
    Block,
    DescriptorType,
    Effect,
    Op,
    SharedType,
    TileType,
    TokenType,
    Type,
    Value,
    attr,
    elem_of,
    operand,
    region,
    require,
    shape_of,
    with_elem,
)  # fmt: skip
from tessera.ops.mbarrier import require_mbarriers
from tessera.ops.roles import is_in_split, ring_of
from tessera.ops.tile import Matmul, Rearrangement

__all__ = [
    "AsyncCommitOp", "AsyncCopyOp", "AsyncWaitOp", "ConvertLayoutOp", "CtaIdOp", "LocalAllocOp", "LocalIndexOp",
    "LocalLoadOp", "LocalStoreOp", "LocalTransOp", "MmaOp", "NumCtasOp", "PingPongOp", "SharedView",
    "TensorCopyOp", "WarpBarrierOp", "WarpSpecializeOp", "WgmmaOp", "WgmmaWaitOp",
]  # fmt: skip


class ConvertLayoutOp(Rearrangement, opcode="convert_layout"):
    """The same tile in the layout of the result type (given)."""

    def verify(self) -> None:
        same = shape_of(self.x.type) == shape_of(self.result.type) and elem_of(
            self.x.type
        ) == elem_of(self.result.type)
        require(same, self, "shape or element type changes")


class CtaIdOp(Op, opcode="cta_id"):
    """Number of this CTA among those launched, in a kernel whose CTAs run several programs (int32)."""

    def infer(self) -> Sequence[Type]:
        return (int32,)


class NumCtasOp(Op, opcode="num_ctas"):
    """How many CTAs were launched (int32)."""

    def infer(self) -> Sequence[Type]:
        return (int32,)


class LocalAllocOp(Op, opcode="local_alloc", effects=Effect.ALLOC):
    """Shared memory for a tile (or a ring of buffers: one leading dimension), filled with `init` if given.

    Shared-memory allocation sets `offset` in bytes (-1 before). The result type is given. `private`: each thread
    reads only what it wrote itself.
    """

    init: Value | None = operand(optional=True)
    offset: int = attr(default=-1)
    private: bool = attr(default=False)

    def verify(self) -> None:
        require(isinstance(self.result.type, SharedType), self, "the result is not shared memory")
        if ring_of(self) is not None:
            require(
                is_in_split(self), self, "a buffer crosses roles, but its function has one only"
            )

    @property
    def bytes(self) -> int:
        return self.result.type.bytes


class SharedView(Op):
    """Base of ops that are another view of their first operand's shared memory."""


class LocalIndexOp(SharedView, opcode="local_index"):
    """Buffer `index` (int32 scalar) of a ring."""

    ring: Value = operand()
    index: Value = operand()

    def infer(self) -> Sequence[Type]:
        t = self.ring.type
        return (SharedType(t.shape[1:], t.elem, t.layout),)

    def verify(self) -> None:
        require(
            isinstance(self.ring.type, SharedType), self, "the first operand is not shared memory"
        )
        require(self.index.type == int32, self, "the index is not int32")
        require(len(self.ring.type.shape) > 1, self, "the operand is no ring of buffers")


class LocalTransOp(SharedView, opcode="local_trans"):
    """A view with permuted dimensions; the result type (with the permuted layout) is given."""

    x: Value = operand()
    order: tuple[int, ...] = attr()

    def verify(self) -> None:
        a, b = self.x.type, self.result.type
        require(isinstance(a, SharedType) and isinstance(b, SharedType), self, "not shared memory")
        require(sorted(self.order) == list(range(len(a.shape))), self, "order is no permutation")
        ok = b.shape == tuple(a.shape[i] for i in self.order) and b.elem == a.elem
        require(ok, self, "the result is not the permuted shape")


def _same_tile(op: Op, tile: Value, shared: Value) -> None:
    a, b = tile.type, shared.type
    require(isinstance(b, SharedType), op, "the memory operand is not shared memory")
    require(
        isinstance(a, TileType) and a.shape == b.shape and a.elem == b.elem,
        op,
        "tile and memory differ in type",
    )


class LocalLoadOp(Op, opcode="local_load", effects=Effect.READ):
    """Read a tile from shared memory into the layout of the result type (given); `token`: a completed wait."""

    shared: Value = operand()
    token: Value | None = operand(optional=True)

    def verify(self) -> None:
        _same_tile(self, self.result, self.shared)


class LocalStoreOp(Op, opcode="local_store", effects=Effect.WRITE):
    """Write a tile to shared memory."""

    value: Value = operand()
    shared: Value = operand()

    def verify(self) -> None:
        _same_tile(self, self.value, self.shared)


class AsyncCopyOp(Op, opcode="async_copy", effects=Effect.READ | Effect.WRITE):
    """Copy `ptr` (tile of pointers) to shared memory asynchronously where `mask`; elsewhere write `other` or zeros.

    The copy belongs to the group that the next `async_commit` closes. `private`: into a buffer of which each thread
    reads only what it wrote; without `other`, nothing is then written where the mask is false. If the scalar `runs` is
    false, nothing is read or written: nobody reads that buffer. `partial`: where the mask ends within a vector, only
    the bytes in front of that end are read.
    """

    ptr: Value = operand()
    shared: Value = operand()
    mask: Value | None = operand(optional=True)
    other: Value | None = operand(optional=True)
    runs: Value | None = operand(optional=True)
    cache: str = attr(default="")
    eviction: str = attr(default="")
    private: bool = attr(default=False)
    partial: bool = attr(default=False)

    def infer(self) -> Sequence[Type]:
        return (TokenType(),)

    def verify(self) -> None:
        require(
            isinstance(elem_of(self.ptr.type), pointer_type),
            self,
            "the first operand is not a pointer",
        )
        require(
            isinstance(self.shared.type, SharedType),
            self,
            "the second operand is not shared memory",
        )
        same = shape_of(self.ptr.type) == self.shared.type.shape
        require(
            same and elem_of(self.ptr.type).element_ty == self.shared.type.elem,
            self,
            "source and target differ",
        )
        if self.mask is not None:
            require(
                self.mask.type == with_elem(self.ptr.type, int1),
                self,
                "the mask must be int1 in the pointer's shape",
            )
        require(self.runs is None or self.runs.type is int1, self, "`runs` must be a scalar int1")


class AsyncCommitOp(Op, opcode="async_commit", effects=Effect.WRITE):
    """Close the group of asynchronous copies issued since the last commit."""

    tokens: tuple[Value, ...] = operand(variadic=True)

    def infer(self) -> Sequence[Type]:
        return (TokenType(),)


class AsyncWaitOp(Op, opcode="async_wait", effects=Effect.READ | Effect.WRITE | Effect.SYNC):
    """Wait until at most `pending` of the latest groups are in flight, then make their data visible to all threads;
    `private`: to the thread that copied them only."""

    tokens: tuple[Value, ...] = operand(variadic=True)
    pending: int = attr()
    private: bool = attr(default=False)

    def infer(self) -> Sequence[Type]:
        return (TokenType(),)


PING_PONG_KINDS = ("open", "begin", "end", "close")


class PingPongOp(Op, opcode="ping_pong", effects=Effect.READ | Effect.WRITE | Effect.SYNC):
    """Ping-pong of warpgroups: between `begin` and `end` is at most one of them at a time, cyclically in order of their
    numbers. `open` precedes the first `begin`, `close` follows the last `end`; all run equally many of them."""

    kind: str = attr()

    def verify(self) -> None:
        require(
            self.kind in PING_PONG_KINDS, self, f"the kind is none of {', '.join(PING_PONG_KINDS)}"
        )


class WarpBarrierOp(Op, opcode="warp_barrier", effects=Effect.SYNC):
    """The threads of each warp wait for one another; memory that one of them has written before is visible after."""


class MmaOp(Matmul, opcode="mma"):
    """a @ b + acc by tensor-core instruction `instruction` (a row of the target's table), all in registers.

    Operands are in the instruction's operand layouts, `acc` and the result in its accumulator layout.
    """

    instruction: str = attr()

    def infer(self) -> Sequence[Type]:
        return (self.acc.type,)

    def verify(self) -> None:
        require(
            all(isinstance(v.type, TileType) for v in self.operands), self, "operands are not tiles"
        )


class WgmmaOp(Matmul, opcode="wgmma", effects=Effect.READ):
    """a @ b + acc by a warpgroup's matrix instruction `instruction`: `b` in shared memory, `a` there or in registers.

    `transposed`: the instruction computes bᵀ @ aᵀ + accᵀ, so that `a` is in shared memory, and `b` may be in
    registers. `warpgroups`: how many are along the rows and the columns of the instruction's result. Up to
    `pending` of the latest MMAs may still run afterwards: the result may then only be used by another `wgmma` or by
    `wgmma_wait`, and shared operands must not change.
    If `asynchronous`, the op waits for nothing: a `wgmma_wait` that holds the operands does. `part` = (i, n): the
    i-th of n equal parts along K, which form one MMA; all but the last are asynchronous.
    `depth`, `columns`: bit i of the instruction's K, or of its columns, is bit depth[i] or columns[i] of the tiles'.
    """

    instruction: str = attr()
    warpgroups: tuple[int, int] = attr()
    pending: int = attr(default=0)
    asynchronous: bool = attr(default=False)
    part: tuple[int, int] = attr(default=(0, 1))
    transposed: bool = attr(default=False)
    depth: tuple[int, ...] = attr(default=())
    columns: tuple[int, ...] = attr(default=())

    def infer(self) -> Sequence[Type]:
        return (self.acc.type,)

    @property
    def left(self) -> Value:
        """The first operand of the instruction, which has the rows."""
        return self.b if self.transposed else self.a

    @property
    def right(self) -> Value:
        return self.a if self.transposed else self.b

    def verify(self) -> None:
        shared = isinstance(self.right.type, SharedType)
        require(shared, self, "the second operand is not in shared memory")
        require(isinstance(self.left.type, SharedType | TileType), self, "an operand is no tile")


class WgmmaWaitOp(Op, opcode="wgmma_wait"):
    """Accumulators whose MMAs have finished: all but the `pending` latest of the program. `held`: operands of
    these MMAs, which may change only after the wait. `waited`: the previous wait covered these MMAs, too."""

    acc: Value = operand()
    held: tuple[Value, ...] = operand(variadic=True)
    pending: int = attr(default=0)
    waited: bool = attr(default=False)

    def infer(self) -> Sequence[Type]:
        return (self.acc.type,)


# --- copies by the TMA unit --------------------------------------------------------------------------------
class TensorCopyOp(Op, opcode="tensor_copy", effects=Effect.READ | Effect.WRITE):
    """Start copying the block of `desc` at `offsets` to `shared`; mbarrier `index` counts its bytes. Elements outside
    the array are zeros (or the descriptor's padding). The memory may lack leading dimensions of extent 1.
    With several `ctas`, each CTA of the cluster copies its share of the tile to all of them: shared memory and
    mbarriers have the same offsets in each."""

    desc: Value = operand()
    offsets: tuple[Value, ...] = operand(variadic=True)
    shared: Value = operand()
    bars: Value = operand()
    index: Value = operand()
    ctas: int = attr(default=1)

    def verify(self) -> None:
        require_mbarriers(self, self.bars, self.index)
        d, s = self.desc.type, self.shared.type
        require(isinstance(d, DescriptorType), self, "the first operand is no descriptor")
        same = isinstance(s, SharedType) and s.elem == d.elem
        same = same and d.shape == (*[1] * (len(d.shape) - len(s.shape)), *s.shape)
        require(same, self, "block and memory differ in type")
        require(len(self.offsets) == len(d.shape), self, "one offset a dimension is needed")


class WarpSpecializeOp(Op, opcode="warp_specialize"):
    """Concurrent warp roles: the program's warps run `consumers`, one thread of `warps` additional warps runs
    `producer`; `transpose_warps` more, if any, run `transpose`, whose layouts are for that many warps. They synchronise
    by mbarriers, which are already initialised. `registers`: of a thread of the producer's, the consumers' and the
    transpose role's warps, zeros if all have the same. No role begins before the threads of all `ctas` of the cluster
    have arrived."""

    registers: tuple[int, int, int] = attr(default=(0, 0, 0))
    warps: int = attr(default=4)
    ctas: int = attr(default=1)
    transpose_warps: int = attr(default=0)
    consumers: Block = region()
    producer: Block = region()
    transpose: Block = region()
