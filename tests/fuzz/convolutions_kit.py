"""Random graphs with convolutions, as a front end makes them of convolutional networks; convolutions in NumPy."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np

from tessera.dtypes import float32
from tessera.graph.index import IndexMap, dim, expr, sym
from tessera.graph.ir.build import GraphBuilder
from tessera.graph.ir.types import Place, TensorType
from tessera.graph.passes.convolutions import BACKWARD, FORWARD
from tessera.ir import Module, Value

BATCH = 2


def _windows(x: np.ndarray, k: int) -> Any:
    """[N, C, H, W] padded, with the rows and columns of the window as two more dimensions."""
    p = k // 2
    padded = np.pad(x, ((0, 0), (0, 0), (p, p), (p, p)))
    return np.lib.stride_tricks.sliding_window_view(padded, (k, k), (2, 3))  # pyright: ignore[reportUnknownMemberType]


def convolution(x: np.ndarray, weight: np.ndarray, bias: Any, *rest: Any) -> np.ndarray:
    """One of stride 1 that keeps rows and columns."""
    groups = rest[-1]
    parts = zip(np.split(x, groups, 1), np.split(weight, groups), strict=True)
    k = weight.shape[2]
    found = [np.einsum("nchwij,ocij->nohw", _windows(a, k), w) for a, w in parts]
    return np.concatenate(found, 1).astype(np.float32)


def gradients(grad: np.ndarray, x: np.ndarray, weight: np.ndarray, *rest: Any) -> tuple[Any, ...]:
    """Those of the input and of the weight."""
    groups, mask, k = rest[-2], rest[-1], weight.shape[2]
    parts = [np.split(grad, groups, 1), np.split(x, groups, 1), np.split(weight, groups)]
    of_x: list[Any] = []
    of_weight: list[Any] = []
    for g, a, w in zip(*parts, strict=True):
        of_x.append(np.einsum("nohwij,ocij->nchw", _windows(g, k), w[:, :, ::-1, ::-1]))
        of_weight.append(np.einsum("nchwij,nohw->ocij", _windows(a, k), g))
    found = (np.concatenate(of_x, 1), np.concatenate(of_weight, 0))
    return tuple(f.astype(np.float32) for f, wanted in zip(found, mask, strict=False) if wanted)


FUNCTIONS = {FORWARD: convolution, BACKWARD: gradients, "copy": np.array}


class RandomNet:
    """About `steps` layers over images of a few channels; `dynamic`: their number is not known. `args`: what the
    function is given; the graph's module says for some results that their strides are its own to choose."""

    def __init__(self, seed: int, steps: int, dynamic: bool = False):
        self.random = Random(seed)
        self.data = np.random.default_rng(seed)
        self.g = GraphBuilder("net", ranges={"s0": (2, None)} if dynamic else {})
        self.n: Any = sym("s0") if dynamic else BATCH
        self.args: list[np.ndarray] = []
        self.images = [self.argument("x", self.n, self.random.choice([1, 3]), 5, 4)]
        layers = [
            self.convolve, self.convolve, self.convolve, self.backward, self.normalize, self.add, self.pool, self.join,
            self.part, self.swap, self.scale, self.copied, self.scatter,
        ]  # fmt: skip
        self.convolve()
        for _ in range(steps):
            self.random.choice(layers)()
        self.convolve()
        outputs = self.random.sample(self.images[1:], min(4, len(self.images) - 1))
        if self.random.random() < 0.5:
            outputs += [self.images[0], self.random.choice(self.g.block.args[1:])]
        self.g.output(*outputs)
        self.module: Module = self.g.finish()
        free = tuple(k for k in range(len(outputs)) if self.random.random() < 0.5)
        if self.random.random() < 0.5:
            self.module.attrs["free_results"] = free

    def argument(self, name: str, *shape: Any) -> Value:
        given = [BATCH if n is self.n else n for n in shape]
        strides = None
        array = self.data.standard_normal(given).astype(np.float32)
        if self.random.random() < 0.2 and not isinstance(self.n, type(sym("s0"))):
            array = np.ascontiguousarray(array.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)
            strides = [s // 4 for s in array.strides]
        self.args.append(array)
        return self.g.input(f"{name}{len(self.args)}", TensorType(shape, float32, strides))

    def pick(self) -> Value:
        return self.random.choice(self.images[-4:])

    def settings(self, groups: int, k: int) -> list[Any]:
        return [(1, 1), (k // 2, k // 2), (1, 1), False, (0, 0), groups]

    def convolve(self) -> None:
        x, k = self.pick(), self.random.choice([1, 3])
        n, c, *rest = x.type.shape
        groups = self.random.choice([1, 1, c])
        made = groups * self.random.choice([1, 2, 4])
        w = self.argument("w", made, c // groups, k, k)
        arguments = [Place(0), Place(1), None, *self.settings(groups, k)]
        t = TensorType((n, made, *rest), float32)
        self.images += self.g.extern(FORWARD, [x, w], arguments, [t])

    def backward(self) -> None:
        grad, x, k = self.pick(), self.pick(), self.random.choice([1, 3])
        if grad.type.shape[2:] != x.type.shape[2:]:
            return
        w = self.argument("w", grad.type.shape[1], x.type.shape[1], k, k)
        mask = self.random.choice([(True, True, False), (True, False, False), (False, True, False)])
        places = [Place(0), Place(1), Place(2), None]
        types = [TensorType(v.type.shape, float32) for v, m in zip((x, w), mask, strict=False) if m]
        arguments = [*places, *self.settings(1, k), mask]
        found = self.g.extern(BACKWARD, [grad, x, w], arguments, types)
        self.images += found if mask[0] else []
        if mask[1]:
            weight = found[-1]
            self.images.insert(1, weight)

    def loop(self, shape: Any, body: Any) -> None:
        self.images.append(self.g.loop(shape, body))

    def normalize(self) -> None:
        """Less its channel's sum, which is small, and clipped."""
        x = self.pick()
        n, c, h, w = x.type.shape

        def total(j: Value) -> Value:
            return self.g.reduce("max", [n, h, w], lambda i, *r: self.g.load(x, i, j, *r))

        stat = self.g.loop([c], total)

        def body(*i: Value) -> Value:
            v = self.g.sub(self.g.load(x, *i), self.g.load(stat, i[1]))
            return self.g.binary("max", v, self.g.const(-2.0, float32))

        self.loop(x.type.shape, body)

    def add(self) -> None:
        x = self.pick()
        y = self.random.choice([v for v in self.images if v.type.shape == x.type.shape])
        self.loop(x.type.shape, lambda *i: self.g.add(self.g.load(x, *i), self.g.load(y, *i)))

    def pool(self) -> None:
        x = self.pick()
        n, c, h, w = x.type.shape
        if h < 2 or w < 2:
            return

        def body(*i: Value) -> Value:
            def at(a: Value, b: Value) -> Value:
                map = IndexMap(6, [dim(0), dim(1), dim(2) * 2 + dim(4), dim(3) * 2 + dim(5)])
                return self.g.load_at(x, map, [*i, a, b])

            return self.g.reduce("max", [2, 2], at)

        self.loop((n, c, h // 2, w // 2), body)

    def join(self) -> None:
        """Two tensors' channels, one behind the other."""
        x = self.pick()
        n, c, h, w = x.type.shape
        fit = [v for v in self.images if (v.type.shape[0], *v.type.shape[2:]) == (n, h, w)]
        y = self.random.choice(fit)
        map = IndexMap(4, [dim(0), dim(1) - c, dim(2), dim(3)])

        def body(*i: Value) -> Value:
            first = self.g.compare("lt", i[1], self.g.index(expr(c)))
            second = self.g.compare("ge", i[1], self.g.index(expr(c)))
            other = self.g.load_at(y, map, i, mask=second)
            return self.g.load(x, *i, mask=first, other=other)

        self.loop((n, c + y.type.shape[1], h, w), body)

    def part(self) -> None:
        """A view of some channels."""
        x = self.pick()
        n, c, *rest = x.type.shape
        if c > 1:
            map = IndexMap(4, [dim(0), dim(1) + c // 2, dim(2), dim(3)])
            t = TensorType((n, c - c // 2, *rest), float32, x.type.all_strides)
            self.images.append(self.g.view(x, map, t))

    def swap(self) -> None:
        """Rows and columns exchanged, as a view."""
        x = self.pick()
        n, c, h, w = x.type.shape
        a, b, *s = x.type.all_strides
        t = TensorType((n, c, w, h), float32, (a, b, s[1], s[0]))
        self.images.append(self.g.view(x, IndexMap(4, [dim(0), dim(1), dim(3), dim(2)]), t))

    def scale(self) -> None:
        x = self.pick()
        half = self.g.const(0.25, float32)
        self.loop(x.type.shape, lambda *i: self.g.mul(self.g.load(x, *i), half))

    def copied(self) -> None:
        x = self.pick()
        t = TensorType(x.type.shape, float32)
        self.images += self.g.extern("copy", [x], [Place(0)], [t])

    def scatter(self) -> None:
        """An image's elements added to one of zeros, upside down."""
        x = self.pick()
        h = expr(x.type.shape[2])
        zeros = self.g.loop(x.type.shape, lambda *_: self.g.const(0.0, float32))

        def body(*i: Value) -> list[Value]:
            row = self.g.index(h - 1 - dim(0), i[2])
            return [i[0], i[1], row, i[3], self.g.load(x, *i)]

        self.images.append(self.g.scatter(zeros, x.type.shape, body, mode="add"))
