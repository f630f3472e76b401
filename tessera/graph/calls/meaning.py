"""Runs single ops of a graph by their meaning, on the arrays of any host: what no kernel is made for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tessera.dtypes import int64
from tessera.graph.calls.host import Host
from tessera.graph.index import Sym
from tessera.graph.ir.interp import interpret
from tessera.graph.ir.types import TensorType
from tessera.graph.passes.facts import captured
from tessera.graph.planning.plan import number
from tessera.interp.numerics import from_storage, to_storage
from tessera.ir import Block, Op, Value
from tessera.ops import FuncOp, ReturnOp


def function_for(op: Op, symbols: Sequence[str]) -> FuncOp:
    """A graph function of one op, whose arguments are what the op needs, and then the sizes."""
    given = captured(op)
    body = Block([*(v.type for v in given), *[int64] * len(symbols)])
    facts = [()] * len(given) + [(("symbol", s),) for s in symbols]
    inner = op.clone(dict(zip(given, body.args, strict=False)))
    body.append(inner)
    body.append(ReturnOp(inner.results))
    returns = tuple(r.type for r in op.results)
    return FuncOp(name="meaning", returns=returns, arg_attrs=tuple(facts), regions=[body])


class Meaning:
    """One op as a function of a host's arrays."""

    def __init__(self, op: Op, symbols: Sequence[str], host: Host):
        self.function, self.host = function_for(op, symbols), host
        self.symbols = list(symbols)

    def __call__(self, arrays: Sequence[Any], symbols: Mapping[str, int]) -> list[Any]:
        formals = self.function.body.args
        given = [self._value(x, v) for x, v in zip(arrays, formals, strict=False)]
        found = interpret(self.function, [*given, *(symbols[s] for s in self.symbols)])
        sizes = {Sym(name): n for name, n in symbols.items()}
        return [
            self._array(x, v.type, sizes)
            for x, v in zip(found, self.function.body.terminator.operands, strict=True)
        ]

    def _value(self, x: Any, v: Value) -> Any:
        if not isinstance(v.type, TensorType):
            return x
        return from_storage(self.host.to_numpy(x, v.type.elem), v.type.elem)

    def _array(self, x: Any, t: TensorType, sizes: Mapping[Sym, int]) -> Any:
        shape = tuple(number(n, sizes) for n in t.shape)
        strides = tuple(number(n, sizes) for n in t.all_strides)
        made = self.host.strided(shape, strides, self.host.kind(t.elem))
        self.host.fill(made, np.asarray(to_storage(x, t.elem)), t.elem)
        return made
