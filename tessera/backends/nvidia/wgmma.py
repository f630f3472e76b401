"""Lowers `wgmma`: MMAs of warpgroups, with operands named by descriptors of shared memory.

A descriptor holds an address and how the rows of a swizzled box follow each other (all in units of 16 bytes):

    bits 0-13 address, 16-29 distance between boxes, 32-45 distance between groups of 8 rows, 62-63 swizzle

Shared operands are stored in boxes of `width` bytes times all rows (layout/shared.py: shared_swizzled). Along K, a
step of 32 bytes goes through a box of a K-contiguous operand and then to the next box; in a transposed one it
goes down 32 bytes' worth of rows. All steps of one 64 x n block are one piece of assembly: fence, MMAs,
commit. Accumulators are tied through it and through the wait, so that nothing reads them in between.

The first operand may come from registers. While an MMA runs, its registers must not be written: an MMA that
runs on into the next iteration is waited for there after the next operand has been loaded, and before it is rounded or
moved to its registers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from tessera.backends.gpu.lowering import FunctionLowering, lowers
from tessera.backends.gpu.memory import copies
from tessera.backends.gpu.packing import pack, packed_shape, unpack
from tessera.backends.nvidia import primitives as p
from tessera.dtypes import float32
from tessera.errors import InternalError
from tessera.ir import ElementType, Op, SharedType, TileType, Value
from tessera.layout import LinearLayout, back, reordered, shared_swizzled
from tessera.ops import Loop, WgmmaOp, WgmmaWaitOp
from tessera.passes.gpu_facts import WgmmaRow
from tessera.passes.neutral.fold import constant_of

STEP_BYTES = 32  # of K in one instruction
REGISTERS = 4  # of a first operand in registers, for one instruction
SWIZZLE_CODES = {128: 1, 64: 2, 32: 3}
Block = list[str]
Rows = tuple[int, ...]


@lru_cache(maxsize=256)
def storage(layout: LinearLayout, bits: int) -> tuple[tuple[int, ...], int]:
    """Return (order, bytes of a box's row) of a layout that `shared_swizzled` made, perhaps transposed."""
    for order in ((1, 0), (0, 1)):
        for width in SWIZZLE_CODES:
            wide = layout.shape[order[0]] * bits >= width * 8
            if wide and shared_swizzled(layout.shape, order, bits, width) == layout:
                return order, width
    raise InternalError(f"wgmma cannot read {layout}")


class _Shared:
    """A shared operand: `depth` is its dimension K, `outer` the other one."""

    def __init__(
        self, fl: FunctionLowering, view: Value, depth: int, orders: tuple[Rows, Rows] = ((), ())
    ):
        t: Any = view.type
        self.fl, self.view, self.bits = fl, view, t.elem.storage_bits
        layout = reordered(t.layout, (back(orders[0]), back(orders[1])))
        order, self.width = storage(layout, self.bits)
        self.along_k = order[0] == depth
        self.box = self.width * t.shape[order[1]]  # bytes
        w = fl.w
        between = 16 if self.along_k else self.box
        high = (between >> 4) << 16 | (8 * self.width >> 4) << 32 | SWIZZLE_CODES[self.width] << 62
        self.high = high - (1 << 64) if high >> 63 else high
        self.address = w.pure(f"lshr i32 {fl.scalar(view)}, 4")

    def outer_bytes(self, index: int) -> int:
        """Return the offset of row or column `index`, a multiple of 8 rows or of a box."""
        if self.along_k:
            return index * self.width
        size = index * self.bits // 8
        return size // self.width * self.box + size % self.width

    def descriptor(self, group: str, stride: int, constant: int) -> str:
        """Return the descriptor of the block that begins at byte group * stride + constant."""
        w, address = self.fl.w, self.address
        if group != "0" and stride:
            address = w.add("i32", address, w.mul("i32", group, str(stride >> 4)))
        address = w.add("i32", address, str(constant >> 4))
        wide = w.pure(f"zext i32 {w.pure(f'and i32 {address}, 16383')} to i64")
        return w.pure(f"or i64 {wide}, {self.high}")

    def step(self, k: int) -> int:
        """Return the distance of step k from the block's start, in units of the descriptor."""
        if not self.along_k:
            return k * (STEP_BYTES * 8 // self.bits) * self.width >> 4
        size = k * STEP_BYTES
        return (size // self.width * self.box + size % self.width) >> 4


@lowers(WgmmaOp)
def _wgmma(fl: FunctionLowering, op: WgmmaOp) -> None:
    mma = _Mma(fl, op)
    acc = mma.accumulators()
    steps = mma.steps
    part, parts = op.part
    if isinstance(op.left.type, SharedType):
        mine = range(steps * part // parts, steps * (part + 1) // parts)
        acc = mma.issue(acc, mine, [], commit=part == parts - 1)
        if not op.asynchronous:
            acc = _waited(fl, mma.row, acc, op.pending, [])
    elif op.pending:
        acc = _run_on(mma, acc)
    else:
        held = mma.held(range(steps))
        acc = mma.issue(acc, range(steps), held)
        if not op.asynchronous:
            acc = _waited(fl, mma.row, acc, 0, [x for i in held for regs in i for x in regs])
            _keep_alive(fl, op, op.left)
    fl.set(op.result, _elements(fl, op, mma.row, [x for block in acc for x in block]))


def _run_on(mma: _Mma, acc: list[Block]) -> list[Block]:
    """The first operand has been read while the previous MMA ran. Each half of that MMA is waited for before the
    same half of this one takes its registers, while the other half keeps the matrix unit busy."""
    halves = 2 if mma.steps % 2 == 0 else 1
    for half in range(halves):
        mine = range(mma.steps * half // halves, mma.steps * (half + 1) // halves)
        acc = _waited(mma.fl, mma.row, acc, halves - 1, [])
        acc = mma.issue(acc, mine, mma.held(mine))
    return acc


class _Mma:
    """The blocks of 64 rows and `n` columns that one warpgroup computes, and where their operands are."""

    def __init__(self, fl: FunctionLowering, op: WgmmaOp):
        self.fl, self.op = fl, op
        self.row: WgmmaRow = fl.target.facts().wgmma_row(op.instruction)
        rows, cols = reversed(op.acc.type.shape) if op.transposed else op.acc.type.shape
        along_m, along_n = op.warpgroups
        self.rows, self.cols = rows // along_m, cols // along_n
        self.n = min(self.cols, self.row.max_n)
        self.blocks = (self.rows // 64, self.cols // self.n)
        self.steps: int = op.b.type.shape[0] // self.row.k
        self.fresh = constant_of(op.acc) == 0  # then the first MMA overwrites
        orders = (op.columns, op.depth) if op.transposed else (op.depth, op.columns)
        self.b = _Shared(fl, op.right, 1 if op.transposed else 0, orders)
        self.group_m, self.group_n = _groups(fl, along_m, along_n)
        shared = isinstance(op.left.type, SharedType)
        self.a = _Shared(fl, op.left, 0 if op.transposed else 1) if shared else None
        for x in (self.a, self.b):
            if x is not None and not (x.along_k or self.row.transposable):
                raise InternalError(f"{self.row.name} reads rows along K, not {x.view.type}")

    def accumulators(self) -> list[Block]:
        count = self.blocks[0] * self.blocks[1]
        return _blocks(self.fl, self.row, self.fl.get(self.op.acc), count)

    def held(self, mine: range) -> list[list[Block]]:
        """Return the registers of a first operand held in registers, for the steps `mine` along K: a list for each
        block of rows."""
        row, fl, names = self.row, self.fl, self.fl.get(self.op.left)
        size = 64 * row.k // 128
        found: list[list[Block]] = []
        for i in range(self.blocks[0]):
            starts = [(i * self.steps + k) * size for k in mine]
            pieces = [list(names[at : at + size]) for at in starts]
            if row.rounds_to:
                pieces = [_to_tf32(fl, piece) for piece in pieces]
            found.append([_in_reg32(fl, row.a, piece) for piece in pieces])
        return found

    def issue(
        self, acc: list[Block], mine: range, held: list[list[Block]], commit: bool = True
    ) -> list[Block]:
        """Start the MMAs of the steps `mine` along K."""
        out: list[Block] = []
        for i in range(self.blocks[0]):
            regs = [x for k in held[i] for x in k] if held else []
            for j in range(self.blocks[1]):
                block: Block = acc[len(out)]
                stride = self.b.outer_bytes(self.cols)
                names = [self.b.descriptor(self.group_n, stride, self.b.outer_bytes(j * self.n))]
                if self.a is not None:
                    stride = self.a.outer_bytes(self.rows)
                    at = self.a.outer_bytes(64 * i)
                    names = [self.a.descriptor(self.group_m, stride, at), *names]
                starts = tuple(
                    (self.a.step(k) if self.a else 0, self.b.step(k), k > 0 or not self.fresh)
                    for k in mine
                )
                last = commit and len(out) == len(acc) - 1
                row = p.wgmma(
                    self.row.asm, self.n, len(block), starts, self.a is None, self.fresh, self.flags(), last,
                )  # fmt: skip
                given = [] if self.fresh else block
                out.append(_emit(self.fl, row, [*given, *regs, *names], len(block)))
        return out

    def flags(self) -> str:
        """Return the signs of A and B, and whether those in shared memory are transposed."""
        tail = "" if self.row.acc.is_int() else ", 1, 1"
        if self.row.transposable:
            tail += f", {int(not self.a.along_k)}" if self.a is not None else ""
            tail += f", {int(not self.b.along_k)}"
        return tail


def _emit(fl: FunctionLowering, row: p.Primitive, args: Block, count: int) -> Block:
    return fl.w.unpack_struct(row.emit(fl.w, args), row.result, count)


def _waited(
    fl: FunctionLowering, row: WgmmaRow, acc: list[Block], pending: int, kept: Block
) -> list[Block]:
    """Wait for all groups but the `pending` latest; operands in registers stay alive until then."""
    flat = [x for block in acc for x in block]
    type = "i32" if row.acc.bits == 16 or row.acc.is_int() else "float"
    flat = _emit(fl, p.wgmma_wait(pending, len(flat), type, len(kept)), [*flat, *kept], len(flat))
    size = len(acc[0])
    return [flat[i : i + size] for i in range(0, len(flat), size)]


@lowers(WgmmaWaitOp)
def _wait(fl: FunctionLowering, op: WgmmaWaitOp) -> None:
    elem, names = op.acc.type.elem, fl.get(op.acc)
    shape = packed_shape(elem, 2)
    regs = pack(fl, elem, names, shape) if elem.bits == 16 else list(names)
    type = "float" if elem is float32 else "i32"
    held = [x for v in op.held if isinstance(v.type, TileType) for x in _regs(fl, v)]
    row = p.wgmma_wait(-1 if op.waited else op.pending, len(regs), type, len(held))
    regs = _emit(fl, row, [*regs, *held], len(regs))
    names = unpack(fl, elem, regs, shape) if elem.bits == 16 else regs
    for v in op.held:
        if isinstance(v.type, TileType):
            _keep_alive(fl, op, v)
    fl.set(op.result, copies(op.result.type.layout, names))


def _to_tf32(fl: FunctionLowering, names: Sequence[str]) -> list[str]:
    """Round by `cvt.rna`. Where the operands of mma.sync take `cvt.rn` (`round_tf32`), ptxas (13.0) finds registers of
    MMAs that run on defined between them, and lets each MMA wait for the one before (C7513)."""
    return [p.emit_primitive(fl.w, "to_tf32", x) for x in names]


def _keep_alive(fl: FunctionLowering, op: Op, v: Value) -> None:
    """Read one register of each instruction's part of an operand that `op` leaves in registers. ptxas (12.8, 13.0)
    reuses registers that a loop only reads, and only in MMAs, after the MMA, although the next iteration
    still needs them."""
    loop = next((x for x in op.ancestors() if isinstance(x, Loop)), None)
    home = v.block.parent if v.block is not None else None
    if loop is None or home is loop or (home is not None and home.is_inside(loop)):
        return
    names = fl.get(v)
    if v.type.elem is float32:
        names = _to_tf32(fl, names)
    word, *others = _in_reg32(fl, v.type.elem, names)[::REGISTERS]
    for other in others:
        word = fl.w.pure(f"xor i32 {word}, {other}")
    p.emit_primitive(fl.w, "await_word", word, fl.shared_base())


# --- pieces ------------------------------------------------------------------------------------------------
def _groups(fl: FunctionLowering, along_m: int, along_n: int) -> tuple[str, str]:
    """Return the numbers of this thread's warpgroup along M and N, uniform in all lanes."""
    if along_m * along_n == 1:
        return "0", "0"
    warp = fl.warp
    with fl.w.hoist():
        group = fl.target.shuffle_index(fl.w, fl.w.pure(f"lshr i32 {warp}, 2"), "0")
        if along_n == 1:
            return group, "0"
        if along_m == 1:
            return "0", group
        shift = along_m.bit_length() - 1
        return fl.w.pure(f"and i32 {group}, {along_m - 1}"), fl.w.pure(f"lshr i32 {group}, {shift}")


def _in_reg32(fl: FunctionLowering, elem: ElementType, names: Sequence[str]) -> Block:
    regs = pack(fl, elem, names, packed_shape(elem, 32 // elem.bits))
    return [fl.w.pure(f"bitcast float {x} to i32") for x in regs] if elem is float32 else regs


def _regs(fl: FunctionLowering, v: Value) -> list[str]:
    return _in_reg32(fl, v.type.elem, fl.get(v))


def _blocks(fl: FunctionLowering, row: WgmmaRow, names: Sequence[str], count: int) -> list[Block]:
    if row.acc.bits == 16:
        names = pack(fl, row.acc, names, packed_shape(row.acc, 2))
    size = len(names) // count
    return [list(names[i : i + size]) for i in range(0, len(names), size)]


def _elements(fl: FunctionLowering, op: WgmmaOp, row: WgmmaRow, regs: Block) -> Block:
    if row.acc.bits == 16:
        regs = unpack(fl, row.acc, regs, packed_shape(row.acc, 2))
    return copies(op.result.type.layout, regs)
