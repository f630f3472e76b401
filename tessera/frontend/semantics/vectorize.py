"""Applies a function of scalars to every element of tiles at once, for `map_elementwise`.

Each scalar op becomes the same op on tiles. Control flow becomes data flow under a mask of the elements for which the
code runs:

    if c: x = f(a)          both sides run, each under its part of the mask; x = select(c, f(a), x)
    while p(x): x = f(x)    runs while p holds for any element; those that are done keep their x

Loads, stores and atomics get the mask as their own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from tessera.dtypes import int1
from tessera.errors import UnsupportedLanguageConstruct
from tessera.ir import Block, Op, TileType, Value
from tessera.ir.types import ElementType
from tessera.ops import (
    AddOp,
    AndOp,
    AssertOp,
    AtomicRmwOp,
    CmpOp,
    ConditionOp,
    ConstOp,
    Elementwise,
    ForOp,
    IfOp,
    LoadOp,
    OrOp,
    ReduceOp,
    ReshapeOp,
    SelectOp,
    SplatOp,
    StoreOp,
    WhileOp,
    XorOp,
    YieldOp,
)  # fmt: skip

if TYPE_CHECKING:
    from tessera.frontend.frontend import FrontEnd

Mask = Value | None


class Vectorizer:
    """Turns blocks of scalar ops into ops on tiles of shape `dims`, at the front end's insertion point."""

    def __init__(self, fe: FrontEnd, dims: tuple[int, ...]):
        self.fe = fe
        self.dims = dims
        self.values: dict[Value, Value] = {}

    def run(self, block: Block, args: Sequence[Value], mask: Mask = None) -> list[Value]:
        """Emit the block's ops on tiles, with `args` for its arguments. Return its terminator's operands as tiles."""
        self.values.update(zip(block.args, args, strict=True))
        for op in block:
            if op.terminator:
                return [self._get(v) for v in op.operands]
            self._op(op, mask)
        raise AssertionError("block without terminator")

    # --- values -----------------------------------------------------------------------------------------------
    def _emit(self, op: Op) -> Value:
        return self.fe.builder.emit(op)

    def _get(self, v: Value) -> Value:
        found = self.values.get(v)
        if found is None:  # from outside: the same for all elements
            found = self.values[v] = self._spread(v)
        return found

    def _tile(self, e: ElementType) -> TileType:
        return TileType(self.dims, e)

    def _spread(self, v: Value) -> Value:
        return self._emit(SplatOp(v, results=(self._tile(v.type),)))

    def _and(self, a: Mask, b: Value) -> Value:
        return b if a is None else self._emit(AndOp(a, b))

    def _not(self, a: Value) -> Value:
        true = self._emit(ConstOp(value=True, results=(a.type,)))
        return self._emit(XorOp(a, true))

    def _choose(self, c: Value, a: Sequence[Value], b: Sequence[Value]) -> list[Value]:
        return [x if x is y else self._emit(SelectOp(c, x, y)) for x, y in zip(a, b, strict=True)]

    def _any(self, c: Value) -> Value:
        """Return whether a mask is true for any element."""
        n = 1
        for s in self.dims:
            n *= s
        flat = (
            c if len(self.dims) == 1 else self._emit(ReshapeOp(c, results=(TileType((n,), int1),)))
        )
        block = Block([int1, int1])
        with self.fe.builder.at(block):
            self.fe.builder.insert(YieldOp([self._emit(OrOp(*block.args))]))
        return self.fe.builder.insert(ReduceOp([flat], axis=0, regions=[block])).results[0]

    # --- ops ----------------------------------------------------------------------------------------------------
    def _op(self, op: Op, mask: Mask) -> None:
        handler = _HANDLERS.get(type(op))
        if handler is not None:
            handler(self, op, mask)
        elif isinstance(op, Elementwise):
            self._clone(op)
        elif not op.operands and not op.regions and len(op.results) == 1:  # program_id and such
            self.values[op.result] = self._spread(self._emit(op.clone({})))
        else:
            tile = any(isinstance(r.type, TileType) for r in op.results)
            raise UnsupportedLanguageConstruct(
                what=f"{'a tile' if tile else op.opcode} in a function for map_elementwise",
                loc=op.loc,
                help="it computes with scalars only: load before, store afterwards, give tiles as arguments",
            )

    def _clone(self, op: Op) -> None:
        new = op.clone({v: self._get(v) for v in op.operands})
        for old, r in zip(op.results, new.results, strict=True):
            r.type = self._tile(old.type)
            self.values[old] = r
        self.fe.builder.insert(new)

    def _load(self, op: LoadOp, mask: Mask) -> None:
        limit = mask if op.mask is None else self._and(mask, self._get(op.mask))
        other = None if op.other is None else self._get(op.other)
        how = {k: op.attrs[k] for k in ("cache", "eviction", "volatile") if k in op.attrs}
        self.values[op.result] = self._emit(LoadOp(self._get(op.ptr), limit, other, **how))

    def _store(self, op: StoreOp, mask: Mask) -> None:
        limit = mask if op.mask is None else self._and(mask, self._get(op.mask))
        self.fe.builder.insert(StoreOp(self._get(op.ptr), self._get(op.value), limit))

    def _atomic(self, op: AtomicRmwOp, mask: Mask) -> None:
        limit = mask if op.mask is None else self._and(mask, self._get(op.mask))
        new = AtomicRmwOp(
            self._get(op.ptr), self._get(op.value), limit, kind=op.kind, sem=op.sem, scope=op.scope
        )
        self.values[op.result] = self._emit(new)

    def _assert(self, op: AssertOp, mask: Mask) -> None:
        c = self._get(op.condition)
        if mask is not None:
            c = self._emit(OrOp(c, self._not(mask)))
        self.fe.builder.insert(AssertOp(c, message=op.message))

    def _if(self, op: IfOp, mask: Mask) -> None:
        c = self._get(op.condition)
        then = self.run(op.then, [], self._and(mask, c))
        orelse = self.run(op.orelse, [], self._and(mask, self._not(c)))
        self.values.update(zip(op.results, self._choose(c, then, orelse), strict=True))

    def _for(self, op: ForOp, mask: Mask) -> None:
        """Emit a while over the counter, which is a tile like other values."""
        lb, ub, step = (self._get(v) for v in (op.lb, op.ub, op.step))
        made = op.step.op
        down = isinstance(made, ConstOp) and made.value < 0

        def test(state: Sequence[Value]) -> tuple[Value, list[Value]]:
            more = self._emit(CmpOp(state[0], ub, predicate="gt" if down else "lt"))
            return more, list(state)

        def body(state: Sequence[Value], live: Value) -> list[Value]:
            return [self._emit(AddOp(state[0], step)), *self.run(op.body, list(state), live)]

        inits = [lb, *(self._get(v) for v in op.inits)]
        results = self._loop(inits, mask, test, body)
        self.values.update(zip(op.results, results[1:], strict=True))

    def _while(self, op: WhileOp, mask: Mask) -> None:
        def test(state: Sequence[Value]) -> tuple[Value, list[Value]]:
            condition, *values = self.run(op.before, list(state), mask)
            return condition, values

        def body(state: Sequence[Value], live: Value) -> list[Value]:
            return self.run(op.after, list(state), live)

        results = self._loop([self._get(v) for v in op.inits], mask, test, body)
        self.values.update(zip(op.results, results, strict=True))

    def _loop(
        self,
        inits: list[Value],
        mask: Mask,
        test: Callable[[Sequence[Value]], tuple[Value, list[Value]]],
        body: Callable[[Sequence[Value], Value], list[Value]],
    ) -> list[Value]:
        """Run `body` while `test` is true for any element; the first carried value marks these elements."""
        builder = self.fe.builder
        live = mask
        if live is None:
            live = self._emit(ConstOp(value=True, results=(self._tile(int1),)))
        types = [v.type for v in (live, *inits)]
        before, after = Block(types), Block(types)
        with builder.at(before):
            was, *state = before.args
            condition, values = test(state)
            now = self._and(was, condition)
            kept = self._choose(was, values, state)
            builder.insert(ConditionOp(self._any(now), [now, *kept]))
        with builder.at(after):
            now, *state = after.args
            new = self._choose(now, body(state, now), state)
            builder.insert(YieldOp([now, *new]))
        loop = WhileOp([live, *inits], regions=[before, after])
        return list(builder.insert(loop).results)[1:]


_HANDLERS: dict[type[Op], Callable[[Vectorizer, Any, Mask], None]] = {
    LoadOp: Vectorizer._load,  # pyright: ignore[reportPrivateUsage]
    StoreOp: Vectorizer._store,  # pyright: ignore[reportPrivateUsage]
    AtomicRmwOp: Vectorizer._atomic,  # pyright: ignore[reportPrivateUsage]
    AssertOp: Vectorizer._assert,  # pyright: ignore[reportPrivateUsage]
    IfOp: Vectorizer._if,  # pyright: ignore[reportPrivateUsage]
    ForOp: Vectorizer._for,  # pyright: ignore[reportPrivateUsage]
    WhileOp: Vectorizer._while,  # pyright: ignore[reportPrivateUsage]
}
