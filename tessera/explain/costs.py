"""Counts the operations of ops: what they compute, and what that costs in multiply-adds on a unit of fp32."""

from __future__ import annotations

from math import prod

from tessera import ops
from tessera.analysis.loop_times import product_flops
from tessera.dtypes import dtype
from tessera.explain import functions
from tessera.ir import Op, TileType, Value, elem_of, shape_of
from tessera.ops.tile import CombineOp, Matmul

# Instructions that an element-wise op of floats becomes on an SM, where it is more than one: its special functions
# (MUFU) run at an eighth of the rate of multiply-adds. What functions cost on a CPU is measured (`functions`).
GPU_COSTS = {
    "div": 12.0, "rem": 20.0, "sqrt": 12.0, "sqrt_rn": 14.0, "rsqrt": 9.0, "exp": 10.0, "exp2": 9.0, "exp10": 10.0,
    "expm1": 16.0, "log": 10.0, "log2": 9.0, "log10": 10.0, "log1p": 16.0, "sin": 20.0, "cos": 20.0, "tan": 30.0,
    "asin": 20.0, "acos": 20.0, "atan": 20.0, "sinh": 24.0, "cosh": 24.0, "tanh": 16.0, "erf": 24.0, "pow": 30.0,
    "fast_log2": 9.0, "fast_sin": 9.0, "fast_cos": 9.0, "fast_rcbrt": 17.0, "erfinv_ratio": 21.0,
    "bessel_i0": 16.0, "bessel_i1": 17.0, "bessel_j0": 24.0, "bessel_j1": 24.0, "bessel_y0": 40.0, "bessel_y1": 52.0,
    "asinh": 34.0, "acosh": 34.0, "atanh": 34.0, "atan2": 40.0, "remainder": 22.0, "mulhi": 2.0,
}  # fmt: skip
ROUGH = (
    ops.ConstOp,
    ops.SplatOp,
    ops.BroadcastOp,
    ops.ArangeOp,
    ops.AddPtrOp,
    ops.HintOp,
    ops.BitcastOp,
)
NO_FLOPS = ("select", "cmp", "cast", "isnan", "copysign")


def elements(v: Value) -> int:
    return prod(shape_of(v.type))


def _is_float(v: Value) -> bool:
    elem = elem_of(v.type)
    return isinstance(elem, dtype) and elem.is_floating()


def flops(op: Op) -> float:
    """Return the operations on floats that one execution of an op does: one an element, whatever the function."""
    if isinstance(op, Matmul):
        return product_flops(op)
    if isinstance(op, CombineOp):
        inside = sum(
            1 for x in op.combine if not x.terminator and x.results and _is_float(x.results[0])
        )
        return float(inside * elements(op.inputs[0]))
    if isinstance(op, ops.FmaOp):
        return 2.0 * elements(op.results[0])
    if op.regions or not op.results or isinstance(op, ROUGH) or op.opcode in NO_FLOPS:
        return 0.0
    floating = isinstance(op.results[0].type, TileType | dtype) and _is_float(op.results[0])
    return float(elements(op.results[0])) if floating and _is_elementwise(op) else 0.0


def _is_elementwise(op: Op) -> bool:
    return isinstance(op, ops.Elementwise)


def operations(op: Op, on_gpu: bool) -> float:
    """Return the instructions on single elements that one execution of an op costs outside of matrix products: loads
    and stores count one, functions as many multiply-adds as take as long."""
    if isinstance(op, (Matmul, *ROUGH)):
        return 0.0
    if isinstance(op, CombineOp):
        inside = sum(1 for x in op.combine if not x.terminator)
        return float(inside * elements(op.inputs[0]))
    if isinstance(op, ops.LoadOp):
        return float(elements(op.result))
    if isinstance(op, ops.StoreOp):
        return float(elements(op.value))
    if not _is_elementwise(op) or not op.results or not isinstance(op.results[0].type, TileType):
        return 0.0
    cost = GPU_COSTS.get(op.opcode, 1.0) if on_gpu else functions.cost(op)
    return cost * elements(op.results[0]) * _width(op.results[0])


def _width(v: Value) -> float:
    """Return the share of a vector that an element takes, with fp32 as 1."""
    elem = elem_of(v.type)
    return 2.0 if isinstance(elem, dtype) and elem.bits == 64 else 1.0
