"""Defines the meaning of ops that make, reshape, reduce and multiply tiles, in NumPy."""

from __future__ import annotations

from itertools import count
from typing import Any

import numpy as np

from tessera.dtypes import float64
from tessera.interp.machine import Machine, evaluate
from tessera.interp.numerics import carrier, settle
from tessera.interp.turns import LOOKS
from tessera.ir import Effect, elem_of, shape_of
from tessera.ops import control, gpu, tile
from tessera.ops.waiting import sees_others


@evaluate(tile.ProgramIdOp)
def program_id_(m: Machine, op: tile.ProgramIdOp) -> np.ndarray:
    return np.asarray(m.program[op.axis], np.int32)


@evaluate(tile.NumProgramsOp)
def num_programs_(m: Machine, op: tile.NumProgramsOp) -> np.ndarray:
    return np.asarray(m.grid[op.axis], np.int32)


@evaluate(tile.CtaRankOp)
def cta_rank_(m: Machine, op: tile.CtaRankOp) -> np.ndarray:
    return np.asarray(m.rank, np.int32)


@evaluate(gpu.CtaIdOp)
def cta_id_(m: Machine, op: gpu.CtaIdOp) -> np.ndarray:
    (x, y, z), (gx, gy, _) = m.program, m.grid
    return np.asarray(x + gx * (y + gy * z), np.int32)


@evaluate(gpu.NumCtasOp)
def num_ctas_(m: Machine, op: gpu.NumCtasOp) -> np.ndarray:
    """Return one CTA for each program, so that each CTA runs one."""
    return np.asarray(np.prod(m.grid), np.int32)


@evaluate(tile.ArangeOp)
def arange_(m: Machine, op: tile.ArangeOp) -> np.ndarray:
    return np.arange(op.start, op.end, dtype=np.int32)


@evaluate(tile.SplatOp)
def splat_(m: Machine, op: tile.SplatOp, x: np.ndarray) -> np.ndarray:
    shape, x = shape_of(op.result.type), np.asarray(x)
    # A view, like that of broadcast_to, but faster.
    return np.ndarray(shape, x.dtype, x, 0, (0,) * len(shape))


@evaluate(tile.BroadcastOp)
def broadcast_(m: Machine, op: tile.BroadcastOp, x: np.ndarray) -> np.ndarray:
    return np.broadcast_to(x, shape_of(op.result.type))


@evaluate(tile.ExpandDimsOp)
def expand_dims_(m: Machine, op: tile.ExpandDimsOp, x: np.ndarray) -> np.ndarray:
    return np.expand_dims(x, op.axis)


@evaluate(tile.ReshapeOp)
def reshape_(m: Machine, op: tile.ReshapeOp, x: np.ndarray) -> np.ndarray:
    return np.reshape(x, shape_of(op.result.type))


@evaluate(tile.TransOp)
def trans_(m: Machine, op: tile.TransOp, x: np.ndarray) -> np.ndarray:
    return np.transpose(x, op.order)


@evaluate(tile.JoinOp)
def join_(m: Machine, op: tile.JoinOp, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.stack([a, b], axis=-1)


@evaluate(tile.SplitOp)
def split_(m: Machine, op: tile.SplitOp, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return x[..., 0], x[..., 1]


@evaluate(tile.GatherOp)
def gather_(m: Machine, op: tile.GatherOp, x: np.ndarray, index: np.ndarray) -> np.ndarray:
    return np.take_along_axis(x, np.clip(index.astype(np.int64), 0, x.shape[op.axis] - 1), op.axis)


@evaluate(tile.HistogramOp)
def histogram_(
    m: Machine, op: tile.HistogramOp, x: np.ndarray, mask: np.ndarray | None = None
) -> np.ndarray:
    counted = x.astype(np.int64) if mask is None else x.astype(np.int64)[mask]
    counted = counted[(counted >= 0) & (counted < op.bins)]
    return np.bincount(counted, minlength=op.bins).astype(np.int32)


def _tf32(x: np.ndarray) -> np.ndarray:
    """Round fp32 to 10 mantissa bits, ties to even."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    rounded = (bits + np.uint32(0xFFF) + ((bits >> np.uint32(13)) & np.uint32(1))) & np.uint32(
        0xFFFFE000
    )
    return np.where(np.isfinite(x), rounded.view(np.float32), x)


@evaluate(tile.DotOp)
def dot_(m: Machine, op: tile.DotOp, a: np.ndarray, b: np.ndarray, acc: np.ndarray) -> np.ndarray:
    if op.precision == "tf32" and a.dtype == np.float32 and elem_of(op.a.type).name == "fp32":
        a, b = _tf32(a), _tf32(b)
    return _multiply(op, a, b, acc)


@evaluate(gpu.MmaOp)
def mma_(m: Machine, op: gpu.MmaOp, a: np.ndarray, b: np.ndarray, acc: np.ndarray) -> np.ndarray:
    if elem_of(op.a.type).name == "fp32":
        a, b = _tf32(a), _tf32(b)
    return _multiply(op, a, b, acc)


@evaluate(gpu.WgmmaOp)
def wgmma_(
    m: Machine, op: gpu.WgmmaOp, a: np.ndarray, b: np.ndarray, acc: np.ndarray
) -> np.ndarray:
    if elem_of(op.b.type.elem).name == "fp32":
        a, b = _tf32(a), _tf32(b)
    part, parts = op.part
    size = b.shape[0] // parts
    cut = slice(part * size, (part + 1) * size)
    return _multiply(op, a[:, cut], b[cut], acc)


@evaluate(gpu.WgmmaWaitOp)
def wgmma_wait_(m: Machine, op: gpu.WgmmaWaitOp, acc: np.ndarray, *held: object) -> np.ndarray:
    return acc


def _multiply(op: Any, a: np.ndarray, b: np.ndarray, acc: np.ndarray) -> np.ndarray:
    e = elem_of(op.acc.type)
    # Round once per dot, from fp64 (products of 16-bit floats are exact there; ints stay ints).
    wide = np.int64 if e.is_int() else np.longdouble if e is float64 else np.float64
    return settle(np.matmul(a.astype(wide), b.astype(wide)) + acc.astype(wide), e)


def _combine(m: Machine, op: tile.CombineOp, a: list[Any], b: list[Any]) -> list[Any]:
    """The combine region on whole arrays, whose ops work element by element; one element at a time if it branches."""
    shape = np.broadcast_shapes(*(np.shape(x) for x in (*a, *b)))
    if all(not inner.regions and inner.effects is Effect.NONE for inner in op.combine):
        return [np.broadcast_to(x, shape) for x in m.run_block(op.combine, [*a, *b])]
    out = [np.empty(shape, x.dtype) for x in a]
    for i in np.ndindex(shape):
        values = m.run_block(op.combine, [np.asarray(x[i]) for x in (*a, *b)])
        for o, value in zip(out, values, strict=True):
            o[i] = value
    return out


@evaluate(tile.ReduceOp)
def reduce_(m: Machine, op: tile.ReduceOp, *inputs: np.ndarray) -> object:
    """A balanced tree: halves are combined until one element is left (an odd one waits)."""
    parts = [np.moveaxis(x, op.axis, 0) for x in inputs]
    n = parts[0].shape[0]
    while n > 1:
        half = n // 2
        joined = _combine(m, op, [x[:half] for x in parts], [x[half : 2 * half] for x in parts])
        if n % 2:
            joined = [np.concatenate([j, x[n - 1 :]]) for j, x in zip(joined, parts, strict=True)]
        parts, n = joined, half + n % 2
    out = [
        np.asarray(x[0], carrier(elem_of(v.type))) for x, v in zip(parts, op.inputs, strict=True)
    ]
    return out[0] if len(out) == 1 else tuple(out)


@evaluate(tile.ScanOp)
def scan_(m: Machine, op: tile.ScanOp, *inputs: np.ndarray) -> object:
    """Scan by doubling: after the step of distance d, each element combines the 2·d elements that end with it."""
    parts = [np.moveaxis(x, op.axis, 0) for x in inputs]
    if op.reverse:
        parts = [x[::-1] for x in parts]
    distance = 1
    while distance < len(parts[0]):
        joined = _combine(m, op, [x[:-distance] for x in parts], [x[distance:] for x in parts])
        parts = [np.concatenate([x[:distance], j]) for x, j in zip(parts, joined, strict=True)]
        distance *= 2
    if op.reverse:
        parts = [x[::-1] for x in parts]
    out = [np.moveaxis(x, 0, op.axis) for x in parts]
    return out[0] if len(out) == 1 else tuple(out)


# --- control flow ----------------------------------------------------------------------------------------
@evaluate(control.IfOp)
def if_(m: Machine, op: control.IfOp, condition: np.ndarray) -> object:
    out = m.run_block(op.then if condition else op.orelse, [])
    return out[0] if len(out) == 1 else tuple(out)


@evaluate(control.ForOp)
def for_(
    m: Machine, op: control.ForOp, lb: np.ndarray, ub: np.ndarray, step: np.ndarray, *inits: object
) -> object:
    carried, kind = list(inits), np.asarray(lb).dtype
    for i in range(int(lb), int(ub), int(step)):
        carried = m.run_block(op.body, [np.asarray(i, kind), *carried])
    return carried[0] if len(carried) == 1 else tuple(carried)


@evaluate(control.WhileOp)
def while_(m: Machine, op: control.WhileOp, *inits: object) -> object:
    carried = list(inits)
    waits = m.stepper is None and sees_others(op)
    for looks in count():
        condition, *carried = m.run_block(op.before, carried)
        if not condition:
            break
        if waits and looks >= LOOKS:
            m.turns.give(m)
        carried = m.run_block(op.after, carried)
    return carried[0] if len(carried) == 1 else tuple(carried)


@evaluate(control.CallOp)
def call_(m: Machine, op: control.CallOp, *args: object) -> object:
    callee = m.module.function(op.callee)
    if m.stepper is not None and op.loc is not None:
        with m.stepper.called(op.loc):
            out = m.run_block(callee.regions[0], args)
    else:
        out = m.run_block(callee.regions[0], args)
    return out[0] if len(out) == 1 else tuple(out)
