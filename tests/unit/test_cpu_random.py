"""Random tile programs: native code against the interpreter, bit for bit (integers, and floats where order is free)."""

from __future__ import annotations

import ctypes
import random
from typing import Any

import numpy as np
import pytest

from tessera.backends.compiler import GPUTarget
from tessera.backends.cpu.backend import CpuBackend
from tessera.backends.llvm.binding import link_object
from tessera.dtypes import float32, int1, int32, pointer_type
from tessera.interp import run
from tessera.ir import Block, Builder, Module, TileType, Value, verify
from tessera.ops import (
    AddOp,
    AddPtrOp,
    ArangeOp,
    BroadcastOp,
    CastOp,
    CmpOp,
    ConstOp,
    ExpandDimsOp,
    ForOp,
    FuncOp,
    GatherOp,
    IfOp,
    JoinOp,
    LoadOp,
    MaxOp,
    MinOp,
    MulOp,
    ProgramIdOp,
    ReduceOp,
    RemOp,
    ReshapeOp,
    ReturnOp,
    ScanOp,
    SelectOp,
    SplatOp,
    SplitOp,
    StoreOp,
    SubOp,
    TransOp,
    XorOp,
    YieldOp,
)  # fmt: skip

SIZE = 1 << 12
SHAPES = [
    (16,),
    (64,),
    (512,),
    (2, 8),
    (8, 2),
    (32, 16),
    (16, 64),
    (4, 4, 8),
    (2, 2, 2),
    (1, 32),
    (32, 1),
    (4, 128),
]


class Generator:
    """Grows a list of tiles by random ops and stores some of them."""

    def __init__(self, seed: int):
        self.random = random.Random(seed)
        self.module = Module(num_warps=4)
        p = pointer_type(int32)
        self.body = Block([p, p, int32], names=["x", "y", "n"])
        self.module.body.append(FuncOp(name="k", regions=[self.body], arg_attrs=((), (), ())))
        self.b = Builder(self.body)
        self.x, self.y, self.n = self.body.args
        self.pid = self.b.emit(ProgramIdOp(axis=0))
        self.tiles: list[Value] = []

    def const(self, shape: tuple[int, ...], value: int, t: Any = int32) -> Value:
        return self.b.emit(ConstOp(value=value, results=[TileType(shape, t)]))

    def linear(self, shape: tuple[int, ...]) -> Value:
        """Row-major index of each element."""
        total, stride = None, 1
        for d in reversed(range(len(shape))):
            v = self.b.emit(ArangeOp(start=0, end=shape[d]))
            for e in range(len(shape)):
                if e != d:
                    v = self.b.emit(ExpandDimsOp(v, axis=e))
            v = self.b.emit(BroadcastOp(v, results=[TileType(shape, int32)]))
            v = self.b.emit(MulOp(v, self.const(shape, stride)))
            total = v if total is None else self.b.emit(AddOp(total, v))
            stride *= shape[d]
        assert total is not None
        return total

    def pointers(self, base: Value, index: Value) -> Value:
        shape = index.type.shape
        start = self.b.emit(SplatOp(base, results=[TileType(shape, base.type)]))
        return self.b.emit(AddPtrOp(start, index))

    def mask(self, index: Value) -> Value:
        bound = self.b.emit(SplatOp(self.n, results=[TileType(index.type.shape, int32)]))
        return self.b.emit(CmpOp(index, bound, predicate="lt"))

    # --- growing ------------------------------------------------------------------------------------------
    def load(self) -> None:
        shape = self.random.choice(SHAPES)
        index = self.linear(shape)
        if self.random.random() < 0.3:
            index = self.b.emit(MulOp(index, self.const(shape, self.random.choice([1, 2, 3]))))
        offset = self.const(shape, self.random.randrange(64))
        index = self.b.emit(AddOp(index, offset))
        base = self.random.choice([self.x, self.y])
        mask = self.mask(index) if self.random.random() < 0.6 else None
        other = self.const(shape, -5) if mask is not None and self.random.random() < 0.5 else None
        self.tiles.append(self.b.emit(LoadOp(self.pointers(base, index), mask, other)))

    def store(self) -> None:
        v = self.random.choice(self.tiles)
        if v.type.numel > SIZE // 2:
            return
        index = self.linear(v.type.shape)
        if self.random.random() < 0.5:
            index = self.b.emit(AddOp(index, self.const(v.type.shape, self.random.randrange(100))))
        mask = self.mask(index) if self.random.random() < 0.5 else None
        self.b.insert(StoreOp(self.pointers(self.random.choice([self.x, self.y]), index), v, mask))

    def arithmetic(self) -> None:
        a = self.random.choice(self.tiles)
        same = [t for t in self.tiles if t.type == a.type]
        b = self.random.choice(same)
        kind = self.random.randrange(6)
        if kind < 4:
            cls = self.random.choice([AddOp, SubOp, MulOp, MinOp, MaxOp, XorOp])
            self.tiles.append(self.b.emit(cls(a, b)))
        elif kind == 4:
            c = self.b.emit(CmpOp(a, b, predicate=self.random.choice(["lt", "ne", "ge"])))
            self.tiles.append(self.b.emit(SelectOp(c, b, self.random.choice(same))))
        else:
            f = self.b.emit(CastOp(a, results=[TileType(a.type.shape, float32)]))
            self.tiles.append(self.b.emit(CastOp(f, results=[a.type])))

    def shape(self) -> None:
        a = self.random.choice(self.tiles)
        shape = a.type.shape
        kind = self.random.randrange(5)
        if kind == 0 and len(shape) > 1:
            order = list(range(len(shape)))
            self.random.shuffle(order)
            self.tiles.append(self.b.emit(TransOp(a, order=tuple(order))))
        elif kind == 1:
            options = [s for s in [*SHAPES, (a.type.numel,)] if np.prod(s) == a.type.numel]
            self.tiles.append(
                self.b.emit(ReshapeOp(a, results=[TileType(self.random.choice(options), int32)]))
            )
        elif kind == 2 and a.type.numel <= 1024:
            b = self.random.choice([t for t in self.tiles if t.type == a.type])
            self.tiles.append(self.b.emit(JoinOp(a, b)))
        elif kind == 3 and shape[-1] == 2 and len(shape) > 1:
            self.tiles += self.b.insert(SplitOp(a)).results
        elif kind == 4 and len(shape) < 3:
            wide = self.b.emit(ExpandDimsOp(a, axis=self.random.randrange(len(shape) + 1)))
            target = tuple(4 if s == 1 else s for s in wide.type.shape)
            self.tiles.append(self.b.emit(BroadcastOp(wide, results=[TileType(target, int32)])))

    def region(self, cls: type) -> Block:
        block = Block([int32, int32])
        r = Builder(block)
        r.insert(YieldOp([r.emit(cls(*block.args))]))
        return block

    def arg_region(self) -> Block:
        block = Block([int32] * 4)
        r = Builder(block)
        v0, i0, v1, i1 = block.args
        less = r.emit(CmpOp(v0, v1, predicate="lt"))
        tie = r.emit(CmpOp(v0, v1, predicate="eq"))
        first = r.emit(MinOp(i0, i1))
        index = r.emit(SelectOp(tie, first, r.emit(SelectOp(less, i0, i1))))
        r.insert(YieldOp([r.emit(MinOp(v0, v1)), index]))
        return block

    def combine(self) -> None:
        a = self.random.choice(self.tiles)
        axis = self.random.randrange(len(a.type.shape))
        kind = self.random.randrange(3)
        if kind == 0 and len(a.type.shape) > 1:
            block = self.region(self.random.choice([AddOp, MaxOp, XorOp]))
            self.tiles.append(self.b.emit(ReduceOp([a], axis=axis, regions=[block])))
        elif kind == 1 and len(a.type.shape) > 1:
            op = ReduceOp([a, self.linear(a.type.shape)], axis=axis, regions=[self.arg_region()])
            self.tiles += self.b.insert(op).results
        else:
            block = self.region(self.random.choice([AddOp, MaxOp]))
            reverse = self.random.random() < 0.5
            self.tiles.append(self.b.emit(ScanOp([a], axis=axis, reverse=reverse, regions=[block])))

    def gather(self) -> None:
        a = self.random.choice(self.tiles)
        axis = self.random.randrange(len(a.type.shape))
        size = self.const(a.type.shape, a.type.shape[axis])
        index = self.b.emit(RemOp(self.linear(a.type.shape), size))
        self.tiles.append(self.b.emit(GatherOp(a, index, axis=axis)))

    def loop(self) -> None:
        """Carry two tiles; the body is random too."""
        carried = [self.random.choice(self.tiles) for _ in range(2)]
        lb, ub, step = (
            self.b.emit(ConstOp(value=v, results=[int32])) for v in (0, self.random.randrange(4), 1)
        )
        block = Block([int32, *(v.type for v in carried)])
        outer, saved = self.b, self.tiles
        self.b, self.tiles = Builder(block), [*saved, *block.args[1:]]
        self.grow(self.random.randrange(1, 5))
        out = [self.random.choice([t for t in self.tiles if t.type == v.type]) for v in carried]
        self.b.insert(YieldOp(out))
        self.b, self.tiles = outer, saved
        self.tiles += self.b.insert(ForOp(lb, ub, step, carried, regions=[block])).results

    def branch(self) -> None:
        c = self.b.emit(
            CmpOp(self.pid, self.b.emit(ConstOp(value=1, results=[int32])), predicate="lt")
        )
        assert c.type is int1
        t = self.random.choice(self.tiles).type
        blocks: list[Block] = []
        outer, saved = self.b, self.tiles
        for _ in range(2):
            block = Block()
            self.b, self.tiles = Builder(block), list(saved)
            self.grow(self.random.randrange(1, 4))
            self.b.insert(YieldOp([self.random.choice([v for v in self.tiles if v.type == t])]))
            blocks.append(block)
        self.b, self.tiles = outer, saved
        self.tiles += self.b.insert(IfOp(c, results=[t], regions=blocks)).results

    def grow(self, count: int) -> None:
        for _ in range(count):
            steps = [self.load, self.arithmetic, self.arithmetic, self.shape, self.shape, self.combine, self.gather,
                     self.store, self.loop, self.branch]  # fmt: skip
            self.random.choice(steps)()

    def build(self) -> Module:
        self.load()
        self.grow(14)
        for _ in range(3):
            self.store()
        self.b.insert(ReturnOp([]))
        verify(self.module)
        return self.module


def execute(module: Module, programs: int, arch: str, x: np.ndarray, y: np.ndarray, n: int) -> None:
    backend = CpuBackend(GPUTarget("cpu", arch, 1))
    product: Any = module
    metadata: dict[str, Any] = {}
    for stage in backend.stages(backend.parse_options({})).values():
        product = stage(product, metadata)
    code = link_object(product, ["k"])
    slots = np.array([x.ctypes.data, y.ctypes.data, n], np.int64)
    scratch = np.zeros(metadata["scratch_bytes"] // 8 + 16, np.int64)
    status = np.zeros(1, np.int32)
    context = np.zeros(5, np.int64)
    context[:2] = np.array([programs, 1, 1, 0], np.int32).view(np.int64)
    context[2:] = (
        scratch.ctypes.data + 64 - scratch.ctypes.data % 64,
        scratch.nbytes,
        status.ctypes.data,
    )
    fn = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)(
        code["k"]
    )
    fn(slots.ctypes.data, 0, programs, context.ctypes.data)


@pytest.mark.parametrize("arch", ["native", "avx2"])
@pytest.mark.parametrize("seed", range(60))
def test_random_program(seed, arch):
    module = Generator(seed).build()
    rng = np.random.default_rng(seed)
    x, y = (rng.integers(-100, 100, 2 * SIZE).astype(np.int32) for _ in range(2))
    n = int(rng.integers(0, SIZE))
    a, b = x.copy(), y.copy()
    run(module.clone(), (2,), [a, b, n])
    c, d = x.copy(), y.copy()
    execute(module, 2, arch, c, d, n)
    np.testing.assert_array_equal(c, a)
    np.testing.assert_array_equal(d, b)
