"""Finds what is computed in one kernel with a matrix product: loops that make its operands, and one that reads it.

w = graph.loop (%i, %j) { cast(v[i, j]) }            prologue: a few operations an element, for this product alone
p = graph.matmul x, w
y = graph.loop (%i, %j) { relu(p[i, j] + b[j]) }     epilogue: the only reader, each element at its own index
"""

from __future__ import annotations

from tessera.graph.emit.matmul import Product, pays
from tessera.graph.emit.tiling import Machine
from tessera.graph.index import Dim, Expr, dim, expr
from tessera.graph.ir.ops import LoadOp, LoopOp, MatmulOp, ViewOp
from tessera.graph.ir.types import product
from tessera.graph.passes import cost
from tessera.ir import Block, Op, Value
from tessera.ir.applications import apply
from tessera.ops import arith

LINE = 64  # bytes of a result side by side that one store of a kernel writes well
MOST_PROLOGUE = 4  # operations an element that are done again for each block of the other operand
Groups = tuple[tuple[int, ...], ...]


def products_of(body: Block, machine: Machine) -> tuple[dict[Op, Product], set[Op]]:
    """(at which op a kernel of a product is made → the product, the loops that such kernels compute)."""
    at: dict[Op, Product] = {}
    inside = set[Op]()
    for op in body:
        if isinstance(op, MatmulOp):
            found = _product(op, body, machine, inside | at.keys())
            at[found.epilogue or op] = found
            inside.update(found.prologues)
            if found.epilogue is not None:
                inside.add(op)
    return at, inside


def _product(op: MatmulOp, body: Block, machine: Machine, taken: set[Op]) -> Product:
    prologues = [_prologue(v, op) for v in (op.a, op.b)] if machine.exact else []
    kept = tuple(dict.fromkeys(p for p in prologues if p is not None and p not in taken))
    loop = _reader(op.result, body)
    if loop is None or loop in taken:
        return Product(op, kept)
    groups = _groups(op, loop)
    if groups is None or not pays(op, loop, machine) or not apply("graph-fuse-products", loop):
        return Product(op, kept)
    return Product(op, kept, loop, groups)


def _prologue(v: Value, op: MatmulOp) -> LoopOp | None:
    """The loop that makes an operand, if that is little work, and nobody else reads it."""
    while isinstance(v.op, ViewOp):
        if len(v.uses) != 1:
            return None
        v = v.op.x
    loop = v.op
    if not isinstance(loop, LoopOp) or len(loop.results) != 1 or not cost.is_pointwise(loop.body):
        return None
    users = list(v.users())
    alone = len(users) == 1 and (users[0] is op or isinstance(users[0], ViewOp))
    scalars = [x for x in loop.body if isinstance(x, arith.Elementwise)]
    tensors = {x.tensor for x in loop.body if isinstance(x, LoadOp)}
    simple = alone and len(scalars) <= MOST_PROLOGUE and len(tensors) <= 1
    return loop if simple and apply("graph-fuse-products", loop) else None


def _reader(v: Value, body: Block) -> LoopOp | None:
    """The one loop that reads a tensor, if only loads in its body do."""
    users = list(v.users())
    if not users or not all(isinstance(x, LoadOp) and x.tensor is v for x in users):
        return None
    loops = {cost.top_level(x, body) for x in users}
    loop = loops.pop()
    return loop if not loops and isinstance(loop, LoopOp) and cost.is_pointwise(loop.body) else None


def _groups(op: MatmulOp, loop: LoopOp) -> Groups | None:
    """The loop's dimensions by the dimension of the product that they are, where all loads are at the same index, and
    each element of the product is read once. They may have changed places, as heads have with sequences, if what lies
    side by side in the product does so in the results."""
    found = {
        _groups_of(x, loop) for x in loop.body if isinstance(x, LoadOp) and x.tensor is op.result
    }
    groups = found.pop() if len(found) == 1 else None
    if groups is None:
        return None
    order = [d for group in groups for d in group]
    return groups if order == sorted(order) or _goes_along(loop, groups[-1]) else None


def _goes_along(loop: LoopOp, columns: tuple[int, ...]) -> bool:
    """Whether results have enough elements of a row side by side."""
    n = loop.extents[columns[-1]] if columns else None
    types = [r.type for r in loop.results]
    return isinstance(n, int) and all(
        t.all_strides[columns[-1]] == 1 and n * t.elem.storage_bytes >= LINE for t in types
    )


def _groups_of(load: LoadOp, loop: LoopOp) -> Groups | None:
    args = list(loop.body.args)
    if load.mask is not None or any(v not in args for v in load.indices):
        return None
    at = load.map.at([dim(args.index(v)) for v in load.indices], len(args)).results
    wanted = load.tensor.type.shape
    groups: list[tuple[int, ...]] = []
    for e, n in zip(at, wanted, strict=True):
        group = _as_counted(e)
        extents = [loop.extents[d] for d in group]
        if e != _row_major(group, extents) or expr(product(extents)) != expr(n):
            return None
        groups.append(group)
    used = [d for group in groups for d in group]
    rest = (n for k, n in enumerate(loop.extents) if k not in used)
    return tuple(groups) if len(set(used)) == len(used) and all(n == 1 for n in rest) else None


def _as_counted(e: Expr) -> tuple[int, ...]:
    """The dimensions of an expression, that with the largest steps first; in order where steps are not known."""
    dims = sorted(e.dims)
    steps = {d: step.value for d in dims if (step := e.coefficient(Dim(d))) is not None}
    known = {d: n for d, n in steps.items() if n is not None}
    return tuple(sorted(dims, key=lambda d: -known[d]) if len(known) == len(dims) else dims)


def _row_major(dims: tuple[int, ...], extents: list[int | Expr]) -> Expr:
    found = expr(0)
    for k, d in enumerate(dims):
        if extents[k] != 1:
            found = found + dim(d) * product(extents[k + 1 :])
    return found
