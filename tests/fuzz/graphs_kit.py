"""Random graphs of whole-tensor operations, each a loop of its own, as a front end makes them."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np

from tessera.dtypes import bfloat16, float16, float32, int1, int64
from tessera.graph.emit.tiling import Machine
from tessera.graph.index import Expr, IndexMap, dim, expr, sym
from tessera.graph.ir.build import GraphBuilder
from tessera.graph.ir.ops import ViewOp
from tessera.graph.ir.types import Place, TensorType, product
from tessera.ir import Module, Value
from tests.fuzz.graphs_joins import Joins

Shape = tuple[Any, ...]
S0, S1 = sym("s0"), sym("s1")
SIZES: dict[str, int] = {"s0": 3, "s1": 5}
# Tilings of GPUs, so small that graphs of this size meet the ends of each: rows and columns in steps, parts of sums.
SMALL = Machine(
    "cuda", exact=False, tile=8, row=4, step=2, lanes=64, columns=8, walk=1, part=2
)  # fmt: skip
ENV = {next(iter(s.leaves())): SIZES[str(s)] for s in (S0, S1)}


def number(n: int | Expr) -> int:
    return n if isinstance(n, int) else int(n.evaluate(ENV))


class RandomGraph(Joins):
    """A graph of about `steps` operations over tensors of up to three dimensions. `norms`: also statistics over any
    dimensions, groups and all, that are applied to what they are of. `writes`: also roundings, products, sorts,
    scatters of all kinds, and results that are left in arguments. `sized`: all sizes are known.
    `fills`: also scatters into equal elements. `joins`: also concatenations along any dimension, stacks, padding, parts
    of tensors, and products."""

    def __init__(
        self, seed: int, steps: int, norms: bool = True, writes: bool = False, sized: bool = False,
        fills: bool = False, joins: bool = False,
    ):  # fmt: skip
        self.random = Random(seed)
        self.g = GraphBuilder("random", ranges={} if sized else {"s0": (2, None)})
        self.s0, s1 = SIZES.values() if sized else (S0, S1)
        self.tensors: list[Value] = []
        self.args: list[np.ndarray] = []
        data = np.random.default_rng(seed)
        for n, shape in enumerate(
            [(self.s0, 4), (self.s0, 4), (4,), (self.s0, s1, 4), (s1, self.s0)]
        ):
            self.tensors.append(self.g.input(f"x{n}", TensorType(shape, float32)))
            self.args.append(data.standard_normal([number(k) for k in shape]).astype(np.float32))
        self.rows = self.g.input("rows", TensorType((6,), int64))
        self.args.append(data.integers(0, 2, 6))
        operations = [
            self.unary, self.binary, self.binary, self.reduce, self.reduce, self.permute, self.reshape, self.slice,
            self.flip, self.expand, self.join, self.gather, self.scan, self.scatter, self.extern, self.pair,
        ]  # fmt: skip
        operations += [self.normalize, self.normalize_groups] * (2 * norms)
        operations += [self.round, self.product, self.sort, self.scatter_rows] * (2 * writes)
        operations += [self.scatter_into_fill] * (12 * fills)
        operations += [*self.joining() * 2, self.product] * joins
        for _ in range(steps):
            made = self.random.choice(operations)()
            if made is not None:
                self.tensors.append(made)
        outputs = self.random.sample(self.tensors[5:], min(3, len(self.tensors) - 5))
        if writes:  # a result that is a view of an argument would be one of what is left there
            outputs = [self.negated(v) if isinstance(v.op, ViewOp) else v for v in outputs]
            self.write()
        self.g.output(*outputs)
        self.module: Module = self.g.finish()

    def pick(self, least: int = 0) -> Value | None:
        fit = [v for v in self.tensors if len(v.type.shape) >= least]
        return self.random.choice(fit[-6:]) if fit else None

    def pointwise(self, shape: Shape, body: Callable[..., Value]) -> Value:
        return self.g.loop(shape, body)

    def unary(self) -> Value | None:
        x = self.pick()
        assert x is not None
        name = self.random.choice(["abs", "neg", "floor", "sqrt", "exp"])
        safe = name in ("sqrt", "exp")

        def body(*i: Value) -> Value:
            v = self.g.load(x, *i)
            if safe:
                v = self.g.binary("min", self.g.unary("abs", v), self.g.const(2.0, float32))
            return self.g.unary(name, v)

        return self.pointwise(x.type.shape, body)

    def binary(self) -> Value | None:
        x, y = self.pick(), self.pick()
        assert x is not None and y is not None
        a, b = x.type.shape, y.type.shape
        if len(a) < len(b):
            x, y, a, b = y, x, b, a
        tail = a[len(a) - len(b) :]
        if any(m != n and n != 1 for m, n in zip(tail, b, strict=True)):
            return None
        name = self.random.choice(["add", "mul", "max", "sub"])

        def body(*i: Value) -> Value:
            at = [k if n != 1 else 0 for k, n in zip(i[len(a) - len(b) :], b, strict=True)]
            return self.g.binary(name, self.g.load(x, *i), self.g.load(y, *at))

        return self.pointwise(a, body)

    def reduce(self) -> Value | None:
        x = self.pick(1)
        if x is None:
            return None
        shape = x.type.shape
        axis = self.random.randrange(len(shape))
        kind = self.random.choice(["sum", "max", "min"])
        rest = shape[:axis] + shape[axis + 1 :]

        def body(*i: Value) -> Value:
            return self.g.reduce(
                kind, [shape[axis]], lambda r: self.g.load(x, *i[:axis], r, *i[axis:])
            )

        made = self.g.loop(rest, body)
        if self.random.random() < 0.5:
            return made
        kept = (*shape[:axis], 1, *shape[axis + 1 :])
        results = [dim(k) for k in range(len(shape)) if k != axis]
        return self.view(made, IndexMap(len(shape), results), kept)

    def normalize(self) -> Value | None:
        """A reduction over some dimensions, and what is left where it is taken off; some of it in other shapes."""
        x = self.pick(2)
        if x is None:
            return None
        shape, rank = x.type.shape, len(x.type.shape)
        kept = sorted(self.random.sample(range(rank), self.random.randrange(1, rank)))
        order = kept[::-1] if self.random.random() < 0.3 else kept
        gone = [k for k in range(rank) if k not in kept]
        kind = self.random.choice(["sum", "max"])

        def total(*i: Value) -> Value:
            def at(*r: Value) -> Value:
                of = {**dict(zip(order, i, strict=True)), **dict(zip(gone, r, strict=True))}
                return self.g.load(x, *(of[k] for k in range(rank)))

            return self.g.reduce(kind, [shape[k] for k in gone], at)

        stat = self.g.loop([shape[k] for k in order], total)
        if self.random.random() < 0.3:
            self.tensors.append(stat)

        def centred(*i: Value) -> Value:
            return self.g.sub(self.g.load(x, *i), self.g.load(stat, *(i[k] for k in order)))

        return self.pointwise(shape, centred)

    def normalize_groups(self) -> Value | None:
        """A reduction over the parts of a dimension of 4 and perhaps the dimensions behind it."""
        x = self.pick(1)
        if x is None or 4 not in x.type.shape:
            return None
        shape = x.type.shape
        axis = shape.index(4)
        outer, inner = shape[:axis], shape[axis + 1 :]

        def total(*i: Value) -> Value:
            def at(*r: Value) -> Value:
                place = self.g.index(dim(0) * 2 + dim(1), i[axis], r[0])
                return self.g.load(x, *i[:axis], place, *r[1:])

            return self.g.reduce("sum", [2, *inner], at)

        stat = self.g.loop([*outer, 2], total)

        def centred(*i: Value) -> Value:
            n = axis + 1
            map = IndexMap(n, [*map_dims(axis), dim(axis) // 2])
            return self.g.sub(self.g.load(x, *i), self.g.load_at(stat, map, i[:n]))

        return self.pointwise(shape, centred)

    def view(self, x: Value, map: IndexMap, shape: Shape) -> Value:
        return self.g.view(x, map, TensorType(shape, x.type.elem))

    def permute(self) -> Value | None:
        x = self.pick(2)
        if x is None:
            return None
        order = list(range(len(x.type.shape)))
        self.random.shuffle(order)
        results = [dim(order.index(k)) for k in range(len(order))]
        shape = tuple(x.type.shape[k] for k in order)
        return self.view(x, IndexMap(len(order), results), shape)

    def reshape(self) -> Value | None:
        """Two dimensions joined, or one of 4 split."""
        x = self.pick(2)
        if x is None:
            return None
        shape = x.type.shape
        if shape[-1] == 4 and self.random.random() < 0.5:
            rank = len(shape) + 1
            results = [*map(dim, range(rank - 2)), dim(rank - 2) * 2 + dim(rank - 1)]
            return self.view(x, IndexMap(rank, results), (*shape[:-1], 2, 2)) if rank < 5 else None
        n = expr(shape[1])
        results = [dim(0) // n, dim(0) % n, *map(dim, range(1, len(shape) - 1))]
        joined = product(shape[:2])
        return self.view(x, IndexMap(len(shape) - 1, results), (joined, *shape[2:]))

    def slice(self) -> Value | None:
        x = self.pick(1)
        if x is None or not isinstance(x.type.shape[0], int) or x.type.shape[0] < 3:
            return None
        n = (x.type.shape[0] - 1) // 2
        results = [dim(0) * 2 + 1, *map(dim, range(1, len(x.type.shape)))]
        return self.view(x, IndexMap(len(x.type.shape), results), (n, *x.type.shape[1:]))

    def flip(self) -> Value | None:
        x = self.pick(1)
        if x is None:
            return None
        rank = len(x.type.shape)
        results = [expr(x.type.shape[0]) - 1 - dim(0), *map(dim, range(1, rank))]
        return self.view(x, IndexMap(rank, results), x.type.shape)

    def expand(self) -> Value | None:
        x = self.pick()
        assert x is not None
        if len(x.type.shape) > 2:
            return None
        rank = len(x.type.shape)
        results = [dim(k + 1) for k in range(rank)]
        return self.view(
            x, IndexMap(rank + 1, results), (self.random.choice([self.s0, 2]), *x.type.shape)
        )

    def join(self) -> Value | None:
        x = self.pick(1)
        if x is None:
            return None
        shape = x.type.shape
        others = [
            v for v in self.tensors if v.type.shape[1:] == shape[1:] and len(v.type.shape) > 0
        ]
        y = self.random.choice(others)
        n, rank = expr(shape[0]), len(shape)

        def body(*i: Value) -> Value:
            first = self.g.compare("lt", i[0], self.g.index(n))
            second = self.g.binary("xor", first, self.g.const(True, int1))
            map = IndexMap(rank, [dim(0) - n, *(dim(k) for k in range(1, rank))])
            other = self.g.load_at(y, map, i, mask=second)
            return self.g.load(x, *i, mask=first, other=other)

        return self.g.loop((n + y.type.shape[0], *shape[1:]), body)

    def gather(self) -> Value | None:
        x = self.pick(1)
        if x is None or number(x.type.shape[0]) < 2:
            return None
        rest = x.type.shape[1:]
        return self.g.loop((6, *rest), lambda i, *j: self.g.load(x, self.g.load(self.rows, i), *j))

    def scan(self) -> Value | None:
        x = self.pick(1)
        if x is None:
            return None
        *outer, n = x.type.shape

        def body(*i: Value) -> Value:
            return self.g.scan("sum", n, lambda r: self.g.load(x, *i, r))

        return self.g.loop(outer, body)

    def scatter(self) -> Value | None:
        x = self.pick(1)
        if x is None or number(x.type.shape[0]) < 2:
            return None
        shape = x.type.shape
        extra = self.pick()
        assert extra is not None

        def body(i: Value, *j: Value) -> list[Value]:
            zeros = [0] * len(extra.type.shape)
            v = self.g.load(extra, *zeros)
            return [self.g.load(self.rows, i), *j, v]

        return self.g.scatter(x, (6, *shape[1:]), body, mode="add")

    def scatter_rows(self) -> Value | None:
        """Rows of one tensor, combined with those of another; places may be the same unless they are overwritten."""
        x = self.pick(1)
        if x is None or number(x.type.shape[0]) < 2:
            return None
        shape = x.type.shape
        same = [v for v in self.tensors if v.type.shape[1:] == shape[1:] and len(v.type.shape)]
        source = self.random.choice(same)
        mode = self.random.choice(["add", "max", "min", "mul", "set"])
        limit = expr(shape[0]) - 1

        def body(i: Value, *j: Value) -> list[Value]:
            at = self.g.load(self.rows, i)
            row = self.g.binary("min", i, self.g.index(expr(source.type.shape[0]) - 1))
            value = self.g.load(source, row, *j)
            if mode == "set":
                at, value = self.g.index(limit), self.g.load(source, 0, *j)
            elif mode == "mul":
                value = self.g.binary("max", value, self.g.const(0.5, float32))
                value = self.g.binary("min", value, self.g.const(1.5, float32))
            return [at, *j, value]

        return self.g.scatter(x, (6, *shape[1:]), body, mode=mode)

    def scatter_into_fill(self) -> Value | None:
        """Rows of whole numbers, whose sums are exact in any order, combined into a tensor of equal elements."""
        x = self.pick(1)
        if x is None:
            return None
        rest, mode = x.type.shape[1:], self.random.choice(["add", "add", "max", "min"])
        number, masked = float(self.random.choice([0, 0, 2])), self.random.random() < 0.3
        base = self.g.loop((2, *rest), lambda *i: self.g.const(number, float32))
        limit = expr(x.type.shape[0]) - 1

        def body(i: Value, *j: Value) -> list[Value]:
            v = self.g.load(x, self.g.binary("min", i, self.g.index(limit)), *j)
            v = self.g.binary("min", v, self.g.const(1000.0, float32))
            v = self.g.unary("floor", self.g.binary("max", v, self.g.const(-1000.0, float32)))
            found = [self.g.load(self.rows, i), *j, v]
            return (
                [*found, self.g.compare("lt", v, self.g.const(1.0, float32))] if masked else found
            )

        return self.g.scatter(base, (6, *rest), body, mode=mode)

    def round(self) -> Value | None:
        """What a half type makes of it."""
        x = self.pick()
        assert x is not None
        half = self.random.choice([bfloat16, float16])

        def body(*i: Value) -> Value:
            v = self.g.binary("min", self.g.load(x, *i), self.g.const(1000.0, float32))
            v = self.g.binary("max", v, self.g.const(-1000.0, float32))
            return self.g.cast(self.g.cast(v, half), float32)

        return self.pointwise(x.type.shape, body)

    def product(self) -> Value | None:
        """A product with another tensor, or with itself transposed."""
        x = self.pick(2)
        if x is None:
            return None
        shape = x.type.shape
        last = len(shape) - 2
        fit = [v for v in self.tensors if v.type.shape[:-1] == (*shape[:-2], shape[-1])]
        if fit and self.random.random() < 0.7:
            return self.g.matmul(x, self.random.choice(fit))
        results = [*map(dim, range(last)), dim(last + 1), dim(last)]
        flipped = self.view(x, IndexMap(last + 2, results), (*shape[:-2], shape[-1], shape[-2]))
        return self.g.matmul(x, flipped)

    def sort(self) -> Value | None:
        """Each row in order; the places, too, as numbers."""
        x = self.pick(1)
        if x is None:
            return None
        *outer, n = x.type.shape
        down = self.random.random() < 0.5

        def row(*i: Value) -> list[Value]:
            return self.g.sort(n, lambda r: [self.g.load(x, *i, r), r], descending=down)

        found, places = self.g.loops(outer, row)
        if self.random.random() < 0.5:
            self.tensors.append(found)
        return self.pointwise(
            x.type.shape,
            lambda *i: self.g.add(
                self.g.load(found, *i), self.g.cast(self.g.load(places, *i), float32)
            ),
        )

    def negated(self, x: Value) -> Value:
        return self.pointwise(x.type.shape, lambda *i: self.g.unary("neg", self.g.load(x, *i)))

    def write(self) -> None:
        """Leave tensors in arguments, which may be what another argument was."""
        for target in self.random.sample(self.tensors[:5], 2):
            fit = [v for v in self.tensors if v.type.shape == target.type.shape and v is not target]
            if fit:
                self.g.write(target, self.random.choice(fit))

    def extern(self) -> Value | None:
        x = self.pick()
        assert x is not None
        return self.g.extern("copy", [x], [Place(0)], [x.type])[0]

    def pair(self) -> Value | None:
        """A loop with two results."""
        x = self.pick()
        assert x is not None

        def body(*i: Value) -> list[Value]:
            v = self.g.load(x, *i)
            return [self.g.add(v, v), self.g.unary("neg", v)]

        a, b = self.g.loops(x.type.shape, body)
        self.tensors.append(a)
        return b


def map_dims(n: int) -> list[Expr]:
    return [dim(k) for k in range(n)]


def copy(op: Any, arrays: list[Any], symbols: Any) -> list[Any]:
    """What the extern of random graphs does."""
    return [np.array(arrays[0])]
