"""Lowers matrix products, where a kernel of ours is as fast as eager's or saves more than that costs.

What is added to a product, and what becomes of it element by element, is computed in its kernel (products.py). Which
products these are is a rule (`profitable`), or said by `options={"matmul": "kernel" | "extern" | "timed"}`.
"""

# pyright: basic
# torch gives most of its values no type.
from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from math import prod
from typing import Any

import torch

from tessera.backends.compiler import GPUTarget
from tessera.dtypes import bfloat16, dtype, float16, float32, float64
from tessera.graph.calls.executable import machine_of
from tessera.graph.emit import product_time
from tessera.graph.emit.product_time import HALF, LAUNCH, MEMORY, Shape
from tessera.graph.emit.tiling import Machine
from tessera.graph.index import Expr, expr
from tessera.graph.ir.types import Place, TensorType
from tessera.graph.passes import cost
from tessera.graph.torch.host import target_of
from tessera.graph.torch.lowering.base import Lowering, Tensor, broadcast, placed, rule, whole
from tessera.graph.torch.lowering.pointwise import POINTWISE, cast
from tessera.graph.torch.tune import EAGER, TimedProduct, fastest, known, times_of
from tessera.graph.torch.types import PRODUCT, NotLowered, Size
from tessera.ir import Value
from tessera.ir.applications import apply

TYPES = (float16, bfloat16, float32, float64)
MOST = 1 << 30  # multiplications of the largest product that "auto" makes a kernel of on a CPU
LINE = 128  # bytes of a cache line, at which rows of operands begin
LEAST = 64  # rows and columns
# Elements of weights, and rows, of a product that takes much longer than a launch.
LARGE, FEWEST = 1 << 18, 16
# Operations that only say otherwise how a tensor's elements are numbered.
VIEWS = ("view", "_unsafe_view", "reshape", "unsqueeze", "squeeze", "alias", "detach")
# And those that number them in another order, or are of some of them: maps of what a loop loads.
MOVED = (*VIEWS, "permute", "transpose", "t", "slice", "select", "expand")


@rule("mm", "bmm")
def matmul(low: Lowering, a: Tensor, b: Tensor, out_dtype: Any = None) -> Tensor:
    return whole(placed(multiplied(low, a, b, low.elem), low.out))


@rule("addmm", "baddbmm")
def added(
    low: Lowering, c: Tensor, a: Tensor, b: Tensor, out_dtype: Any = None, *, beta: Any = 1,
    alpha: Any = 1,
) -> Tensor:  # fmt: skip
    """beta * c + alpha * a @ b, rounded once."""
    inside = accumulator(low.elem)
    try:
        p = whole(multiplied(low, a, b, inside))
    except NotLowered:
        if not (_is_slow_with_bias(low, a, b) and apply("graph-split-addmm", what="product")):
            raise
        p = whole(by_library(low, a, b))

    def body(i: list[Expr]) -> Any:
        x = low.load(p, i)
        x = x if alpha == 1 else x * alpha
        if beta == 0:
            return x.rounded(low.elem)
        y = cast(low.load(c, broadcast(c, i)), inside)
        return (x + (y if beta == 1 else y * beta)).rounded(low.elem)

    return low.map(body)


def _is_slow_with_bias(low: Lowering, a: Tensor, b: Tensor) -> bool:
    """Whether the library's product in fp32, and a loop that adds the bias, take less time than its call for both,
    which takes other kernels, of few rows up to 2.3 times as long on an H200; with a bias it does not split sums along
    k, either, which leaves most of the machine idle where results are few. Where the loop is no part of what reads
    the result it takes a launch more, which pays for products of few rows alone."""
    sizes = [*a.shape, b.shape[-1]]
    exact = a.elem == b.elem == float32 and _precision(a) == "ieee"
    if low.products == "extern" or len(sizes) != 3 or not exact or not all_known(sizes):
        return False
    rows, k, n = known(sizes)
    few = cost.machine_of(a.device).few_rows
    alone = FEWEST <= rows <= few and k * n >= LARGE
    return alone or (few > 0 and all(map(_is_loop, _readers(low.node, MOVED))))


def by_library(low: Lowering, a: Tensor, b: Tensor) -> Value:
    """The product of two matrices by torch's own call, without what is added to it."""
    t = TensorType((a.shape[0], b.shape[1]), a.elem, None, a.device)
    operands = [value_of(low, a), value_of(low, b)]
    (made,) = low.g.extern(PRODUCT, operands, [Place(0), Place(1)], [t])
    return made


def accumulator(elem: dtype) -> dtype:
    return float64 if elem == float64 else float32


def multiplied(low: Lowering, a: Tensor, b: Tensor, elem: dtype) -> Value:
    """The product as a value, of elements of this type."""
    if a.elem not in TYPES or a.elem != b.elem:
        raise NotLowered(f"a product of {getattr(a.elem, 'name', a.elem)}")
    if a.shape[:-2] != b.shape[:-2] or a.shape[-1] != b.shape[-2]:
        raise NotLowered("a product of sizes that are not known to be equal")
    if low.products == "extern":
        raise NotLowered("the options say so")
    acc = accumulator(a.elem)
    outer = a.shape[-1] == 1  # no sums: a loop that costs nothing where it is read
    vector = outer or a.shape[-2] == 1 or b.shape[-1] == 1
    timed = low.products == "timed" and not vector
    blocks = _timed(a, b, acc, elem) if timed else None
    ruled = blocks is None and low.products in ("auto", "timed")
    chosen = outer or profitable(low, a, b)
    if ruled and not (chosen and apply("graph-own-products", what="product")):
        raise NotLowered("eager's product is taken to be as fast")
    if vector:
        return _by_sums(low, a, b, acc, elem)
    return low.g.matmul(value_of(low, a), value_of(low, b), acc, elem, _precision(a), blocks or ())


def _timed(a: Tensor, b: Tensor, acc: dtype, elem: dtype) -> tuple[int, ...] | None:
    """The blocks of the fastest kernel, None where sizes are not known. NotLowered where eager was as fast."""
    left, right = (TensorType(x.shape, x.elem, x.strides, x.device) for x in (a, b))
    every = [n for t in (left, right) for n in (*t.shape, *t.all_strides)]
    if not all(isinstance(n, int) for n in every) or 0 in (*a.shape, *b.shape):
        return None
    times = times_of(TimedProduct(left, right, acc, elem, _precision(a)))
    blocks = fastest(times)
    if not blocks:
        known = sorted(ms[0] for name, ms in times.items() if name != EAGER)
        ours = f"{known[0]:.4g} ms" if known and known[0] < float("inf") else "none"
        raise NotLowered(f"eager's product took {times[EAGER][0]:.4g} ms, the best kernel {ours}")
    return blocks


def _by_sums(low: Lowering, a: Tensor, b: Tensor, acc: dtype, elem: dtype) -> Value:
    """The product of a vector, each element a sum of its own, which may be a part of any other loop."""

    def body(i: list[Expr]) -> Any:
        *batch, row, column = i

        def term(k: list[Expr]) -> Any:
            x, y = low.load(a, [*batch, row, *k]), low.load(b, [*batch, *k, column])
            return cast(x, acc) * cast(y, acc)

        n = a.shape[-1]
        return (term([expr(0)]) if n == 1 else low.reduce("sum", [n], term)).rounded(elem)

    return low.inner([*a.shape[:-1], b.shape[-1]], body)[0].value


def profitable(low: Lowering, a: Tensor, b: Tensor) -> bool:
    """The rule of "auto" (docs/graph-fusion.md): on CPUs all but very large products, on GPUs those of half types whose
    results the next operations would read from memory; none of unknown sizes."""
    sizes = [*a.shape, b.shape[-1]]
    if not all_known(sizes):
        return False
    *batch, m, k, n = known(sizes)
    if a.device == "cpu":
        return prod((*batch, m, k, n)) <= MOST
    if not _machine(a.device).products or a.elem not in (float16, bfloat16):
        return False
    if min(m, n) < LEAST or not (_in_lines(a) and _in_lines(b)):
        return False
    shape = Shape(prod(batch), m, k, n)
    ours = product_time.microseconds(shape, product_time.fastest(shape))
    return ours < product_time.of_library(shape) + _saved(low.node, shape.batch * m * n * HALF)


def all_known(sizes: Iterable[Size]) -> bool:
    """Whether sizes are numbers, and none is 0."""
    return all(isinstance(n, int) and n > 0 for n in sizes)


def _in_lines(x: Tensor) -> bool:
    """Whether rows or columns of an operand lie in memory one element after the other and begin with a cache line."""
    last = [s for s in (x.strides or (0, 0))[-2:] if s != 1]
    return len(last) == 1 and isinstance(last[0], int) and last[0] * HALF % LINE == 0


def _saved(node: Any, size: int) -> float:
    """The µs that are saved where operations that read the product are computed in its kernel, element by element:
    one launch, the reading of `size` bytes, and their writing where nobody else reads them."""
    readers = list(_readers(node))
    elementwise = list(filter(_is_elementwise, readers))
    if not elementwise:
        return 0.0
    return LAUNCH + size * (1 + (len(elementwise) == len(readers))) / MEMORY


def _is_elementwise(node: Any) -> bool:
    simple = {*POINTWISE, "_to_copy", "convert_element_type"}
    return bool({_name(node), packet(node)} & simple)


def _is_loop(node: Any) -> bool:
    """Whether an operation becomes a loop that adds a bias as it loads: element by element, or a copy."""
    return _is_elementwise(node) or packet(node) == "clone"


def _readers(node: Any, views: tuple[str, ...] = VIEWS) -> Iterator[Any]:
    """The operations that read a result, through `views`: of all of its elements in their order, if not said else."""
    for user in node.users:
        if packet(user) in views:
            yield from _readers(user, views)
        else:
            yield user


def _name(node: Any) -> str:
    """As rules are registered: "add.Tensor"."""
    return str(node.target).removeprefix("aten.")


def packet(node: Any) -> str:
    return _name(node).partition(".")[0]


@cache
def _machine(device: str) -> Machine:
    return machine_of(target_of(device) or GPUTarget("cpu", "native", 1))


def _precision(a: Tensor) -> str:
    """How fp32 is multiplied: as torch is told."""
    fast = a.device.startswith("cuda") and torch.backends.cuda.matmul.allow_tf32
    return "tf32" if fast and a.elem == float32 else "ieee"


def value_of(low: Lowering, x: Tensor) -> Value:
    """The operand, as a view where it is one."""
    if x.map.is_identity and x.shape == x.value.type.shape:
        return x.value
    return low.g.view(x.value, x.map, TensorType(x.shape, x.elem, x.strides, x.device))
