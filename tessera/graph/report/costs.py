"""Counts what the steps of a plan move and compute at least, for known sizes."""

from __future__ import annotations

from collections import Counter
from math import prod

from tessera.graph.index import Expr, Sym
from tessera.graph.ir.ops import (
    AttentionBase,
    AttentionGradsOp,
    AttentionKeyGradsOp,
    AttentionOp,
    AttentionQueryGradOp,
    ExternOp,
    GraphOp,
    LoadOp,
    MatmulOp,
)
from tessera.graph.ir.types import TensorType
from tessera.graph.passes.facts import captured
from tessera.graph.planning.plan import Extern, Launch, Step, number
from tessera.ir import Op, Value
from tessera.ops import ConstOp, YieldOp

Sizes = dict[Sym, int]
QUIET = (ConstOp, YieldOp)
ATTENTION_PRODUCTS: dict[type[Op], tuple[int, int]] = {
    AttentionOp: (1, 1),
    AttentionGradsOp: (3, 2),
    AttentionQueryGradOp: (2, 1),
    AttentionKeyGradsOp: (2, 2),
}
SHOWN = 6  # kinds of ops that a step's text names


def tensor_bytes(v: Value, sizes: Sizes) -> int:
    t = v.type
    if not isinstance(t, TensorType):
        return 0
    return prod(number(n, sizes) for n in t.shape) * t.elem.storage_bytes


def step_bytes(step: Step, sizes: Sizes) -> int:
    """Bytes that a step moves if it reads each operand and writes each result once. Of a tensor that loads read at
    computed places no more counts than there are loads."""
    written = sum(tensor_bytes(v, sizes) for v in dict.fromkeys(step.writes))
    if isinstance(step, Extern) or step.op is None:
        return written + sum(tensor_bytes(v, sizes) for v in dict.fromkeys(step.reads))
    loads = _loaded(step.op, sizes)
    total = written
    for v in captured(step.op):
        whole = tensor_bytes(v, sizes)
        total += min(whole, loads[v]) if v in loads else whole
    return total


def _loaded(op: Op, sizes: Sizes) -> Counter[Value]:
    """By tensor: bytes that an op's loads read, one by one."""
    found: Counter[Value] = Counter()

    def visit(x: Op, runs: int) -> None:
        if isinstance(x, LoadOp):
            found[x.tensor] += runs * x.tensor.type.elem.storage_bytes
        inner = runs * _extent(x, sizes)
        for block in x.regions:
            for y in block:
                visit(y, inner)

    visit(op, 1)
    return found


def _extent(op: Op, sizes: Sizes) -> int:
    extents: tuple[int | Expr, ...] = op.attrs.get("extents", ())
    return prod(number(n, sizes) for n in extents)


def step_flops(step: Step, sizes: Sizes) -> int:
    """Operations on numbers that a step does: two for each product that a matrix product adds up, one for any other."""
    if isinstance(step, Extern):
        return _product_flops(step.op, sizes)
    return 0 if step.op is None else _flops(step.op, sizes)


def _flops(op: Op, sizes: Sizes) -> int:
    if isinstance(op, MatmulOp):
        *batch, m, k = (number(n, sizes) for n in op.a.type.shape)
        return 2 * prod(batch) * m * k * number(op.b.type.shape[-1], sizes)
    if isinstance(op, AttentionBase):
        return _attention_flops(op, sizes)
    total = 0 if isinstance(op, (GraphOp, *QUIET)) else 1
    runs = _extent(op, sizes)
    return total + runs * sum(_flops(x, sizes) for block in op.regions for x in block)


def _attention_flops(op: AttentionBase, sizes: Sizes) -> int:
    """Of its products with the elements of keys and of values, of which a causal one does half."""
    *heads, m, d = (number(n, sizes) for n in op.q.type.shape)
    n, e = (number(x, sizes) for x in op.v.type.shape[2:])
    of_keys, of_values = ATTENTION_PRODUCTS[type(op)]
    sums = prod(heads) * m * n * (of_keys * d + of_values * e)
    return 2 * sums // (2 if op.causal else 1)


def is_product(step: Step) -> bool:
    """Whether a step is a matrix product or a convolution, which units of their own may compute."""
    if isinstance(step, Extern):
        return _kind(step.op) != ""
    return step.op is not None and any(
        isinstance(x, MatmulOp | AttentionBase) for x in step.op.walk()
    )


def _kind(op: ExternOp) -> str:
    name = op.target.removeprefix("aten.").split(".")[0]
    if name in ("mm", "addmm", "bmm", "baddbmm", "_scaled_mm"):
        return "product"
    return "convolution" if name == "convolution" else ""


def _product_flops(op: ExternOp, sizes: Sizes) -> int:
    """Of products and convolutions, by their shapes; 0 of others, whose work is not known here."""
    shapes = [
        [number(n, sizes) for n in v.type.shape] for v in op.args if isinstance(v.type, TensorType)
    ]
    kind = _kind(op)
    if not kind:
        return 0
    result = prod(number(n, sizes) for n in op.results[0].type.shape)
    if kind == "product":
        first = shapes[1] if "add" in op.target else shapes[0]
        return 2 * result * first[-1]
    return 2 * result * prod(shapes[1][1:])


def op_names(step: Step) -> str:
    """The ops that a step computes, the most frequent first: `add x3, exp, reduce`."""
    if isinstance(step, Extern):
        return ""
    if step.op is None:
        return "copy"
    plain = {"const", "cast", "yield", "graph.load", "graph.index", "graph.loop"}
    counts = Counter(
        x.opcode.removeprefix("graph.") for x in step.op.walk() if x.opcode not in plain
    )
    shown = [name if n == 1 else f"{name} x{n}" for name, n in counts.most_common(SHOWN)]
    more = ["..."] if len(counts) > SHOWN else []
    return ", ".join([*shown, *more]) or "copy"


def step_name(step: Step) -> str:
    if isinstance(step, Launch):
        return step.code.name
    return step.op.target if isinstance(step, Extern) else step.op.opcode
