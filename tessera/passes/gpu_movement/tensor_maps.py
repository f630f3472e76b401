"""Selects the tensor descriptors that the TMA unit can serve, and the tensor maps that the host encodes for them.

A map describes an array to the TMA unit: address, extents, strides, and the box and swizzle in which it moves blocks.
The host can encode it before the launch if it then knows all of that: the descriptor's base, extents and strides are
kernel arguments or constants (those of a descriptor argument are). Such descriptors are marked `mapped` and made once,
at the function's start; accesses through others become pointers and masks (passes/neutral/descriptors.py). So do
accesses whose last offset is not known to be a multiple of 16 bytes, since the TMA unit traps on any other.

Stores by the TMA unit also end at multiples of 16 bytes: it would write beyond rows that end in between (seen on an
H200, 2026-11-21). That rows end at multiples is therefore a check of the launch (`precondition`)."""

from __future__ import annotations

from typing import Any

from tessera import ops
from tessera.analysis.axis import AxisAnalysis
from tessera.analysis.host_code import HostCode
from tessera.analysis.provenance import argument_of, pointers_of, reached
from tessera.analysis.scratch import staging
from tessera.dtypes import bfloat16, float16, float32, float64, int32, int64, uint32, uint64
from tessera.ir import Block, Builder, DescriptorType, Effect, Module, Op, Value, pass_
from tessera.ir.applications import apply
from tessera.layout import Boxes, box_layout, boxes_of
from tessera.passes.neutral.descriptors import ALIGNMENT, argument_or_constant, made_by
from tessera.passes.neutral.remarks import remark

ENDLESS = (1 << 31) - 1  # the extent of an array whose end is not known
PADDED = (float16, bfloat16, float32, float64)  # element types whose maps fill with NaN
_WORDS = (int32, uint32, int64, uint64)
REDUCTIONS = {
    "store": (),
    "add": (int32, uint32, uint64, float32, float16, bfloat16),
    "min": (*_WORDS, float16, bfloat16),
    "max": (*_WORDS, float16, bfloat16),
    "and": (int32, uint32, int64, uint64),
    "or": (int32, uint32, int64, uint64),
    "xor": (int32, uint32, int64, uint64),
}
Access = ops.DescriptorLoadOp | ops.DescriptorStoreOp


@pass_("select-tensor-maps")
def select_tensor_maps(module: Module, stores: bool = True) -> None:
    """Mark the descriptors whose blocks the TMA unit moves.

    Takes: tile IR before `lower-descriptors`. Without `stores` the TMA unit only loads.
    Gives: the attribute `mapped` on descriptors whose base, extents and strides are arguments or constants; their
        `make_descriptor` stands at the function's start. Remarks say why others have none.
    Needs: a GPU with a TMA unit (sm_90).
    Raises: nothing.
    Example: `mapped` of tests/filecheck/select-tensor-maps.tir
        make_descriptor; descriptor_load; descriptor_store
        → make_descriptor {mapped=True}; descriptor_load; descriptor_store
    Compare: CUDA Driver API, "Tensor Map Object Management", has the conditions.
    """
    for func in module.body:
        assert isinstance(func, ops.FuncOp)
        if not func.kernel:
            continue
        made: dict[Op, Value] = {}
        axis = AxisAnalysis(func)
        for op in list(func.walk()):
            if isinstance(op, Access):
                desc = made_by(op.desc)
                if isinstance(op, ops.DescriptorStoreOp) and not stores:
                    _leave(op)
                    continue
                if not _movable(op, desc):
                    continue
                if not _known(op, desc, func):
                    remark(
                        module,
                        f"pointers for a {op.opcode}{_where(op)}: its array is not one that the host knows",
                    )
                    continue
                loads = isinstance(op, ops.DescriptorLoadOp)
                if not (apply("descriptor-to-tma", op) if loads else apply("tma-store", op)):
                    _leave(op)
                    continue
                size = op.desc.type.elem.storage_bytes
                if axis.facts(op.offsets[-1]).divisibility[0] * size % ALIGNMENT:
                    remark(
                        module,
                        f"pointers for a {op.opcode}{_where(op)}: its last offset may be no multiple of 16 bytes",
                    )
                else:
                    if desc not in made:
                        made[desc] = _at_start(desc, func)
                    op.set_operand(0, made[desc])
                    if isinstance(op, ops.DescriptorLoadOp):
                        _drop_dimensions(op)


def _leave(store: Access) -> None:
    """Give the access a descriptor of its own, which no map describes."""
    desc = made_by(store.desc)
    own = Builder.before_op(store).insert(desc.clone())
    own.attrs.pop("mapped", None)
    store.set_operand(0, own.result)


def _drop_dimensions(load: ops.DescriptorLoadOp) -> None:
    """Load without leading dimensions of extent 1 if all users reshape the block so: the tile in shared memory then has
    their shape."""
    users = load.result.users()
    shape: tuple[int, ...] = load.result.type.shape
    wanted = {u.result.type.shape if isinstance(u, ops.ReshapeOp) else shape for u in users}
    if len(wanted) != 1:
        return
    (tile,) = wanted
    dropped = len(shape) - len(tile)
    bits: int = load.result.type.elem.storage_bits
    if dropped > 0 and shape == (*[1] * dropped, *tile) and box_layout(tile, bits) is not None:
        new = ops.DescriptorLoadOp(load.desc, load.offsets, dropped=dropped, loc=load.loc)
        new.cache, new.eviction = load.cache, load.eviction
        value = Builder.before_op(load).emit(new)
        value.name = users[0].result.name
        for user in users:
            user.replace_by([value])
        load.erase()


def _where(op: Op) -> str:
    return f" at {op.loc.short()}" if op.loc is not None else ""


def _movable(op: Access, desc: ops.MakeDescriptorOp) -> bool:
    t: DescriptorType = desc.result.type
    if t.elem.storage_bytes not in (1, 2, 4, 8) or box_layout(t.shape, t.elem.storage_bits) is None:
        return False
    if desc.padding == "nan" and t.elem not in PADDED:
        return False
    if isinstance(op, ops.DescriptorLoadOp):
        return op.result.type.shape == t.shape
    return op.kind == "store" or t.elem in REDUCTIONS.get(op.kind, ())


def _known(op: Access, desc: ops.MakeDescriptorOp, func: ops.FuncOp) -> bool:
    """Whether the host knows the array before the launch, and nothing shows that the TMA unit cannot access it."""
    fields = [argument_or_constant(v, func.body) for v in desc.operands]
    if None in fields or fields[0] is None or fields[0][0] != "arg":
        return False
    size = desc.result.type.elem.storage_bytes
    strides = fields[1 + len(desc.shape) :]
    edges = fields[len(desc.shape)] if isinstance(op, ops.DescriptorStoreOp) else None
    fixed = [w[1] for w in (*strides[:-1], edges) if w is not None and w[0] == "const"]
    return all(n * size % ALIGNMENT == 0 for n in fixed)


def _at_start(desc: ops.MakeDescriptorOp, func: ops.FuncOp) -> Value:
    """Make the descriptor again at the function's start, with the values it is made from."""
    b = Builder.at_start(func.body)
    mapping: dict[Value, Value] = {}

    def copy(v: Value) -> Value:
        if v.op is None:
            return v
        if v not in mapping:
            for x in v.op.operands:
                copy(x)
            b.insert(v.op.clone(mapping))
        return mapping[v]

    fields = [copy(v) for v in desc.operands]
    rank = len(desc.shape)
    new = ops.MakeDescriptorOp(
        fields[0], fields[1 : 1 + rank], fields[1 + rank :], loc=desc.loc, **desc.attrs
    )
    new.attrs["mapped"] = True
    made = b.emit(new)
    made.name = desc.result.name
    return made


# --- maps ---------------------------------------------------------------------------------------------------
def access_boxes(op: Access | ops.TensorCopyOp, num_warps: int) -> Boxes:
    """Return the boxes in which an op moves its block."""
    if isinstance(op, ops.DescriptorStoreOp):
        return staging(op, num_warps).boxes
    t: Any = op.desc.type
    bits: int = t.elem.storage_bits
    layout = (
        op.shared.type.layout
        if isinstance(op, ops.TensorCopyOp)
        else box_layout(op.result.type.shape, bits)
    )
    boxes = boxes_of(layout, bits) if layout is not None else None
    if isinstance(op, ops.TensorCopyOp) and boxes is not None:
        boxes = boxes.shares(op.ctas, bits)
    assert boxes is not None, "no tile for the TMA unit"
    return boxes.of_rank(len(t.shape))


@pass_("number-tensor-maps")
def number_tensor_maps(module: Module) -> None:
    """Number the tensor maps that the kernel needs, and say how the host encodes each.

    Takes: GPU IR with shared memory allocated: box and swizzle follow from the layouts of buffers.
    Gives: `map` of each access; the module's `tensor_maps`: element type, padding, box, swizzle, then base, extents and
        strides as `_field` says. Stores that the kernel may read itself get the attribute `synchronous`.
    Needs: a GPU with a TMA unit: without accesses through descriptors nothing is changed.
    Raises: nothing.
    Example: `maps` of tests/filecheck/number-tensor-maps.gir
        descriptor_load %d; descriptor_store %e → descriptor_load %d {map=0}; descriptor_store %e {map=1}
    Compare: CUDA Driver API, `cuTensorMapEncodeTiled`.
    """
    found: dict[tuple[Any, ...], int] = {}
    checks: dict[tuple[int, ...], None] = {}
    for func in module.body:
        assert isinstance(func, ops.FuncOp)
        atomics = any(isinstance(op, ops.Atomic) for op in func.walk())
        code = HostCode(func, module.attrs.get("host_code", ()))
        for op in func.walk():
            if isinstance(op, ops.DescriptorLoadOp | ops.DescriptorStoreOp | ops.TensorCopyOp):
                desc = op.desc.op
                assert isinstance(desc, ops.MakeDescriptorOp)
                boxes = access_boxes(op, module.attrs["num_warps"])
                fields = tuple(_field(v, func.body, code) for v in desc.operands)
                key = (desc.result.type.elem.name, desc.padding, boxes.box, boxes.swizzle, fields)
                op.attrs["map"] = found.setdefault(key, len(found))
                if isinstance(op, ops.DescriptorStoreOp):
                    checks |= dict.fromkeys(_edge_checks(desc, fields[len(desc.shape)], func, code))
                    if atomics or _read_too(desc, func):
                        op.attrs["synchronous"] = True
        if code.code:
            module.attrs["host_code"] = tuple(code.code)
    if found:
        module.attrs["tensor_maps"] = tuple(found)
    precondition = module.attrs.get("precondition", ())
    if checks and not precondition:
        module.attrs["edges"] = True  # nothing else is checked
    if checks:
        module.attrs["precondition"] = tuple(dict.fromkeys((*precondition, *checks)))


def _edge_checks(
    desc: ops.MakeDescriptorOp, extent: tuple[str, int], func: ops.FuncOp, code: HostCode
) -> list[tuple[int, ...]]:
    """Return the checks that rows end at a multiple of 16 bytes."""
    whole = ALIGNMENT // desc.result.type.elem.storage_bytes
    kind, value = extent
    if kind == "const" or whole == 1:
        return []
    if kind == "arg":
        facts = dict(func.arg_attrs[value]) if func.arg_attrs else {}
        if facts.get("divisibility", 1) % whole == 0:
            return []
        value = code.add("arg", value)
    return [(value, 0, ENDLESS, whole)]


def _field(v: Value, body: Block, code: HostCode) -> tuple[str, int]:
    """Like `argument_or_constant`, or ("code", number) for what the host computes (`host_code`)."""
    found = argument_or_constant(v, body)
    if found is None:
        number = code.value(v)
        assert number is not None, "the host does not know the array of a tensor map"
        found = "code", number
    return found


def _read_too(desc: ops.MakeDescriptorOp, func: ops.FuncOp) -> bool:
    """Whether the kernel accesses the array in another way than by stores through descriptors."""
    array = argument_of(desc.base)
    others = [op for op in func.walk() if op.effects is not Effect.NONE]
    others = [op for op in others if not isinstance(op, ops.DescriptorStoreOp)]
    return array in reached([v for op in others for v in op.operands], pointers_of)
