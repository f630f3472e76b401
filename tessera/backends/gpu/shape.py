"""Lowers ops that only rename registers (splat, broadcast, transpose, ...), and the sources of indices."""

from __future__ import annotations

from functools import lru_cache

from tessera.backends.gpu.lowering import PROGRAMS, FunctionLowering, lowers, registers_of
from tessera.errors import InternalError
from tessera.ir import Op, TileType
from tessera.layout.linear import LinearLayout
from tessera.layout.relate import register_map
from tessera.ops import control, gpu, memory, special, tile


@lowers(tile.ProgramIdOp)
def _program_id(fl: FunctionLowering, op: tile.ProgramIdOp) -> None:
    with fl.w.hoist():
        fl.set(op.result, [fl.target.program_id(fl.w, op.axis)])


@lowers(tile.NumProgramsOp)
def _num_programs(fl: FunctionLowering, op: tile.NumProgramsOp) -> None:
    w = fl.w
    if fl.persistent:  # fewer CTAs than programs were launched
        place = w.pure(f"getelementptr i8, ptr {PROGRAMS}, i64 {4 * op.axis}")
        fl.set(op.result, [w.emit(f"load i32, ptr {place}, align 4")])
        return
    with w.hoist():
        fl.set(op.result, [fl.target.num_programs(w, op.axis)])


@lowers(gpu.CtaIdOp)
def _cta_id(fl: FunctionLowering, op: gpu.CtaIdOp) -> None:
    with fl.w.hoist():
        fl.set(op.result, [fl.target.program_id(fl.w, 0)])


@lowers(gpu.NumCtasOp)
def _num_ctas(fl: FunctionLowering, op: gpu.NumCtasOp) -> None:
    with fl.w.hoist():
        fl.set(op.result, [fl.target.num_programs(fl.w, 0)])


@lowers(tile.CtaRankOp)
def _cta_rank(fl: FunctionLowering, op: tile.CtaRankOp) -> None:
    with fl.w.hoist():
        fl.set(op.result, [fl.target.cta_rank(fl.w)])


@lowers(special.SpecialRegisterOp)
def _special_register(fl: FunctionLowering, op: special.SpecialRegisterOp) -> None:
    fl.set(op.result, [fl.target.special_register(fl.w, op.name)])


@lowers(special.GridDependencyOp)
def _grid_dependency(fl: FunctionLowering, op: special.GridDependencyOp) -> None:
    fl.target.grid_dependency(fl.w, op.kind)


@lowers(tile.ArangeOp)
def _arange(fl: FunctionLowering, op: tile.ArangeOp) -> None:
    names = fl.flat_indices(op.result.type.layout)
    with fl.w.hoist():
        fl.set(op.result, [fl.w.add("i32", x, str(op.start)) for x in names])


@lowers(tile.SplatOp)
def _splat(fl: FunctionLowering, op: tile.SplatOp) -> None:
    fl.set(op.result, fl.get(op.x) * registers_of(op.result.type))


@lru_cache(maxsize=1024)
def renaming(held: LinearLayout, wanted: LinearLayout) -> tuple[int, ...] | None:
    return register_map(held, wanted)


def rename(
    fl: FunctionLowering,
    op: Op,
    held: LinearLayout,
    wanted: LinearLayout | None = None,
    names: list[str] | None = None,
) -> None:
    """Take the operand's registers (`names`), whose layout in the result's shape is `held`, as the result's, perhaps
    repeated as in `wanted`."""
    wanted = wanted or op.result.type.layout
    names = names or fl.get(op.operands[0])
    if held == wanted:
        fl.set(op.result, names)
        return
    sources = renaming(held, wanted)
    if sources is None:
        raise InternalError(
            f"{op.opcode} moves data between threads: {held} to {wanted}", loc=op.loc
        )
    fl.set(op.result, [names[i] for i in sources])


@lowers(tile.BroadcastOp)
def _broadcast(fl: FunctionLowering, op: tile.BroadcastOp) -> None:
    """Register i of the result is the register that holds its coordinates with those of broadcast dimensions at 0."""
    rename(fl, op, op.x.type.layout, op.result.type.layout.restrict(op.x.type.shape))


@lowers(tile.ExpandDimsOp)
def _expand(fl: FunctionLowering, op: tile.ExpandDimsOp) -> None:
    rename(fl, op, op.x.type.layout.expand_dim(op.axis))


@lowers(tile.TransOp)
def _trans(fl: FunctionLowering, op: tile.TransOp) -> None:
    rename(fl, op, op.x.type.layout.trans(op.order))


@lowers(tile.ReshapeOp)
def _reshape(fl: FunctionLowering, op: tile.ReshapeOp) -> None:
    if not isinstance(op.x.type, TileType):
        fl.set(op.result, fl.get(op.x) * registers_of(op.result.type))
        return
    if not isinstance(op.result.type, TileType):
        fl.set(op.result, fl.get(op.x)[:1])
        return
    held = op.x.type.layout.reshape(op.result.type.shape)
    if op.reorder and held.size("register") == op.result.type.layout.size("register"):
        fl.set(op.result, fl.get(op.x))  # any order of the elements will do
        return
    rename(fl, op, held)


@lowers(tile.JoinOp)
def _join(fl: FunctionLowering, op: tile.JoinOp) -> None:
    left, right = fl.get(op.lhs), fl.get(op.rhs)
    both = [x for pair in zip(left, right) for x in pair]
    if isinstance(op.lhs.type, TileType):
        held = op.lhs.type.layout.join()
    else:
        held = LinearLayout(
            (2,), {"register": [(1,)], "lane": [(0,)] * 5, "warp": [(0,)] * fl.warp_bits}
        )
    rename(fl, op, held, names=both)


@lowers(tile.SplitOp)
def _split(fl: FunctionLowering, op: tile.SplitOp) -> None:
    layout, names = op.x.type.layout, fl.get(op.x)
    bit = layout.split_bit()
    if bit is None:
        raise InternalError(f"split moves data between threads: {layout}", loc=op.loc)
    first = [i for i in range(len(names)) if not i >> bit & 1]
    half = layout.split()
    for result, shift in zip(op.results, (0, 1 << bit)):
        held = [names[i | shift] for i in first]
        if isinstance(result.type, TileType) and result.type.layout != half:
            sources = renaming(half, result.type.layout)
            if sources is None:
                raise InternalError("split moves data between threads", loc=op.loc)
            held = [held[i] for i in sources]
        fl.set(result, held if isinstance(result.type, TileType) else held[:1])


@lowers(memory.AssumeOp, control.ReturnOp, control.YieldOp)
def _nothing(fl: FunctionLowering, op: Op) -> None:
    """Lower to nothing: facts for analyses, and terminators, which the op around them handles."""
