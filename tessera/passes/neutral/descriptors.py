"""Lowers tensor descriptors to pointer arithmetic and masks, for targets without hardware for them.

    d = make_descriptor base, [m, n], [s, 1] {block_shape=[8, 16]}
    x = descriptor_load d, [i, j]

becomes a load of base + (i + 0…7)·s + (j + 0…15) where 0 <= i + 0…7 < m and 0 <= j + 0…15 < n. What descriptors
guarantee (a base aligned to 16 bytes, strides in multiples of 16 bytes) is kept as hints for vectorisation.
"""

from __future__ import annotations

from typing import Any

from tessera import ops
from tessera.dtypes import int32, int64
from tessera.errors import UnsupportedLanguageConstruct
from tessera.ir import Block, Builder, DescriptorType, Module, Op, TileType, Value, pass_
from tessera.passes.neutral.loops import const

ALIGNMENT = 16  # bytes: of the base and of every stride but the last (CUDA, tensor maps)


@pass_("lower-descriptors")
def lower_descriptors(module: Module, cpu: bool = False) -> None:
    """Lower accesses through tensor descriptors to pointers and masks.

    Takes: tile IR without layouts; descriptors with the attribute `mapped`, which the TMA unit serves, stay.
    Gives: loads, stores and atomics through pointers; other descriptors are gone once the IR is canonicalised.
    Needs: nothing of a target; GPU pipelines run it after `select-tensor-maps`, the CPU with `cpu`: its loops are split
        by bounds, each of which is a mask of its own, and it has all atomics of floats.
    Raises: UnsupportedLanguageConstruct: an atomic of floats is another one than `add`, on a GPU.
    Example: `block` of tests/filecheck/lower-descriptors.tir
        make_descriptor; descriptor_load %d, [%i, %j] → hint; addptr; cmp; cmp; and; load %p, %inside
    Compare: Triton `triton-rewrite-tensor-descriptor-to-pointer`.
    """
    made: list[Op] = []
    for op in module.walk():
        if isinstance(op, (ops.DescriptorLoadOp, ops.DescriptorStoreOp)):
            if op.desc.op is not None and op.desc.op.attrs.get("mapped"):
                continue  # the TMA unit serves it
            _Access(op, Builder.before_op(op), cpu).lower()
        elif isinstance(op, (ops.DescriptorGatherOp, ops.DescriptorScatterOp)):
            _Rows(op, Builder.before_op(op), cpu).lower()
        elif isinstance(op, ops.MakeDescriptorOp):
            made.append(op)
    for op in made:
        if not op.result.uses:
            op.erase()


@pass_("lower-descriptor-rows")
def lower_descriptor_rows(module: Module) -> None:
    """Lower gathers and scatters of rows through descriptors to pointers and masks.

    Takes: tile IR without layouts.
    Gives: loads and stores through pointers for these; accesses to whole blocks stay.
    Needs: nothing of a target; the interpreter runs it, which moves blocks through descriptors itself.
    Raises: nothing.
    Example: `rows` of tests/filecheck/lower-descriptor-rows.tir
        descriptor_gather %d, %rows, %j → expand_dims; cast; mul; addptr; cmp; cmp; and; load
    Compare: Triton `triton-rewrite-tensor-descriptor-to-pointer`.
    """
    for op in module.walk():
        if isinstance(op, (ops.DescriptorGatherOp, ops.DescriptorScatterOp)):
            _Rows(op, Builder.before_op(op)).lower()


def made_by(v: Value) -> ops.MakeDescriptorOp:
    """Return the op that made a descriptor. Control flow carries the fields of descriptors, not descriptors."""
    assert isinstance(v.op, ops.MakeDescriptorOp), "a descriptor that control flow carries"
    return v.op


def argument_or_constant(v: Value, body: Block) -> tuple[str, int] | None:
    """Return ("arg", its number), ("const", its value), or None for a number that the program computes."""
    while isinstance(v.op, ops.CastOp | ops.HintOp):
        v = v.op.operands[0]
    if v.owner is body:
        return "arg", v.index
    if isinstance(v.op, ops.ConstOp):
        return "const", int(v.op.value)
    return None


def lower_access(op: ops.DescriptorLoadOp | ops.DescriptorStoreOp, cpu: bool = False) -> None:
    """Lower one access to pointers and masks."""
    _Access(op, Builder.before_op(op), cpu).lower()


class _Access:
    """Lowers one load, store or atomic of a block."""

    def __init__(self, op: Any, builder: Builder, cpu: bool = False):
        self.op = op
        self.cpu = cpu
        self.b = builder
        desc = made_by(op.desc)
        kind: DescriptorType = desc.result.type
        self.dims = kind.shape
        self.elem = kind.elem
        self.padding: str = desc.padding
        self.base, self.shape, self.strides = desc.base, desc.shape, desc.strides
        self.offsets: Any = getattr(op, "offsets", ())

    def lower(self) -> None:
        ptr, mask = self._addresses(), self._mask()
        op = self.op
        if isinstance(op, ops.DescriptorLoadOp):
            fill = None
            if self.padding == "nan":
                fill = const(self.b, float("nan"), TileType(self.dims, self.elem))
            loaded = ops.LoadOp(ptr, mask, fill, cache=op.cache, eviction=op.eviction)
            block = self.b.emit(loaded)
            if op.dropped:
                block = self.b.emit(ops.ReshapeOp(block, results=[op.result.type]))
            op.replace_by([block])
            return
        if op.kind == "store":
            self.b.insert(ops.StoreOp(ptr, op.value, mask))
        elif self.elem.is_floating() and op.kind != "add" and not self.cpu:
            raise UnsupportedLanguageConstruct(
                f"the descriptor atomic {op.kind!r} of {self.elem} is not supported on this target", loc=op.loc
            )  # fmt: skip
        else:
            self.b.insert(ops.AtomicRmwOp(ptr, op.value, mask, kind=op.kind, sem="relaxed"))
        op.erase()

    def _along(self, d: int) -> Value:
        """Return 0, 1, … along dimension d, with extent 1 along the others (int32)."""
        v = self.b.emit(ops.ArangeOp(start=0, end=self.dims[d]))
        for axis in range(len(self.dims)):
            if axis != d:
                v = self.b.emit(ops.ExpandDimsOp(v, axis=axis))
        return v

    def _spread(self, v: Value, like: Value) -> Value:
        return self.b.emit(ops.SplatOp(v, results=(TileType(like.type.shape, v.type),)))

    def _whole(self, v: Value) -> Value:
        if v.type.shape == self.dims:
            return v
        return self.b.emit(ops.BroadcastOp(v, results=(TileType(self.dims, v.type.elem),)))

    def _addresses(self) -> Value:
        emit = self.b.emit
        ptr = emit(ops.HintOp(self.base, divisibility=(ALIGNMENT,)))
        last = len(self.dims) - 1
        strides: list[Value] = []
        for d, (offset, stride) in enumerate(zip(self.offsets, self.strides, strict=True)):
            if d != last:
                whole = max(1, ALIGNMENT // self.elem.storage_bytes)
                stride = emit(ops.HintOp(stride, divisibility=(whole,)))
            strides.append(stride)
            moved = emit(ops.CastOp(offset, results=(int64,)))
            if d != last:
                moved = emit(ops.MulOp(moved, stride))
            ptr = emit(ops.AddPtrOp(ptr, moved))
        tile: Value | None = None
        for d in range(len(self.dims)):
            steps = self._along(d)
            if d != last:
                steps = emit(ops.CastOp(steps, results=(TileType(steps.type.shape, int64),)))
                steps = emit(ops.MulOp(steps, self._spread(strides[d], steps)))
            steps = self._whole(steps)
            tile = self._spread(ptr, steps) if tile is None else tile
            tile = emit(ops.AddPtrOp(tile, steps))
        assert tile is not None
        return tile

    def _place(self, d: int, offset: Value) -> Value:
        """Return the coordinates along dimension d."""
        steps = self._along(d)
        return self.b.emit(ops.AddOp(self._spread(offset, steps), steps))

    def _mask(self) -> Value:
        emit = self.b.emit
        mask: Value | None = None
        for d, (offset, extent) in enumerate(zip(self.offsets, self.shape, strict=True)):
            place = self._place(d, offset)
            above = emit(
                ops.CmpOp(
                    place, const(self.b, 0, TileType(place.type.shape, int32)), predicate="ge"
                )
            )
            below = emit(ops.CmpOp(place, self._spread(extent, place), predicate="lt"))
            if self.cpu:
                inside = emit(ops.AndOp(self._whole(above), self._whole(below)))
            else:
                inside = self._whole(emit(ops.AndOp(above, below)))
            mask = inside if mask is None else emit(ops.AndOp(mask, inside))
        assert mask is not None
        return mask


class _Rows(_Access):
    """Lowers a gather or scatter of rows, whose first coordinate is a tile."""

    def __init__(self, op: Any, builder: Builder, cpu: bool = False):
        super().__init__(op, builder, cpu)
        self.dims = (op.rows.type.shape[0], self.dims[1])
        self.offsets = (op.rows, op.column)

    def lower(self) -> None:
        ptr, mask = self._addresses(), self._mask()
        if isinstance(self.op, ops.DescriptorScatterOp):
            self.b.insert(ops.StoreOp(ptr, self.op.value, mask))
            self.op.erase()
            return
        fill = None
        if self.padding == "nan":
            fill = const(self.b, float("nan"), TileType(self.dims, self.elem))
        self.op.replace_by([self.b.emit(ops.LoadOp(ptr, mask, fill))])

    def _place(self, d: int, offset: Value) -> Value:
        if d == 0:
            return self.b.emit(ops.ExpandDimsOp(offset, axis=1))
        return super()._place(d, offset)

    def _addresses(self) -> Value:
        emit = self.b.emit
        ptr = emit(ops.HintOp(self.base, divisibility=(ALIGNMENT,)))
        ptr = emit(ops.AddPtrOp(ptr, emit(ops.CastOp(self.op.column, results=(int64,)))))
        whole = max(1, ALIGNMENT // self.elem.storage_bytes)
        stride = emit(ops.HintOp(self.strides[0], divisibility=(whole,)))
        rows = self._place(0, self.op.rows)
        rows = emit(ops.CastOp(rows, results=(TileType(rows.type.shape, int64),)))
        starts = emit(ops.MulOp(rows, self._spread(stride, rows)))
        tile = self._spread(ptr, starts)
        tile = self._whole(emit(ops.AddPtrOp(tile, starts)))
        return emit(ops.AddPtrOp(tile, self._whole(self._along(1))))
