"""Random kernels with loops and branches compute the same before and after each pass."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tessera.dtypes import float32, int1, int32, pointer_type, uint32
from tessera.interp import run
from tessera.ir import (
    Block,
    Builder,
    Module,
    PassManager,
    TileType,
    Value,
    elem_of,
    parse_module,
    print_module,
    shape_of,
)
from tessera.ir.passes import PASSES
from tessera.ops import (
    AbsOp,
    AddOp,
    AddPtrOp,
    AndOp,
    ArangeOp,
    BroadcastOp,
    CastOp,
    CmpOp,
    ConditionOp,
    ConstOp,
    DivOp,
    DotOp,
    ExpandDimsOp,
    ExpOp,
    FloorOp,
    ForOp,
    FuncOp,
    IfOp,
    LoadOp,
    LogOp,
    MaxOp,
    MinOp,
    MulOp,
    NegOp,
    OrOp,
    ReduceOp,
    RemOp,
    ReshapeOp,
    ReturnOp,
    SelectOp,
    ShlOp,
    ShrOp,
    SinOp,
    SplatOp,
    SqrtOp,
    StoreOp,
    SubOp,
    TransOp,
    WhileOp,
    XorOp,
    YieldOp,
)
from tessera.passes.neutral.peel import peel_first
from tessera.passes.neutral.pipeline import neutral_pipeline

N = 4
ROWS = 24  # values that a kernel stores
KINDS = (int32, uint32, float32, int1)
SHAPES: tuple[tuple[int, ...], ...] = ((), (N,), (N, N))
ANY = (AddOp, SubOp, MulOp, DivOp, RemOp, MinOp, MaxOp)
INTEGER = (AndOp, OrOp, XorOp)
UNARY = (NegOp, AbsOp)
FLOAT_UNARY = (ExpOp, LogOp, SqrtOp, SinOp, FloorOp)
Pool = list[Value]


def typed(shape: tuple[int, ...], elem: Any) -> Any:
    return TileType(shape, elem) if shape else elem


class Generator:
    """Writes a kernel `k(inputs: *i32, out_int: *i32, out_float: *fp32, a: i32, b: i32)`."""

    def __init__(self, rng: Random):
        self.rng = rng
        self.module = Module()
        self.func = FuncOp(name="k")
        self.module.body.append(self.func)
        self.b = Builder(self.func.body)
        add = self.func.body.add_arg
        self.source, self.ints, self.floats = (
            add(pointer_type(t), name)
            for t, name in ((int32, "src"), (int32, "oi"), (float32, "of"))
        )
        pool = [add(int32, "a"), add(int32, "b")]
        self.rows = 0
        self.ops(pool, 14, depth=2)
        for v in pool[-6:]:
            self.store(v, pool)
        self.b.insert(ReturnOp())

    # --- values -------------------------------------------------------------------------------------------
    def const(self, t: Any) -> Value:
        e = elem_of(t)
        numbers = {int1: [True, False], float32: [0.0, 1.0, -1.5]}
        value = self.rng.choice(
            numbers.get(e, [0, 0, 1, 1, 2, 3, 31, 2**31 - 1] + ([-1, -8] if e is int32 else []))
        )
        return self.b.emit(ConstOp(value=value, results=[t]))

    def pick(self, pool: Pool, t: Any = None) -> Value:
        """A value of type `t`, or of any: from the pool, or made from a constant."""
        if t is None:
            t = typed(self.rng.choice(SHAPES), self.rng.choice(KINDS))
        fitting = [v for v in pool if v.type == t]
        return self.rng.choice(fitting) if fitting and self.rng.random() < 0.8 else self.const(t)

    # --- ops ----------------------------------------------------------------------------------------------
    def ops(self, pool: Pool, count: int, depth: int) -> None:
        makers: list[Callable[[Pool], Value | None]] = [
            self.unary, self.binary, self.binary, self.binary, self.shift, self.compare, self.select, self.cast,
            self.shape, self.shape, self.load, self.reduce, self.dot, self.sums,
        ]  # fmt: skip
        for _ in range(self.rng.randrange(1, count)):
            if depth and self.rng.random() < 0.25:
                self.rng.choice([self.loop, self.loop, self.branch, self.countdown])(
                    pool, depth - 1
                )
                continue
            made = self.rng.choice(makers)(pool)
            if made is not None:
                pool.append(made)
            if self.rng.random() < 0.1:
                self.store(self.rng.choice(pool), pool)

    def unary(self, pool: Pool) -> Value:
        """Often twice: `neg (neg x)`."""
        kind = self.rng.choice([int32, uint32, float32])
        x = self.pick(pool, typed(self.rng.choice(SHAPES), kind))
        cls = self.rng.choice((*UNARY, *FLOAT_UNARY) if kind is float32 else UNARY)
        y = self.b.emit(cls(x))
        return self.b.emit(cls(y)) if self.rng.random() < 0.3 else y

    def binary(self, pool: Pool) -> Value:
        x = self.pick(pool)
        integer = elem_of(x.type) is not float32
        cls = self.rng.choice((*ANY, *INTEGER) if integer else ANY)
        y = x if self.rng.random() < 0.1 else self.pick(pool, x.type)
        return self.b.emit(cls(x, y))

    def shift(self, pool: Pool) -> Value:
        x = self.pick(pool, typed(self.rng.choice(SHAPES), self.rng.choice([int32, uint32])))
        count = self.b.emit(ConstOp(value=self.rng.choice([0, 1, 5, 31]), results=[x.type]))
        return self.b.emit(self.rng.choice([ShlOp, ShrOp])(x, count))

    def compare(self, pool: Pool) -> Value:
        x = self.pick(pool)
        y = x if self.rng.random() < 0.1 else self.pick(pool, x.type)
        return self.b.emit(
            CmpOp(x, y, predicate=self.rng.choice(["eq", "ne", "lt", "le", "gt", "ge"]))
        )

    def sums(self, pool: Pool) -> Value:
        """Sums with a common addend, compared, as rows and columns, perhaps: of small numbers, or such as may wrap."""
        t, b, sides = TileType((N,), int32), self.b, []
        shared = b.emit(SplatOp(self.small(self.pick(pool, int32)), results=[t]))
        square = self.rng.random() < 0.5
        for axis in (1, 0):
            pair = [shared, self.small(self.pick(pool, t))]
            self.rng.shuffle(pair)
            v = b.emit(AddOp(*pair))
            if square:
                v = b.emit(ExpandDimsOp(v, axis=axis))
                v = b.emit(BroadcastOp(v, results=[TileType((N, N), int32)]))
            sides.append(v)
        return b.emit(
            CmpOp(*sides, predicate=self.rng.choice(["eq", "ne", "lt", "le", "gt", "ge"]))
        )

    def small(self, x: Value) -> Value:
        """`x` modulo 32, mostly."""
        if self.rng.random() < 0.2:
            return x
        return self.b.emit(AndOp(x, self.b.emit(ConstOp(value=31, results=[x.type]))))

    def select(self, pool: Pool) -> Value:
        x = self.pick(pool)
        y = x if self.rng.random() < 0.2 else self.pick(pool, x.type)
        return self.b.emit(SelectOp(self.pick(pool, typed(shape_of(x.type), int1)), x, y))

    def cast(self, pool: Pool) -> Value:
        x = self.pick(pool)
        return self.b.emit(CastOp(x, results=[typed(shape_of(x.type), self.rng.choice(KINDS))]))

    def shape(self, pool: Pool) -> Value:
        e, b = self.rng.choice(KINDS), self.b
        kind = self.rng.randrange(6)
        if kind == 0:
            return b.emit(
                SplatOp(self.pick(pool, e), results=[typed(self.rng.choice(SHAPES[1:]), e)])
            )
        if kind == 1:
            return b.emit(ArangeOp(start=0, end=N))
        if kind == 2:
            wide = b.emit(
                ExpandDimsOp(self.pick(pool, TileType((N,), e)), axis=self.rng.randrange(2))
            )
            return b.emit(BroadcastOp(wide, results=[TileType((N, N), e)]))
        square = self.pick(pool, TileType((N, N), e))
        if kind == 3:
            return b.emit(TransOp(square, order=self.rng.choice([(0, 1), (1, 0)])))
        flat = b.emit(ReshapeOp(square, results=[TileType((2, 2 * N), e)]))
        return b.emit(ReshapeOp(flat, results=[TileType((N, N), e)]))

    def load(self, pool: Pool) -> Value:
        index = self.b.emit(ArangeOp(start=0, end=N))
        base = self.b.emit(SplatOp(self.source, results=[TileType((N,), self.source.type)]))
        mask = self.pick(pool, TileType((N,), int1))
        other = self.pick(pool, TileType((N,), int32)) if self.rng.random() < 0.5 else None
        return self.b.emit(LoadOp(self.b.emit(AddPtrOp(base, index)), mask, other))

    def reduce(self, pool: Pool) -> Value:
        x = self.pick(
            pool, typed(self.rng.choice(SHAPES[1:]), self.rng.choice([int32, uint32, int1]))
        )
        e = elem_of(x.type)
        body = Block([e, e])
        inner = Builder(body)
        inner.insert(YieldOp([inner.emit(self.rng.choice([AddOp, MaxOp, XorOp])(*body.args))]))
        return self.b.emit(ReduceOp([x], axis=len(shape_of(x.type)) - 1, regions=[body]))

    def dot(self, pool: Pool) -> Value:
        t = TileType((N, N), int32)
        product = self.b.emit(DotOp(self.pick(pool, t), self.pick(pool, t), self.const(t)))
        return (
            self.b.emit(AddOp(product, self.pick(pool, t))) if self.rng.random() < 0.7 else product
        )

    def store(self, v: Value, pool: Pool) -> None:
        """Write a value to a row of its own."""
        e = elem_of(v.type)
        if self.rows == ROWS or isinstance(e, pointer_type):
            return
        b, shape = self.b, shape_of(v.type)
        if e is not int32 and e is not float32:
            v = b.emit(CastOp(v, results=[typed(shape, int32)]))
        start = b.emit(ConstOp(value=self.rows * N * N, results=[int32]))
        pointer = b.emit(AddPtrOp(self.floats if e is float32 else self.ints, start))
        self.rows += 1
        if shape:
            n = int(np.prod(shape))
            index = b.emit(
                ReshapeOp(b.emit(ArangeOp(start=0, end=n)), results=[TileType(shape, int32)])
            )
            pointer = b.emit(
                AddPtrOp(b.emit(SplatOp(pointer, results=[TileType(shape, pointer.type)])), index)
            )
        mask = self.pick(pool, typed(shape, int1)) if self.rng.random() < 0.3 else None
        b.insert(StoreOp(pointer, v, mask))

    # --- control flow ---------------------------------------------------------------------------------------
    def inside(self, block: Block, pool: Pool, depth: int, types: list[Any], carried: Pool) -> None:
        """Fill a block: more ops, and a yield of values of `types`; some carried ones are passed on unchanged."""
        with self.b.at(block):
            inner = [*pool, *block.args]
            self.ops(inner, 6, depth)
            out: Pool = []
            for i, t in enumerate(types):
                keep = carried and self.rng.random() < 0.3
                out.append(carried[i] if keep else self.pick(inner, t))
            self.b.insert(YieldOp(out))

    def branch(self, pool: Pool, depth: int) -> None:
        types = [self.pick(pool).type for _ in range(self.rng.randrange(3))]
        condition = self.pick(pool, int1)
        op = IfOp(condition, results=types)
        for block in op.regions:
            self.inside(block, pool, depth, types, [])
        pool += self.b.insert(op).results

    def bound(self, pool: Pool, *numbers: int) -> Value:
        return self.b.emit(ConstOp(value=self.rng.choice(numbers), results=[int32]))

    def loop(self, pool: Pool, depth: int) -> None:
        lb, ub, step = self.bound(pool, 0, 1), self.bound(pool, 0, 1, 2, 3), self.bound(pool, 1, 2)
        if self.rng.random() < 0.5:  # a number of trips that no pass can know
            ub = self.b.emit(AndOp(self.func.body.args[3], self.bound(pool, 3)))
        inits = [self.pick(pool) for _ in range(self.rng.randrange(4))]
        body = Block([int32, *(v.type for v in inits)])
        op = ForOp(lb, ub, step, inits, regions=[body])
        with self.b.at(body):
            first = self.b.emit(CmpOp(body.args[0], lb, predicate=self.rng.choice(["eq", "ne"])))
        self.inside(body, [*pool, first], depth, [v.type for v in inits], body.args[1:])
        pool += self.b.insert(op).results

    def countdown(self, pool: Pool, depth: int) -> None:
        """while n > 0: n = n - 1, with values carried along."""
        n = self.b.emit(AndOp(self.func.body.args[4], self.bound(pool, 3)))
        inits = [n, *(self.pick(pool) for _ in range(self.rng.randrange(3)))]
        types = [v.type for v in inits]
        before, after = Block(types), Block(types)
        op = WhileOp(inits, regions=[before, after])
        with self.b.at(before):
            zero = self.b.emit(ConstOp(value=0, results=[int32]))
            more = self.b.emit(CmpOp(before.args[0], zero, predicate="gt"))
            self.b.insert(ConditionOp(more, before.args))
        with self.b.at(after):
            one = self.b.emit(ConstOp(value=1, results=[int32]))
            inner = [*pool, *after.args[1:]]
            self.ops(inner, 4, depth)
            rest = [self.rng.choice([a, self.pick(inner, a.type)]) for a in after.args[1:]]
            self.b.insert(YieldOp([self.b.emit(SubOp(after.args[0], one)), *rest]))
        pool += self.b.insert(op).results[1:]


def outputs(module: Module, a: int, b: int) -> tuple[np.ndarray, np.ndarray]:
    source = np.array([7, -3, 0, 2**31 - 1], np.int32)
    ints, floats = np.full(ROWS * N * N, -77, np.int32), np.full(ROWS * N * N, -77, np.float32)
    run(module, (1,), [source, ints, floats, a, b])
    return ints, floats


PIPELINES = {
    name: [PASSES[name]]
    for name in ("canonicalize", "cse", "licm", "known-comparisons", "narrow-division")
} | {
    "neutral": neutral_pipeline(),
    "peeled": [peel_first, *neutral_pipeline()],
}


@settings(
    max_examples=100,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(rng=st.randoms(use_true_random=False), a=st.integers(-5, 5), b=st.integers(-5, 5))
def test_random_kernels(rng: Random, a: int, b: int) -> None:
    module = Generator(rng).module
    text = print_module(module)
    assert print_module(parse_module(text)) == text
    want = outputs(module, a, b)
    for name, passes in PIPELINES.items():
        changed = PassManager(passes, verify=True).run(module.clone())
        for x, y in zip(want, outputs(changed, a, b), strict=True):
            assert np.array_equal(x, y, equal_nan=x.dtype == np.float32), (
                f"{name} changed the meaning of\n{text}"
            )
