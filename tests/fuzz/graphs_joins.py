"""Random concatenations, stacks, padding, parts and rotated halves of tensors, each as elements of one loop."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from tessera.dtypes import float32, int1
from tessera.graph.index import IndexMap, dim, expr, size
from tessera.graph.ir.build import GraphBuilder
from tessera.ir import Value

Shape = tuple[Any, ...]


class Joins:
    """What `RandomGraph` makes of several tensors, or of one and what is around it."""

    random: Random
    g: GraphBuilder
    tensors: list[Value]

    def pick(self, least: int = 0) -> Value | None:
        raise NotImplementedError

    def view(self, x: Value, map: IndexMap, shape: Shape) -> Value:
        raise NotImplementedError

    def joining(self) -> list[Callable[[], Value | None]]:
        return [self.concat, self.concat, self.stack, self.pad, self.part, self.rotate]

    def concat(self) -> Value | None:
        """Two to four tensors along any dimension, one of them perhaps twice, as elements of one loop."""
        x = self.pick(1)
        if x is None:
            return None
        shape = x.type.shape
        axis = self.random.randrange(len(shape))

        def rest(v: Value) -> Shape:
            return (len(v.type.shape), *v.type.shape[:axis], *v.type.shape[axis + 1 :])

        fit = [v for v in self.tensors if rest(v) == rest(x)]
        parts = [x, *(self.random.choice(fit[-5:]) for _ in range(self.random.randrange(1, 4)))]
        self.random.shuffle(parts)

        def body(*i: Value) -> Value:
            start, found = expr(0), None
            for v in parts:
                end = start + v.type.shape[axis]
                map = IndexMap(
                    len(shape), [dim(k) - start * (k == axis) for k in range(len(shape))]
                )
                inside = self.g.compare("lt", i[axis], self.g.index(end))
                if found is not None:
                    late = self.g.compare("ge", i[axis], self.g.index(start))
                    inside = self.g.binary("and", inside, late)
                part = self.g.load_at(v, map, i, mask=inside)
                found = part if found is None else self.g.select(inside, part, found)
                start = end
            assert found is not None
            return found

        total = sum((expr(v.type.shape[axis]) for v in parts), expr(0))
        return self.g.loop((*shape[:axis], total, *shape[axis + 1 :]), body)

    def stack(self) -> Value | None:
        x = self.pick()
        if x is None or len(x.type.shape) > 2:
            return None
        fit = [v for v in self.tensors if v.type.shape == x.type.shape]
        parts = [x, *(self.random.choice(fit[-5:]) for _ in range(self.random.randrange(1, 4)))]
        axis = self.random.randrange(len(x.type.shape) + 1)

        def body(*i: Value) -> Value:
            place = [*i[:axis], *i[axis + 1 :]]
            found = self.g.load(parts[-1], *place)
            for n, v in enumerate(parts[:-1]):
                here = self.g.compare("eq", i[axis], self.g.index(n))
                found = self.g.select(here, self.g.load(v, *place), found)
            return found

        shape = x.type.shape
        return self.g.loop((*shape[:axis], len(parts), *shape[axis:]), body)

    def pad(self) -> Value | None:
        """Ones around a tensor."""
        x = self.pick(1)
        if x is None:
            return None
        shape = x.type.shape
        before, after = ([self.random.choice([0, 0, 4, 1]) for _ in shape] for _ in range(2))

        def body(*i: Value) -> Value:
            inside = None
            for v, n, low in zip(i, shape, before, strict=True):
                late = self.g.compare("ge", v, self.g.index(low))
                early = self.g.compare("lt", v, self.g.index(expr(n) + low))
                both = self.g.binary("and", late, early)
                inside = both if inside is None else self.g.binary("and", inside, both)
            map = IndexMap(len(shape), [dim(k) - low for k, low in enumerate(before)])
            return self.g.load_at(x, map, i, mask=inside, other=self.g.const(1.0, float32))

        sizes = [expr(n) + a + b for n, a, b in zip(shape, before, after, strict=True)]
        return self.g.loop(sizes, body)

    def part(self) -> Value | None:
        """What lies behind the first elements of a dimension, as the gradient of a concatenation is taken apart."""
        x = self.pick(1)
        if x is None:
            return None
        shape = x.type.shape
        axis = self.random.randrange(len(shape))
        skipped = self.random.choice([1, 2, 4])
        if (shape[axis] if isinstance(shape[axis], int) else 2) <= skipped:
            return None
        results = [dim(k) + skipped * (k == axis) for k in range(len(shape))]
        rest = size(expr(shape[axis]) - skipped)
        return self.view(
            x, IndexMap(len(shape), results), (*shape[:axis], rest, *shape[axis + 1 :])
        )

    def rotate(self) -> Value | None:
        """Both halves of the last dimension, of which each needs the other."""
        x = self.pick(1)
        if x is None or not isinstance(x.type.shape[-1], int) or x.type.shape[-1] % 2:
            return None
        rank, half = len(x.type.shape), x.type.shape[-1] // 2

        def body(*i: Value) -> Value:
            first = self.g.compare("lt", i[-1], self.g.index(half))
            second = self.g.binary("xor", first, self.g.const(True, int1))
            maps = [
                IndexMap(rank, [*map(dim, range(rank - 1)), dim(rank - 1) + step])
                for step in (half, -half)
            ]
            high = self.g.unary("neg", self.g.load_at(x, maps[0], i, mask=first))
            other = self.g.select(first, high, self.g.load_at(x, maps[1], i, mask=second))
            return self.g.add(self.g.load(x, *i), other)

        return self.g.loop(x.type.shape, body)
